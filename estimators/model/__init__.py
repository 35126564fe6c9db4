"""The network as repeated blocks: specs, families, the catalogue of names, and what turns any of them into a spec."""

from __future__ import annotations

from estimators.model.catalogue import models
from estimators.model.resolve import resolve_model
from estimators.model.spec import Buffer, ModelSpec, Parameter, Part

__all__ = ["Buffer", "ModelSpec", "Parameter", "Part", "models", "resolve_model"]
