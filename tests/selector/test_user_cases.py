"""What people asked in public threads, restated, where the right answer is certain: each checked by hand."""

from __future__ import annotations

import pytest

from estimators import IllegalCombination, estimate, parse_cluster, parse_strategy, resolve_model
from estimators.units import GIB
from selector import recommend
from selector.fit import fewest
from selector.levers import levers

RESIDENT = ("ddp", "zero1", "zero2", "zero3", "fsdp-full-shard", "fsdp-shard-grad-op")


def verdict(model: str, gpus: str, strategy: str, **fields: object) -> str:
    return estimate(model, gpus, strategy, **fields).verdict  # type: ignore[arg-type]


def test_uc002_70b_on_eight_a100() -> None:
    """meta-pytorch/torchtune#987: mixed precision with AdamW is 16 B x 70e9 / 8 = 138 GB; pure bf16 and paged ran."""
    assert all(verdict("llama-2-70b", "8xA100-80GB", s) == "no" for s in RESIDENT)
    pure = verdict("llama-2-70b", "8xA100-80GB", "fsdp1-full-shard", precision="bf16", optimizer="paged-adamw-8bit")
    assert pure != "no"


def test_uc010_zero3_on_one_gpu_saves_nothing() -> None:
    """haotian-liu/LLaVA#528: 16 B x 6.7e9 = 108 GB, on one GPU nothing is sharded."""
    answer = recommend("llama-2-7b", "A100-80GB")
    why = {r.strategy: r.why for r in answer.rejected}
    assert why["zero3"].startswith("one GPU: there is nothing to shard over")
    assert "single" in why or "optimizer" in answer.settings
    assert recommend("llama-2-7b", "8xA100-80GB").settings.get("optimizer") is None


@pytest.mark.parametrize("strategy", ["zero3", "fsdp-full-shard"])
def test_uc014_7b_takes_two_a100(strategy: str) -> None:
    """tatsu-lab/stanford_alpaca#56: 108 GB of states: not one A100-80GB, two (54 GB each); four of 24 GB do not."""
    model = resolve_model("llama-1-7b")
    assert verdict("llama-1-7b", "A100-80GB", "single") == "no"
    assert fewest(model, parse_cluster("A100-80GB"), parse_strategy(strategy), {"seq_len": 512}) == 2
    assert verdict("llama-1-7b", "4xRTX3090", strategy, seq_len=512) == "no"


def test_uc016_falcon_7b_needs_no_offload_on_eight_a100_40gb() -> None:
    """deepspeedai/DeepSpeed#3901: FSDP 2.93 s, ZeRO-3 2.86 s, with offload 6.05 to 13.70 s."""
    answer = recommend("falcon-7b", "8xA100-40GB", seq_len=4096)
    assert answer.strategy is not None and "+" not in answer.strategy
    assert answer.strategy.startswith(("fsdp", "zero3"))


def test_uc031_8b_zero3_on_four_a100() -> None:
    """deepspeedai/DeepSpeed#7242: 16 B x 8.03e9 / 4 = 32 GB of states; four sequences of 2048 ran."""
    assert verdict("llama-3-8b", "4xA100-80GB", "zero3", micro_batch=4, seq_len=2048) == "fits"


def test_uc072_mixtral_replicated_is_not_helped_by_more_gpus() -> None:
    """hiyouga/LLaMA-Factory#1931: 2 B x 46.7e9 = 93 GB of parameters on every GPU, whatever their number."""
    model, card = resolve_model("mixtral-8x7b"), parse_cluster("A100-80GB")
    for name in ("zero1", "zero1+optimizer@cpu", "zero2"):
        assert fewest(model, card, parse_strategy(name), {}) is None
    sixteen = recommend("mixtral-8x7b", "2x8xA100-80GB")
    assert sixteen.strategy is not None and "+" not in sixteen.strategy
    assert any("expert parallelism" in r for r in sixteen.reasons)  # UC173, DeepSpeed PR8064
    why = next(r.why for r in sixteen.rejected if r.strategy == "zero1")
    assert "parameters" in why or "GPU" in why


def test_uc106_no_bf16_on_v100() -> None:
    """lm-sys/FastChat#399: bf16 needs compute capability 8.0."""
    with pytest.raises(IllegalCombination, match="has no bf16; give precision fp16-mixed"):
        estimate("llama-1-13b", "8xV100-32GB", "fsdp-full-shard", precision="bf16-mixed")
    answer = recommend("llama-1-13b", "8xV100-32GB")
    assert answer.estimate is not None and answer.estimate.run.workload.precision == "fp16-mixed"


