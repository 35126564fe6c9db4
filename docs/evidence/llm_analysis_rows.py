"""What llm-analysis (cli99/llm-analysis) answers for the published speeds that it can answer, kept for the error table.

    pip install llm-analysis==0.2.2     # in an environment of its own: it needs an old transformers
    PYTHONPATH=. python docs/evidence/llm_analysis_rows.py --write validate/data/llm_analysis.json

It times dense full training in 16 bit on the cards that it has files for; its step is FLOPs over (peak x efficiency).
Two efficiencies, both its own: 1 is its default ("lower bound"), 0.5 what its README says to assume for training. A row
that it refuses (its memory estimate does not fit, a shape that it has no field for) is counted, with its message.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from estimators.time.shapes import number, text_config
from validate.speed_cases import DENSE, ONE_GPU, SMALL, Case, read_cases

CARDS = {"a100-40gb-sxm4": "a100-sxm-40gb", "a100-80gb-sxm4": "a100-sxm-80gb", "a100-40gb-pcie": "a100-pcie-40gb",
         "a100-80gb-pcie": "a100-pcie-80gb", "h100-sxm5": "h100-sxm-80gb", "h100-pcie": "h100-pcie-80gb",
         "a10": "a10-pcie-28gb", "a10g": "a10g-pcie-24gb", "rtx-a6000": "a6000-48gb"}  # fmt: skip
KINDS = (DENSE, SMALL, ONE_GPU)
EFFICIENCIES = {"1": 1.0, "0.5": 0.5}
RECOMPUTE = {"none": 0, "selective": 1, "full": 2}
STAGE = {"full-shard": 3, "shard-grad-op": 2, "hybrid-shard": 3, "no-shard": 0, "": 0}


def seconds(case: Case, efficiency: float) -> float:
    """Seconds of a step as llm-analysis has it; raises what it raises."""
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import ModelConfig, ParallelismConfig, get_gpu_config_by_name

    run, load = case.run, case.run.workload
    config = text_config(run.model.config)
    heads = number(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    hidden = number(config, "hidden_size", "d_model", "n_embd")
    inner = number(config, "intermediate_size", "ffn_hidden_size", "n_inner")
    inner = inner or hidden * number(config, "expansion_ratio") or 4 * hidden
    model = ModelConfig(
        name=run.model.name, num_layers=run.model.num_layers, n_head=heads, hidden_dim=hidden,
        vocab_size=number(config, "vocab_size"), max_seq_len=load.seq_len,
        num_key_value_heads=number(config, "num_key_value_heads") or heads,
        ffn_embed_dim=inner, expansion_ratio=inner / hidden,
    )  # fmt: skip
    gated = any("gate" in p.name or ".w3" in p.name for part in run.model.blocks for p in part.parameters)
    found = LLMAnalysis(
        model, get_gpu_config_by_name(CARDS[run.cluster.gpu.id]),
        parallelism_config=ParallelismConfig(dp_size=run.ranks), flops_efficiency=efficiency,
    ).training(
        batch_size_per_gpu=load.micro_batch, gradient_accumulation_steps=load.grad_accum, seq_len=load.seq_len,
        activation_recomputation=ActivationRecomputation(RECOMPUTE[load.checkpointing]),
        ds_zero=DSZeRO(STAGE[run.strategy.sharding] or run.strategy.stage), mlp_gated_linear_units=gated,
    )  # fmt: skip
    return float(found["latency_per_iter"])


def main() -> None:
    from importlib.metadata import version

    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path)
    parsed = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rows: dict[str, dict[str, float]] = {}
    refused: Counter[str] = Counter()
    for case in read_cases():
        if case.obstacle() or case.kind not in KINDS:
            continue
        load = case.run.workload
        try:
            rows[case.id] = {
                name: round(load.grad_accum * load.micro_batch * load.seq_len / seconds(case, value), 2)
                for name, value in EFFICIENCIES.items()
            }
        except (AssertionError, KeyError, ValueError, TypeError) as error:
            refused[" ".join(str(error).split())[:60] or type(error).__name__] += 1
    document: dict[str, Any] = {
        "tool": "llm-analysis", "version": version("llm-analysis"),
        "efficiencies": {"1": "its default", "0.5": "what its README assumes for training"},
        "tokens_per_s_per_gpu": rows, "refused": dict(refused),
    }  # fmt: skip
    text = json.dumps(document, indent=1) + "\n"
    print(len(rows), "answered;", dict(refused))
    if parsed.write:
        parsed.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
