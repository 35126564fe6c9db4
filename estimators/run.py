"""The resolved run: what every estimator reads. Nothing below this line guesses."""

from __future__ import annotations

from collections.abc import Mapping

from estimators.cluster import Cluster
from estimators.knobs import Value
from estimators.model.spec import ModelSpec, Parameter
from estimators.strategy import Strategy
from estimators.values import cached_property, dataclass, field
from estimators.workload import DTYPE_BYTES, Workload

# Classes of transformers whose ``_supports_sdpa`` is False (5.24): asked for nothing they run eager
# (modeling_utils.py ``get_correct_attn_implementation``). Gemma-2 caps its scores, GPT-OSS has sinks.
ONLY_EAGER = frozenset({"bloom", "deberta-v2", "gemma2", "gpt_neo", "gpt_oss", "mpt"})


def attention_of(family: str, workload: Workload) -> str:
    """The implementation that runs: eager in place of sdpa where transformers has none for the model."""
    refused = family in ONLY_EAGER and workload.stack != "litgpt"
    return "eager" if workload.attention == "sdpa" and refused else workload.attention


@dataclass(frozen=True, eq=False)
class Settings:
    """What stack, versions, engine and device make of a workload under one strategy.

    dtypes are names (``fp32``, ``bf16``, ``fp16``); ``origins`` says of each field or knob where it came from.
    """

    device: str  # cuda, cpu or simulated: the row of estimators.devices
    load_dtype: str  # the model is built, or its checkpoint read, in this dtype
    param_dtype: str  # trainable parameters as the engine stores them
    frozen_dtype: str  # parameters that do not train, unless a quantised format says otherwise
    compute_dtype: str  # of gathered or cast weights and of activations
    grad_dtype: str  # gradients as they are held for the optimizer
    reduce_dtype: str  # gradients on the wire
    master_dtype: str | None  # separate master copy in the optimizer; None where the parameters are the master
    state_dtype: str  # optimizer states
    adapter_dtype: str
    autocast: bool  # weights are cast op by op (torch.autocast) instead of by the engine
    optimizer: str
    optimizer_impl: str  # foreach, fused, single, ds-fused, ds-cpu, bnb: decides temporaries
    knobs: Mapping[str, Value]
    versions: Mapping[str, str]
    origins: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Run:
    """One question: this model, as its method trains it, on this cluster, split so."""

    model: ModelSpec  # adapters inserted, trainable and dtype marked
    cluster: Cluster
    workload: Workload
    strategy: Strategy
    settings: Settings

    @cached_property
    def shared(self) -> dict[str, object]:
        """What was worked out for this question at any batch and sequence: ``resolve`` gives runs that differ in nothing
        else the same one."""
        return {}

    def sized(self, workload: Workload) -> Run:
        """The same question at another batch, sequence or number of images."""
        run = Run(self.model, self.cluster, workload, self.strategy, self.settings)
        run.__dict__["shared"] = self.shared
        return run

    @property
    def ranks(self) -> int:
        return self.cluster.ranks

    @property
    def shards(self) -> int:
        """Ranks that hold one copy of the parameters' shards between them."""
        strategy = self.strategy
        if not strategy.is_sharded:
            return 1
        if strategy.sharding == "hybrid-shard":
            return min(int(self.settings.knobs["shard"]), self.ranks)
        mics = self.settings.knobs.get("mics")
        return min(int(mics), self.ranks) if mics else self.ranks

    @property
    def attention(self) -> str:
        """The implementation that runs."""
        return attention_of(self.model.family, self.workload)

    def dtype_of(self, parameter: Parameter) -> str:
        """dtype in which the engine stores a parameter between uses."""
        if parameter.dtype:
            return parameter.dtype
        return self.settings.param_dtype if parameter.trainable else self.settings.frozen_dtype

    def bytes_of(self, parameter: Parameter) -> int:
        """Stored bytes of a whole parameter, quantised storage and its side tensors included."""
        if parameter.stored_bytes is not None:
            return parameter.stored_bytes + parameter.side_bytes
        return parameter.numel * DTYPE_BYTES[self.dtype_of(parameter)]
