"""What every ZeRO stage shares: element sizes, terms of states and of the host, and the arithmetic of moments."""

from __future__ import annotations

from collections.abc import Iterable

from estimators.devices import DEVICES
from estimators.model.spec import ModelSpec
from estimators.optimizers import BESIDE, MANAGED, state_bytes, tables_bytes
from estimators.result import Term
from estimators.run import Run
from estimators.sites import END, OUTSIDE, Site
from estimators.units import power_of_two
from estimators.values import dataclass
from estimators.workload import DTYPE_BYTES

Terms = tuple[Term, ...]
Moments = dict[str, list[tuple[Site, Terms]]]  # instant -> what may be its largest moment, and where it stands
ENTERING_HEAD = Site("loss", END, 0, "entering")
HEAD = Site("loss", END, 0, "before")
LOSS = Site("loss", END, 0, "during")

PINNED_MINIMUM = 512  # bytes: a smaller page-locked block still takes this much


def plus(*parts: Term | Terms) -> Terms:
    """Terms side by side, those of no size dropped."""
    found: list[Term] = []
    for part in parts:
        for term in (part,) if isinstance(part, Term) else part:
            if term.bytes:
                found.append(term)
    return tuple(found)


def outside(candidates: Iterable[Terms], site: Site = OUTSIDE) -> list[tuple[Site, Terms]]:
    """Moments at which nothing of the network is alive; ``IN_LOOP``: but a micro-batch."""
    return [(site, terms) for terms in candidates]


def forward_ends(model: ModelSpec) -> list[Site]:
    """The last block of every run: what is saved only grows."""
    return [Site("forward", number, part.count - 1, "during") for number, part in enumerate(model.blocks)]


def growing(model: ModelSpec, before: Terms, whole: Term, held_before: bool) -> list[tuple[Site, Terms]]:
    """Whole gradients pile up from the head to the first block, or stand there from earlier micro-steps."""
    if held_before:
        return [(Site("backward", END, 0, "during", "fresh"), before)]
    found, done = [(Site("backward", END, 0, "during", "made"), before)], 0
    shared = set(model.tied.values())  # the head's part of their gradient waits in autograd for the embedding's
    waiting = sum(p.numel for part in model.parts for p in part.parameters if p.trainable and p.name in shared)
    element = whole.bytes // max(model.num_trainable, 1)
    number = len(model.blocks)
    for part in reversed(model.in_turn):
        one = sum(p.numel for p in part.parameters if p.trainable)
        number -= part.is_block
        for index in sorted({part.count - 1, 0}, reverse=True) if part.is_block else ():
            behind = done + waiting + one * (part.count - 1 - index)
            term = Term(whole.name, whole.category, behind * element, f"{behind:,} elements x {element} B, made so far")
            found.append((Site("backward", number, index, "during", "made"), plus(before, term)))
        done += one * part.count
        waiting -= sum(p.numel for p in part.parameters if p.trainable and p.name in shared)
    return found


def total(terms: Iterable[Term], place: str = "gpu") -> int:
    return sum(t.bytes for t in terms if t.place == place)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of an element in each role."""

    compute: str  # name of the dtype that the engine trains in
    element: int  # parameters that train, and their gradients
    master: int
    accumulated: int  # gradients where they accumulate (data_types.grad_accum_dtype)

    @classmethod
    def of(cls, run: Run) -> Sizes:
        settings = run.settings
        accumulate = str(settings.knobs.get("grad_accum_dtype") or settings.param_dtype)
        return cls(
            settings.param_dtype,
            DTYPE_BYTES[settings.param_dtype],
            DTYPE_BYTES[settings.master_dtype or settings.param_dtype],
            DTYPE_BYTES[accumulate],
        )

    @property
    def accumulates_fp32(self) -> bool:
        return self.accumulated == 4 and self.element < 4

    def state_terms(self, run: Run, tensors: Iterable[int], whose: str, offloaded: bool | None = None) -> Terms:
        """Optimizer states of flat tensors of these many elements."""
        settings = run.settings
        name, impl, dtype = settings.optimizer, settings.optimizer_impl, settings.state_dtype
        tensors = tuple(tensors)
        beside = sum(state_bytes(name, n, dtype, impl, place=BESIDE) for n in tensors) + tables_bytes(name)
        managed = sum(state_bytes(name, n, dtype, impl, place=MANAGED) for n in tensors)
        formula = f"{name}: {sum(tensors):,} elements {whose}, states in {dtype}"
        on_host = bool(run.strategy.optimizer) if offloaded is None else offloaded
        if on_host:
            return (host_term(run, "optimizer states", "optimizer", beside + managed, formula, pinned=False),)
        paged = host_term(run, "paged optimizer states", "optimizer", managed, formula + ", managed memory", False)
        return (Term("optimizer states", "optimizer", beside, formula), paged)

    def fits_twice(self, run: Run, while_flattening: int, flat: int) -> bool:
        """DeepSpeed flattens on the GPU where the flat copy fits beside the parameters, else through the host."""
        if not DEVICES[run.settings.device].separate_host:
            return True
        return while_flattening <= run.cluster.gpu.memory_bytes


def host_term(
    run: Run, name: str, category: str, bytes_per_rank: int, formula: str, pinned: bool | None = None, blocks: int = 1
) -> Term:
    """Bytes in host RAM, per node; on a device without memory of its own they lie beside the rest, per rank.

    Page-locked blocks round up to powers of two (H.2; CachingHostAllocator); ``blocks`` equal blocks make up the bytes.
    """
    device = DEVICES[run.settings.device]
    if not device.separate_host:
        return Term(name, category, bytes_per_rank, formula)
    if pinned is None:
        pinned = bool(run.settings.knobs.get("pin_memory")) and device.pins_host
    if pinned and device.pinned_rounds_to_power_of_two and bytes_per_rank:
        bytes_per_rank = blocks * max(PINNED_MINIMUM, power_of_two(-(-bytes_per_rank // blocks)))
        formula += ", pinned: rounded to a power of two"
    ranks = run.cluster.gpus_per_node
    return Term(name, category, ranks * bytes_per_rank, f"{ranks} ranks of a node x ({formula})", "host")
