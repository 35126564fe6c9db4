"""In which dtype a run loads, stores, computes, accumulates and reduces."""

from __future__ import annotations

from collections.abc import Mapping

from estimators.stacks.table import Stack
from estimators.stacks.versions import at_least
from estimators.strategy import Strategy
from estimators.values import dataclass
from estimators.workload import Workload

COMPUTE_DTYPE = {"bf16-mixed": "bf16", "fp16-mixed": "fp16", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
UPCASTS_TRAINABLE_ONLY = "1.13"  # accelerate before lifts the whole model to fp32 under FSDP2 (fsdp_utils.py)


@dataclass(frozen=True, slots=True)
class Dtypes:
    """The dtype fields of ``Settings``, with the reason of each stack-made choice."""

    load: str
    param: str
    frozen: str
    compute: str
    grad: str
    reduce: str
    master: str | None
    adapter: str
    autocast: bool
    why: str


def choose(stack: Stack, workload: Workload, strategy: Strategy, versions: Mapping[str, str], kbit: bool) -> Dtypes:
    """Dtypes for this stack and engine; the user's own dtypes are put over them afterwards."""
    compute = COMPUTE_DTYPE[workload.precision]
    if strategy.engine == "deepspeed":
        return _deepspeed(workload, compute)
    if not workload.precision.endswith("-mixed"):
        return Dtypes(compute, compute, "fp32" if kbit else compute, compute, compute, compute, None,
                      _pure_adapter(workload, compute), False, f"precision {workload.precision}")  # fmt: skip
    return _mixed(stack, workload, strategy, versions, compute, kbit)


def _deepspeed(workload: Workload, compute: str) -> Dtypes:
    """The engine casts the whole module, adapters too; ``-mixed`` and fp32 have an fp32 partition beside it."""
    pure = workload.precision in ("bf16", "fp16")
    return Dtypes(compute, compute, compute, compute, compute, compute, compute if pure else "fp32", compute, False,
                  "the engine casts the module")  # fmt: skip


def _mixed(
    stack: Stack, workload: Workload, strategy: Strategy, versions: Mapping[str, str], compute: str, kbit: bool
) -> Dtypes:
    adapted = workload.has_adapters
    sharded = strategy.engine in ("fsdp1", "fsdp2")
    frozen = "fp32" if _frozen_in_fp32(stack, workload, strategy, versions) or kbit else compute
    if adapted:  # copies of modules_to_save: as loaded, unless the engine's wrapper lifts what trains
        param = "fp32" if frozen == "fp32" or (sharded and stack.accelerate) else compute
    else:
        param = "fp32"
    lifts = workload.stack == "llamafactory"  # loads 16 bit, then lifts what trains (model/adapter.py)
    load = compute if adapted or lifts or (sharded and stack.accelerate) else "fp32"
    if stack.frozen_fp32:
        load = "fp32"
    reduce = ("fp32" if stack.fsdp_reduce == "fp32" else compute) if sharded else "fp32"
    adapter = "bf16" if _trl_lowers_adapters(workload) else "fp32"
    grad = adapter if adapted else param
    why = "FSDP mixed precision over fp32 shards" if sharded else "autocast over fp32 parameters"
    return Dtypes(load, param, frozen, compute, grad, reduce, None, adapter, not sharded, why)


def _frozen_in_fp32(stack: Stack, workload: Workload, strategy: Strategy, versions: Mapping[str, str]) -> bool:
    """Whether parameters that do not train are stored in fp32 all the same.

    Without adapters the script loads one dtype: fp32 under autocast. LLaMA-Factory lifts only what trains. accelerate
    lifted the whole model under FSDP2 before 1.13.
    """
    if stack.frozen_fp32:
        return True
    if strategy.engine in ("torch", "ddp"):
        return not workload.has_adapters and workload.stack != "llamafactory"
    if stack.accelerate and strategy.engine == "fsdp2" and workload.method != "qlora":
        return not at_least(versions["accelerate"], UPCASTS_TRAINABLE_ONLY)
    return not stack.accelerate and not workload.has_adapters


def _trl_lowers_adapters(workload: Workload) -> bool:
    """trl/trainer/sft_trainer.py: adapters over a quantised base are cast to bf16."""
    return workload.stack == "trl" and workload.method == "qlora"


def _pure_adapter(workload: Workload, compute: str) -> str:
    """Everything is 16-bit: the script passes autocast_adapter_dtype=False to peft."""
    return "bf16" if _trl_lowers_adapters(workload) and compute != "fp32" else compute
