"""Document 2: each claim beside what commands of this project compute."""

from __future__ import annotations

from claims.common import (
    FAILS,
    GB,
    GIB,
    HOLDS,
    PARTLY,
    Claim,
    Examined,
    category,
    estimates,
    host,
    process,
    rate,
    run,
    states,
)


def fifteen() -> Examined:
    found, command = estimates("--model llama-3-8b --gpus A100-80GB --precision bf16", "single")
    held = category(found["single"], "forward", "params")
    text = f"{held / GB:.2f} GB, {held / GIB:.2f} GiB: right in GiB."
    return (HOLDS if abs(held / GIB - 15) < 0.5 else FAILS), text, [command]


def sixty() -> Examined:
    mixed, one = estimates("--model llama-3-8b --gpus A100-80GB", "single")
    pure, two = estimates("--model llama-3-8b --gpus A100-80GB --precision bf16", "single")
    text = (
        f"Mixed precision {process(mixed['single'])}; everything in bf16 {process(pure['single'])}, of which states "
        f"{states(pure['single']) / GIB:.1f} GiB. More than 60 GB is right, and half of the truth for ordinary training."
    )
    return (HOLDS if mixed["single"]["verdict"] == "no" else PARTLY), text, [one, two]


def linear() -> Examined:
    commands, sizes = [], []
    for gpus in ("2xA100-80GB", "8xA100-80GB"):
        found, command = estimates(f"--model llama-3.2-1b --gpus {gpus}", "ddp")
        sizes.append(found["ddp"]["gpu"]["allocated_bytes"]["expected"])
        commands.append(command)
    text = (
        f"Of one GPU: {sizes[0] / GIB:.2f} GiB with 2, {sizes[1] / GIB:.2f} GiB with 8. The sum grows with the number of GPUs, "
        "what one of them needs does not."
    )
    return PARTLY, text, commands


def sixteen_times() -> Examined:
    lines, commands = [], []
    whole, command = estimates("--model llama-3-8b --gpus A100-80GB", "single")
    commands.append(command)
    ratios = {}
    for gpus, ranks in (("8xA100-80GB", 8), ("2x8xA100-80GB", 16), ("8x8xA100-80GB", 64)):
        found, command = estimates(f"--model llama-3-8b --gpus {gpus} --stack deepspeed", "zero1", "zero2", "zero3")
        commands.append(command)
        ratios = {
            s: states(whole["single"], "backward") / states(found[s], "step" if s == "zero3" else "backward")
            for s in found
        }
        lines.append(f"{ranks} GPUs: " + ", ".join(f"{s} {ratios[s]:.1f}x" for s in found))
    text = (
        "Of parameters, gradients, master weights and states, against one GPU (in backward; ZeRO-3 between uses, its gathered "
        "layers come on top): " + "; ".join(lines) + ". Stage 1 ends near 4x, "
        "stage 2 near 8x, stage 3 divides by the number of GPUs: 16x is stage 3 on 16. On the single A10 of the next sentence "
        "sharding saves nothing; offload does, and that is not ZeRO's redundancy."
    )
    return PARTLY, text, commands


def one_a10_full() -> Examined:
    found, command = estimates("--model llama-3-8b --gpus A10", "zero3-offload")
    away = found["zero3-offload"]
    fits = away["verdict"] in ("fits", "tight")
    return (
        (HOLDS if fits else FAILS),
        (
            f"{process(away)} with {host(away)}: possible where the host has that much, and slow: "
            f"{rate('llama-3-8b', 'A10', 'zero3-offload') or 0:,.0f} tokens/s by the time model."
        ),
        [command],
    )


def one_a10_qlora() -> Examined:
    found, command = estimates("--model llama-3-8b --gpus A10 --method qlora", "single")
    choice = "recommend --model llama-3-8b --gpus A10 --allow qlora"
    text = (
        f"QLoRA alone: {process(found['single'])}, no ZeRO and no offload; `recommend` answers "
        f"{run(choice)['strategy']}. ZeRO-3 on one GPU shards nothing and offload only slows it: not a double insurance."
    )
    return PARTLY, text, [command, choice]


def ddp_7b() -> Examined:
    mixed, one = estimates("--model llama-2-7b --gpus 4xA100-80GB", "ddp")
    pure, two = estimates("--model llama-2-7b --gpus 4xA100-80GB --precision bf16", "ddp")
    text = (
        f"Mixed precision {process(mixed['ddp'])}; with parameters, gradients and states all in bf16 {process(pure['ddp'])}, "
        f"states {states(pure['ddp']) / GB:.0f} GB. 32 GB is below both; that an A10 cannot do it is right."
    )
    return FAILS, text, [one, two]


def seventy() -> Examined:
    lines, commands, saved = [], [], []
    for tokens in (2048, 8192):
        largest = {}
        for way in ("none", "full"):
            found, command = estimates(
                f"--model llama-3-8b --gpus 8xA100-80GB --seq-len {tokens} --attention flash --checkpointing {way}",
                "zero3",
            )
            commands.append(command)
            held = found["zero3"]
            largest[way] = max(category(held, i["name"], "activations") for i in held["instants"])
        saved.append(1 - largest["full"] / largest["none"])
        lines.append(
            f"{tokens} tokens {largest['none'] / GIB:.1f} to {largest['full'] / GIB:.1f} GiB, {saved[-1]:.0%} less"
        )
    text = (
        "Activations where they are most (with checkpointing: the saved inputs and one block's own, in backward): "
        + "; ".join(lines)
        + ". The logits are not among them and stay. `partition_activations`, which the document's configuration sets, is for "
        "tensor parallelism and does nothing here."
    )
    return (HOLDS if min(saved) >= 0.65 else FAILS), text, commands


