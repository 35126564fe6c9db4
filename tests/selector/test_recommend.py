"""What recommend answers: choices, reasons, free settings, the tree against the ranking, and what it refuses."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

from estimators import IllegalCombination, InputError, MissingDependency, NotModelled, UnknownName, parse_cluster
from selector import candidates as search
from selector import recommend
from selector.cli import main
from selector.cost import Cost, bytes_sent
from selector.launch import launch
from selector.question import ask, divisors
from selector.reasons import use_of_card

KEYS = ("schema", "strategy", "engine", "policy", "leaf", "path", "reasons", "rejected", "alternatives", "estimate",
        "commands", "files")  # fmt: skip


def test_small_model_is_not_sharded() -> None:
    answer = recommend("llama-3.2-1b", "8xA100-80GB")
    assert (answer.strategy, answer.engine, answer.leaf) == ("ddp", "ddp", "ddp")
    assert recommend("llama-3.2-1b", "A100-80GB").strategy == "single"


def test_what_does_not_fit_whole_is_sharded_and_says_why() -> None:
    answer = recommend("llama-8b", "8xA100-80GB", team="pytorch")
    assert answer.engine == "fsdp2" and answer.estimate is not None and answer.estimate.verdict == "fits"
    assert any(r.startswith("sharded because ddp does not fit: GPU: ") for r in answer.reasons)
    assert [s.answer for s in answer.path] == ["7b-30b", "pytorch"]
    missed = {r.strategy: r.why for r in answer.rejected}
    assert re.match(r"GPU: [\d.]+ GiB of 79\.\d at \w+", missed["ddp"])


def test_first_line_is_a_sentence_with_the_numbers() -> None:
    answer = recommend("llama-8b", "8xA100-80GB", team="pytorch")
    assert answer.estimate is not None
    for part in (str(answer.strategy), use_of_card(answer.estimate), answer.estimate.peak.name, "accelerate launch"):
        assert part in answer.headline
    assert answer.trust.startswith("fsdp2 x full x trainer: ")


def test_offload_names_what_fails_without() -> None:
    answer = recommend("llama-8b", "A10")
    assert "+" in str(answer.strategy)
    assert any(r.startswith("offloaded because nothing fits without; the nearest, single: GPU") for r in answer.reasons)


def test_qlora_only_where_allowed() -> None:
    assert recommend("llama-8b", "A10").settings.get("method") is None
    answer = recommend("llama-8b", "A10", allow="qlora")
    assert answer.settings["method"] == "qlora" and answer.strategy == "single"
    # full training fits on eight A100: then nothing replaces it
    assert "method" not in recommend("llama-8b", "8xA100-80GB", allow=("lora", "qlora")).settings


def test_global_batch_is_kept() -> None:
    answer = recommend("llama-2-7b", "8xA100-80GB", global_batch=128)
    assert answer.estimate is not None
    work = answer.estimate.run.workload
    assert work.micro_batch * work.grad_accum * 8 == 128
    fixed = recommend("llama-2-7b", "8xA100-80GB", global_batch=128, micro_batch=2)
    assert fixed.estimate is not None
    assert (fixed.estimate.run.workload.micro_batch, fixed.estimate.run.workload.grad_accum) == (2, 8)


@pytest.mark.parametrize(
    "given",
    [
        {"checkpointing": "full"}, {"loss": "plain", "optimizer": "adamw"}, {"micro_batch": 3, "grad_accum": 5},
        {"method": "lora", "lora_rank": 8}, {"seq_len": 777, "attention": "eager"}, {"precision": "fp32"},
        {"optimizer": "sgd", "checkpointing": "none"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("gpus", ["8xA100-80GB", "2xA10"])
def test_what_the_user_gave_never_changes(given: dict[str, Any], gpus: str) -> None:
    answer = recommend("llama-2-7b", gpus, **given)
    estimates = [a.estimate for a in answer.alternatives if not set(a.changes) & set(given)]
    for estimate in filter(None, (answer.estimate, *estimates)):
        for name, value in given.items():
            assert getattr(estimate.run.workload, name) == value


def test_no_bf16_changes_the_default_but_not_the_users_value() -> None:
    answer = recommend("llama-3.2-1b", "8xV100-32GB")
    assert answer.estimate is not None and answer.estimate.run.workload.precision == "fp16-mixed"
    assert any("has no bf16" in r for r in answer.reasons) and answer.settings["precision"] == "fp16-mixed"
    asked = recommend("llama-3.2-1b", "8xV100-32GB", precision="bf16-mixed")
    assert asked.strategy is None and all("no bf16" in r.why for r in asked.rejected if r.strategy == "ddp")


def test_users_own_strategy_stays_the_choice() -> None:
    answer = recommend("llama-3.2-1b", "8xA100-80GB", strategy="zero3")
    assert answer.strategy == "zero3" and "zero3 is your choice" in answer.reasons[1]
    assert answer.alternatives[0].strategy == "ddp"
    failing = recommend("llama-8b", "4xA10", strategy="ddp")
    assert failing.strategy == "ddp" and failing.estimate is not None and failing.estimate.verdict == "no"
    assert failing.alternatives and failing.alternatives[0].estimate.verdict != "no"
    with pytest.raises(IllegalCombination, match="single is one GPU"):
        recommend("llama-8b", "4xA10", strategy="single")


def test_nothing_fits_gives_changes_that_work() -> None:
    answer = recommend("llama-70b", "8xA100-80GB", host_memory="256GB", method="full")
    assert answer.strategy is None and answer.estimate is None and answer.commands == {}
    assert answer.headline.startswith("Nothing fits")
    working = [a for a in answer.alternatives if not a.why.startswith("nearest miss")]
    assert working and all(a.estimate.verdict in ("fits", "tight") and a.changes for a in working)
    for found in working:  # each verified again by asking the changed question
        changes = {k: v for k, v in found.changes.items() if k in ("gpus", "host_memory", "nvme", "seq_len", "method")}
        again = answer.what_if(**changes)
        assert again.strategy is not None, found.changes
    assert any(a.why.startswith("nearest miss") for a in answer.alternatives)
    document = answer.document()
    assert document["strategy"] is None and document["alternatives"][0]["estimate"]["verdict"] != "no"


def test_what_if() -> None:
    answer = recommend("llama-8b", "8xA100-80GB", team="pytorch")
    assert answer.what_if(gpus="A10").question.cluster.ranks == 1
    assert answer.what_if(team="deepspeed").leaf == "deepspeed"
    assert answer.what_if(model="llama-3.2-1b").strategy == "ddp"
    assert answer.strategy == recommend("llama-8b", "8xA100-80GB", team="pytorch").strategy


def test_what_would_change() -> None:
    answer = recommend("llama-8b", "8xA100-80GB", team="pytorch")
    assert "with team deepspeed the tree says DeepSpeed (zero3)" in answer.would_change


def test_smaller_buffers_before_offload() -> None:
    answer = recommend("llama-1-7b", "4xV100-32GB", team="deepspeed", seq_len=1024, optimizer="adamw")
    assert answer.strategy is not None and "+" not in answer.strategy
    names = [c.name for c in answer.ranking.order]
    assert "zero3:reduce_bucket_size=10000000,sub_group_size=100000000" in names
    own = recommend("llama-1-7b", "4xV100-32GB", strategy="zero3", seq_len=1024, optimizer="adamw")
    assert own.strategy == "zero3", "the user's own strategy keeps its knobs"


# ------------------------------------------------------------------------------------------- the tree and the ranking


def cheaper(monkeypatch: pytest.MonkeyPatch, **prices: float) -> None:
    """Give candidates a price by base name; everything else costs 100."""
    monkeypatch.setattr(
        search,
        "cost_of",
        lambda e: Cost(0, 0, prices.get(e.run.strategy.base.replace("-", "_"), 100.0), "seconds per token"),
    )


@pytest.mark.parametrize(
    ("fsdp", "zero", "engine"),
    [(1.09, 1.0, "fsdp2"), (1.10, 1.0, "fsdp2"), (1.11, 1.0, "deepspeed"), (0.5, 1.0, "fsdp2")],
)
def test_the_trees_engine_wins_within_a_tenth(
    fsdp: float, zero: float, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheaper(monkeypatch, fsdp_full_shard=fsdp, zero2=zero)
    answer = recommend("llama-8b", "8xA100-80GB", team="pytorch")
    assert answer.engine == engine
    if engine == "deepspeed":
        assert answer.reasons[1] == (
            "the tree would say fsdp-full-shard; zero2 is better here: fsdp-full-shard costs 1.11 x the seconds per token, "
            "more than the 10% that the tree is given"
        )
        assert answer.alternatives[0].strategy == "fsdp-full-shard"


def test_goal_documents_follows_the_tree_at_any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    cheaper(monkeypatch, fsdp_full_shard=9.0, zero2=1.0)
    answer = recommend("llama-8b", "8xA100-80GB", team="pytorch", goal="documents", policy="documents")
    assert answer.strategy == "fsdp-full-shard"


def test_documents_leaf_is_its_own_strategy_with_offload_only_where_needed() -> None:
    at_ease = recommend("llama-2-7b", "8xH200", team="deepspeed", policy="documents", goal="documents")
    assert at_ease.strategy == "zero3"
    pressed = recommend("llama-2-13b", "2xA100-40GB", team="deepspeed", policy="documents", goal="documents")
    assert str(pressed.strategy).startswith("zero3+")


def test_other_optimizer_and_sharding_must_be_more_than_a_tenth_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but offload and certainty comes before speed; 8-bit states nobody asked for pay a tenth."""
    asked = {"global_batch": 64, "gpus": "4xA10"}

    def choice(eight_bit: float) -> str | None:
        def price(e: Any) -> Cost:
            return Cost(0, 0, eight_bit if e.run.settings.optimizer == "adamw-8bit" else 1.0, "seconds per token")

        monkeypatch.setattr(search, "cost_of", price)
        answer = recommend("llama-3.2-3b", asked["gpus"], global_batch=asked["global_batch"])
        return str(answer.settings.get("optimizer"))

    assert choice(0.95) == "None" and choice(0.80) == "adamw-8bit"
    monkeypatch.undo()
    answer = recommend("llama-3.2-3b", "4xA10", global_batch=64, seq_len=1024)
    assert any(
        re.search("adamw-8bit: .* keeps 32-bit states, at .* instead of .*--optimizer", r) for r in answer.reasons
    )


