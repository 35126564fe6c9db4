"""Replays ZeRO-3's coordinator; equal blocks that it meets in the same state are replayed once.

What a block does follows from the coordinator's state, from the parameters that it looks ahead to, and from which
parameters are used again soon. Where the state before a block equals the state before the block in front of it, numbers
of parameters counted from the block, it repeats what that one did, as long as the coordinator looks at nothing behind
the equal blocks and every question whether a parameter is used again soon has the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from estimators.engines.zero_coordinator import Coordinator, Live
from estimators.engines.zero_modules import FETCH, FORWARD, Call, Round

PATIENCE = 8  # blocks of a round before which the state was another one, until nobody looks any more
ELSEWHERE = 1 << 60  # added to the number of a parameter that does not lie in the blocks of a round


def replay(state: Coordinator) -> Live:
    """Every call of a micro-step; what is there after the last module of forward."""
    loss, queued = Live(), 0
    rounds = state.net.rounds
    head, layer = _head(rounds)
    small = sum(numel <= state.setting.threshold for numel in state.net.numels)
    is_regular = state.setting.hpz == 1 and small == len(state.persist)  # secondary shards grow from block to block
    for here in rounds:
        blocks = _Blocks(here, queued)
        queued, time, misses = blocks.queued, 0, 0
        before: tuple[object, object] = (None, None)
        while time < here.times:
            if here.times > 1 and is_regular and misses < PATIENCE:
                amounts = blocks.amounts(state, time)
                now = blocks.relative(state, time) if amounts == before[0] else None
                if now and now == before[1]:
                    time += blocks.skip(state, time)
                else:
                    misses += now is not None
                before = (amounts, now)
                blocks.mark(state)
            if time == here.times:
                break
            for call in here.calls:
                if state.phase == "forward" and call.phase != FORWARD:
                    loss = state.begin_backward()
                if call is head:
                    state.at_head(layer)
                state.call(call, time * here.shift, time * here.step)
            time += 1
    state.end()
    return loss


def _head(rounds: Iterable[Round]) -> tuple[Call, str]:
    """The call of the last module of forward; where it has an adapter, of peft's layer around both, with its path."""
    calls = [c for r in rounds for c in r.calls if c.kind == FETCH and c.phase == FORWARD]
    last = [c for c in calls if c.owned][-1]
    layer, is_adapter, _ = last.path.partition(".lora_")
    return (next(c for c in calls if c.path == layer), layer) if is_adapter else (last, "")


