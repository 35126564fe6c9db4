"""GPUs, nodes and links: ``4xA10``, ``8xA100-80GB``, ``2x8xH100``."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card of ``data/gpus.json``. ``memory_bytes`` is the smallest total that torch was seen to report."""

    id: str
    name: str
    memory_bytes: int
    compute_capability: str | None = None
    bf16: bool | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes of equal cards. Host and NVMe are per node; None where nobody said."""

    gpu: Gpu
    gpus_per_node: int = 1
    nodes: int = 1
    host_bytes: int | None = None
    nvme_bytes: int | None = None
    network_bits_per_s: float | None = None  # per GPU
    interconnect: str | None = None  # nvlink or pcie inside a node
    price_per_gpu_hour: float | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def ranks(self) -> int:
        return self.gpus_per_node * self.nodes