def test_accumulated_gradients_are_reduced_in_every_step_where_whole_they_do_not_fit() -> None:
    answer = recommend("llama-70b", "8x8xH100", global_batch=512, seq_len=4096, team="pytorch")
    assert answer.strategy == "fsdp-full-shard:sync_each_batch" and answer.leaf == "fsdp"
    assert any(r.startswith("gradients are reduced in every micro-step") for r in answer.reasons)
    assert "bash run/launch.sh (--emit run/ writes it)" in answer.headline, "no launcher has a flag for it"


def test_equal_offloads_are_ranked_by_speed_and_more_never_before_less() -> None:
    from estimators.strategy import parse_strategy
    from selector.cost import offload_rank, offload_words

    def rank(name: str) -> int:
        return offload_rank(parse_strategy(name))

    assert rank("zero3") < rank("zero3+optimizer@cpu") == rank("zero3+params@cpu") < rank("zero3-offload")
    assert rank("fsdp-offload") == rank("zero3-offload") < rank("zero-infinity")
    assert offload_words(parse_strategy("fsdp-offload")) == "parameters and optimizer in host RAM"


def test_a_module_that_nobody_knows_is_not_sharded_without_need() -> None:
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        small = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
        large = torch.nn.Sequential(*(torch.nn.Linear(16384, 16384) for _ in range(24)))
    answer = recommend(small, "4xA100-80GB")
    assert answer.strategy == "ddp" and "per GPU without activations (unknown)" in answer.headline
    assert recommend(small, "A100-80GB").strategy == "single"
    pressed = recommend(large, "4xA100-80GB", micro_batch=1)
    assert pressed.strategy is not None and pressed.strategy != "ddp"
    assert all(a.estimate.verdict != "no" for a in pressed.alternatives)


