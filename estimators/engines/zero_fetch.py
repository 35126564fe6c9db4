"""Which parameters ZeRO-3 has gathered at each moment of a micro-step.

A replay of partitioned_param_coordinator.py (``fetch_sub_module``, ``release_sub_module``,
``__params_to_release``) and of the gradient bucket of stage3.py over the modules of a model, in elements. It does not
depend on the number of ranks and runs once per model and setting.

The third micro-step and later ones are replayed: the trace of modules is complete, so the coordinator prefetches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from estimators.engines.zero_layout import execution_order
from estimators.model.spec import ModelSpec

# Containers without a forward of their own.
_NOT_CALLED = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector")
_FETCH, _RELEASE, _GRADIENT, _HALF = "fetch", "release", "gradient", "first half of a tied gradient"
NO_REUSE = 1 << 62


@dataclass(frozen=True, eq=False)
class Modules:
    """A model as the coordinator sees it: parameters by number, and modules in the order in which they are called."""

    numels: tuple[int, ...]
    trains: tuple[bool, ...]
    calls: tuple[tuple[str, str, tuple[int, ...]], ...]  # (fetch | release | gradient, forward | backward, parameters)
    persistent_order: tuple[int, ...]  # named_parameters


@dataclass(frozen=True, slots=True)
class Setting:
    """Stage-3 knobs that decide what is gathered, and whether blocks are recomputed."""

    prefetch: int
    max_live: int
    max_reuse: int
    threshold: int
    model_threshold: int
    bucket: int
    contiguous: bool
    recompute: bool


@dataclass(frozen=True, slots=True)
class Live:
    """One moment: elements gathered, elements in flat all-gather outputs beside them, gradients, the bucket reduced."""

    gathered: int = 0
    flats: int = 0
    gradients: int = 0
    reduced: int = 0  # elements of the bucket that is being reduced
    copied: int = 0  # of those, elements concatenated for the reduce-scatter
    largest: int = 0  # largest parameter among them

    @property
    def size(self) -> int:
        return self.gathered + self.flats + self.gradients + self.copied


@dataclass(frozen=True, slots=True)
class Fetched:
    """Moments of a micro-step."""

    persistent: tuple[int, ...]  # elements of each parameter that stays gathered
    forward: Live
    loss: Live  # after the last module of forward
    backward: Live
    reduce: Live


# -- the modules -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=128)
def modules(model: ModelSpec, recompute: bool) -> Modules:
    """Calls of one forward and backward. ``recompute``: blocks run forward again inside backward."""
    numels: list[int] = []
    trains: list[bool] = []
    leaves: list[tuple[str, tuple[int, ...], str]] = []  # module path, its parameters, the block that it stands in
    by_name: dict[str, int] = {}
    for part in model.parts:
        order = execution_order(part)
        for index in range(part.count):
            base, names = len(numels), list(part.names(index))
            numels.extend(p.numel for p in part.parameters)
            trains.extend(p.trainable for p in part.parameters)
            by_name.update((n, base + i) for i, n in enumerate(names) if not part.is_block)
            block = part.prefix.format(part.first + index) if part.is_block else ""
            leaves.extend(_leaves(names, [base + i for i in order], base, block))
            leaves.extend((b.name.rpartition(".")[0], (), "") for b in part.buffers if not part.is_block)
    leaves = _with_tied(model, leaves, by_name)
    tied = {by_name[target] for target in model.tied.values() if target in by_name}
    return Modules(tuple(numels), tuple(trains), tuple(_calls(leaves, trains, tied, recompute)), tuple(range(len(numels))))


def _leaves(names: list[str], order: list[int], base: int, block: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Modules that own parameters, in the order in which they run, and the silent ones that are called between."""
    path, owned = "", []
    for number in [*order, -1]:
        here = names[number - base].rpartition(".")[0] if number >= 0 else ""
        if here != path and owned:
            if path.endswith(".lora_A.default"):
                yield path.replace(".lora_A.", ".lora_dropout."), (), block
            yield path, tuple(sorted(owned)), block
            if path.endswith(".gate_proj"):
                yield path.removesuffix("gate_proj") + "act_fn", (), block
            owned = []
        path = here
        owned.append(number)


