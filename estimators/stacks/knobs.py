"""Every knob of a strategy, settled: the user's option, else the stack's, else the engine's default.

Besides the knobs of ``estimators.knobs`` a few settled values stand among them, because engines and ledgers read
them there: ``reshard_root`` and ``reshard_tail`` (FSDP2: the root unit, and the head where it is a unit, are resharded
after forward like the blocks; accelerate and torchtitan keep norm and head from the end of forward to their backward),
``quant_storage`` (16-bit dtype as which packed 4-bit weights are sharded) and ``fp32_outputs`` (accelerate's autocast
wrapper copies the outputs of forward to fp32).
"""

from __future__ import annotations

from collections.abc import Mapping

from estimators.cluster import Cluster
from estimators.devices import DEVICES
from estimators.knobs import Value, defaults
from estimators.model.spec import ModelSpec
from estimators.run import attention_of
from estimators.stacks.deepspeed import file_knobs
from estimators.stacks.legal import check_sizes
from estimators.stacks.table import Stack
from estimators.stacks.versions import at_least
from estimators.strategy import Strategy
from estimators.values import dataclass, field
from estimators.workload import Workload

CARVES_EMBEDDING = "1.14"  # accelerate from here on gives embedding, and norm with head, units (fsdp_utils.py)
PINS_BY_DEFAULT = "0.19.5"  # DeepSpeed offload_config.py: pin_memory was false before
TORCHTITAN_BUCKET_MB = 100  # torchtitan's replicate


@dataclass(slots=True)
class Knobs:
    """Values with their origins, in the order of precedence in which ``put`` was called: the first stays."""

    values: dict[str, Value] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, given: Mapping[str, Value | None], origin: str) -> None:
        for name, value in given.items():
            if value is not None and name not in self.values:
                self.values[name] = value
                self.origins[name] = origin


def settle_knobs(
    stack: Stack, model: ModelSpec, cluster: Cluster, workload: Workload, strategy: Strategy, device: str,
    versions: Mapping[str, str], compute: str, optimizer: str, stack_origin: str, engine_origin: str,
) -> Knobs:  # fmt: skip
    """All knobs of the strategy. Raises ``IllegalCombination`` for groups that do not divide the ranks."""
    table = defaults(strategy.base)
    knobs = Knobs()
    knobs.put(strategy.options, "user")
    engine = strategy.engine
    if engine == "deepspeed":
        if optimizer == "muon" and strategy.stage == 3:
            knobs.put({"reduce_scatter": False}, "Muon at stage 3")
            knobs.notes.append("muon at stage 3 needs reduce_scatter false; the configuration says so")
        knobs.put(_allowed(file_knobs(stack.zero, strategy.stage, model), table), stack_origin)
        # deepspeed/runtime/zero/config.py overlap_comm_valid; engine.py get_data_types
        knobs.put({"overlap_comm": strategy.stage == 3, "grad_accum_dtype": compute, "zero_init": False,
                   "gather_16bit_on_save": False, "pin_memory": at_least(versions["deepspeed"], PINS_BY_DEFAULT)},
                  engine_origin)  # fmt: skip
    elif engine == "ddp":
        knobs.put(_ddp(stack, workload), stack_origin)
        knobs.put({"gradient_as_bucket_view": False}, engine_origin)
    elif engine in ("fsdp1", "fsdp2"):
        made = _fsdp(stack, model, workload, strategy, versions)
        knobs.put(_allowed(made, table, "reshard_root", "reshard_tail"), stack_origin)
        knobs.put(_allowed(_fsdp_engine(cluster, workload, strategy), table), engine_origin)
    if engine in stack.syncs:
        knobs.put({"sync_each_batch": True}, stack_origin)
    knobs.put({"sync_each_batch": False}, stack_origin)
    knobs.put(table, engine_origin)
    if not DEVICES[device].pins_host:
        knobs.values["pin_memory"] = False  # there is no page-locked memory without a card
    if (
        workload.method == "qlora"
        and workload.quant.startswith("nf4")
        and (engine in ("fsdp1", "fsdp2") or strategy.stage == 3)
    ):
        knobs.put({"quant_storage": "bf16" if compute == "fp32" else compute}, "packed weights are sharded as floats")
    if stack.accelerate and engine != "deepspeed" and workload.precision.endswith("-mixed"):
        knobs.put({"fp32_outputs": True}, stack_origin)
    if engine == "fsdp1" and stack.trainer and workload.has_adapters:
        knobs.notes.append("the Trainer wraps each trained leaf as a unit of its own (peft's fsdp_auto_wrap_policy); "
                           "here adapters belong to the unit of their block")  # fmt: skip
    if attention_of(model.family, workload) != workload.attention:
        knobs.notes.append(f"transformers has no sdpa for {model.family}: eager attention, which keeps every score; "
                           "--attention flash keeps none")  # fmt: skip
    check_sizes(cluster, strategy, knobs.values)
    if strategy.sharding == "hybrid-shard" and cluster.nodes == 1 and knobs.values["shard"] == cluster.ranks:
        knobs.notes.append("one node is one shard group: fsdp-hybrid-shard holds what fsdp-full-shard holds")
    return knobs


def _allowed(given: Mapping[str, Value], table: Mapping[str, Value | None], *extra: str) -> dict[str, Value]:
    """Only what this strategy has."""
    return {name: value for name, value in given.items() if name in table or name in extra}


def _ddp(stack: Stack, workload: Workload) -> dict[str, Value]:
    made = dict(stack.ddp)
    if stack.trainer:  # trainer.py _build_accelerator_args; LLaMA-Factory (hparams/parser.py) says no for adapters
        adapted = workload.stack == "llamafactory" and workload.has_adapters
        made["find_unused_parameters"] = workload.checkpointing == "none" and not adapted
    if workload.stack == "torchtitan":
        made["bucket_cap_mb"] = TORCHTITAN_BUCKET_MB
    return made


def _fsdp(
    stack: Stack, model: ModelSpec, workload: Workload, strategy: Strategy, versions: Mapping[str, str]
) -> dict[str, Value]:
    if strategy.engine == "fsdp1":
        return {"wrap": "blocks", **stack.fsdp1}
    wrap, reshard_root, reshard_tail = stack.wrap, stack.reshard_root, stack.reshard_tail
    if stack.accelerate and not at_least(versions["accelerate"], CARVES_EMBEDDING):
        wrap, reshard_root, reshard_tail = "blocks", True, True
    if _tied(model) and "embedding" in wrap:
        wrap = "blocks"  # a shared matrix may belong to one unit only: it joins norm and head
    whole = strategy.sharding == "shard-grad-op"  # nothing is resharded then
    return {"wrap": wrap, "reshard_root": reshard_root and not whole, "reshard_tail": reshard_tail and not whole}


def _fsdp_engine(cluster: Cluster, workload: Workload, strategy: Strategy) -> dict[str, Value]:
    """torch's defaults; flat parameters need ``use_orig_params`` where frozen and trained ones share a unit."""
    return {
        "shard": min(cluster.gpus_per_node, cluster.ranks),
        "reshard_after_forward": strategy.sharding != "shard-grad-op",
        "use_orig_params": workload.method != "full",
        "pin_memory": True,
    }


def _tied(model: ModelSpec) -> bool:
    return f"{model.head}.weight" in model.tied