def test_simplest_takes_the_simplest_that_fits() -> None:
    answer = recommend("llama-8b", "8xA100-80GB", goal="simplest", team="deepspeed")
    assert answer.strategy == "fsdp-full-shard"
    assert "simpler" in answer.reasons[1]


def test_fits_comes_before_tight_and_tight_before_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from estimators.memory import Estimate

    monkeypatch.setattr(Estimate, "verdict", property(lambda e: "fits" if e.run.strategy.base == "zero3" else "tight"))
    assert recommend("llama-8b", "8xA100-80GB", team="pytorch").strategy == "zero3"
    monkeypatch.setattr(Estimate, "verdict", property(lambda e: "tight"))
    answer = recommend("llama-8b", "8xA100-80GB", team="pytorch")
    assert answer.strategy is not None and any(r.startswith("tight: ") for r in answer.reasons)


def test_unknown_is_not_rejected_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from estimators.memory import Estimate

    monkeypatch.setattr(Estimate, "verdict", property(lambda e: "unknown"))
    answer = recommend("llama-8b", "8xA100-80GB", team="pytorch", global_batch=64)
    assert answer.strategy is not None and any(r.startswith("unknown whether it fits") for r in answer.reasons)
    assert answer.estimate is not None
    assert answer.estimate.run.workload.checkpointing == "full", "nothing is tuned where nobody can judge"


