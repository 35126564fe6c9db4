"""A recommendation or an estimate -> the files that run it, as the engines accept them.

    deepspeed.py accelerate.py trainer.py      one file an engine's configuration
    swift.py llamafactory.py axolotl.py torchtune.py torchtitan.py      stacks with a configuration of their own
    script.py compose.py templates/            train.py
    launch.py environment.py requirements.py   how it is started
    readme.py saving.py plan.py                what is said about it
    folder.py                                  all files, or none

What is written is what was estimated: every value comes from the run's ``Settings``. What a stack has no word for is
refused with the reason (``refusal.py``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from estimators.errors import NotModelled
from estimators.memory import Estimate
from estimators.run import Run

if TYPE_CHECKING:
    from selector.recommendation import Recommendation

__all__ = ["accelerate_config", "deepspeed_config", "emit", "files_of"]


def emit(answer: Estimate | Recommendation, folder: str | os.PathLike[str], *, force: bool = False) -> tuple[str, ...]:
    """Write everything that is needed to run the estimate, or the recommendation's choice; the paths written.

    Raises ``InputError`` where files would be overwritten (without ``force``) or cannot be written, and
    ``IllegalCombination`` or ``NotModelled`` for what the stack has no word for. Then nothing is written.
    """
    from selector.configs.folder import write

    return write(files_of(answer), folder, force)


def files_of(answer: Estimate | Recommendation | Run) -> dict[str, str]:
    """The same files as text, by their name in the folder."""
    from selector.configs.bundle import bundle

    return bundle(_estimate(answer))


def deepspeed_config(answer: Estimate | Recommendation | Run) -> dict[str, Any]:
    """The DeepSpeed JSON: with ``auto`` where the stack is the Trainer's. Raises ``NotModelled`` for other engines."""
    from selector.configs import deepspeed
    from selector.configs.script import kind_of

    run = _estimate(answer).run
    if run.strategy.engine != "deepspeed":
        raise NotModelled(f"{run.strategy.name} does not run on DeepSpeed; ask with strategy zero1, zero2 or zero3")
    return deepspeed.hugging_face(run) if kind_of(run) == "trainer" else deepspeed.native(run)


def accelerate_config(answer: Estimate | Recommendation | Run) -> dict[str, Any]:
    """The configuration of ``accelerate launch``, for any stack that accelerate can start."""
    from selector.configs import accelerate

    return accelerate.config(_estimate(answer).run)


def _estimate(answer: Estimate | Recommendation | Run) -> Estimate:
    if isinstance(answer, Run):
        return Estimate(answer)
    if isinstance(answer, Estimate):
        return answer
    if answer.estimate is None:
        raise NotModelled("nothing fits, so there is nothing to write; see the alternatives")
    return answer.estimate
