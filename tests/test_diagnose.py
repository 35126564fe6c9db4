"""Logs of several torch and engine versions, and what they mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators import estimate, parse_cluster, resolve_model
from estimators.units import GIB, MIB
from selector.checks.rules import RULES
from selector.cli import main
from selector.diagnose import diagnose
from selector.diagnosis.oom import out_of_memory
from selector.diagnosis.remedies import remedies
from selector.diagnosis.signatures import SIGNATURES
from selector.diagnosis.sizes import matches

OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate {} (GPU 3; 79.35 GiB total capacity; 62.10 GiB already "
    "allocated; 15.02 GiB free; 63.63 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory"
)
NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 23.69 GiB of "
    "which 35.94 MiB is free. Including non-PyTorch memory, this process has 23.65 GiB memory in use. Of the allocated "
    "memory {} GiB is allocated by PyTorch, and {} GiB is reserved by PyTorch but unallocated."
)
MISSPELT = NEW.replace("capacity of", "capacty of")  # torch 2.1 and 2.2


# ------------------------------------------------------------------------------------------------------------ messages


@pytest.mark.parametrize("text", [NEW, MISSPELT])
def test_new_message(text: str) -> None:
    found = out_of_memory(text.format("172.00 MiB", "18.01", "4.23"))
    assert found is not None and found.tried == 172 * MIB and found.capacity == round(23.69 * GIB)
    assert found.free == round(35.94 * MIB) and found.unallocated == round(4.23 * GIB) and found.is_fragmented


def test_old_message() -> None:
    found = out_of_memory(OLD.format("16.83 GiB"))
    assert found is not None and found.allocated == round(62.10 * GIB) and not found.is_fragmented
    assert found.unallocated == round(63.63 * GIB) - round(62.10 * GIB)


def test_another_process_holds_the_card() -> None:
    text = NEW.format("2.00 GiB", "10.0", "0.1").replace(
        "Including", "Process 7 has 12.00 GiB memory in use. Including"
    )
    assert next(c.title for c in diagnose(text).causes) == "another process on the card"


def test_the_own_process_under_a_number_is_no_other() -> None:
    """LlamaFactory#7532, in a container: 76.92 GiB are the failed process itself, 73.28 + 1.59 and a context."""
    text = NEW.format("3.39 GiB", "73.28", "1.59").replace("23.69", "79.32").replace("35.94 MiB", "2.40 GiB")
    own = text.replace("Including non-PyTorch memory, this process has 23.65 GiB", "Process 105400 has 76.92 GiB")
    found = out_of_memory(own)
    assert found is not None and found.others == 0 and found.process == round(76.92 * GIB)
    assert not any("another process" in cause.title for cause in diagnose(own).causes)
    two = out_of_memory(own.replace("Process 105400", "Process 7 has 4.00 GiB memory in use. Process 105400"))
    assert two is not None and two.others == 4 * GIB


def test_ranks_that_the_launcher_ends_were_not_killed_for_memory() -> None:
    log = (
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE) ran for 600060\n"
        "[WARNING] Unable to shutdown process 264 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL\n"
    )
    found = diagnose(log)
    assert found.kind == "nccl" and [cause.rule for cause in found.causes] == ["ddp-timeout-default"]


def test_the_listed_mismatches_are_said() -> None:
    log = (
        "ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n"
        "- ds train_micro_batch_size_per_gpu=1 vs hf per_device_train_batch_size=4\n"
        "- ds gradient_accumulation_steps=1 vs hf gradient_accumulation_steps=8\n"
        "The easiest method is to set these DeepSpeed config values to 'auto'.\n"
    )
    (cause,) = diagnose(log).causes
    assert cause.because.count(" vs hf ") == 2 and "=8" in cause.because


# ------------------------------------------------------------------------------------------------ sizes, golden numbers


def test_share_of_72b_on_16_ranks() -> None:
    """LLaMA-Factory#2959: 16.83 GiB is the fp32 copy of a rank's share of 72.29e9 parameters on 16 ranks."""
    model = resolve_model("qwen1.5-72b")
    found = matches(round(16.83 * GIB), model, 16, None)
    assert found[0].name == "fp32 copy of a rank's share" and found[0].instant == "load"