# ------------------------------------------------------------------------------------------------------ what it shows


def test_document_has_the_contracts_keys() -> None:
    document = recommend("llama-8b", "8xA100-80GB", team="pytorch").document()
    assert set(KEYS) <= document.keys() and document["schema"] == "dist-advisor/recommendation/1"
    assert [set(s) for s in document["path"]] == [{"id", "question", "answer", "because", "source"}] * 2
    assert document["commands"]["launch"].startswith("accelerate launch")
    assert {"strategy", "why"} <= document["rejected"][0].keys()
    assert {"strategy", "changes", "estimate", "why"} <= document["alternatives"][0].keys()
    json.dumps(document)


def test_html_escapes_and_shows_the_choice() -> None:
    page = recommend("llama-8b", "8xA100-80GB", team="pytorch")._repr_html_()
    assert "<script" not in page and "fsdp" in page and page.startswith("<div><p><b>Train ")


def test_rich_and_repr() -> None:
    from rich.console import Console

    answer = recommend("llama-8b", "8xA100-80GB", team="pytorch")
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(answer)
    shown = console.export_text()
    for title in ("why", "what else there is", "the way through the tree", "rejected", "how far to trust it"):
        assert f"\n{title}" in shown
    assert repr(answer).startswith("<Recommendation: Train ")


def test_emit_says_what_is_missing() -> None:
    answer = recommend("llama-8b", "8xA100-80GB")
    try:
        import selector.configs  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(MissingDependency, match="start with: accelerate launch"):
            answer.emit("run")
    nothing = recommend("llama-70b", "A10", host_memory="64GB")
    with pytest.raises(NotModelled, match="nothing fits"):
        nothing.deepspeed_config()


@pytest.mark.parametrize(
    ("strategy", "stack", "command"),
    [
        ("zero3-offload", "trainer", "--zero_stage 3 --offload_optimizer_device cpu --offload_param_device cpu"),
        ("ddp", "trl", "--multi_gpu"), ("fsdp-shard-grad-op", "accelerate", "--fsdp_reshard_after_forward false"),
        ("fsdp1-full-shard", "trainer", "--fsdp_sharding_strategy FULL_SHARD"),
        ("fsdp-offload", "trainer", "--fsdp_offload_params true"),
        ("ddp", "torch", "torchrun --nnodes 1 --nproc-per-node 4"),
    ],
)  # fmt: skip
def test_launch(strategy: str, stack: str, command: str) -> None:
    answer = recommend("llama-3.2-1b", "4xA100-80GB", strategy=strategy, stack=stack)
    assert answer.estimate is not None and command in launch(answer.estimate)


def test_accuracy_table_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from selector import trust

    file = tmp_path / "accuracy.json"
    rows = [
        {"engine": "fsdp2", "n": 50, "p90": 0.12},
        {"engine": "fsdp2", "method": "full", "stack": None, "n": 31, "p90": 0.08},
        {"engine": "ddp", "n": 9, "p90": 0.5},
    ]
    file.write_text(json.dumps({"rows": rows}))
    monkeypatch.setattr(trust, "FILE", str(file))
    trust.table.cache_clear()
    answer = recommend("llama-8b", "8xA100-80GB", team="pytorch")
    assert answer.trust.endswith("checked as fsdp2 x full on 31 measured cases, 90 % of them within 8 %")
    file.write_text("[")
    trust.table.cache_clear()
    assert answer.trust.endswith(trust.NOT_SCORED)
    trust.table.cache_clear()


def test_bytes_sent_follow_the_zero_paper() -> None:
    def sent(strategy: str, gpus: str = "8xA100-80GB", **fields: Any) -> float:
        from estimators import estimate

        return bytes_sent(estimate("llama-2-7b", gpus, strategy, stack="deepspeed", **fields))

    params = 6738415616
    assert sent("zero1") == sent("zero2") == 2 * 2 * params  # reduce-scatter and all-gather in 16 bit
    assert sent("zero3") == 3 * 2 * params  # half as much again
    assert sent("zero3", grad_accum=4) == 4 * sent("zero3") and sent("zero1", grad_accum=4) == sent("zero1")
    assert sent("zero3", "A100-80GB") == 0