def long_video() -> Examined:
    question = "--model qwen2-7b --gpus 8xA100-80GB --seq-len 8192"
    plain, one = estimates(f"{question} --checkpointing none --attention eager", "zero2")
    saving, two = estimates(f"{question} --checkpointing full --attention flash", "zero2")
    less = 1 - saving["zero2"]["gpu"]["process_bytes"]["expected"] / plain["zero2"]["gpu"]["process_bytes"]["expected"]
    text = (
        "The language part of a 7B video model. Without checkpointing, eager attention "
        f"{process(plain['zero2'])}; with full checkpointing and flash attention {process(saving['zero2'])}: {less:.0%} less. "
        "Checkpointing itself costs about a third more computing; a run that is 2.3 times as fast owes it to flash "
        "attention, or to a larger micro-batch that now fits."
    )
    return (HOLDS if less >= 0.5 else PARTLY), text, [one, two]


def long_zero3() -> Examined:
    lines, gaps = [], []
    for tokens in (512, 2048, 8192):
        pair = [rate("llama-3-8b", "8xA100-80GB", s, seq_len=tokens) for s in ("zero2", "zero3")]
        if None not in pair:
            gaps.append(pair[0] / pair[1])  # type: ignore[operator]
            lines.append(f"{tokens} tokens {gaps[-1]:.2f}x")
    text = (
        "ZeRO-2 over ZeRO-3 in tokens per second: "
        + ", ".join(lines)
        + ". What is gathered does not depend on the length, so "
        "a longer sequence hides it better: the all-gathers bind short micro-steps, not long ones. Policy `current` names "
        "ZeRO-2 there because the document does; the ranking decides by the time, not by the length."
    )
    holds = bool(gaps) and gaps[-1] > gaps[0]
    command = "estimate --model llama-3-8b --gpus 8xA100-80GB --seq-len 8192 --strategy zero2 --strategy zero3"
    return (HOLDS if holds else FAILS), text, [command]


def offload_slow() -> Examined:
    rates = {s: rate("llama-3-8b", "8xA100-80GB", s) or 0 for s in ("zero3", "zero3+optimizer@cpu", "zero3-offload")}
    text = (
        ", ".join(f"{s} {r:,.0f}" for s, r in rates.items())
        + " tokens/s per GPU. Published for Falcon-7B on 8 x A100-40GB: "
    )
    text += "2.86 s a step, 6.05 s with parameters on the host, 13.70 s with everything (DeepSpeed#3901)."
    command = "estimate --model llama-3-8b --gpus 8xA100-80GB --strategy zero3 --strategy zero3-offload"
    return (HOLDS if rates["zero3-offload"] < rates["zero3"] else FAILS), text, [command]


def ample() -> Examined:
    command = "recommend --model llama-3.2-1b --gpus 8xH100 --team deepspeed"
    found = run(command)
    text = (
        f"`recommend`, for a team that knows DeepSpeed, answers {found['strategy']}: "
        + "; ".join(found["reasons"][:3])
        + "."
    )
    return (HOLDS if found["engine"] != "deepspeed" else FAILS), text, [command]


CLAIMS = (
    Claim("Llama-3-8B has 15 GB of parameters in bf16", "document 2", "仅模型参数就需要约 15GB 显存", fifteen),
    Claim("and needs more than 60 GB: no A100-80GB can hold it", "document 2", "单卡需求轻松突破 60GB", sixty),
    Claim("DDP's memory grows with the number of GPUs", "document 2", "显存消耗随设备数量线性增长", linear),
    Claim("ZeRO saves up to 16 times", "document 2", "实现了高达 16 倍的理论显存节省", sixteen_times),
    Claim(
        "Full training of an 8B on one A10 in 18 GB, ZeRO-3 with CPU offload",
        "document 2, DeepSpeed ZeRO",
        "在 ZeRO-3 + CPU Offload 的加持下，可以压缩到 18GB 以内",
        one_a10_full,
    ),
    Claim(
        "QLoRA of an 8B on one A10 in 18 GB, with ZeRO-3 and offload",
        "document 2, 场景1",
        "实测显存占用降至 18GB，成功在单卡完成训练",
        one_a10_qlora,
    ),
    Claim(
        "DDP of a 7B takes at least 32 GB a GPU in bf16",
        "document 2, PyTorch DDP",
        "BF16 下每卡至少需要 32GB 显存",
        ddp_7b,
    ),
    Claim(
        "Checkpointing saves about 70 % of activations",
        "document 2, DeepSpeed ZeRO",
        "可以再节省约 70% 的激活内存",
        seventy,
    ),
    Claim(
        "8192 tokens: checkpointing, flash attention, ZeRO-2: 60 % less",
        "document 2, 场景2",
        "显存下降 60%",
        long_video,
    ),
    Claim(
        "Long sequences: avoid ZeRO-3",
        "document 2, 场景2",
        "长序列任务慎用 ZeRO-3，因频繁 AllGather 可能成为性能瓶颈",
        long_zero3,
    ),
    Claim(
        "CPU offload slows training",
        "document 2, DeepSpeed ZeRO",
        "CPU offload 引入延迟，训练速度可能下降",
        offload_slow,
    ),
    Claim(
        "With memory to spare: DDP or FSDP, not DeepSpeed for its own sake",
        "document 2, 工程实践建议",
        "不要为了用 DeepSpeed 而用 DeepSpeed",
        ample,
    ),
)
