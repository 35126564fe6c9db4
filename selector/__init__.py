"""What to choose, and how to say it. Importing this never imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimators import Cluster, Strategy
    from selector.recommendation import Recommendation

__all__ = ["recommend"]


def recommend(
    model: Any,
    cluster: str | Cluster,
    *,
    team: str | None = None,
    deepspeed_experience: bool = False,
    compile: bool = False,
    policy: str = "current",
    goal: str = "fastest",
    allow: Iterable[str] | str = (),
    global_batch: int | None = None,
    strategy: str | Strategy | None = None,
    **workload: Any,
) -> Recommendation:
    """Which engine, strategy and settings to train ``model`` with on ``cluster``, and why.

    ``team``: ``pytorch``, ``deepspeed`` or ``distributed``. ``policy``: the tree as the ``documents`` have it, or
    ``current``. ``goal``: ``fastest``, ``simplest`` or ``documents``. ``allow``: ``lora``, ``qlora``. ``global_batch``:
    sequences per optimizer step of all GPUs together; without it micro-batch and accumulation stay as they are.
    ``strategy``: the choice is the caller's, only free settings are looked for. ``workload``: the fields of
    ``estimators.Workload``; a value that is given never changes. The cluster's facts are taken too: ``host_memory``,
    ``nvme``, ``network``, ``interconnect``, ``price``, ``gpu_memory``, ``tflops``, ``bandwidth``, ``cpu_cores``,
    ``host_bandwidth``.

    Raises the errors of ``estimators.errors``. Nothing fits: ``strategy`` is None and ``alternatives`` says what would.

    >>> recommend("llama-8b", "8xH100", team="pytorch").path[0].answer
    '7b-30b'
    """
    from selector.recommendation import answer

    asked = {
        "model": model, "cluster": cluster, "team": team, "deepspeed_experience": deepspeed_experience,
        "compile": compile, "policy": policy, "goal": goal, "allow": allow, "global_batch": global_batch,
        "strategy": strategy, **workload,
    }  # fmt: skip
    return answer(asked)