# ----------------------------------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (UnknownName, "unknown team 'pytorhc'; did you mean pytorch", {"team": "pytorhc"}),
        (UnknownName, "unknown policy", {"policy": "new"}),
        (UnknownName, "unknown goal", {"goal": "cheapest"}),
        (UnknownName, "unknown method to allow 'qlra'; did you mean qlora", {"allow": "qlra"}),
        (UnknownName, "unknown strategy", {"strategy": "zero4"}),
        (UnknownName, "unknown workload field 'seqlen'", {"seqlen": 5}),
        (InputError, "global_batch", {"global_batch": 0}),
        (InputError, "deepspeed_experience", {"deepspeed_experience": "yes"}),
        (InputError, "seq_len", {"seq_len": -1}),
        (IllegalCombination, "global batch 100 does not divide over 8 GPUs; give 96 or 104", {"global_batch": 100}),
        (IllegalCombination, "global batch 4 does not divide over 8 GPUs; give 8", {"global_batch": 4}),
        (IllegalCombination, "is 8 sequences per GPU", {"global_batch": 64, "micro_batch": 3}),
    ],
)
def test_refuses(error: type[Exception], message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        recommend("llama-8b", "8xA100-80GB", **arguments)


def test_question_reads_facts_of_a_cluster() -> None:
    cluster = parse_cluster("8xA100-80GB")
    asked = ask("llama-8b", cluster, host_memory="512GB", network=400)
    assert asked.cluster.host_bytes == 512 * 10**9 and asked.cluster.network_bits_per_s == 400e9
    assert asked.cluster.gpu is cluster.gpu and asked.cluster.ranks == 8
    assert divisors(12) == [1, 2, 3, 4, 6, 12] and divisors(1) == [1]


# -------------------------------------------------------------------------------------------------------- command line


def test_command_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["recommend", "--model", "llama-8b", "--gpus", "8xA100-80GB", "--team", "pytorch", "--format", "json"])
        == 0
    )
    assert set(KEYS) <= json.loads(capsys.readouterr().out).keys()


