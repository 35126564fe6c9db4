"""Every path of the tree under both policies, its boundaries, and where the documents disagree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from estimators import resolve_model
from estimators.errors import UnknownName
from selector.cli import main
from selector.tree import Situation, draw, read, size_of
from selector.tree.data import CONFLICTS, LEAVES, QUESTIONS, REMARKS
from selector.tree.nodes import Gate
from selector.tree.places import TITLES
from selector.tree.policies import AMENDMENTS, POLICIES

NOW = {"torch": "2.13.0", "deepspeed": "0.19.8", "bitsandbytes": "0.50.2"}
C, NC = {"compile": True}, {}
DS = {"deepspeed_experience": True}

# billions, what is said -> answers on the way, leaf of `documents`, leaf of `current` where nothing fits unsharded
PATHS: list[tuple[float, dict[str, Any], str, str, str]] = [
    # below 7B: torch.compile, then experience
    (1, NC, "lt7b no no", "fsdp", "fsdp"),
    (6.9, NC, "lt7b no no", "fsdp", "fsdp"),
    (6.99, C, "lt7b yes", "fsdp", "fsdp"),
    (3, {**C, **DS}, "lt7b yes", "fsdp", "deepspeed"),  # aged: DeepSpeed compiles, so experience is still asked
    (3, DS, "lt7b no yes", "deepspeed", "deepspeed"),
    (3, {"team": "deepspeed"}, "lt7b no yes", "deepspeed", "deepspeed"),
    (3, {"team": "distributed"}, "lt7b no no", "fsdp", "fsdp"),  # distributed systems, not DeepSpeed
    (3, {"team": "pytorch"}, "lt7b no no", "fsdp", "fsdp"),
    # 7 and 30 belong to the middle: the team
    (7, {"team": "pytorch"}, "7b-30b pytorch", "fsdp", "fsdp"),
    (7, {"team": "distributed"}, "7b-30b distributed", "deepspeed", "deepspeed"),
    (7.0, {"team": "deepspeed"}, "7b-30b distributed", "deepspeed", "deepspeed"),
    (30, {"team": "pytorch"}, "7b-30b pytorch", "fsdp", "fsdp"),
    (30, {"team": "deepspeed"}, "7b-30b distributed", "deepspeed", "deepspeed"),
    (8, C, "7b-30b unknown", "fsdp", "fsdp"),
    (8, {**C, "team": "deepspeed"}, "7b-30b distributed", "deepspeed", "deepspeed"),
    (8, DS, "7b-30b unknown", "fsdp", "fsdp"),  # the middle asks about the team, not about DeepSpeed
    # no team: FSDP to 13B, DeepSpeed above
    (7, NC, "7b-30b unknown", "fsdp", "fsdp"),
    (13, NC, "7b-30b unknown", "fsdp", "fsdp"),
    (13.1, NC, "7b-30b unknown", "deepspeed", "deepspeed"),
    (30, NC, "7b-30b unknown", "deepspeed", "deepspeed"),
    # above 30B: no question, until FSDP2
    (30.1, NC, "gt30b", "deepspeed", "deepspeed"),
    (70, C, "gt30b", "deepspeed", "deepspeed"),
    (70, {"team": "distributed"}, "gt30b", "deepspeed", "deepspeed"),
    (70, {"team": "pytorch"}, "gt30b", "deepspeed", "fsdp"),  # aged: FSDP2 trains 70B and 405B
]


def answers(billions: float, said: dict[str, Any], policy: str, **more: Any) -> tuple[str, str, str]:
    reading = read(Situation(billions=billions, versions=NOW, ddp_fits=False, **{**said, **more}), policy)
    return " ".join(step.answer for step in reading.path), reading.leaf, reading.strategy


@pytest.mark.parametrize(("billions", "said", "way", "leaf", "_"), PATHS)
def test_documents(billions: float, said: dict[str, Any], way: str, leaf: str, _: str) -> None:
    strategy = {"fsdp": "fsdp-full-shard", "deepspeed": "zero3"}[leaf]
    assert answers(billions, said, "documents") == (way, leaf, strategy)


@pytest.mark.parametrize(("billions", "said", "way", "_", "leaf"), PATHS)
def test_current(billions: float, said: dict[str, Any], way: str, _: str, leaf: str) -> None:
    found, reached, _strategy = answers(billions, said, "current")
    assert reached == leaf
    assert found.startswith(way)  # amendments may ask more, never less


def test_the_table_covers_every_answer_of_every_question() -> None:
    seen: set[tuple[str, str, str]] = set()
    for billions, said, *_ in PATHS:
        reading = read(Situation(billions=billions, **said), "documents")
        ways = [*(step.id for step in reading.path[1:]), reading.leaf]
        seen |= {(s.id, s.answer, to) for s, to in zip(reading.path, ways, strict=True)}
    assert seen == {(q.id, a.id, a.to) for q in QUESTIONS.values() for a in q.answers}


@pytest.mark.parametrize("billions", [1, 7, 30, 70])
@pytest.mark.parametrize("team", [None, "pytorch", "deepspeed", "distributed"])
@pytest.mark.parametrize("experience", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_documents_never_amends_and_never_asks_the_estimator(
    billions: float, team: str | None, experience: bool, compiled: bool
) -> None:
    found = {
        read(Situation(billions=billions, team=team, deepspeed_experience=experience, compile=compiled, ddp_fits=fits,
                       zero2_fits=fits, seq_len=tokens, versions=versions), "documents").leaf
        for fits in (True, False, None) for tokens in (512, 32768) for versions in ({}, NOW, {"torch": "1.13.0"})
    }  # fmt: skip
    assert len(found) == 1


# ------------------------------------------------------------------------------------------------ what has aged


def test_ddp_where_it_fits() -> None:
    for said in ({"billions": 1}, {"billions": 1, "team": "deepspeed"}, {"billions": 8, "team": "distributed"}):
        reading = read(Situation(ddp_fits=True, gpus=8, **said))
        assert (reading.leaf, reading.strategy) == ("ddp", "ddp")
        assert "OLMo#762" in reading.amendments[-1].source or "OpenTau" in reading.amendments[-1].source


def test_one_gpu_is_single() -> None:
    assert read(Situation(billions=1, ddp_fits=True, gpus=1)).strategy == "single"


def test_long_sequences_take_zero2_where_it_fits() -> None:
    asked = {"billions": 40, "seq_len": 8192, "versions": NOW, "ddp_fits": False}
    assert read(Situation(zero2_fits=True, **asked)).strategy == "zero2"
    assert read(Situation(zero2_fits=False, **asked)).strategy == "zero3"
    assert read(Situation(zero2_fits=True, **{**asked, "seq_len": 8191})).strategy == "zero3"


@pytest.mark.parametrize(("deepspeed", "leaf"), [("0.13.5", "fsdp"), ("0.14.0", "deepspeed"), ("0.19.8", "deepspeed")])
def test_compile_with_deepspeed_by_version(deepspeed: str, leaf: str) -> None:
    said = Situation(billions=70, compile=True, ddp_fits=False, versions={**NOW, "deepspeed": deepspeed})
    assert read(said).leaf == leaf
    small = Situation(billions=3, compile=True, team="deepspeed", ddp_fits=False, versions=said.versions)
    assert read(small).leaf == leaf


@pytest.mark.parametrize(("torch", "strategy"), [("2.5.1", "fsdp1-full-shard"), ("2.6.0", "fsdp-full-shard")])
def test_fsdp1_only_where_torch_is_old(torch: str, strategy: str) -> None:
    assert read(Situation(billions=8, ddp_fits=False, versions={"torch": torch})).strategy == strategy


def test_gates() -> None:
    gate = Gate("deepspeed", "0.14.0", "0.20")
    assert gate.holds({"deepspeed": "0.14.0"}) and gate.holds({"deepspeed": "0.19.8"})
    assert not gate.holds({"deepspeed": "0.13.9"}) and not gate.holds({"deepspeed": "0.20.0"})
    assert not gate.holds({}), "a version that nobody knows passes no gate"
    assert str(gate) == "deepspeed>=0.14.0,<0.20"


def test_amendments_stand_at_nodes_and_lead_to_nodes() -> None:
    nodes = {*QUESTIONS, *LEAVES}
    for rule in AMENDMENTS:
        assert rule.at in nodes and (rule.to is None or rule.to in nodes)
        assert rule.source and rule.today and rule.aged.chinese


# ------------------------------------------------------------------------------------------------ disagreements


@pytest.mark.parametrize(
    ("said", "conflict"),
    [
        ({"billions": 3}, "small-models"),
        ({"billions": 8, "compile": True}, "compile-above-7b"),
        ({"billions": 70, "compile": True}, "compile-above-7b"),
        ({"billions": 14}, "no-team"),
        ({"billions": 70, "ddp_fits": True}, "ample-memory"),
        ({"billions": 40, "seq_len": 8192}, "long-sequences"),
    ],
)
def test_conflicts_are_shown_under_documents(said: dict[str, Any], conflict: str) -> None:
    found = {c.id: c for c in read(Situation(**said), "documents").conflicts}
    assert conflict in found
    assert found[conflict].rule and found[conflict].first.chinese and found[conflict].second.chinese


def test_no_conflict_without_reason() -> None:
    assert read(Situation(billions=8, team="pytorch"), "documents").conflicts == ()


def test_every_remark_is_reachable() -> None:
    situations = [
        Situation(billions=b, team=t, stack=s, ddp_fits=d, seq_len=n, gpus=g)
        for b in (1, 8, 70) for t in (None, "deepspeed", "pytorch") for s in ("trainer", "torch")
        for d in (True, False) for n in (512, 8192) for g in (1, 8)
    ]  # fmt: skip
    shown = {r.id for s in situations for policy in POLICIES for r in read(s, policy).remarks}
    assert shown == {r.id for r in REMARKS}


# ------------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("llama-8b", 8), ("llama-2-7b", 7), ("opt-6.7b", 6.7), ("llama-2-13b", 13), ("llama-1-30b", 30),
        ("mixtral-8x7b", 47),  # every expert counts: 46.7 billion
        ("phi-2", 3), ("gpt2", 0),
    ],
)  # fmt: skip
def test_size(model: str, billions: float) -> None:
    found, because = size_of(resolve_model(model))
    assert found == billions
    assert ("by its name" in because) == (resolve_model(model).nominal_billions is not None)


def test_llama_30b_is_in_the_middle_though_it_has_32_5_billion_parameters() -> None:
    billions, because = size_of(resolve_model("llama-1-30b"))
    assert read(Situation(billions=billions, size_because=because), "documents").path[0].answer == "7b-30b"


# ------------------------------------------------------------------------------------------------ drawings


@pytest.mark.parametrize("policy", list(POLICIES))
def test_drawings_have_every_node_and_edge(policy: str) -> None:
    edges = list(draw.edges(policy))
    for kind in (draw.mermaid(policy), draw.dot(policy)):
        for source, to, label, _ in edges:
            assert any(source in line and to in line and label in line for line in kind.splitlines())
    text = draw.text(policy)
    assert all(q.chinese in text for q in QUESTIONS.values())
    assert all(c.rule in text for c in CONFLICTS)
    assert all(title in text for pair in TITLES.values() for title in pair)


def test_graph_of_the_documents_is_a_tree_without_cycles() -> None:
    networkx = pytest.importorskip("networkx")
    graph = draw.graph("documents")
    assert networkx.is_directed_acyclic_graph(graph)
    asked = networkx.descendants(graph, "size")
    assert {"fsdp", "deepspeed"} <= asked and "ddp" not in graph
    assert "ddp" in draw.graph("current")


def test_unknown_policy() -> None:
    with pytest.raises(UnknownName, match="did you mean documents"):
        read(Situation(billions=8), "document")


@pytest.mark.parametrize("kind", ["table", "text", "mermaid", "dot", "json", "csv", "markdown"])
def test_command(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tree", "--policy", "documents", "--format", kind]) == 0
    out = capsys.readouterr().out
    assert "deepspeed" in out.lower()
    if kind == "json":
        assert json.loads(out)["schema"] == "dist-advisor/tree/1"


def test_command_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tree", "--format", "png"]) == 2
    assert main(["tree", "--policy", "new"]) == 2
    err = capsys.readouterr().err
    assert "text, mermaid, dot, json" in err and "documents, current" in err
