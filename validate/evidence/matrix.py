"""What is measured: models x strategies x method x checkpointing, in the order of their worth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from estimators.errors import AdvisorError
from estimators.memory import resolve
from estimators.model import resolve_model as spec_named
from estimators.run import Run

MODELS = ("llama-8b", "gpt2-xl", "qwen2.5-7b", "gemma-2-9b", "t5-3b", "vit-base", "mixtral-8x7b", "qwen2-vl-7b")
CLUSTER = "8xH100"
STRATEGIES = (
    "fsdp-full-shard", "zero2", "ddp", "zero3", "fsdp1-full-shard", "fsdp-shard-grad-op", "zero1",
    "zero2+optimizer@cpu", "zero3+optimizer@cpu", "zero3+optimizer@cpu+params@cpu", "fsdp1-shard-grad-op",
    "fsdp-hybrid-shard:shard=4", "zero0",
)  # fmt: skip
SEQ_LEN = 2048
# A fused kernel drops attention scores where they are; on a CPU sdpa leaves its fused kernel for it and makes them all.
WITHOUT_DROPOUT = {"gpt2-xl": {"attn_pdrop": 0.0}}
# T5's bias of positions has a gradient: sdpa's kernel for that is a GPU's, on a CPU it makes all scores in fp32.
ATTENTION = {"t5-3b": "eager"}
POSITIONS = {"gpt2-xl": 1024, "t5-3b": 512}  # models with fewer positions than that, or trained on fewer


@dataclass(frozen=True)
class Question:
    """One row to be: everything by name, as it is stored."""

    model: str
    strategy: str
    workload: dict[str, object] = field(hash=False)
    cluster: str = CLUSTER

    @property
    def id(self) -> str:
        asked = self.workload
        return f"{self.model}/{self.cluster}/{self.strategy}/{asked['method']}/{asked['checkpointing']}"

    def resolved(self, device: str = "cpu") -> Run:
        """On a CPU: that is what a simulated device is (``estimators.devices``)."""
        changes = WITHOUT_DROPOUT.get(self.model)
        model = {**spec_named(self.model).config, **changes} if changes else self.model
        return resolve(model, self.cluster, self.strategy, device, **self.workload)

    def predicted(self) -> Run:
        """Of what is offloaded a simulation knows the place by its owner; a CPU's estimate has one place only."""
        return self.resolved("simulated" if "@" in self.strategy else "cpu")


def questions() -> Iterator[Question]:
    """Everything legal, checkpointing and full training of the first models first."""
    for method, checkpointing in product(("full", "lora"), ("full", "none")):
        for model, strategy in product(MODELS, STRATEGIES):
            question = _question(model, strategy, method, checkpointing)
            try:
                question.resolved()
            except AdvisorError:
                continue
            yield question


def _question(model: str, strategy: str, method: str, checkpointing: str) -> Question:
    return Question(model, strategy, {
        "stack": "deepspeed" if strategy.startswith("zero") else "torch",
        "method": method,
        "checkpointing": checkpointing,
        "seq_len": POSITIONS.get(model, SEQ_LEN),
        "optimizer": "adamw" if strategy.startswith("zero") else "adamw-fused",
        **({"attention": ATTENTION[model]} if model in ATTENTION else {}),
    })  # fmt: skip
