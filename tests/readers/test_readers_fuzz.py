"""Whatever the bytes: a reading or an InputError, and soon."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimators.errors import InputError
from estimators.readers import Reading, read_config
from estimators.readers.deepspeed_keys import OFFLOAD_KNOBS, ZERO_KNOBS
from estimators.readers.names import names
from estimators.strategy import parse_strategy

CONFIGS = sorted((Path(__file__).parent / "configs").iterdir())
SECONDS = 0.02  # of CPU time, the fastest of three: a busy machine is not a slow reader
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def survives(path: Path, raw: bytes) -> Reading | None:
    path.write_bytes(raw)
    best = float("inf")
    reading = None
    for _ in range(3):
        start = time.process_time()
        try:
            reading = read_config(path, ranks=4)
        except InputError as error:
            text = str(error)
            assert text and "\n" not in text and len(text) < 600
        best = min(best, time.process_time() - start)
        if best < SECONDS:
            break
    assert best < SECONDS
    if reading is not None and len(reading.strategy.name) <= 400:
        assert parse_strategy(reading.strategy.name) == reading.strategy
    return reading


@pytest.fixture(autouse=True)
def _warm() -> None:
    for path in CONFIGS[:3]:
        read_config(path)


@FUZZ
@given(raw=st.binary(max_size=400), suffix=st.sampled_from([".json", ".yaml", ""]))
def test_random_bytes(tmp_path: Path, raw: bytes, suffix: str) -> None:
    survives(tmp_path / f"x{suffix}", raw)


@FUZZ
@given(
    text=st.text(alphabet='{}[]:,"-&*!|>#%@` \n\tatrue1.e', max_size=200), suffix=st.sampled_from([".json", ".yaml"])
)
def test_random_syntax(tmp_path: Path, text: str, suffix: str) -> None:
    survives(tmp_path / f"x{suffix}", text.encode())


@FUZZ
@given(
    source=st.sampled_from(CONFIGS),
    cuts=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 30), st.binary(max_size=8)), max_size=4),
)
def test_mutated_files(tmp_path: Path, source: Path, cuts: list[tuple[int, int, bytes]]) -> None:
    raw = source.read_bytes()
    for at, length, new in cuts:
        raw = raw[:at] + new + raw[at + length :]
    survives(tmp_path / source.name, raw)


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20),
        st.sampled_from(["auto", "true", "cpu", "nvme", "none", "bf16", "5e8", "-1", 0, 1, 2, 3, -1, 1e9, 10**30]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=5,
)  # fmt: skip
ZERO = st.dictionaries(
    st.sampled_from(["stage", "offload_optimizer", "offload_param", "cpu_offload", *ZERO_KNOBS]), VALUES
)
OFFLOAD = st.dictionaries(
    st.sampled_from(["device", "pin_memory", "nvme_path", *OFFLOAD_KNOBS["offload_param"], "ratio"]), VALUES
)
TOP = sorted(
    names(
        """train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps bf16 fp16 optimizer data_types
        aio activation_checkpointing gradient_clipping torch_autocast communication_data_type sequence_parallel_size
        tensor_parallel zero_optimization distributed_type num_processes num_machines mixed_precision fsdp_config
        deepspeed_config parallelism_config dynamo_config fsdp deepspeed output_dir per_device_train_batch_size optim
        gradient_checkpointing gradient_checkpointing_kwargs torch_compile use_liger_kernel liger_kernel_config
        accelerator_config ddp_bucket_cap_mb max_length finetuning_type"""
    )
)
INNER_KEYS = sorted(
    names(
        """enabled type params dtype grad_accum_dtype loss_scale autotp_size zero_stage version offload_param_device
        fsdp_version fsdp_sharding_strategy reshard_after_forward cpu_offload fsdp_reshard_after_forward
        fsdp_offload_params fsdp_backward_prefetch auto_wrap_policy deepspeed_config_file every_n_layers offload
        parallelism_config_dp_shard_size"""
    )
)
INNER = st.dictionaries(st.sampled_from(INNER_KEYS), VALUES)


@FUZZ
@given(
    top=st.dictionaries(st.sampled_from(TOP), st.one_of(VALUES, INNER), max_size=8),
    zero=ZERO,
    offload=OFFLOAD,
    form=st.sampled_from(["deepspeed", "inline", "FSDP", "DEEPSPEED", "MULTI_GPU", "trainer", "free"]),
)
def test_any_value_at_any_key(
    tmp_path: Path, top: dict[str, Any], zero: dict[str, Any], offload: dict[str, Any], form: str
) -> None:
    data = dict(top)
    if offload:
        zero = {**zero, "offload_param": offload}
    if form == "deepspeed":
        data["zero_optimization"] = zero
    elif form == "inline":
        data["deepspeed"] = {"zero_optimization": zero}
    elif form in ("FSDP", "DEEPSPEED", "MULTI_GPU"):
        data["distributed_type"] = form
    elif form == "trainer":
        data = {**data, "output_dir": "out", "fsdp": True}
    survives(tmp_path / "x.json", json.dumps(data).encode())


@pytest.mark.parametrize("depth", [10, 40, 2000, 200_000])
@pytest.mark.parametrize("opening", ["[", '{"a":', "- ", "a: ["])
@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_deep_nesting(tmp_path: Path, depth: int, opening: str, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_text('{"zero_optimization": ' + opening * depth if suffix == ".json" else "x: " + opening * depth)
    with pytest.raises(InputError):
        read_config(path)
