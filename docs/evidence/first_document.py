"""The throughput table of the first document (4 x A100-80GB) beside the model's, under settings that it may have had.

    python docs/evidence/first_document.py

The document gives no sequence length, micro-batch, accumulation or checkpointing, and does not say whether its tokens
per second are of one GPU or of four. Its configuration listing offloads optimizer and parameters to the CPU, in fp16,
batch 32 over 4 accumulation steps: 2 sequences a GPU.
"""

from __future__ import annotations

from estimators.memory import resolve
from estimators.time import StepTime, step_time

STATED = (("1.3B", "tinyllama-1.1b", 4100, "3950"), ("7B", "llama-2-7b", 2850, "2720"),
          ("13B", "llama-2-13b", 1520, "1380"), ("30B", "llama-30b", 680, "OOM"))  # fmt: skip
STRATEGIES = ("zero3", "fsdp-full-shard", "zero3+optimizer@cpu+params@cpu", "fsdp-full-shard+params@cpu")
SETTINGS = {
    "2048 x 2, full checkpointing": {"seq_len": 2048, "micro_batch": 2, "grad_accum": 4},
    "512 x 2, full checkpointing": {"seq_len": 512, "micro_batch": 2, "grad_accum": 4},
}


def speed(model: str, strategy: str, fields: dict[str, int]) -> StepTime:
    stack = "deepspeed" if strategy.startswith("zero") else "torch"
    found = step_time(resolve(model, "4xA100-80GB", strategy, precision="fp16-mixed", stack=stack, **fields))
    assert isinstance(found, StepTime)
    return found


def cell(found: StepTime) -> str:
    tokens = found.tokens_per_s_per_gpu
    return f"{tokens.expected:,.0f} ({tokens.low:,.0f}-{tokens.high:,.0f})"


def main() -> None:
    print("Tokens per second and GPU, expected (low-high):\n")
    print("| size | document DS | document FSDP | settings | ZeRO-3 | FSDP | ZeRO-3, all on CPU | FSDP, all on CPU |")
    print("|---|---:|---:|---|---:|---:|---:|---:|")
    for name, fields in SETTINGS.items():
        for size, model, deepspeed, fsdp in STATED:
            cells = [cell(speed(model, strategy, fields)) for strategy in STRATEGIES]
            print(f"| {size} | {deepspeed} | {fsdp} | {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
