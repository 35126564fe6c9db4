"""Rules about torch, the Trainer and accelerate, on one gloo rank: what they call an error is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engines


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Any]:
    """A process group of one, and torch."""
    torch = pytest.importorskip("torch")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield torch
    torch.distributed.destroy_process_group()


def test_frozen_and_trained_in_one_unit(rank: Any) -> None:
    """``fsdp-use-orig-params``: a unit has one requires_grad unless use_orig_params is true."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    def half_frozen() -> Any:
        model = rank.nn.Sequential(rank.nn.Linear(4, 4), rank.nn.Linear(4, 4))
        model[0].requires_grad_(False)
        return model

    cpu = rank.device("cpu")
    with pytest.raises(ValueError, match="requires_grad"):
        FullyShardedDataParallel(half_frozen(), device_id=cpu, use_orig_params=False)
    FullyShardedDataParallel(half_frozen(), device_id=cpu, use_orig_params=True)


def test_one_dtype_a_unit(rank: Any) -> None:
    """``fsdp-lora-dtype``, ``fsdp-qlora-dtype``: a flat parameter has one dtype."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = rank.nn.Sequential(rank.nn.Linear(4, 4), rank.nn.Linear(4, 4).to(rank.bfloat16))
    with pytest.raises(ValueError, match="uniform dtype"):
        FullyShardedDataParallel(model, device_id=rank.device("cpu"))


def test_integers_do_not_flatten(rank: Any) -> None:
    """``fsdp-8bit``."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = rank.nn.Linear(4, 4, bias=False)
    model.weight = rank.nn.Parameter(rank.zeros(4, 4, dtype=rank.int8), requires_grad=False)
    with pytest.raises(ValueError, match="integer"):
        FullyShardedDataParallel(model, device_id=rank.device("cpu"))


@pytest.mark.parametrize("reentrant", [True, False])
def test_unused_search_with_recompute(rank: Any, reentrant: bool) -> None:
    """``ddp-gc-find-unused``: fails with reentrant recompute, and with that only."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.checkpoint import checkpoint

    class Twice(rank.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = rank.nn.Linear(4, 4), rank.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return checkpoint(self.two, checkpoint(self.one, x, use_reentrant=reentrant), use_reentrant=reentrant)

    model = DistributedDataParallel(Twice(), find_unused_parameters=True)
    loss = model(rank.ones(2, 4, requires_grad=True)).sum()
    if reentrant:
        with pytest.raises(RuntimeError, match=r"ready (only once|twice)"):
            loss.backward()
    else:
        loss.backward()


def test_fully_shard_has_no_no_sync(rank: Any) -> None:
    """``fsdp2-no-sync-api``."""
    from torch.distributed.fsdp import fully_shard

    mesh = rank.distributed.init_device_mesh("cpu", (1,))
    model = fully_shard(rank.nn.Linear(4, 4), mesh=mesh)
    assert not hasattr(model, "no_sync") and hasattr(model, "set_requires_gradient_sync")


def test_wrap_class_is_case_sensitive() -> None:
    """``fsdp-wrap-class``."""
    accelerate = pytest.importorskip("accelerate")
    import torch

    plugin = accelerate.FullyShardedDataParallelPlugin(
        auto_wrap_policy="TRANSFORMER_BASED_WRAP", transformer_cls_names_to_wrap=["linear"]
    )
    with pytest.raises(ValueError, match="Could not find the transformer layer class"):
        plugin.set_auto_wrap_policy(torch.nn.Sequential(torch.nn.Linear(4, 4)))


def test_mismatch_with_the_trainer() -> None:
    """``hf-ds-mismatch``, and ``ds-bool-as-string`` under the Trainer."""
    pytest.importorskip("deepspeed")
    from types import SimpleNamespace

    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    config = HfTrainerDeepSpeedConfig(
        {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": "true"}, "zero_optimization": {"stage": 2}}
    )
    numbers = {
        "max_grad_norm": 1.0,
        "learning_rate": 1e-5,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
    }
    flags = {"save_on_each_node": False, "fp16": False, "fp16_full_eval": False, "bf16": True, "bf16_full_eval": False}
    batch = {"world_size": 1, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "weight_decay": 0.0}
    arguments = SimpleNamespace(**numbers, **flags, **batch, get_warmup_steps=lambda _: 0)
    config.trainer_config_process(arguments)
    with pytest.raises(ValueError, match="mismatch TrainingArguments") as caught:
        config.trainer_config_finalize(arguments, SimpleNamespace(), 10)
    assert "train_micro_batch_size_per_gpu" in str(caught.value) and "bf16.enabled" in str(caught.value)


def test_buckets_need_a_hidden_size() -> None:
    """``ds-auto-hidden-size``."""
    pytest.importorskip("deepspeed")
    from types import SimpleNamespace

    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    config = HfTrainerDeepSpeedConfig({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}})
    with pytest.raises(ValueError, match="hidden_size"):
        config.trainer_config_finalize(SimpleNamespace(), SimpleNamespace(config=SimpleNamespace()), 10)


def test_file_and_inline_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """``accel-ds-file-and-inline``."""
    pytest.importorskip("deepspeed")
    accelerate = pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", "deepspeed_config_file,zero_stage")
    with pytest.raises(ValueError, match="will be ignored"):
        accelerate.DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": 2}})


def test_efficient_loading_is_version_2_only_with_sync_left_out() -> None:
    """``fsdp2-legacy-keys``: the plugin drops what version 2 has not, with a warning."""
    accelerate = pytest.importorskip("accelerate")
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2, sync_module_states=True, use_orig_params=False)
    assert plugin.sync_module_states is None and plugin.use_orig_params is None
