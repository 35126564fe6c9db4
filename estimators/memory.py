"""Composes what engine, host and runtime say into one ``Estimate``; the only place where a verdict is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from estimators.activations.network import Network
from estimators.cluster import Cluster, parse_cluster
from estimators.errors import AdvisorError, IllegalCombination
from estimators.held import Held, Shared
from estimators.model import resolve_model
from estimators.model.methods import trained, wide_adapters
from estimators.model.positions import default_length, learned_positions
from estimators.model.spec import ModelSpec
from estimators.result import Instant, Interval, Pending, Term, merged
from estimators.run import Run
from estimators.runtime import Overhead, overheads, reserve
from estimators.stacks import settle
from estimators.strategy import DEFAULT_NAMES, OTHER_NAMES, Strategy, parse_strategy
from estimators.values import cached_property, dataclass
from estimators.workload import Workload, apart, sized, unsized

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure

    from estimators.time import StepTime, Unknown

VERDICTS = ("fits", "tight", "unknown", "no")


@dataclass(frozen=True)
class GpuBytes:
    """Memory of the GPU that needs most, in bytes: tensors, the allocator's reserve, the process as nvidia-smi sees it (R.4)."""

    allocated: Interval
    reserved: Interval
    process: Interval
    capacity: int
    runtime: tuple[Overhead, ...]

    @property
    def low(self) -> float:
        return self.allocated.low

    @property
    def expected(self) -> float:
        return self.allocated.expected

    @property
    def high(self) -> float:
        return self.allocated.high