def test_sub_group() -> None:
    """LLaMA-Factory#5590: 3.74 GiB is the fp32 state of a sub-group of 1e9 parameters."""
    assert matches(round(3.74 * GIB), None, None, None)[0].name == "fp32 state of one sub-group"


def test_reduce_bucket() -> None:
    """DeepSpeed#1302: 5e8 elements in 16 bit are 953.7 MiB."""
    assert matches(round(953.7 * MIB), None, None, None)[0].name == "16-bit reduce bucket"


def test_full_logits() -> None:
    found = estimate("llama-8b", "8xA100", "zero3", micro_batch=2, seq_len=4096)
    assert "logits" in {m.name.split()[-1] for m in matches(2 * 4096 * 128256 * 4, found.run.model, 8, found)}


def test_small_requests_match_nothing() -> None:
    assert matches(2 * MIB, resolve_model("llama-8b"), 8, None) == ()


# ----------------------------------------------------------------------------------------------------------- diagnoses


def test_instant_from_the_traceback() -> None:
    log = "  File train.py\n    loss.backward()\n  File engine.py, in forward\n" + OLD.format("1.00 GiB")
    assert diagnose(log).instant == "backward"
    assert diagnose("    self.optimizer.step()\n" + OLD.format("1.00 GiB")).instant == "step"
    assert diagnose("  in _create_fp32_partitions\n" + OLD.format("1.00 GiB")).instant == "load"


def test_72b_case() -> None:
    answer = diagnose(OLD.format("16.83 GiB"), model="qwen1.5-72b", cluster="2x8xA100-80GB", strategy="zero3")
    assert answer.kind == "gpu-oom" and answer.matches and answer.remedies
    assert all(r.expected_bytes <= answer.estimate.gpu.capacity for r in answer.remedies if answer.estimate)


def test_fragmentation_leads_to_expandable_segments() -> None:
    causes = diagnose(NEW.format("512.00 MiB", "17.0", "4.23")).causes
    assert causes[0].rule == "alloc-conf" and "expandable_segments" in causes[0].fix


@pytest.mark.parametrize(
    ("line", "gpus", "rule", "says"),
    [
        ("AssertionError: Check batch ... 256 != 2 * 18 * 7", "7xA100", "ds-batch-triangle", "252 (accumulation 18)"),
        ("AssertionError: Check batch ... 8 != 2 * 1 * 1", "4xA100", "ds-batch-ok-but-world1", "read as 1"),
        ("AssertionError: Check batch ... 8 != 2 * 1 * 1", None, "ds-batch-ok-but-world1", "read as 1"),
    ],
)
def test_batch_assertion(line: str, gpus: str | None, rule: str, says: str) -> None:
    cause = diagnose(line, cluster=gpus).causes[0]
    assert cause.rule == rule and says in cause.because


