"""Document 1: each claim beside what commands of this project compute."""

from __future__ import annotations

from claims.common import FAILS, GB, HOLDS, PARTLY, Claim, Examined, estimates, host, process, rate, run
from estimators import resolve_model


def thirty_billion() -> Examined:
    found, command = estimates("--model llama-1-30b --gpus 4xA100-80GB", "zero3", "fsdp", "fsdp1", "zero3-offload")
    zero, fsdp, fsdp1, away = (found[s] for s in ("zero3", "fsdp", "fsdp1", "zero3-offload"))
    share = 16 * resolve_model("llama-1-30b").num_params / 4 / GB
    text = (
        f"Neither fits without offload: ZeRO-3 {process(zero)}, FSDP2 {process(fsdp)}, FSDP1 {process(fsdp1)}; the states "
        f"alone are {share:.0f} GB a GPU. FSDP failing is right, ZeRO-3 reaching 680 tokens/s in the same setting "
        f"is not possible: it ran with offload ({process(away)}, {host(away)}), with another optimizer, or on fewer "
        "parameters. The engine is not the difference, and no prefetch setting changes that."
    )
    both_fail = zero["verdict"] == fsdp["verdict"] == "no"
    return (PARTLY if both_fail else FAILS), text, [command]


def faster() -> Examined:
    lines, models = (
        [],
        {"1.3B": ("opt-1.3b", 4100, 3950), "7B": ("llama-1-7b", 2850, 2720), "13B": ("llama-1-13b", 1520, 1380)},
    )
    ahead = 0
    for size, (model, zero, fsdp) in models.items():
        ours = [rate(model, "4xA100-80GB", s, micro_batch=4, seq_len=2048) for s in ("zero3", "fsdp-full-shard")]
        if None in ours:
            continue
        ahead += ours[0] > ours[1]  # type: ignore[operator]
        flops = 6 * resolve_model(model).num_params * zero
        lines.append(
            f"{size}: {ours[0]:,.0f} and {ours[1]:,.0f} tokens/s per GPU (the document: {zero} and {fsdp}, which is an MFU of "
            f"{flops / 312e12:.0%} if per GPU, {flops / 4 / 312e12:.0%} if for the four)"
        )
    text = (
        "At 4 sequences of 2048 tokens, ZeRO-3 and FSDP2: "
        + "; ".join(lines)
        + ". Batch, sequence and versions are not "
        "stated. Both send the same bytes in a micro-step but for the dtype of the reduction, so a difference of 4 to "
        "10 % is within settings and inside the band of any model; the order is not a property of the engines."
    )
    command = "estimate --model llama-1-7b --gpus 4xA100-80GB --micro-batch 4 --strategy zero3 --strategy fsdp"
    return (HOLDS if ahead == len(lines) and lines else PARTLY), text, [command]


def same_stages() -> Examined:
    found, command = estimates("--model llama-2-7b --gpus 8xA100-80GB", "zero3", "fsdp", "zero2", "fsdp-shard-grad-op")
    pairs = [("zero3", "fsdp"), ("zero2", "fsdp-shard-grad-op")]
    text = "; ".join(f"{a} {process(found[a])}, {b} {process(found[b])}" for a, b in pairs)
    text += (
        ". Full shard is the counterpart of ZeRO-3. SHARD_GRAD_OP is not ZeRO-2: it shards the parameters as well and keeps "
        "them gathered from forward to the end of backward, where ZeRO-2 holds them whole all the time."
    )
    return PARTLY, text, [command]


def conservative() -> Examined:
    found, command = estimates("--model llama-2-13b --gpus 8xA100-80GB", "zero3", "fsdp", "fsdp1")
    text = "; ".join(f"{s} {process(found[s])}" for s in found)
    lower = found["fsdp"]["gpu"]["process_bytes"]["expected"] < found["zero3"]["gpu"]["process_bytes"]["expected"]
    return (
        (HOLDS if lower else FAILS),
        text + ". The document then says the opposite of 30B (FSDP peaks higher).",
        [command],
    )


def enough_to_13b() -> Examined:
    found, command = estimates("--model llama-2-13b --gpus 8xA100-80GB", "fsdp")
    four, second = estimates("--model llama-2-13b --gpus 4xA100-40GB", "fsdp")
    text = (
        f"On 8 x A100-80GB {process(found['fsdp'])}; on 4 x A100-40GB {process(four['fsdp'])}. It depends on the GPUs, not "
        "on the size of the model alone: `fit` says how many it takes."
    )
    good = found["fsdp"]["verdict"] in ("fits", "tight")
    return (HOLDS if good else FAILS), text, [command, second]


def compile_only() -> Examined:
    command = "recommend --model llama-3.2-3b --gpus 4xA10 --compile --team deepspeed --checkpointing full"
    new = run(command)
    old_command = command + " --versions deepspeed=0.13.5"
    old = run(old_command)
    text = (
        f"With DeepSpeed 0.13.5 the tree's leaf is {old['leaf']}, with {new['versions']['deepspeed']} it is {new['leaf']}: "
        "DeepSpeed compiles from 0.14, stages 1 and 2 well, stage 3 with graph breaks (pytorch#115484, DeepSpeed PR7755)."
    )
    return (FAILS if new["leaf"] != old["leaf"] else PARTLY), text, [command, old_command]


CLAIMS = (
    Claim(
        "30B: FSDP fails, ZeRO-3 trains, on 4 x A100-80GB",
        "document 1, 三",
        "30B … DeepSpeed ZeRO-3 680 t/s, FSDP OOM",
        thirty_billion,
    ),
    Claim("ZeRO-3 is 4 to 10 % faster than FSDP", "document 1, 三", "3.8% (DS) … 10.1% (DS)", faster),
    Claim(
        "ZeRO-3 is like FULL_SHARD, ZeRO-2 like SHARD_GRAD_OP",
        "document 1, 一 and 二",
        "SHARD_GRAD_OP 梯度优化器分片",
        same_stages,
    ),
    Claim("FSDP's prefetching is more careful and peaks lower", "document 1, 二", "更少的显存峰值占用", conservative),
    Claim(
        "7B to 13B: FSDP FULL_SHARD is enough",
        "document 1, 五",
        "对于大多数7B-13B规模的训练需求FSDPFULL_SHARD可以满足需求",
        enough_to_13b,
    ),
    Claim("torch.compile: FSDP only", "document 1, 四", "如果需要torch.compileFSDP是唯一选择", compile_only),
)