def _with_tied(
    model: ModelSpec, leaves: list[tuple[str, tuple[int, ...], str]], by_name: dict[str, int]
) -> list[tuple[str, tuple[int, ...], str]]:
    """A tied head is a module that fetches the embedding's parameter: it runs last."""
    tied = [(name.rpartition(".")[0], (by_name[to],), "") for name, to in model.tied.items() if to in by_name]
    return [*leaves, *tied]


def _containers(path: str) -> list[str]:
    """Modules around a module that have a forward: not lists (a number follows) and not adapters' dictionaries."""
    pieces = path.split(".")
    found = [""]
    for depth in range(1, len(pieces)):
        if not pieces[depth].isdigit() and pieces[depth - 1] not in _NOT_CALLED and pieces[depth - 1] != "lora_dropout":
            found.append(".".join(pieces[:depth]))
    return found


def _calls(
    leaves: list[tuple[str, tuple[int, ...], str]], trains: list[bool], tied: set[int], recompute: bool
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Forward in order, then backward in reverse; a recomputed block runs forward when its last module is reached."""
    yield from _forward(leaves, 0)
    first, open_, last_block = leaves[0][0], {"nothing"}, ""
    for path, owned, block in reversed(leaves):
        if (not owned and not block) or (path == first and not any(trains[i] for i in owned)):
            continue  # nothing that needs a gradient: the hook never fires
        around = _containers(path)
        for container in around:
            if container not in open_:
                yield _FETCH, "backward", ()
        open_ = set(around)
        yield _FETCH, "backward", owned
        if recompute and block and block != last_block:
            yield from _recomputed([leaf for leaf in leaves if leaf[2] == block], block)
        last_block = block
        halves = tied.intersection(owned) if path != first else set()
        yield _HALF if halves else _GRADIENT, "backward", tuple(reversed(owned))
        if path != first:
            yield _RELEASE, "backward", owned


def _forward(leaves: list[tuple[str, tuple[int, ...], str]], depth: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    open_: set[str] = set()
    for path, owned, _ in leaves:
        around = [c for c in _containers(path) if c.count(".") >= depth or not depth]
        for container in around:
            if container not in open_:
                yield _FETCH, "forward", ()
        open_ = set(around)
        yield _FETCH, "forward", owned
        yield _RELEASE, "forward", owned


def _recomputed(inside: list[tuple[str, tuple[int, ...], str]], block: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """The block itself is not called again, and recomputation stops inside its last module."""
    calls = list(_forward(inside, block.count(".") + 1))
    yield from calls[:-1] if calls else ()


# -- the replay ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def fetched(model: ModelSpec, setting: Setting) -> Fetched:
    """What is gathered, at the largest moment of each phase."""
    return _Coordinator(modules(model, setting.recompute), setting).run()


def persistent(net: Modules, setting: Setting) -> set[int]:
    """Parameters that stay whole on every rank (parameter_offload.py, ``mark_persistent_parameters``)."""
    total, kept = 0, set()
    for index in net.persistent_order:
        numel = net.numels[index]
        if numel + total <= setting.model_threshold and numel <= setting.threshold:
            kept.add(index)
            total += numel
    return kept


class _Coordinator:
    """State of one micro-step. Names follow the source."""

    def __init__(self, net: Modules, setting: Setting) -> None:
        self.net, self.setting = net, setting
        self.persist = persistent(net, setting)
        self.available = set(self.persist)
        self.inflight: dict[int, list[int]] = {}  # parameter -> its handle: [members left, flat elements, waited, *members]
        self.gathered = sum(net.numels[i] for i in self.persist)
        self.flats = self.num_available = self.step = 0
        self.steps = [owned for kind, _, owned in net.calls if kind == _FETCH]
        self.queue = [(i, step) for step, owned in enumerate(self.steps) for i in owned]
        self.at = 0
        self.passed = [0, *accumulate(sum(net.numels[i] for i in owned) for owned in self.steps)]
        self.uses: dict[int, list[int]] = {}
        for step, owned in enumerate(self.steps):
            for i in owned:
                self.uses.setdefault(i, []).append(step)
        self.recent: dict[int, int] = {}
        self.gradients = self.elements = 0
        self.bucket: list[int] = []
        self.halves: set[int] = set()  # tied weights: the head's gradient waits in autograd for the embedding's
        self.best = {"forward": Live(self.gathered), "backward": Live(), "reduce": Live()}
        self.phase = "forward"

    def run(self) -> Fetched:
        loss = Live()
        for kind, phase, owned in self.net.calls:
            if phase != self.phase and kind == _FETCH and self.phase == "forward" and not self.gradients:
                loss = Live(self.gathered, self.flats)
                self.phase = "backward"
            if kind == _FETCH:
                self._fetch(owned)
            elif kind == _RELEASE:
                self._release(owned)
            else:
                for index in owned:
                    if self.net.trains[index]:
                        self._gradient(index, kind == _HALF)
        self._flush()
        kept = tuple(self.net.numels[i] for i in sorted(self.persist))
        return Fetched(kept, self.best["forward"], loss, self.best["backward"], self.best["reduce"])

    def _see(self, phase: str, now: Live) -> None:
        if now.size > self.best[phase].size:
            self.best[phase] = now

    def _now(self) -> None:
        self._see(self.phase, Live(self.gathered, self.flats, self.gradients))

    # fetch_sub_module
    def _fetch(self, owned: tuple[int, ...]) -> None:
        self._all_gather([i for i in owned if i not in self.available and i not in self.inflight])
        for index in owned:
            if index in self.inflight:
                self._wait(index)
        fresh = {i for i in owned if self.recent.get(i, -1) < self.step}
        while fresh and self.at < len(self.queue):
            index, step = self.queue[self.at]
            self.at += 1
            self.recent[index] = step
            fresh.discard(index)
        self._prefetch()
        self.step += 1

    def _prefetch(self) -> None:
        room = min(self.setting.max_live - self.num_available, self.setting.prefetch)
        chosen: dict[int, None] = {}
        numel = 0
        while self.setting.prefetch and self.at < len(self.queue) and numel < room:
            index, step = self.queue[self.at]
            self.at += 1
            self.recent[index] = max(self.recent.get(index, -1), step)
            if index not in self.available and index not in self.inflight and index not in chosen:
                chosen[index] = None
                numel += self.net.numels[index]
        self._all_gather(list(chosen))

    def _all_gather(self, chosen: list[int]) -> None:
        """One parameter arrives in place; several arrive in one flat tensor and are copied out of it."""
        if not chosen:
            return
        numel = sum(self.net.numels[i] for i in chosen)
        self.num_available += numel
        flat = numel if len(chosen) > 1 else 0
        if flat:
            self.flats += flat
        else:
            self.gathered += numel
        handle = [len(chosen), flat, 0, *chosen]
        for index in chosen:
            self.inflight[index] = handle
        self._now()

    def _wait(self, index: int) -> None:
        handle = self.inflight.pop(index)
        handle[0] -= 1
        if not handle[2]:
            handle[2] = 1
            self.available.update(handle[3:])
            self.gathered += handle[1]
            self._now()
        if not handle[0]:
            self.flats -= handle[1]

    # release_sub_module
    def _release(self, owned: tuple[int, ...]) -> None:
        for index in owned:
            if index in self.persist or index not in self.available or self.recent.get(index, -1) > self.step:
                continue
            uses = self.uses[index]
            coming = bisect_left(uses, self.step)
            distance = self.passed[uses[coming]] - self.passed[self.step] if coming < len(uses) else NO_REUSE
            if distance < self.setting.max_reuse:
                continue
            self.available.discard(index)
            self.gathered -= self.net.numels[index]
            self.num_available -= self.net.numels[index]

    # reduce_independent_p_g_buckets_and_remove_grads
    def _gradient(self, index: int, is_half: bool) -> None:
        numel = self.net.numels[index]
        self.gradients += 0 if index in self.halves else numel
        self._now()
        if is_half:
            self.halves.add(index)
            return
        if self.elements + numel > self.setting.bucket and self.elements:
            self._flush()
        if self.setting.contiguous and self.elements + numel <= self.setting.bucket:
            self.gradients -= numel
        else:
            self.bucket.append(-1 - index)  # stays a tensor of its own until the bucket is reduced
        self.bucket.append(index)
        self.elements += numel

    def _flush(self) -> None:
        members = [i for i in self.bucket if i >= 0]
        if not members:
            return
        sizes = [self.net.numels[i] for i in members]
        copied = self.elements if len(members) > 1 else 0
        now = Live(self.gathered, self.flats, self.gradients, self.elements, copied, max(sizes))
        self._see("reduce", now)
        self.gradients -= sum(self.net.numels[-1 - i] for i in self.bucket if i < 0)
        self.bucket, self.elements = [], 0