def test_uc134_7b_on_3090s() -> None:
    """lm-sys/FastChat#850: four 3090 fail at 256 tokens (27 GB of states each), eight run below 512."""
    for name in ("fsdp-full-shard", "zero3"):
        assert verdict("llama-1-7b", "4xRTX3090", name, seq_len=256) == "no"
        assert verdict("llama-1-7b", "8xRTX3090", name, seq_len=256) != "no"


def test_uc138_neox_20b_fits_eight_a100_sharded() -> None:
    """EleutherAI/gpt-neox#892: 18 B x 20.6e9 / 8 = 46 GB."""
    answer = recommend("gpt-neox-20b", "8xA100-80GB")
    assert answer.strategy is not None and "+" not in answer.strategy
    assert verdict("gpt-neox-20b", "8xA100-80GB", "ddp") == "no"


@pytest.mark.parametrize("gpus", ["2xA100-80GB", "4xA100-80GB", "4xV100-32GB"])
def test_uc139_neox_20b_does_not_fit_few_gpus(gpus: str) -> None:
    """EleutherAI/gpt-neox#616: 16 to 18 B x 20.6e9 = 330 to 370 GB; 320 GB of cards are too few."""
    precision = "fp16-mixed" if "V100" in gpus else "bf16-mixed"
    assert all(verdict("gpt-neox-20b", gpus, s, precision=precision) == "no" for s in RESIDENT)


def test_uc172_frozen_parameters_are_whole_under_zero2() -> None:
    """TensorAuto/OpenTau PR446: 33B frozen: 66 GB per GPU under ZeRO-2, 8.25 GB under ZeRO-3."""

    def parameters(strategy: str) -> float:
        found = estimate("yi-34b", "8xA100-80GB", strategy, method="lora", stack="deepspeed")["forward"]
        return found.by_category()["params"] / GIB

    model = resolve_model("yi-34b")
    whole = 2 * model.num_params / GIB
    assert parameters("zero2") == pytest.approx(whole, rel=0.02)
    assert whole / 8 <= parameters("zero3") < whole / 2


def test_uc186_qwen_72b_on_one_node() -> None:
    """QwenLM/Qwen#888: ZeRO-3 needs 145 GB a GPU; LoRA keeps 145 GB / 8 = 18 GB of base on each."""
    answer = recommend("qwen-72b", "8xA100-80GB", seq_len=1024)
    assert answer.strategy is None or "+" in answer.strategy
    lora = recommend("qwen-72b", "8xA100-80GB", seq_len=1024, allow="lora")
    assert lora.settings["method"] == "lora" and lora.strategy is not None and "+" not in lora.strategy


def test_uc192_7b_on_v100s() -> None:
    """hiyouga/LLaMA-Factory#2931: two V100-32GB fail without offload (54 GB of states each), four ran with ZeRO-3.

    27 GB of states each: with the default sub-groups of 1e9 elements 5.6 GiB of temporaries come on top at the step.
    """
    fields = {"precision": "fp16-mixed", "seq_len": 1024}
    assert all(verdict("llama-1-7b", "2xV100-32GB", s, **fields) == "no" for s in RESIDENT)
    answer = recommend("llama-1-7b", "4xV100-32GB", team="deepspeed", **fields)
    assert answer.strategy is not None and "+" not in answer.strategy
    smaller = verdict("llama-1-7b", "4xV100-32GB", "zero3:sub_group_size=100000000", **fields)
    assert smaller != "no"


def test_uc208_70b_qlora_base_is_sharded_by_fsdp() -> None:
    """accelerate 1.15 (FSDP plugin): 0.55 B x 70.6e9 / 8 = 4.9 GB of base per GPU when the storage is a float type."""
    found = estimate("llama-70b", "8xA100-80GB", "fsdp-full-shard", method="qlora")
    assert found["forward"].by_category()["params"] / GIB < 12 and found.verdict != "no"


def test_uc067_accumulation_without_sync_holds_whole_gradients() -> None:
    """accelerate: no_sync under FSDP keeps unsharded gradients, 2 to 4 B a parameter: 13.5 to 27 GB of a 7B."""

    def held(sync: str) -> int:
        found = estimate("llama-2-7b", "8xA100-80GB", f"fsdp-full-shard:sync_each_batch={sync}", stack="accelerate",
                         grad_accum=4)  # fmt: skip
        return found["forward"].by_category()["gradients"]

    assert 13.4e9 < held("false") < 27.1e9 and held("true") < 27.1e9 / 8


def test_uc109_foreach_adam_needs_a_copy_at_the_step_and_fused_does_not() -> None:
    """FSDP2 with foreach AdamW: 31.16 GB of states, 15.58 GB more at the step; one fp32 copy of the shard."""
    fields = {"stack": "torch", "precision": "bf16-mixed"}
    step = estimate("llama-8b", "8xA100-80GB", "fsdp-full-shard", optimizer="adamw", **fields)["step"].by_category()
    assert step["temporaries"] / step["optimizer"] == pytest.approx(15.58 / 31.16, rel=0.02)
    fused = estimate("llama-8b", "8xA100-80GB", "fsdp-full-shard", optimizer="adamw-fused", **fields)["step"]
    assert fused.by_category().get("temporaries", 0) < 0.01 * step["temporaries"]


