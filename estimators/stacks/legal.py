"""What a stack, a version or a card cannot do, each with the reason and the way out."""

from __future__ import annotations

from estimators.cluster import Cluster
from estimators.errors import IllegalCombination
from estimators.knobs import Value
from estimators.stacks.table import Stack
from estimators.stacks.versions import at_least
from estimators.strategy import Strategy, knobs_of
from estimators.workload import Workload

PURE = ("bf16", "fp16")
PACKAGES = {"deepspeed": "deepspeed", "ddp": "torch", "fsdp1": "torch", "fsdp2": "torch", "torch": "torch"}
NAMES = {"deepspeed": "DeepSpeed"}
MASTER_16BIT = "0.18.3"  # DeepSpeed pull request 7700: bf16 master weights and states
STATES_16BIT_OFFLOADED = "0.19.2"  # pull request 8010: bf16 states on the host too
FSDP2_TORCH = "2.6.0"  # torch.distributed.fsdp.fully_shard became public; accelerate FSDP2_PYTORCH_VERSION


def check(
    stack: Stack, cluster: Cluster, workload: Workload, strategy: Strategy, device: str, versions: dict[str, str]
) -> None:
    """Raise ``IllegalCombination`` for what cannot run before any value is settled."""
    engine = strategy.engine
    if engine not in stack.engines:
        raise IllegalCombination(
            f"stack {workload.stack} does not drive {strategy.base}; use stack trainer or deepspeed"
        )
    if engine == "fsdp2" and not at_least(versions["torch"], FSDP2_TORCH):
        raise IllegalCombination(f"{strategy.base}: FSDP2 needs torch {FSDP2_TORCH}; you have {versions['torch']}")
    _card(cluster, workload, device)
    _versions(strategy, versions)
    if engine == "deepspeed" and workload.precision in PURE:
        _pure_zero(workload, strategy, versions["deepspeed"])
    if workload.method == "qlora":
        _qlora(workload, strategy)


def _card(cluster: Cluster, workload: Workload, device: str) -> None:
    if device == "cuda" and cluster.gpu.bf16 is False and workload.precision.startswith("bf16"):
        raise IllegalCombination(
            f"precision {workload.precision}: {cluster.gpu.name} (compute capability "
            f"{cluster.gpu.compute_capability or 'below 8.0'}) has no bf16; give precision fp16-mixed"
        )


def _versions(strategy: Strategy, versions: dict[str, str]) -> None:
    package = PACKAGES[strategy.engine]
    have, called = versions[package], NAMES.get(package, package)
    for knob in knobs_of(strategy.base):
        if knob.name not in strategy.options:
            continue
        if knob.since and not at_least(have, knob.since):
            raise IllegalCombination(f"{knob.name}: new in {called} {knob.since}; you have {have}")
        if knob.until and at_least(have, knob.until):
            raise IllegalCombination(f"{knob.name}: gone from {called} {knob.until}; you have {have}")


def _pure_zero(workload: Workload, strategy: Strategy, have: str) -> None:
    if workload.precision == "fp16":
        raise IllegalCombination(
            f"{strategy.base} with precision fp16: DeepSpeed keeps optimizer states in fp32 (it has no 16-bit states "
            "for fp16); give precision fp16-mixed"
        )
    if strategy.stage == 0:
        raise IllegalCombination(
            "zero0 with precision bf16: bf16_master_weights_and_grads needs stage 1, 2 or 3; give precision bf16-mixed"
        )
    if not at_least(have, MASTER_16BIT):
        raise IllegalCombination(
            f"{strategy.base} with precision bf16: 16-bit master weights and states are new in DeepSpeed "
            f"{MASTER_16BIT}; you have {have}, where bf16.enabled is bf16-mixed"
        )


def _qlora(workload: Workload, strategy: Strategy) -> None:
    """4-bit weights shard only as packed floats; int8 and GPTQ weights not at all."""
    shards_params = strategy.engine in ("fsdp1", "fsdp2") or strategy.stage == 3
    if not shards_params or strategy.base == "fsdp1-no-shard":
        return
    if workload.quant in ("int8", "gptq4"):
        raise IllegalCombination(
            f"{strategy.base} with quant {workload.quant}: integer weights cannot be flattened and sharded; give quant "
            "nf4-double (stored as bf16) or ddp"
        )
    if workload.kbit_prepare:
        raise IllegalCombination(
            f"{strategy.base} with kbit_prepare: it lifts norms and embeddings to fp32, and sharded units need one "
            "dtype; leave kbit_prepare out"
        )


def check_sizes(cluster: Cluster, strategy: Strategy, knobs: dict[str, Value]) -> None:
    """Groups of ranks must divide the world."""
    ranks = cluster.ranks
    groups = {"hpz": "ranks of a secondary shard", "mics": "ranks of a shard group"}
    if strategy.sharding == "hybrid-shard":
        groups["shard"] = "ranks of a shard group"
    if not isinstance(knobs.get("reshard_after_forward"), bool):
        groups["reshard_after_forward"] = "ranks between forward and backward"
    for name, what in groups.items():
        size = knobs.get(name)
        if isinstance(size, int) and size and ranks % size:
            fits = [n for n in range(1, ranks + 1) if ranks % n == 0]
            raise IllegalCombination(
                f"{strategy.base}: {name}={size} ({what}) does not divide {ranks} ranks; give one of "
                f"{', '.join(map(str, fits[:12]))}"
            )
