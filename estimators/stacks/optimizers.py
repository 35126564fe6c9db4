"""Which optimizer runs, by which implementation, and what its engine cannot do with it."""

from __future__ import annotations

from collections.abc import Mapping

from estimators.devices import DEVICES
from estimators.errors import IllegalCombination
from estimators.stacks.table import Stack
from estimators.stacks.versions import at_least
from estimators.strategy import Strategy
from estimators.values import dataclass
from estimators.workload import Workload

BITSANDBYTES = ("adamw-8bit", "paged-adamw", "paged-adamw-8bit")
ADAM = ("adamw", "adamw-fused")
DS_OPTIMIZER_SECTION = ("auto", "engine")  # families whose DeepSpeed configuration names the optimizer


@dataclass(frozen=True, slots=True)
class Choice:
    """The optimizer, its implementation, and what has to be said about it."""

    name: str
    impl: str
    origin: str
    notes: tuple[str, ...] = ()


def choose(
    stack: Stack, workload: Workload, strategy: Strategy, device: str, versions: Mapping[str, str], origin: str
) -> Choice:
    """What this stack hands the engine. Raises ``IllegalCombination`` where the engine cannot step it."""
    if workload.optimizer:
        name, origin = workload.optimizer, "user"
    else:
        name = default_name(stack, versions)
    _check(name, strategy)
    notes: list[str] = []
    impl = _implementation(name, stack, workload, strategy, device, notes)
    if name == "adamw-fused" and impl == "fused" and strategy.params and strategy.engine != "deepspeed":
        if not workload.optimizer:
            name, impl = "adamw", "single"
            notes.append("parameters on the host: the script asks for adamw instead of the stack's fused default")
        else:
            notes.append("adamw-fused steps the offloaded parameters on the host's fused kernel (torch 2.4 and later)")
    return Choice(name, impl, origin, tuple(notes))


def default_name(stack: Stack, versions: Mapping[str, str]) -> str:
    """``adamw_torch_fused`` is the Trainer's default from torch 2.8 and transformers 5 on (training_args.py)."""
    if stack.trainer and stack.optimizer == "adamw-fused":
        if not (at_least(versions["torch"], "2.8") and at_least(versions["transformers"], "5")):
            return "adamw"
    return stack.optimizer


def _implementation(
    name: str, stack: Stack, workload: Workload, strategy: Strategy, device: str, notes: list[str]
) -> str:
    flat = strategy.engine == "deepspeed"
    if flat and strategy.optimizer and name in (*ADAM, "lion", "muon"):
        if name == "adamw-fused":
            notes.append("optimizer offload steps with DeepSpeedCPUAdam; adamw-fused has no part in it")
        return "ds-cpu"
    if flat and strategy.stage == 0 and name in ADAM and device == "cpu":
        return "fused"  # torch's AdamW, for which stage 0 has another wrapper: FusedAdam is a CUDA kernel
    if flat and name in (*ADAM, "muon") and (stack.zero in DS_OPTIMIZER_SECTION or name == "muon"):
        return "ds-fused"
    if name == "lion":
        return "ds-fused" if flat and not stack.trainer else _bnb(stack, strategy)
    if name in BITSANDBYTES:
        return _bnb(stack, strategy)
    if name == "adamw-fused":
        return "fused"
    if name == "adafactor" and stack.trainer:
        return "hf"
    if name in ("muon", "adafactor") or not DEVICES[device].foreach_default:
        return "single"
    if strategy.params and strategy.engine in ("fsdp1", "fsdp2"):
        return "single"  # the parameters are on the host, where foreach is not the default
    return "foreach"


def _bnb(stack: Stack, strategy: Strategy) -> str:
    """The Trainer's 32-bit override of embeddings is by object: flat ZeRO partitions are other objects."""
    return "bnb-trainer" if stack.trainer and strategy.engine != "deepspeed" else "bnb"


def _check(name: str, strategy: Strategy) -> None:
    engine = strategy.engine
    if engine == "fsdp2" and name in (*BITSANDBYTES, "lion", "adafactor"):
        raise IllegalCombination(
            f"{strategy.base} with {name}: its kernels do not take FSDP2's sharded tensors (DTensor); give adamw, or "
            "fsdp1-full-shard or zero3"
        )
    if engine == "fsdp1" and name == "muon":
        raise IllegalCombination(
            f"{strategy.base} with muon: FSDP1 hands the optimizer flat one-dimensional shards, and Muon needs "
            "matrices; give fsdp-full-shard"
        )
    offloaded = strategy.optimizer or (strategy.params and engine in ("fsdp1", "fsdp2"))
    if offloaded and name in (*BITSANDBYTES, "adafactor"):
        instead = "fsdp-full-shard" if engine != "deepspeed" else strategy.base
        raise IllegalCombination(
            f"{strategy.name} with {name}: an offloaded optimizer steps on the CPU in 32 bit (DeepSpeedCPUAdam, "
            f"torch); give adamw, or {instead} without offload"
        )
    if strategy.optimizer and name.startswith("sgd"):
        raise IllegalCombination(
            f"{strategy.name} with {name}: DeepSpeed refuses other optimizers than its CPU Adam and Lion, and "
            f"accelerate puts DeepSpeedCPUAdam in their place; give adamw, or {strategy.base} without offload"
        )
    if offloaded and name == "lion" and engine != "deepspeed":
        raise IllegalCombination(f"{strategy.name} with lion: bitsandbytes steps on the card; give adamw")