def test_uc117_one_copy_of_logits_in_fp32() -> None:
    """11.6k tokens x 248,320 words x 4 B = 11.52e9 bytes: a plain loss holds at least one such copy, a fused none.

    What a fused loss holds are gradients of the head: kept, of a piece, and of a piece in fp32 (liger-kernel 0.6.2)."""
    config = {**resolve_model("qwen2.5-7b").config, "vocab_size": 248320}
    plain = estimate(config, "8xA100-80GB", "zero3", seq_len=11600)["loss"].by_category()["logits"]
    assert plain >= 11600 * 248320 * 4 > 11.5e9
    fused = estimate(config, "8xA100-80GB", "zero3", seq_len=11600, loss="fused")["loss"].by_category()
    head = 248320 * 3584
    assert fused.get("logits", 0) < (2 + 2 + 4) * head + plain / 10 < 11.5e9


def test_uc118_large_logits_offer_a_fused_or_chunked_loss() -> None:
    """Peak 43 GB to 8 GB with a chunked loss: offered where logits are more than a tenth of the card.

    Under flash attention: eager, which is what Gemma-2 runs unless told, keeps more in scores than there is of logits.
    """
    found = estimate("gemma-2-2b", "8xA100-80GB", "fsdp-full-shard", seq_len=16384, attention="flash")
    made = {lever.says: lever.saved_bytes for lever in levers(found, resolve_model("gemma-2-2b"))}
    assert made["a fused loss"] > 0.5 * found.peak.gpu_bytes and next(iter(made)) == "a fused loss"


def test_uc183_host_ram_of_a_72b_with_everything_offloaded() -> None:
    """Qwen2-72B, 8192 tokens, ZeRO-3 with both offloads: 18 B x 72.7e9 = 1309 GB of host RAM; logits 12.5 GB."""
    found = estimate("qwen2-72b", "8xA100-40GB", "zero3-offload", seq_len=8192, precision="fp16-mixed")
    assert found.host.expected > 16 * 72.7e9  # pinned blocks round up to powers of two on top
    small = estimate("qwen2-72b", parse_cluster("8xA100-40GB", host_memory="1TB"), "zero3-offload", seq_len=8192)
    assert (small.verdict, small.reason) == ("no", "host RAM")
    assert found["loss"].by_category()["logits"] == pytest.approx(8192 * 152064 * 10, rel=0.25)


def test_uc009_a_13b_built_whole_does_not_start_on_22_gb() -> None:
    """EleutherAI/gpt-neox#1354: 26 GB in fp16 before anything is partitioned, both offloads on; zero.Init starts it."""
    neox = {
        "model_type": "gpt_neox", "hidden_size": 5120, "intermediate_size": 20480, "num_hidden_layers": 40,
        "num_attention_heads": 40, "vocab_size": 50432, "max_position_embeddings": 2048,
    }  # fmt: skip
    asked = {"precision": "fp16-mixed", "seq_len": 2048}
    whole = estimate(neox, parse_cluster("4xRTX2080Ti", gpu_memory="22GB"), "zero3-offload", stack="deepspeed", **asked)
    assert whole.verdict == "no" and whole.peak.name == "load"
    assert whole["load"].gpu_bytes == pytest.approx(26e9, rel=0.02)
    split = estimate(neox, parse_cluster("4xRTX2080Ti", gpu_memory="22GB"), "zero3-offload", stack="trainer", **asked)
    assert split["load"].gpu_bytes < 22e9 / 4


def test_uc030_parameters_that_fit_are_not_gathered_twice() -> None:
    """TensorAuto/OpenTau pull request 273: ZeRO-2 26.7 samples/s, FSDP full shard 16.5, on 8 x 80 GB."""
    answer = recommend("llava-1.5-7b", "8xA100-80GB", checkpointing="full")
    assert answer.choice is not None and answer.choice.strategy.base in ("ddp", "zero1", "zero2", "fsdp-shard-grad-op")


def test_uc189_72b_built_whole_takes_145_gb() -> None:
    """SafeAILab/EAGLE#260: ZeRO-3 with both offloads, out of memory in deepspeed.initialize: built before it is split."""
    whole = estimate("qwen2.5-72b", "8xA100-80GB", "zero3-offload", stack="deepspeed")
    assert whole.verdict == "no" and whole["load"].gpu_bytes == pytest.approx(145e9, rel=0.01)
    assert verdict("qwen2.5-72b", "8xA100-80GB", "zero3-offload", stack="trainer") == "fits"