class _Blocks:
    """The equal blocks of one round."""

    def __init__(self, of: Round, queued: int) -> None:
        self.of = of
        fetches = of.fetches(0)
        self.steps, self.uses = len(fetches), sum(map(len, fetches))
        self.queued = queued + self.uses * of.times  # parameters in the trace up to the end of the round
        owned = [i for call in of.calls for i in call.owned]
        ends = (
            [i + shift for i in (min(owned), max(owned)) for shift in (0, (of.times - 1) * of.shift)] if owned else []
        )
        self.low, self.high = min(ends, default=0), max(ends, default=-1)
        self.flushes, self.elements, self.bucketed = 0, 0, 0  # before the last block

    def mark(self, state: Coordinator) -> None:
        """A block begins."""
        state.asked.clear()
        state.freed.clear()
        self.flushes, self.elements, self.bucketed = state.flushes, state.elements, len(state.bucket)

    def mover(self, shift: int, elsewhere: int = 0) -> Callable[[int], int]:
        """Moves the numbers of parameters of these blocks, and only those."""
        low, high = self.low, self.high
        return lambda index: index + shift if low <= index <= high else index + elsewhere

    def amounts(self, state: Coordinator, time: int) -> tuple[int, ...]:
        """What is quickly compared."""
        return state.gathered, state.flats, state.num_available, state.gradients, state.at - time * self.uses

    def relative(self, state: Coordinator, time: int) -> tuple[object, ...]:
        """The state before block ``time``, counted from it. Uses that lie behind do not matter to what comes."""
        seen = self.mover(-time * self.of.shift, ELSEWHERE)
        step = state.step
        return (
            {seen(i) for i in state.available - state.persist},
            {seen(i): (*handle[:3], *map(seen, handle[3:])) for i, handle in state.inflight.items()},
            {seen(i): set(paths) for i, paths in state.active.items() if paths},
            {seen(i): used - step for i, used in state.recent.items() if used >= step},
            set(map(seen, state.recomputed)),
            set(map(seen, state.halves)),
            None if self._only_fills(state) else
            (state.elements, [(i < 0, seen(-1 - i if i < 0 else i)) for i in state.bucket]),
        )  # fmt: skip

    def _only_fills(self, state: Coordinator) -> bool:
        """Whether the last block put all of its gradients into a bucket that was not full."""
        return state.flushes == self.flushes and min(state.bucket[self.bucketed :], default=0) >= 0

    def skip(self, state: Coordinator, time: int) -> int:
        """Put the state behind the blocks from ``time`` on that repeat the one before; how many those are."""
        touched = {*state.freed, *(index for index, *_ in state.asked)}
        if not all(self.low <= index <= self.high for index in touched):
            return 0
        most, count = self.of.times - time, 0
        most = min(most, (self.queued - state.at) // self.uses if self.uses else 0)
        if self._only_fills(state) and state.elements > self.elements:
            most = min(most, (state.setting.bucket - state.elements) // (state.elements - self.elements))
        while count < most and self._repeats(state, count + 1):
            count += 1
        if count > 0:
            self._record(state, count)
            self._move(state, count)
        return count

    def _repeats(self, state: Coordinator, later: int) -> bool:
        """Whether the block so many behind the last one answers its questions in the same way."""
        shift, steps = later * self.of.shift, later * self.steps
        return all(
            state.is_near(index + shift, step + steps, is_whole) == near for index, step, is_whole, near in state.asked
        ) and all((index + shift not in state.secondary) == is_new for index, is_new in state.freed.items())

    def _record(self, state: Coordinator, count: int) -> None:
        """The moments of the last block are those of the next ``count``."""
        number, index = state.spot
        for phase in ("forward",) if state.phase == "forward" else ("backward", "reduce"):
            seen = state.best[phase]
            if state.spot in seen:
                here = seen[state.spot]
                seen.update(((number, index + later * self.of.step), here) for later in range(1, count))
                seen[number, index + count * self.of.step] = dict(here)  # where the replay goes on

    def _move(self, state: Coordinator, count: int) -> None:
        """The state after ``count`` more blocks."""
        shift, steps = count * self.of.shift, count * self.steps
        move = self.mover(shift)
        for index, is_new in state.freed.items():
            if is_new:
                further = [index + later * self.of.shift for later in range(1, count + 1)]
                state.secondary.update(further)
                state.cut += sum(state.net.numels[i] for i in further)
        now = state.step
        handles = {id(handle): [*handle[:3], *map(move, handle[3:])] for handle in state.inflight.values()}
        state.inflight = {move(i): handles[id(handle)] for i, handle in state.inflight.items()}
        state.available = state.persist.union(map(move, state.available - state.persist))
        state.active = {move(i): paths for i, paths in state.active.items() if paths}
        state.recent = {i: used for i, used in state.recent.items() if used < now} | {
            move(i): used + steps for i, used in state.recent.items() if used >= now
        }
        state.recomputed, state.halves = set(map(move, state.recomputed)), set(map(move, state.halves))
        if self._only_fills(state):
            each = state.bucket[self.bucketed :]
            state.bucket += [i + later * self.of.shift for later in range(1, count + 1) for i in each]
            state.elements += count * (state.elements - self.elements)
        else:
            state.bucket = [-1 - move(-1 - i) if i < 0 else move(i) for i in state.bucket]
        state.step, state.at = now + steps, state.at + count * self.uses
        state.spot = (state.spot[0], state.spot[1] + count * self.of.step)
