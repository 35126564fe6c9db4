"""DeepSpeed's batch triangle: train_batch_size = micro-batch x accumulation x data-parallel ranks.

What is absent is inferred as deepspeed/runtime/config.py does it (``_set_batch_related_parameters``), which floors and
then asserts; here the error gives the numbers.
"""

from __future__ import annotations

from estimators.readers.reading import AUTO, Draft
from estimators.readers.section import Section

TRAIN, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def read_batch(section: Section, draft: Draft, ranks: int | None) -> None:
    """Fill ``micro_batch`` and ``grad_accum``. Raises ``InputError`` where the three numbers and ``ranks`` disagree."""
    train = section.whole(TRAIN, 1, 2**40, auto=True)
    micro = section.whole(MICRO, 1, 2**20, auto=True)
    steps = section.whole(STEPS, 1, 2**20, auto=True)
    for name, key, value in (("micro_batch", MICRO, micro), ("grad_accum", STEPS, steps)):
        if value is not None:
            draft.field(name, section.found(key, value))
    if isinstance(train, int):
        draft.facts[TRAIN] = section.found(TRAIN, train)
        if AUTO not in (micro, steps):
            _infer(section, draft, train, micro, steps, ranks)
    elif isinstance(micro, int) and steps is None:
        draft.field("grad_accum", section.found(STEPS, 1, given=False))
    elif train is None and micro is None:
        draft.notes.append(f"{section.document.name} gives no batch size: DeepSpeed needs {MICRO} or {TRAIN}")


def _infer(section: Section, draft: Draft, train: int, micro: int | None, steps: int | None, ranks: int | None) -> None:
    if steps is None and micro is None:
        steps = 1
        draft.field("grad_accum", section.found(STEPS, 1, given=False))
    if ranks is None:
        if micro is not None and steps is not None:
            _check_without_ranks(section, train, micro, steps)
        else:
            missing = "micro-batch" if micro is None else "accumulation"
            draft.notes.append(f"{TRAIN} {train} leaves the {missing} to the number of GPUs; give it")
        return
    given = (micro or 1) * (steps or 1) * ranks
    if micro is None or steps is None:
        if train % given:
            known = f"{MICRO} {micro}" if steps is None else f"{STEPS} {steps}"
            below = train - train % given
            near = f"{below} or {below + given}" if below else str(given)
            raise section.contradiction(
                TRAIN, f"{train} is not a multiple of {known} x {ranks} GPUs = {given}; write {near}"
            )
        name, key = ("micro_batch", MICRO) if micro is None else ("grad_accum", STEPS)
        draft.field(name, section.found(TRAIN, train // given))
        draft.notes.append(f"{key} is {train // given}: {TRAIN} {train} over {given // ranks} x {ranks} GPUs")
    elif train != given:
        raise section.contradiction(
            TRAIN, f"{train} is not {MICRO} {micro} x {STEPS} {steps} x {ranks} GPUs = {given}; write {given}"
        )


def _check_without_ranks(section: Section, train: int, micro: int, steps: int) -> None:
    if train % (micro * steps):
        below = train - train % (micro * steps)
        near = f"{below} or {below + micro * steps}" if below else str(micro * steps)
        raise section.contradiction(
            TRAIN, f"{train} is not a multiple of {MICRO} {micro} x {STEPS} {steps} = {micro * steps}; write {near}"
        )
