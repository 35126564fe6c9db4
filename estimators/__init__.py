"""What a training run costs. Pure arithmetic over the standard library: importing this never imports torch."""

from __future__ import annotations

from estimators.cluster import Cluster, parse_cluster
from estimators.errors import (
    AdvisorError,
    IllegalCombination,
    InputError,
    MissingDependency,
    NotModelled,
    UnknownName,
)
from estimators.memory import Estimate, estimate, estimate_all
from estimators.model import resolve_model
from estimators.model.spec import ModelSpec
from estimators.result import Instant, Interval, Term
from estimators.strategy import Strategy, parse_strategy
from estimators.workload import Workload, workload

__all__ = [
    "AdvisorError",
    "Cluster",
    "Estimate",
    "IllegalCombination",
    "InputError",
    "Instant",
    "Interval",
    "MissingDependency",
    "ModelSpec",
    "NotModelled",
    "Strategy",
    "Term",
    "UnknownName",
    "Workload",
    "estimate",
    "estimate_all",
    "parse_cluster",
    "parse_strategy",
    "resolve_model",
    "workload",
]
