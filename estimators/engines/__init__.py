"""What each engine holds, one file an engine, in the order in which it happens.

An engine module has one public function, ``moments_of(run)``: for each instant (``load``, ``forward``, ``loss``,
``backward``, ``reduce``, ``step``, ``save``) the moments that can be its largest, each with the place in the step where
it is alive and its terms. It knows parameters, gradients, master weights, optimizer states and the engine's own buffers
and gathered units; activations, logits and the runtime come from elsewhere and are added at the same places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

from estimators.result import Term
from estimators.run import Run
from estimators.sites import Site

MODULES = {"torch": "ddp", "ddp": "ddp", "fsdp2": "fsdp2", "fsdp1": "fsdp1", "deepspeed": "zero"}
Moments = Mapping[str, Sequence[tuple[Site, tuple[Term, ...]]]]


def moments_of(run: Run) -> Moments:
    """Candidates of the run's engine for each instant."""
    found: Moments = import_module(f"estimators.engines.{MODULES[run.strategy.engine]}").moments_of(run)
    return found


def hold(run: Run) -> dict[str, tuple[Term, ...]]:
    """What the engine alone holds at the largest moment of each instant."""
    return {
        name: max((terms for _, terms in found), key=lambda terms: sum(t.bytes for t in terms if t.place == "gpu"))
        for name, found in moments_of(run).items()
        if found
    }
