"""State of ZeRO-3's parameter coordinator and of its gradient bucket, moved on call by call, in elements.

partitioned_param_coordinator.py (``fetch_sub_module``, ``release_sub_module``, ``__params_to_release``) and the gradient
bucket of stage3.py. The third micro-step and later ones are replayed: the trace of modules is complete, so the
coordinator prefetches.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from estimators.engines.zero_layout import AFTER, BETWEEN, Spot
from estimators.engines.zero_modules import BACKWARD, FETCH, HALF, MADE, RECOMPUTE, RELEASE, Call, Modules
from estimators.sites import END, START
from estimators.values import NamedTuple, dataclass

NO_REUSE = 1 << 62


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
    hpz: int = 1  # ranks of the group that holds a secondary shard
    accumulates: bool = False  # secondary shards of earlier micro-steps are there


@dataclass(frozen=True, slots=True)
class Live:
    """One moment: elements gathered, elements in flat all-gather outputs beside them, gradients, the bucket reduced."""

    gathered: int = 0
    flats: int = 0
    gradients: int = 0
    reduced: int = 0  # elements of the bucket that is being reduced
    copied: int = 0  # of those, elements concatenated for the reduce-scatter
    largest: int = 0  # largest parameter among them
    secondary: int = 0  # elements of parameters that have a secondary shard (hpZ), before they are cut
    group: int = 1
    size: int = 0  # the sum of all


def persistent(net: Modules, setting: Setting) -> set[int]:
    """Parameters that stay whole on every rank (parameter_offload.py, ``mark_persistent_parameters``)."""
    total, kept = 0, set()
    for index, numel in enumerate(net.numels):
        if numel + total <= setting.model_threshold and numel <= setting.threshold:
            kept.add(index)
            total += numel
    return kept


class When(NamedTuple):
    """Which moment of a place: elements of its gradients that are made, whether the last of them arrives just now, and
    the largest parameter of the bucket that is reduced; of a block that runs forward, which stage of which module."""

    made: int = 0
    arrives: bool = False
    largest: int = 0
    stage: str = "during"
    module: str = ""


Seen = dict[Spot, dict[When, Live]]


class Coordinator:
    """State of one micro-step. Names follow the source."""

    def __init__(self, net: Modules, setting: Setting) -> None:
        self.net, self.setting = net, setting
        self.persist = persistent(net, setting)
        self.available = set(self.persist)
        self.inflight: dict[int, list[int]] = {}  # parameter -> handle: [members left, flat elements, waited, *members]
        self.active: dict[int, set[str]] = {}  # modules that use a parameter now
        self.gathered = sum(net.numels[i] for i in self.persist)
        self.flats = self.num_available = self.step = self.at = 0
        self.recent: dict[int, int] = {}
        self.recomputed: set[int] = set()  # frozen ones, fetched while a block was recomputed
        self.gradients = self.elements = 0
        self.bucket: list[int] = []
        self.halves: set[int] = set()  # tied weights: the head's gradient waits in autograd for the embedding's
        self.summed: set[int] = set()  # of three parts: the first sum is autograd's own, and the last added in place
        self.secondary: set[int] = set(range(len(net.numels))) if setting.accumulates else set()
        self.cut = sum(net.numels[i] for i in self.secondary)
        self.waiting: set[int] = set()  # gradients that are there, and reduced when their whole module is done
        # releases since the last round: parameter, step, of a whole module, used again soon
        self.asked: list[tuple[int, int, bool, bool]] = []
        self.freed: dict[int, bool] = {}  # and what was let go: whether that made its secondary shard
        self.flushes = self.made = 0
        self.spot: Spot = (START, 0)
        self.stands = "during", ""  # stage and module of a block that runs forward, in backward once more
        self.again = False  # whether the block has begun to
        self.layer = ""
        self.best: dict[str, Seen] = {"forward": {}, "backward": {}, "reduce": {}}
        self.phase = "forward"
        self._now()
        self._trace()

    def _trace(self) -> None:
        """What the coordinator recorded: parameters in the order of use, and when each is used again."""
        steps = [owned for r in self.net.rounds for time in range(r.times) for owned in r.fetches(time)]
        self.queue = [(i, step) for step, owned in enumerate(steps) for i in owned]
        numels = self.net.numels
        calls = [call for r in self.net.rounds for call in r.calls * r.times if call.kind == FETCH]
        self.passed = [0, *accumulate([0 if c.is_whole else sum([numels[i] for i in c.owned]) for c in calls])]
        self.uses: dict[int, list[int]] = {}
        for index, step in self.queue:
            self.uses.setdefault(index, []).append(step)
        self.traversed = [0, *accumulate([call.below for call in calls])]
        self.turn = next((step for step, call in enumerate(calls) if call.phase == BACKWARD), len(calls))

    def begin_backward(self) -> Live:
        """What is there after the last module of forward."""
        self.phase = "backward"
        self.spot, self.stands = (END, 0), ("during", "")
        self._now()
        return self.best["backward"][self.spot][When()]

    def at_head(self, layer: str) -> None:
        """The head, or peft's ``layer`` around it, is called; from its own fetch on it is inside."""
        self.layer = layer
        self.spot, self.stands = (END, 0), ("entering", "")
        self._now()

    def call(self, call: Call, shift: int, step: int) -> None:
        """One call of a module; ``shift`` and ``step`` are what its round has moved on by."""
        kind, phase, path, owned, spot = call[:5]
        if shift and owned:
            owned = tuple([i + shift for i in owned])
        before = self.spot
        # outside blocks: in forward behind the last block until the head is there; in backward the end, then what stands
        # between two runs, then the start
        if spot:
            self.spot = (spot[0], spot[1] + step) if step else spot
        elif kind == FETCH and owned and 0 <= self.spot[0] < END:
            number = self.spot[0]
            self.spot = (number, AFTER) if self.phase == "forward" else (number, BETWEEN) if number else (START, 0)
        if self.spot != before:
            number, index = self.spot
            runs = self.phase == "forward" or self.setting.recompute
            in_block = runs and 0 <= number < END and index not in (AFTER, BETWEEN)
            self.made, self.stands, self.again = 0, ("behind" if in_block else "during", ""), False
            self._now()
        self.again = self.again or phase == RECOMPUTE
        if self.again and phase == BACKWARD and self.stands[0] != "during":
            self._stand("during", "")
        stops = bool(owned) and self.stands[0] != "during"
        if kind == FETCH:
            if stops:
                self.stands = "entering", call.inner
            self._fetch(phase, path, owned)
            if self.spot[0] == END and self.phase == "forward":
                if owned and path != self.layer:
                    self._stand("during", "")
            elif stops:
                self._stand("through" if call.is_whole else "inside", call.inner)
        elif kind == RELEASE:
            self._release(phase, path, owned, call.is_whole)
            if stops:
                self._stand("behind", call.inner)
        else:
            for index in owned:
                if self.net.trains[index]:
                    self._gradient(index, kind)

    def _stand(self, stage: str, module: str) -> None:
        """Where a block's forward is."""
        self.stands = stage, module
        self._now()

    def end(self) -> None:
        self.spot = (START, 0)  # backward is over
        self._flush()
        for index in list(self.available - self.persist):  # release_backward_leftovers
            self.active.pop(index, None)
            self._free(index)

    def _see(
        self, phase: str, arrives: bool, gradients: int = 0, reduced: int = 0, copied: int = 0, largest: int = 0
    ) -> None:
        """A moment; ``gradients`` beside those that are counted."""
        group = self.setting.hpz
        secondary = self.cut if group > 1 else 0
        gradients += self.gradients
        here = self.best[phase].setdefault(self.spot, {})
        when = When(self.made, arrives, largest, *self.stands)
        best = here.get(when)
        size = self.gathered + self.flats + gradients + copied + secondary // group
        if best is None or size > best.size:
            here[when] = Live(self.gathered, self.flats, gradients, reduced, copied, largest, secondary, group, size)

    def _now(self, arrives: bool = False) -> None:
        self._see(self.phase, arrives)

    # fetch_sub_module
    def _fetch(self, phase: str, path: str, owned: tuple[int, ...]) -> None:
        if owned:
            self._all_gather([i for i in owned if i not in self.available and i not in self.inflight])
            for index in owned:
                self.active.setdefault(index, set()).add(path)
                if phase == RECOMPUTE and not self.net.trains[index]:
                    self.recomputed.add(index)
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
        if room <= 0:
            return
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
    def _release(self, phase: str, path: str, owned: tuple[int, ...], is_whole: bool) -> None:
        for index in owned:
            self.active[index].discard(path)
            if index not in self.persist and self.recent.get(index, -1) <= self.step:
                near = self.is_near(index, self.step, is_whole)
                self.asked.append((index, self.step, is_whole, near))
                if not near:
                    self._free(index)
        if self.recomputed and phase == BACKWARD:
            for index in self.recomputed - self.persist:
                self._free(index)
            self.recomputed.clear()

    def is_near(self, index: int, step: int, is_whole: bool = False) -> bool:
        """``__params_to_release``: used again before ``max_reuse`` elements have passed.

        It counts what a module that is passed owns itself: of whole modules, nothing. For a whole module it looks into
        each: blocks and what is inside them count both, and backward begins with the model, which has every parameter.
        """
        uses, passed = self.uses[index], self.traversed if is_whole else self.passed
        coming = bisect_left(uses, step)
        use = uses[coming] if coming < len(uses) else -1
        if is_whole and step <= self.turn < use:
            use = self.turn
        distance = passed[use] - passed[step] if use >= 0 else NO_REUSE
        return distance < self.setting.max_reuse

    def _free(self, index: int) -> None:
        if index not in self.available or self.active.get(index):
            return
        self.freed.setdefault(index, index not in self.secondary)
        if index not in self.secondary:
            self.secondary.add(index)
            self.cut += self.net.numels[index]
            self._now()
        self.available.discard(index)
        self.gathered -= self.net.numels[index]
        self.num_available -= self.net.numels[index]

    # reduce_independent_p_g_buckets_and_remove_grads
    def _gradient(self, index: int, kind: str) -> None:
        numel = self.net.numels[index]
        if index in self.halves:  # autograd adds the two: three tensors
            self._see(self.phase, True, numel if index in self.summed else 2 * numel)
            self.summed.add(index)
        if index not in self.halves and index not in self.waiting:
            self.gradients += numel
            self.made += numel
        self._now(True)
        if kind in (HALF, MADE):
            (self.halves if kind == HALF else self.waiting).add(index)
            self._now()
            return
        self.waiting.discard(index)
        if self.elements + numel > self.setting.bucket and self.elements:
            self._flush()
        if self.setting.contiguous and self.elements + numel <= self.setting.bucket:
            self.gradients -= numel
        else:
            self.bucket.append(-1 - index)  # stays a tensor of its own until the bucket is reduced
        self.bucket.append(index)
        self.elements += numel
        self._now()

    def _flush(self) -> None:
        members = [i for i in self.bucket if i >= 0]
        if not members:
            return
        sizes = [self.net.numels[i] for i in members]
        copied = self.elements if len(members) > 1 else 0
        self._see("reduce", True, 0, self.elements, copied, max(sizes))
        self.gradients -= sum(self.net.numels[-1 - i] for i in self.bucket if i < 0)
        self.bucket, self.elements = [], 0
        self.flushes += 1