@pytest.mark.parametrize("kind", ["table", "csv", "markdown"])
def test_command_formats(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--model", "llama-3.2-1b", "--gpus", "8xA100-80GB", "--format", kind]) == 0
    assert "ddp" in capsys.readouterr().out


def test_command_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    impossible = ["recommend", "--model", "llama-70b", "--gpus", "A10", "--host-memory", "64GB", "-q"]
    assert main(impossible) == 0
    assert main([*impossible, "--require-fit"]) == 1
    assert main(["recommend", "--model", "llama-8b", "--gpus", "8xA100", "--team", "x"]) == 2
    assert "one of pytorch, deepspeed, distributed" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- odd questions


def test_a_card_that_is_in_no_catalogue_is_spelled_so_that_the_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    answer = recommend("llama-70b", "1xFoo", gpu_memory="8GB", host_memory="64GB")
    assert answer.strategy is None and "--gpu-memory 8GB --host-memory 64GB" in answer.next_command
    assert main([*answer.next_command.split()[1:], "-q"]) == 0
    assert "x full x trainer: checked" in answer.trust, "a no is an answer too"
    assert not re.search(r"GPU: ([\d.]+) GiB of \1 at", " ".join(r.why for r in answer.rejected))


def test_precision_that_a_card_does_not_have_is_the_smallest_change() -> None:
    answer = recommend("llama-8b", "4xV100-32GB", precision="bf16-mixed")
    assert answer.strategy is None and answer.alternatives[0].changes["precision"] == "fp16-mixed"
    assert answer.what_if(precision="fp16-mixed").strategy is not None


def test_two_changes_where_one_does_not_do() -> None:
    answer = recommend("llama-70b", "1xFoo", gpu_memory="16GB", host_memory="96GB")
    working = [a for a in answer.alternatives if not a.why.startswith("nearest miss")]
    assert answer.strategy is None
    for found in working:
        changes = {k: v for k, v in found.changes.items() if k in ("gpus", "host_memory", "nvme", "seq_len", "method")}
        assert answer.what_if(**changes, gpu_memory=None if "H" in str(changes.get("gpus")) else "16GB").strategy


def test_host_memory_that_nobody_stated_is_in_the_first_sentence() -> None:
    answer = recommend("llama-8b", "4xA10")
    assert answer.estimate is not None
    needed = f"{answer.estimate.host.expected / 2**30:,.0f}"
    assert answer.headline.startswith(f"If a node has {needed} GiB of host RAM, train Llama-3.1-8B on 4 x A10 with ")
    assert f"needs {needed} GiB of host RAM per node, and nobody said how much there is" in answer.reasons
    assert answer.what_if(host_memory="512GB").headline.startswith("Train Llama-3.1-8B ")
    assert not any("nobody said" in r for r in recommend("llama-8b", "8xH100").reasons)


def test_what_no_machine_has_is_not_recommended() -> None:
    """DeepSeek-V3 on one node: 16 TiB of states, where 32 module slots take 8."""
    answer = recommend("deepseek-v3", "8xH100")
    assert answer.strategy is None and answer.headline.startswith("Nothing fits: ")
    assert any(re.match(r"host RAM: 1\d,\d{3} GiB per node, more than machines have", r.why) for r in answer.rejected)
    working = [a for a in answer.alternatives if not a.why.startswith("nearest miss")]
    assert working and all(a.estimate.host.expected <= search.USUAL_HOST_BYTES for a in working)
    assert f"with --gpus {working[0].changes['gpus']} it does" in answer.headline
    given = answer.what_if(host_memory="24TB")
    assert given.strategy == "zero3+optimizer@cpu+params@cpu", "who has such a machine may say so"


@pytest.mark.parametrize("gpus", ["125x8xH100", "8xMI300X", "8xGaudi2", "5x7xA100-80GB", "3xA10"])
def test_unusual_clusters_get_an_answer_that_fits(gpus: str) -> None:
    answer = recommend("llama-8b", gpus)
    assert answer.estimate is not None and answer.estimate.verdict == "fits" and "checked as" in answer.trust


@pytest.mark.parametrize("stack", ["swift", "llamafactory", "axolotl", "torchtune", "torchtitan"])
def test_stacks_with_files_of_their_own_start_from_the_folder(
    stack: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["recommend", "--model", "llama-8b", "--gpus", "8xH100", "--stack", stack, "--strategy", "fsdp-full-shard"]
    if stack in ("swift", "axolotl"):
        asked[-1] = "zero3"
    folder = tmp_path / "run"
    assert main([*asked, "--emit", str(folder), "--format", "json", "-q"]) == 0
    command = json.loads(capsys.readouterr().out)["commands"]["launch"]
    assert command == f"bash {folder}/launch.sh" and (folder / "launch.sh").exists()
    assert main([*asked, "--format", "json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["commands"]["launch"] == "bash run/launch.sh"


@pytest.mark.parametrize(
    ("stack", "model", "gpus", "strategy"),
    [
        ("torchtitan", "llama-3.1-70b", "8x8xH100", "fsdp-hybrid-shard:shard=8"),
        ("axolotl", "mistral-7b", "8xA100-80GB", "fsdp-full-shard"),
        ("llamafactory", "llama-8b", "4xA100-40GB", "zero3"),
    ],
)
def test_a_named_strategy_gets_what_its_stack_has_words_for(stack: str, model: str, gpus: str, strategy: str) -> None:
    """Settings that nobody gave are free: no fused loss for torchtitan, no fp32 weights for Axolotl."""
    from selector.configs import files_of

    answer = recommend(model, gpus, stack=stack, strategy=strategy)
    assert answer.strategy == strategy and "README.md" in files_of(answer)


def test_a_stack_that_cannot_say_it_is_named_before_memory() -> None:
    """GPT-2 of 0.5 GB on 22 GiB: torchtitan has no configuration for it, which is not a question of memory."""
    answer = recommend("gpt2", "A10", stack="torchtitan")
    assert answer.strategy is None and answer.headline.startswith("No strategy trains GPT-2 here, whatever the memory")


def test_why_the_trees_own_strategy_is_out() -> None:
    """Not why one of its offloads is: litgpt drives no ZeRO at all, NVMe or not."""
    answer = recommend("mixtral-8x7b", "2xA100-80GB", stack="litgpt", method="lora")
    assert any("zero3, which is out here (stack litgpt does not drive zero3" in reason for reason in answer.reasons)
    assert answer.estimate is not None and answer.estimate.verdict == "unknown"  # no traceback: experts are not counted
