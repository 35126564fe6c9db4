"""What a rule reads: the files of one run side by side, the model and cluster where they are known, and versions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from estimators.cluster import Cluster
from estimators.errors import AdvisorError
from estimators.memory import Estimate, estimate
from estimators.model.spec import ModelSpec
from estimators.readers.reading import Reading
from estimators.stacks.versions import at_least, resolve
from estimators.values import NamedTuple, dataclass, field
from selector.checks.block import Block, as_number
from selector.checks.finding import Hit
from selector.checks.fsdp_view import Fsdp, fsdp_of
from selector.checks.machine import Machine
from selector.checks.method import bits_of, method_of
from selector.checks.script import Script

SHIPPED = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3, "zero2_offload": 2, "zero3_offload": 3}  # ms-swift's names


class Device(NamedTuple):
    """Where an offload goes, and the key that says so."""

    kind: str  # cpu, nvme, or empty
    block: Block
    key: str


@dataclass(frozen=True, eq=False)
class Setup:
    """``ds`` a DeepSpeed JSON, ``accel`` the YAML of accelerate, ``args`` TrainingArguments or a superset."""

    ds: Block = field(default_factory=Block)
    accel: Block = field(default_factory=Block)
    args: Block = field(default_factory=Block)
    script: Script = field(default_factory=Script)
    reading: Reading | None = None
    model: ModelSpec | None = None
    cluster: Cluster | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    unknown: bool = False  # the file that says what the engine does is named and not here

    @cached_property
    def versions(self) -> Mapping[str, str]:
        return resolve(tuple(self.fields.get("versions") or ()))

    def older(self, package: str, version: str) -> bool:
        """Whether the assumed version of a package is below ``version``."""
        return package in self.versions and not at_least(self.versions[package], version)

    # ------------------------------------------------------------------------------------------------------ DeepSpeed

    @property
    def zero(self) -> Block:
        return self.ds.sub("zero_optimization")

    @property
    def inline(self) -> Block:
        """``deepspeed_config`` of accelerate."""
        return self.accel.sub("deepspeed_config")

    @property
    def deciding(self) -> Block:
        """The same where it says what runs: a file that it names says it instead, found or not."""
        return Block() if "deepspeed_config_file" in self.inline else self.inline

    @cached_property
    def deepspeed(self) -> bool:
        return bool(self.ds) or self.accel.word("distributed_type") == "deepspeed" or bool(self.args.get("deepspeed"))

    @cached_property
    def stage(self) -> int | None:
        """The ZeRO stage; None without DeepSpeed, or where the stage is left open."""
        if self.ds:
            value = self.ds.get("zero_optimization")
            if isinstance(value, bool):
                return int(value)
            return 0 if value is None else self.zero.whole("stage") if "stage" in self.zero else 0
        if self.accel.word("distributed_type") == "deepspeed" and "deepspeed_config_file" not in self.inline:
            return self.deciding.whole("zero_stage") if "zero_stage" in self.deciding else 2
        return SHIPPED.get(self.args.word("deepspeed"))

    @property
    def stage_at(self) -> tuple[Block, str]:
        """The key that gives the stage."""
        if self.ds:
            return self.ds, "zero_optimization.stage"
        return (self.inline, "zero_stage") if self.inline else (self.args, "deepspeed")

    def at_stage(self, message: str, fix: str = "", severity: str = "") -> Hit:
        block, key = self.stage_at
        return block.hit(key, message, fix=fix, severity=severity)

    def offload(self, role: str) -> Device:
        """``role`` is ``optimizer`` or ``param``."""
        key = f"offload_{role}"
        if self.ds:
            kind = self.zero.sub(key).word("device")
            old = "cpu_offload" if role == "optimizer" else "cpu_offload_param"
            if not kind and self.zero.get(old) is True:
                return Device("cpu", self.zero, old)
            return Device(kind if kind in ("cpu", "nvme") else "", self.zero, f"{key}.device")
        kind = self.deciding.word(f"{key}_device")
        return Device(kind if kind in ("cpu", "nvme") else "", self.deciding, f"{key}_device")

    @property
    def offloads(self) -> bool:
        return bool(self.offload("optimizer").kind or self.offload("param").kind)

    # ------------------------------------------------------------------------------------------------- the run itself

    @cached_property
    def fsdp(self) -> Fsdp:
        return fsdp_of(self.accel, self.args)

    @property
    def hf(self) -> bool:
        """The Trainer or accelerate drives the engine."""
        known = {"transformers", "accelerate", "trl"}
        return bool(self.args) or bool(self.accel) or bool(known & self.script.imports)

    @property
    def shards_params(self) -> bool:
        return self.stage == 3 or bool(self.fsdp)

    @property
    def ddp(self) -> bool:
        """Nothing shards: DDP as soon as there are several processes."""
        kind = self.accel.word("distributed_type")
        return not self.deepspeed and not self.fsdp and kind in ("", "multi_gpu") and bool(self.args or kind)

    @cached_property
    def method(self) -> str:
        """``full``, ``lora``, ``qlora`` or empty where nothing says."""
        return self.fields.get("method") or method_of(self.args, self.script)

    @cached_property
    def bits(self) -> int | None:
        """4 or 8 where the base model is loaded quantised."""
        return bits_of(self.args, self.script)

    @cached_property
    def world(self) -> int | None:
        """GPUs: of the cluster, else the processes that accelerate starts."""
        if self.cluster is not None:
            return self.cluster.ranks
        count = self.accel.whole("num_processes")
        return count if count and count > 0 else None

    @property
    def nodes(self) -> int:
        return self.cluster.nodes if self.cluster else self.accel.whole("num_machines") or 1

    @property
    def per_node(self) -> int | None:
        return self.world // max(self.nodes, 1) if self.world else None

    def count(self, *keys: str) -> int | None:
        """The first whole number among arguments of the Trainer."""
        key = self.args.first(*keys)
        return self.args.whole(key) if key else None

    @property
    def micro(self) -> int:
        named = self.fields.get("micro_batch") or self.count("per_device_train_batch_size", "micro_batch_size")
        return int(named or self.ds.whole("train_micro_batch_size_per_gpu") or 1)

    @property
    def steps(self) -> int:
        """Accumulation."""
        named = self.fields.get("grad_accum") or self.count("gradient_accumulation_steps")
        theirs = self.ds.whole("gradient_accumulation_steps") or self.deciding.whole("gradient_accumulation_steps")
        return int(named or theirs or 1)

    @property
    def seq_len(self) -> int | None:
        keys = ("max_length", "max_seq_length", "model_max_length", "cutoff_len", "sequence_len")
        given = self.fields.get("seq_len") or self.count(*keys)
        return int(given) if given else None

    @property
    def precision_at(self) -> tuple[str, Block, str]:
        """``bf16``, ``fp16``, ``fp8`` or empty, and the key that says so."""
        for name in ("bf16", "fp16"):
            if self.ds.get(f"{name}.enabled") is True:
                return name, self.ds, f"{name}.enabled"
            if self.args.get(name) is True:
                return name, self.args, name
        word = self.accel.word("mixed_precision")
        return (word if word in ("bf16", "fp16", "fp8") else ""), self.accel, "mixed_precision"

    @property
    def checkpoints(self) -> bool | None:
        """Activation checkpointing; None where nothing says."""
        key = self.args.first("activation_checkpointing", "gradient_checkpointing")
        mine = self.args.flag(key) if key else None
        theirs = self.fsdp.flag("activation_checkpointing") if self.fsdp else None
        return mine if theirs is None else bool(theirs or mine)

    # ------------------------------------------------------------------------------------------------------ capacity

    @property
    def params(self) -> int | None:
        return self.model.num_params if self.model else None

    @property
    def gpu_bytes(self) -> int | None:
        return self.cluster.gpu.memory_bytes if self.cluster else None

    @property
    def host_bytes(self) -> int | None:
        return self.cluster.host_bytes if self.cluster else None

    @property
    def capability(self) -> float | None:
        """Compute capability of the card: 8.0 is Ampere."""
        return as_number(self.cluster.gpu.compute_capability) if self.cluster else None

    @cached_property
    def estimate(self) -> Estimate | None:
        """What the files cost on this cluster; None without model and cluster, or where that cannot be estimated."""
        return self.estimate_of()

    def estimate_of(self, strategy: str = "", **changes: Any) -> Estimate | None:
        if self.model is None or self.cluster is None or self.reading is None or self.unknown:
            return None
        own = self.args.whole("micro_batch_size")  # Axolotl's word, which the reader leaves to --micro-batch
        given = {"micro_batch": own, **self.reading.workload} if own and own > 0 else self.reading.workload
        fields = {**given, **({"method": self.method} if self.method else {}), **self.fields, **changes}
        try:
            made = estimate(self.model, self.cluster, strategy or self.reading.strategy, **fields)
            made.instants  # noqa: B018 - computes it, so that what is not modelled shows here
            return made
        except AdvisorError:
            return None
