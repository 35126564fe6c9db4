"""What each engine holds, one file an engine, in the order in which it happens.

An engine module has one public function, ``moments_of(run)``: for each instant (``load``, ``forward``, ``loss``,
``backward``, ``reduce``, ``step``, ``save``) the moments that can be its largest, each with the place in the step where
it is alive and its terms. It knows parameters, gradients, master weights, optimizer states and the engine's own buffers
and gathered units; activations, logits and the runtime come from elsewhere and are added at the same places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

from estimators.devices import DEVICES
from estimators.result import Term, sizes_of
from estimators.run import Run
from estimators.sites import OUTSIDE, Site
from estimators.workload import DTYPE_BYTES

MODULES = {"torch": "ddp", "ddp": "ddp", "fsdp2": "fsdp2", "fsdp1": "fsdp1", "deepspeed": "zero"}
Moments = Mapping[str, Sequence[tuple[Site, tuple[Term, ...]]]]


def moments_of(run: Run) -> Moments:
    """Candidates of the run's engine for each instant."""
    found: Moments = import_module(f"estimators.engines.{MODULES[run.strategy.engine]}").moments_of(run)
    return found


Candidate = tuple[Site, tuple[Term, ...], int, Mapping[str, int]]  # bytes on the GPU; at each place
Weighed = Mapping[str, Sequence[Candidate]]
_WEIGHED: dict[int, tuple[Moments, Weighed]] = {}
MOST_WEIGHED = 4096


def weighed(run: Run) -> Weighed:
    """The candidates with their bytes on the GPU; of those at one place only the largest. Cached beside the moments."""
    found = moments_of(run)
    kept = _WEIGHED.get(id(found))
    if kept is None or kept[0] is not found:
        if len(_WEIGHED) >= MOST_WEIGHED:
            _WEIGHED.clear()
        load = (*found["load"], *construction(run))
        kept = _WEIGHED[id(found)] = (found, {n: _heaviest(load if n == "load" else some) for n, some in found.items()})
    return kept[1]


ADDED = (".lora_", ".modules_to_save.")  # in names of what peft adds to a model that is built


def construction(run: Run) -> Sequence[tuple[Site, tuple[Term, ...]]]:
    """A class with tied weights makes each, and drops all but one when it ties them (modeling_utils.py ``post_init``).

    That is the head's; of T5 and BART also the tables of encoder and decoder.

    On a host of its own that is the host's; under ``zero.Init`` parameters are cut as they are made.
    """
    model, settings = run.model, run.settings
    if (
        f"{model.head}.weight" not in model.tied
        or DEVICES[settings.device].builds_apart
        or settings.knobs.get("zero_init")
        or run.workload.method == "qlora"
    ):
        return ()
    sizes = {f"{part.prefix}{p.name}": p.numel for part in model.roots for p in part.parameters}
    adapters = run.workload.has_adapters  # which come after it
    element = DTYPE_BYTES[settings.frozen_dtype if adapters else settings.load_dtype]
    elements = sum(
        p.numel * part.count for part in model.parts for p in part.parameters if not any(a in p.name for a in ADDED)
    )
    untied = sum(sizes.get(name, 0) for name in model.tied.values()) * element
    built = Term("model as it was built", "params", elements * element, f"all parameters x {element} B")
    dropped = Term(
        "weights before they are tied", "temporaries", untied, "of each tied name as large as what it becomes"
    )
    return ((OUTSIDE, (built, dropped)),)


def _heaviest(candidates: Sequence[tuple[Site, tuple[Term, ...]]]) -> Sequence[Candidate]:
    best: dict[Site, Candidate] = {}
    for site, terms in candidates:
        sizes = sizes_of(terms)
        size = sizes.get("gpu", 0)
        if site not in best or size > best[site][2]:
            best[site] = (site, terms, size, sizes)
    return tuple(best.values())


def hold(run: Run) -> dict[str, tuple[Term, ...]]:
    """What the engine alone holds at the largest moment of each instant."""
    return {
        name: max((terms for _, terms in found), key=lambda terms: sum(t.bytes for t in terms if t.place == "gpu"))
        for name, found in moments_of(run).items()
        if found
    }
