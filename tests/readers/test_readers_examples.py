"""Configurations that packages ship, restated: they read without an error and say what they say.

Sources: ms-swift 4.6.0 swift/config, trl 1.16.0 trl/accelerate_configs, LLaMA-Factory's example of a full fine-tune,
the DeepSpeed examples of the two documents (``document1``, ``document2``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators.readers import read_config
from estimators.strategy import parse_strategy
from estimators.workload import workload as settled

CONFIGS = Path(__file__).parent / "configs"

EXAMPLES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("swift_zero2_offload.json", "deepspeed",
     "zero2:allgather_bucket_size=200000000,contiguous_gradients,overlap_comm=false,pin_memory,"
     "reduce_bucket_size=200000000,reduce_scatter+optimizer@cpu", {"stack": "trainer"}),
    ("swift_zero3.json", "deepspeed",
     "zero3:contiguous_gradients,gather_16bit_on_save,max_live_parameters=1000000000,max_reuse_distance=1000000000,"
     "overlap_comm=false,quantized_gradients=false,quantized_weights=false,sub_group_size=1000000000",
     {"stack": "trainer"}),
    ("swift_fsdp2.json", "training_arguments", "fsdp-full-shard", {"checkpointing": "full"}),
    ("trl_fsdp1.yaml", "accelerate", "fsdp1-full-shard:backward_prefetch=pre,forward_prefetch=1,use_orig_params",
     {"stack": "accelerate", "precision": "bf16-mixed"}),
    ("trl_fsdp2.yaml", "accelerate", "fsdp-full-shard", {"stack": "accelerate", "precision": "bf16-mixed"}),
    ("trl_zero3.yaml", "accelerate", "zero3:gather_16bit_on_save,zero_init",
     {"stack": "accelerate", "precision": "bf16-mixed"}),
    ("trl_multi_gpu.yaml", "accelerate", "ddp", {"stack": "accelerate", "precision": "bf16-mixed"}),
    ("trl_single_gpu.yaml", "accelerate", "single", {"stack": "accelerate", "precision": "bf16-mixed"}),
    ("trl_sft.yaml", "training_arguments", "ddp",
     {"stack": "trl", "micro_batch": 2, "grad_accum": 1, "seq_len": 4096, "precision": "bf16-mixed",
      "optimizer": "paged-adamw-8bit", "checkpointing": "full", "loss": "fused"}),
    ("llamafactory_full.yaml", "training_arguments",
     "zero3:contiguous_gradients,gather_16bit_on_save,max_live_parameters=1000000000,max_reuse_distance=1000000000,"
     "overlap_comm=false,quantized_gradients=false,quantized_weights=false,sub_group_size=1000000000,zero_init",
     {"stack": "llamafactory", "micro_batch": 1, "grad_accum": 2, "seq_len": 2048, "precision": "bf16-mixed"}),
    ("accelerate_deepspeed_file.yaml", "accelerate",
     "zero2:allgather_bucket_size=200000000,contiguous_gradients,overlap_comm=false,pin_memory,"
     "reduce_bucket_size=200000000,reduce_scatter+optimizer@cpu", {"stack": "accelerate"}),
    ("document1.json", "deepspeed",
     "zero3:contiguous_gradients,max_live_parameters=1000000000,max_reuse_distance=1000000000,overlap_comm,"
     "param_persistence_threshold=1000000,pin_memory,prefetch_bucket_size=50000000,sub_group_size=1000000000"
     "+optimizer@cpu+params@cpu", {"precision": "fp16-mixed", "grad_accum": 4}),
    ("document2.json", "deepspeed", "zero3:contiguous_gradients+optimizer@cpu+params@cpu",
     {"precision": "fp16-mixed", "optimizer": "adamw-fused", "micro_batch": 4, "grad_accum": 8}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "strategy", "workload"), EXAMPLES, ids=[row[0] for row in EXAMPLES])
def test_example(name: str, kind: str, strategy: str, workload: dict[str, Any]) -> None:
    reading = read_config(CONFIGS / name)
    assert (reading.kind, reading.strategy.name, dict(reading.workload)) == (kind, strategy, workload)
    assert reading.files[0] == CONFIGS / name
    assert parse_strategy(reading.strategy.name) == reading.strategy
    assert settled(**reading.workload)  # the workload takes every field as it is


def test_every_value_has_a_place() -> None:
    for row in EXAMPLES:
        reading = read_config(CONFIGS / row[0])
        stated = {**reading.workload, **reading.strategy.options}
        assert stated.keys() <= reading.values.keys(), row[0]
        for name, value in stated.items():
            place = reading.values[name]
            assert place.value == value and place.where
            assert (place.line is not None) == place.given, (row[0], name, place)


def test_processes_are_those_that_the_launcher_starts() -> None:
    assert read_config(CONFIGS / "trl_fsdp2.yaml").num_processes == 8
    assert read_config(CONFIGS / "trl_single_gpu.yaml").num_processes == 1  # the file says 8, the launcher starts one
    two = read_config(CONFIGS / "accelerate_deepspeed_file.yaml")
    assert (two.num_processes, two.num_machines) == (16, 2)
    assert two.values["reduce_bucket_size"].where == "swift_zero2_offload.json: zero_optimization.reduce_bucket_size"


def test_document_one_on_four_gpus() -> None:
    reading = read_config(CONFIGS / "document1.json", ranks=4)
    assert reading.workload["micro_batch"] == 2  # 32 = 2 x 4 x 4
    assert "micro_batch" not in read_config(CONFIGS / "document1.json").workload


def test_auto_buckets_follow_the_hidden_size() -> None:
    reading = read_config(CONFIGS / "swift_zero3.json")
    assert {"reduce_bucket_size", "prefetch_bucket_size", "param_persistence_threshold"} <= set(reading.auto)
    filled = reading.with_hidden_size(4096)
    assert filled.strategy.options["reduce_bucket_size"] == 16777216
    assert filled.strategy.options["prefetch_bucket_size"] == 15099494
    assert filled.strategy.options["param_persistence_threshold"] == 40960
    assert filled.with_hidden_size(1) is filled
