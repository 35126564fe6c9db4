"""Which strategy of one engine stands for which of another.

The table of the first document (ZeRO-3 = FULL_SHARD, ...) and of accelerate's guide "FSDP vs DeepSpeed":

    DeepSpeed                       FSDP                    DDP
    stage 0                         NO_SHARD (FSDP1)        as it is
    stage 1, stage 2                SHARD_GRAD_OP
    stage 3                         FULL_SHARD
    stage 3 with hpZ                HYBRID_SHARD
    offload of optimizer, params    offload_params (all)    -
"""

from __future__ import annotations

from estimators.strategy import Strategy
from estimators.values import dataclass

TARGETS = ("deepspeed", "fsdp", "fsdp1", "ddp")
_TO_FSDP = {
    "zero0": "no-shard",
    "zero1": "shard-grad-op",
    "zero2": "shard-grad-op",
    "zero3": "full-shard",
    "ddp": "no-shard",
    "single": "no-shard",
}
_TO_ZERO = {"full-shard": "zero3", "shard-grad-op": "zero2", "hybrid-shard": "zero3", "no-shard": "zero0"}


@dataclass(frozen=True, slots=True)
class Lost:
    """What the other side cannot say, and why, or what stands in for it."""

    key: str
    value: object
    why: str


def equivalent(strategy: Strategy, target: str) -> tuple[Strategy, list[Lost]]:
    """The nearest strategy of the target's engine, and what is lost on the way."""
    if target == "ddp":
        return Strategy("ddp"), _to_ddp(strategy)
    if target == "deepspeed":
        return _to_deepspeed(strategy)
    return _to_fsdp(strategy, "fsdp1-" if target == "fsdp1" else "fsdp-")


def _to_ddp(strategy: Strategy) -> list[Lost]:
    lost = []
    if strategy.is_sharded:
        lost.append(Lost("sharding", strategy.base, "DDP keeps parameters, gradients and states whole on every GPU"))
    if strategy.optimizer or strategy.params:
        lost.append(Lost("offload", strategy.name, "DDP has no offload"))
    return lost


def _to_deepspeed(strategy: Strategy) -> tuple[Strategy, list[Lost]]:
    lost: list[Lost] = []
    if strategy.engine == "deepspeed":
        return strategy, lost
    base = _TO_ZERO[strategy.sharding] if strategy.sharding else "zero0"
    options = {}
    if strategy.sharding == "hybrid-shard":
        if "shard" in strategy.options:
            options["hpz"] = strategy.options["shard"]
        lost.append(
            Lost(
                "HYBRID_SHARD",
                strategy.options.get("shard"),
                "hpZ keeps only 16-bit parameters inside the group; gradients and states are sharded over all ranks",
            )
        )
    optimizer = params = None
    if strategy.params:
        optimizer = "cpu"
        params = "cpu" if base == "zero3" else None
        if params is None:
            lost.append(Lost("offload of parameters", "cpu", f"{base} offloads the optimizer only"))
    return Strategy(base, options, optimizer, params), lost


def _to_fsdp(strategy: Strategy, prefix: str) -> tuple[Strategy, list[Lost]]:
    lost: list[Lost] = []
    sharding = strategy.sharding or _TO_FSDP[strategy.base]
    options = {k: strategy.options[k] for k in ("shard",) if k in strategy.options}
    if strategy.base == "zero1":
        lost.append(Lost("stage", 1, "FSDP has no mode that shards states alone: SHARD_GRAD_OP shards gradients too"))
    hpz = strategy.options.get("hpz")
    if isinstance(hpz, int) and hpz > 1:
        sharding, options = "hybrid-shard", {"shard": hpz}
        lost.append(
            Lost(
                "zero_hpz_partition_size",
                hpz,
                "HYBRID_SHARD shards gradients and states inside the group only, and keeps a copy of them in each",
            )
        )
    if sharding == "no-shard" and prefix == "fsdp-":
        sharding = "shard-grad-op"
        lost.append(Lost("no sharding", strategy.base, "FSDP2 always shards; SHARD_GRAD_OP is the nearest"))
    offloads = bool(strategy.optimizer or strategy.params)
    if offloads and sharding == "no-shard":
        offloads = False
        lost.append(Lost("offload", strategy.name, "NO_SHARD has none"))
    if strategy.engine == "deepspeed" and offloads and not (strategy.optimizer and strategy.params):
        lost.append(
            Lost("offload", strategy.name, "FSDP moves parameters, gradients and optimizer together, or nothing")
        )
    if "nvme" in (strategy.optimizer, strategy.params):
        lost.append(Lost("offload to NVMe", strategy.name, "FSDP offloads to host RAM only"))
    return Strategy(prefix + sharding, options, None, "cpu" if offloads else None), lost
