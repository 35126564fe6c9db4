"""What holds for every question: it fits by its own estimate, nothing is needless, nothing better was thrown away."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selector import recommend
from selector.candidates import VERDICT_RANK, Candidate, comfortable
from selector.cost import offload_rank
from selector.ranking import TIE
from selector.recommendation import Recommendation

SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
MODELS = ("llama-3.2-1b", "gemma-2-2b", "llama-2-7b", "llama-8b", "llama-2-13b", "yi-34b", "llama-70b")
CLUSTERS = ("A10", "2xA10", "4xA10", "8xL40S", "8xA100-40GB", "8xA100-80GB", "2x8xH100", "4xH200", "8xV100-32GB")
FIELDS: dict[str, list[Any]] = {
    "seq_len": [512, 2048, 8192], "micro_batch": [1, 4], "grad_accum": [1, 4], "checkpointing": ["none", "full"],
    "loss": ["plain", "fused"], "optimizer": ["adamw", "sgd", "adamw-8bit"], "method": ["full", "lora"],
}  # fmt: skip


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    named = draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=4))
    asked: dict[str, Any] = {name: draw(st.sampled_from(FIELDS[name])) for name in sorted(named)}
    asked |= {"model": draw(st.sampled_from(MODELS)), "cluster": draw(st.sampled_from(CLUSTERS))}
    asked["team"] = draw(st.sampled_from([None, "pytorch", "deepspeed", "distributed"]))
    asked["allow"] = draw(st.sampled_from([(), ("qlora",), ("lora", "qlora")]))
    asked["host_memory"] = draw(st.sampled_from([None, "256GB", "2TB"]))
    return asked


def answered(asked: dict[str, Any], **more: Any) -> tuple[Recommendation, Candidate | None]:
    answer = recommend(**{**asked, **more})
    return answer, answer.choice


@SETTINGS
@given(questions(), st.sampled_from(["documents", "current"]), st.sampled_from(["fastest", "simplest", "documents"]))
def test_what_is_recommended_fits_by_its_own_estimate(asked: dict[str, Any], policy: str, goal: str) -> None:
    answer, choice = answered(asked, policy=policy, goal=goal)
    if choice is None:
        assert answer.strategy is None and answer.document()["strategy"] is None
        return
    assert choice.verdict in ("fits", "tight")
    if choice.verdict == "tight" and goal != "documents":
        rank = offload_rank(choice.strategy)
        sure = [c for c in answer.ranking.order if c.verdict == "fits"]
        assert all(offload_rank(c.strategy) > rank for c in sure), "something as good in kind fits for sure"
        assert not sure or answer.alternatives[0].estimate.verdict == "fits"


@SETTINGS
@given(questions(), st.sampled_from(["fastest", "simplest"]))
def test_offload_and_sharding_only_where_they_are_needed(asked: dict[str, Any], goal: str) -> None:
    answer, choice = answered(asked, goal=goal)
    if choice is None:
        return
    assert offload_rank(choice.strategy) == min(offload_rank(c.strategy) for c in answer.ranking.order)
    if choice.verdict != "fits":
        return
    fitting = [c for c in answer.ranking.order if c.verdict == "fits"]
    assert offload_rank(choice.strategy) == min(offload_rank(c.strategy) for c in fitting)
    if choice.strategy.is_sharded:
        whole = [c for c in fitting if not c.strategy.is_sharded and c.method == choice.method]
        roomy = [c for c in whole if comfortable(c.estimate)]
        assert all(c.settings != choice.settings for c in roomy), "the same settings fit unsharded, with room"
    if choice.method_rank:
        resident = [c for c in fitting if offload_rank(c.strategy) <= offload_rank(choice.strategy)]
        assert all(c.method_rank >= choice.method_rank for c in resident), "full training fits as well"


@SETTINGS
@given(questions())
def test_nothing_that_was_left_is_better_on_every_axis(asked: dict[str, Any]) -> None:
    answer, choice = answered(asked)
    if choice is None:
        return
    for other in answer.ranking.order[1:]:
        better = (
            VERDICT_RANK[other.verdict] <= VERDICT_RANK[choice.verdict]
            and other.estimate.gpu.process.expected < choice.estimate.gpu.process.expected
            and other.estimate.host.expected <= choice.estimate.host.expected
            and other.cost.value * (1 + 0.10 + TIE) < choice.cost.value
            and other.method == choice.method
            and dict(other.settings) == dict(choice.settings)
            and not (other.strategy.is_sharded and not choice.strategy.is_sharded)
        )
        assert not better, (choice.name, other.name)
    for out in answer.rejected:
        assert out.why
        assert out.estimate is None or out.estimate.verdict == "no"


@SETTINGS
@given(questions())
def test_the_users_values_are_in_every_candidate(asked: dict[str, Any]) -> None:
    answer, _ = answered(asked)
    for candidate in answer.ranking.order:
        for name in FIELDS:
            if name in asked:
                assert getattr(candidate.estimate.run.workload, name) == asked[name]
                assert name not in candidate.settings
        allowed = (asked["method"],) if "method" in asked else ("full", *asked["allow"])
        assert candidate.method in allowed


STACKS = (
    "trainer",
    "trl",
    "accelerate",
    "torch",
    "deepspeed",
    "swift",
    "llamafactory",
    "axolotl",
    "torchtune",
    "torchtitan",
)


@SETTINGS
@given(questions(), st.sampled_from(["fastest", "simplest", "documents"]), st.sampled_from(STACKS), st.booleans())
def test_what_is_recommended_is_emitted(asked: dict[str, Any], goal: str, stack: str, given_batch: bool) -> None:
    """Into a folder of its own, every time: what a stack has no word for is never the answer."""
    if given_batch:
        for name in ("micro_batch", "grad_accum"):
            asked.pop(name, None)
        asked["global_batch"] = 64
    answer, choice = answered(asked, goal=goal, stack=stack)
    if choice is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        written = answer.emit(folder)
        assert {"plan.json", "README.md"} <= {path.name for path in map(Path, written)}
        assert all(Path(path).exists() for path in written)


@SETTINGS
@given(questions())
def test_asking_twice_gives_the_same(asked: dict[str, Any]) -> None:
    assert recommend(**asked).headline == recommend(**asked).headline