@pytest.mark.parametrize(
    ("line", "rule", "kind"),
    [
        ("exits with return code = -9", "host-ram-insufficient", "host-kill"),
        ("torch.distributed.elastic: exitcode: -9 (pid: 12)", "host-ram-insufficient", "host-kill"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory", "host-ram-insufficient", "host-kill"),
        ("Watchdog caught collective operation timeout: WorkNCCL", "ddp-timeout-default", "nccl"),
        ("ncclUnhandledCudaError: Call to CUDA function failed.", "nccl-reserve", "nccl"),
        ("NotImplementedError: Using RTX 4000 series doesn't support", "rtx40-p2p-env", "nccl"),
        ("'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'", "cpu-adam-build", "build"),
        ("Unable to JIT load the async_io op", "aio-missing", "build"),
        ("ValueError: Must flatten tensors with uniform dtype but got bf16", "fsdp-qlora-dtype", "config-error"),
        ("ValueError: Attempting to unscale FP16 gradients.", "fp16-amp-trainable-fp16", "config-error"),
        ("Expected to mark a variable ready only once.", "ddp-gc-find-unused", "config-error"),
        ("Please correct the following DeepSpeed config values that mismatch TrainingArguments", "hf-ds-mismatch",
         "config-error"),
    ],
)  # fmt: skip
def test_signatures(line: str, rule: str, kind: str) -> None:
    answer = diagnose(f"step 1\n{line}\n")
    assert answer.causes[0].rule == rule and answer.kind == kind and answer.causes[0].line == 2


def test_every_signature_names_a_rule() -> None:
    assert {s.rule for s in SIGNATURES} <= set(RULES)


def test_the_configuration_speaks_too(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    both = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "fp16": {"enabled": True}}
    file.write_text(json.dumps(both), encoding="utf-8")
    found = diagnose("AssertionError: bfloat16 and fp16 modes cannot be simultaneously enabled", configs=[file])
    assert [(c.title, c.where, c.line) for c in found.causes] == [
        ("ds-fp16-bf16-both", "ds.json, line 1: fp16.enabled", 1)
    ]
    assert not any("fp16" in note for note in found.notes)  # what a cause says is not said again
    other = diagnose("watchdog: Watchdog caught collective operation timeout", configs=[file])
    assert other.notes[0] == "ds.json, line 1: fp16.enabled: both fp16 and bf16 are enabled; keep one"


def test_unknown_stays_unknown() -> None:
    assert diagnose("everything is well").kind == "unknown"
    assert diagnose("").causes == ()


def test_a_killed_process_gets_changes_that_need_less_host_ram() -> None:
    cluster = parse_cluster("8xA100-80GB", host_memory="160GB")
    answer = diagnose("exitcode: -9", model="llama-8b", cluster=cluster, strategy="zero3-offload")
    assert answer.kind == "host-kill" and "the node has 149" in answer.causes[0].because
    assert answer.remedies and all("host RAM" in remedy.says for remedy in answer.remedies)


def test_where_no_change_is_enough_that_is_said() -> None:
    """QwenLM/Qwen3#804: 72B with both offloads on one node of 800 GB is killed."""
    cluster = parse_cluster("8xA100-80GB", host_memory="800GB")
    answer = diagnose("exitcode: -9", model="qwen2-72b", cluster=cluster, strategy="zero3-offload")
    assert answer.remedies or any("no single change" in note for note in answer.notes)


def test_a_tight_change_says_so() -> None:
    seen = set()
    for size in ("44GB", "48GB"):  # of 48 GB, LoRA leaves less than the upper ends of what is not torch's
        found = estimate("llama-8b", parse_cluster("4xA10", gpu_memory=size), "zero2", seq_len=8192, micro_batch=2)
        for remedy in remedies(found, found.run.model):
            assert remedy.verdict in ("fits", "tight")
            assert ("but tight" in remedy.says) == (remedy.verdict == "tight"), remedy
            seen.add(remedy.verdict)
    assert seen == {"fits", "tight"}


def test_changes_come_together_where_none_is_enough_alone() -> None:
    found = estimate("llama-8b", "4xA10", "zero2", seq_len=8192, micro_batch=4)
    made = remedies(found, found.run.model)
    assert made[-1].verdict == "fits"
    for remedy in made:
        assert remedy.changes["micro_batch"] == 1 and remedy.changes["grad_accum"] == 4 and "zero3" in remedy.strategy
        changes = {name: value for name, value in remedy.changes.items() if name != "strategy"}
        assert estimate("llama-8b", "4xA10", remedy.strategy, seq_len=8192, **changes).verdict == remedy.verdict


def test_remedies_are_verified() -> None:
    found = estimate("llama-8b", "4xA10", "zero2", micro_batch=2)
    for remedy in remedies(found, resolve_model("llama-8b")):
        fields = {k: v for k, v in remedy.changes.items() if k != "strategy"}
        again = estimate("llama-8b", "4xA10", remedy.strategy, **{"micro_batch": 2, **fields})
        assert round(again.gpu.process.expected) == remedy.expected_bytes <= again.gpu.capacity


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=400))
def test_any_text(text: str) -> None:
    assert diagnose(text).kind
    diagnose("CUDA out of memory. Tried to allocate " + text)


# -------------------------------------------------------------------------------------------------------- command line


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text(OLD.format("3.74 GiB"), encoding="utf-8")
    assert main(["diagnose", str(log), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "dist-advisor/diagnose/1" and document["matches"][0]["instant"] == "step"
    assert main(["diagnose", str(log), "-q"]) == 0 and "sub-group" in capsys.readouterr().out
    assert main(["diagnose", str(tmp_path / "none.log")]) == 2