@dataclass(frozen=True, eq=False)
class Estimate:
    """What one strategy needs, instant by instant. ``estimate[name]`` is an instant; the peak is the largest one.

    Everything is computed from ``run`` when it is first read; nothing changes afterwards.
    """

    run: Run

    @cached_property
    def _found(self) -> list[tuple[str, int, Held]]:
        """Every instant's name, with the bytes on the GPU of its largest moment and the moment."""
        return self._shared.moments(self.run)

    @cached_property
    def instants(self) -> tuple[Instant, ...]:
        """Every instant at its largest moment: what the engine holds there, and what the network holds there."""
        peak = self.peak
        return tuple(peak if found[0] == peak.name else self._instant(*found) for found in self._found)

    def _instant(self, name: str, size: int, held: Held) -> Instant:
        return Pending(name, size, held.elsewhere, partial(self._terms, held))

    def _terms(self, held: Held) -> tuple[Term, ...]:
        """Terms of the engine, of the network at its place, and what stands beside both."""
        network = self.network.terms(held.site) if self.network is not None else ()
        return merged((*held.terms, *network, *held.beside))

    @cached_property
    def _shared(self) -> Shared:
        return Shared.of(self.run)

    @cached_property
    def network(self) -> Network | None:
        """What the network holds, place by place; None where a block has no ledger (``not_counted`` says so)."""
        return Network.of(self.run) if self._shared.question is not None else None

    @property
    def not_counted(self) -> str:
        """What the terms leave out, in words; empty when they are complete."""
        return self._shared.reason

    def __getitem__(self, name: str) -> Instant:
        for instant in self.instants:
            if instant.name == name:
                return instant
        raise KeyError(f"{name}: no such instant; this estimate has {', '.join(i.name for i in self.instants)}")

    @property
    def strategy(self) -> str:
        return self.run.strategy.name

    @cached_property
    def peak(self) -> Instant:
        """The instant that needs most of the GPU between load and step, formula P.1 (``save`` stands apart: see ``save_bytes``)."""
        return self._instant(*max([found for found in self._found if found[0] != "save"], key=_bytes_of))

    @cached_property
    def gpu(self) -> GpuBytes:
        allocated = Interval.exact(self.peak.gpu_bytes)
        reserved, runtime = reserve(self.run, allocated), overheads(self.run)
        low, expected, high = reserved.low, reserved.expected, reserved.high
        for overhead in runtime:
            low, expected, high = low + overhead.low, expected + overhead.expected, high + overhead.high
        capacity = self.run.cluster.gpu.memory_bytes
        return GpuBytes(allocated, reserved, Interval(low, expected, high), capacity, runtime)

    @cached_property
    def host(self) -> Interval:
        """Host RAM of one node at the instant that needs most, in bytes."""
        return Interval.exact(max([held.host for _, _, held in self._found]))

    @cached_property
    def nvme_bytes(self) -> int:
        """NVMe of one node, in bytes."""
        return max(i.total("nvme") for i in self.instants)

    @cached_property
    def verdict(self) -> str:
        """``no``, ``unknown``, ``tight`` or ``fits``, in the order of formula R.5; ``reason`` says why."""
        return self._judged[0]

    @cached_property
    def reason(self) -> str:
        return self._judged[1]

    @cached_property
    def _judged(self) -> tuple[str, str]:
        gpu, cluster = self.gpu, self.run.cluster
        outside = sum([o.expected for o in gpu.runtime])
        needed = max(gpu.allocated.expected, self._save_bytes) + outside
        if needed > gpu.capacity:
            return "no", f"the GPU at {self.peak.name}"
        if cluster.host_bytes is not None and self.host.expected > cluster.host_bytes:
            return "no", "host RAM"
        if cluster.nvme_bytes is not None and self.nvme_bytes > cluster.nvme_bytes:
            return "no", "NVMe"
        if self.not_counted:
            return "unknown", f"activations are not counted: {self.not_counted}"
        host_tight = cluster.host_bytes is not None and self.host.high > cluster.host_bytes
        if gpu.process.high > gpu.capacity or host_tight:
            return "tight", "host RAM" if host_tight else f"the GPU at {self.peak.name}"
        return "fits", ""

    @cached_property
    def _save_bytes(self) -> int:
        return max([size for name, size, _ in self._found if name == "save"], default=0)

    @cached_property
    def time(self) -> StepTime | Unknown:
        """Seconds of an optimizer step, tokens a second, what binds; ``Unknown`` names the figure that is missing."""
        from estimators.time import step_time

        return step_time(self.run, filled=self.gpu.allocated.expected / self.gpu.capacity)

    def plot(self, kind: str = "memory") -> Figure:
        """A picture: ``memory`` by instant, or the ``clock`` of one step. Raises ``MissingDependency``."""
        figure: Figure = _shown("selector.plots").of_estimate(self, kind)
        return figure

    def _repr_html_(self) -> str:
        return str(_shown("selector.report.estimate_page").html(self))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: assumed values, versions, what is not counted."""
        notes = [*self.run.cluster.notes, *self.run.settings.notes]
        if self.run.cluster.measured is not None:
            notes.append(self.run.cluster.measured.note)
        if self.run.cluster.host_bytes is None and self.host.expected:
            notes.append("host RAM is not judged: give --host-memory")
        longest, asked = learned_positions(self.run.model), self.run.workload.seq_len
        if longest is not None and asked > longest:
            notes.append(f"{self.run.model.name} has {longest:,} positions: {asked:,} tokens a sequence end in an "
                         f"IndexError; give --seq-len {longest}")  # fmt: skip
        if self.run.workload.has_adapters and (note := wide_adapters(self.run.model, self.run.workload.lora_rank)):
            notes.append(note)
        if self.not_counted:
            notes.append(f"activations are not counted: {self.not_counted}")
        return tuple(dict.fromkeys(notes))


def _bytes_of(found: tuple[str, int, Held]) -> int:
    return found[1]


def _shown(module: str) -> Any:
    """What shows a result, by name and only when asked: nothing here depends on it."""
    from importlib import import_module

    return import_module(module)


@lru_cache(maxsize=4096)
def _kind(model: ModelSpec, cluster: Cluster, strategy: Strategy, plain: Workload, device: str) -> Run:
    """The run at the plain sizes; those at all others share what was worked out for it."""
    settings = settle(model, cluster, plain, strategy, device)
    return Run(trained(model, plain, settings), cluster, plain, strategy, settings)


def resolve(
    model: object, cluster: str | Cluster, strategy: str | Strategy, device: str = "cuda", **fields: Any
) -> Run:
    """Everything a caller passes, resolved once. Raises the errors of ``estimators.errors``."""
    spec = resolve_model(model)
    where = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    how = parse_strategy(strategy) if isinstance(strategy, str) else strategy
    if "workload" in fields:
        asked = fields["workload"]
        plain = unsized(asked)
    else:
        length = default_length(spec, fields)
        plain, sizes = apart({**fields, "seq_len": length} if length else fields)
        asked = sized(plain, sizes)
    check_ranks(how, where)
    return _kind(spec, where, how, plain, device).sized(asked)


def check_ranks(strategy: Strategy, cluster: Cluster) -> None:
    """Raise ``IllegalCombination`` where a strategy does not go with a number of ranks."""
    if strategy.base == "single" and cluster.ranks > 1:
        raise IllegalCombination(
            f"single is one GPU, the cluster has {cluster.ranks}; use ddp or give 1x{cluster.gpu.name}"
        )
    for knob in ("shard", "hpz", "mics"):
        size = strategy.options.get(knob)
        if isinstance(size, int) and size > 1 and cluster.ranks % size:
            raise IllegalCombination(f"{strategy.name}: {knob}={size} does not divide the {cluster.ranks} ranks")


def estimate(
    model: str | os.PathLike[str] | Mapping[str, Any] | ModelSpec | Any,
    cluster: str | Cluster,
    strategy: str | Strategy,
    *,
    device: str = "cuda",
    **workload_fields: Any,
) -> Estimate:
    """What ``strategy`` needs for this model on this cluster.

    ``model``: a catalogue name or alias, a folder or ``config.json``, a Hugging Face id, a config dictionary, a live
    ``torch.nn.Module`` or a ``ModelSpec``. ``cluster``: ``"4xA10"`` or a ``Cluster``. ``strategy``: a name, alias or full
    spelling. ``workload_fields``: the fields of ``estimators.workload.Workload``.

    >>> estimate("llama-8b", "8xH100", "zero3").peak.name  # doctest: +SKIP
    'step'
    """
    return Estimate(resolve(model, cluster, strategy, device, **workload_fields))


def default_strategies(cluster: Cluster, everything: bool = False) -> tuple[str, ...]:
    """The names that are answered when nobody names a strategy; ``everything`` adds the rest of what is legal."""
    if cluster.ranks == 1 and not everything:
        return ("single",)
    first = ("single", *DEFAULT_NAMES) if cluster.ranks == 1 else DEFAULT_NAMES
    return (*first, *OTHER_NAMES) if everything else first


def estimate_all(
    model: object,
    cluster: str | Cluster,
    strategies: Sequence[str | Strategy] | None = None,
    *,
    everything: bool = False,
    **workload_fields: Any,
) -> tuple[list[Estimate], dict[str, str]]:
    """Estimates of several strategies, and the reason for each that this workload or cluster rules out.

    Strategies that the caller named raise when they are illegal; of the default list they are left out with a reason.
    """
    spec = resolve_model(model)
    where = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    if strategies:
        return [estimate(spec, where, s, **workload_fields) for s in strategies], {}
    if "workload" not in workload_fields:  # a value that no workload has is no strategy's fault
        apart({name: value for name, value in workload_fields.items() if name != "device"})
    found, left_out = [], {}
    for name in default_strategies(where, everything):
        try:
            found.append(estimate(spec, where, name, **workload_fields))
        except AdvisorError as reason:
            left_out[name] = str(reason)
    return found, left_out
