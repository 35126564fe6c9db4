"""GPUs, nodes and links: ``4xA10``, ``8xA100-80GB``, ``2x8xH100`` (nodes x GPUs per node x kind).

Cards stand in ``data/gpus.json``, each value with its source; ``data/gpu_index.json`` repeats what an estimate needs
and loads in a millisecond (``tests/test_cluster.py`` holds the two together). A card is never found by a substring: a
name is a family, tried longest first, then form and size and nothing else, so that A10 and A100, H20 and H200, L4, L40
and L40S cannot be taken for one another.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from estimators.errors import InputError, UnknownName, short
from estimators.units import GIB, MIB, parse_bytes
from estimators.values import NamedTuple, dataclass, field

if TYPE_CHECKING:
    from estimators.calibration import Calibration

DATA = os.path.join(os.path.dirname(__file__), "data")
MAX_COUNT = 65536  # nodes, and GPUs of a node
MAX_TEXT = 200  # characters of a cluster or a quantity
INTERCONNECTS = ("nvlink", "pcie")
ALL_TO_ALL_LINKS = r"(NVLink\d( \(cut\))?|xGMI|HCCS|RoCE on die)"  # every pair of a node, no bridges

# Families as people write them -> cards, preferred first. Where cards of one family differ in size and none was
# said, the first is taken and a note says so: A100 as the common 80 GB; V100 as 16 GB, the size that is safe to assume.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "t4": ("t4",),
    "v100": ("v100-16gb-sxm2", "v100-32gb-sxm2", "v100-pcie-16gb"),
    "rtx2080ti": ("rtx-2080-ti",), "2080ti": ("rtx-2080-ti",),
    "titanrtx": ("titan-rtx",),
    "rtx3090": ("rtx-3090",), "3090": ("rtx-3090",),
    "rtx4090": ("rtx-4090",), "4090": ("rtx-4090",),
    "rtx5090": ("rtx-5090",), "5090": ("rtx-5090",),
    "rtxpro6000": ("rtx-pro-6000-blackwell",), "pro6000": ("rtx-pro-6000-blackwell",),
    "rtx6000ada": ("rtx-6000-ada",), "6000ada": ("rtx-6000-ada",),
    "rtxa6000": ("rtx-a6000",), "a6000": ("rtx-a6000",),
    "rtxa5000": ("rtx-a5000",), "a5000": ("rtx-a5000",),
    "a10": ("a10",), "a10g": ("a10g",), "a30": ("a30",), "a40": ("a40",),
    "a100": ("a100-80gb-sxm4", "a100-80gb-pcie", "a100-40gb-sxm4", "a100-40gb-pcie"),
    "a800": ("a800-80gb",),
    "l4": ("l4",), "l40": ("l40",), "l40s": ("l40s",),
    "h20": ("h20",), "h200": ("h200",), "h800": ("h800",), "gh200": ("gh200",),
    "h100": ("h100-sxm5", "h100-pcie", "h100-nvl", "h100-96gb-sxm5"),
    "b200": ("b200",), "b300": ("b300",),
    "mi210": ("mi210",), "mi250x": ("mi250x-gcd",), "mi250xgcd": ("mi250x-gcd",),
    "mi300x": ("mi300x",), "mi325x": ("mi325x",),
    "gaudi2": ("gaudi2",), "gaudi3": ("gaudi3",),
    "ascend910b": ("ascend-910b",), "910b": ("ascend-910b",),
}  # fmt: skip
_LONGEST_FIRST = tuple(sorted(FAMILIES, key=len, reverse=True))
_MAKERS = {"nvidia", "tesla", "geforce", "amd", "instinct", "intel", "habana", "huawei", "generation", "gpu"}
_FORM = r"(sxm[2-6]?|pcie|nvl)?"
_TAIL = r"(?:hbm[23]e?|ac|ls|(?:blackwell)?(?:server|workstation)?(?:edition)?)"
_REST = _FORM + r"(?:([1-9][0-9]{1,2})(?:gi?b?)?)?" + _FORM + _TAIL
_WORD = re.compile(r"[a-z0-9]+")
_COUNT = re.compile(r"([-+]?[0-9][0-9.,_]*|[-+])\s*[x*×]\s*", re.IGNORECASE)
_RATE = r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*(?:(G|Gb|Gbit)|(GB))?(?:/s|ps)?\s*"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card of ``data/gpus.json``. ``memory_bytes`` is the smallest total that torch was seen to report."""

    id: str
    name: str
    memory_bytes: int
    compute_capability: str | None = None  # "8.6"; a gfx name for AMD; None where the card is not in the catalogue
    bf16: bool | None = None
    link: str | None = None  # between the cards of a node: NVLink4, NVLink3 bridge, none, ...

    @property
    def label(self) -> str:
        """Short name for people and JSON: ``A10``, ``A100-80GB``, ``H100``; the form factor only where it is PCIe."""
        return re.sub(r"-SXM\d?", "", self.id.upper())


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Equal nodes of equal cards. Host and NVMe are per node; None where nobody said.

    Compared and hashed by identity; ``parse_cluster`` gives the same object for specs that mean the same.
    """

    gpu: Gpu
    gpus_per_node: int = 1
    nodes: int = 1
    host_bytes: int | None = None
    nvme_bytes: int | None = None
    network_bits_per_s: float | None = None  # per GPU
    interconnect: str | None = None  # nvlink or pcie inside a node
    price_per_gpu_hour: float | None = None
    tflops: float | None = None  # dense, in the dtype that computes; stands in for the catalogue's
    bandwidth_gb_per_s: float | None = None  # of a card's memory, likewise
    cpu_cores: int | None = None  # of a node
    dram_bytes_per_s: float | None = None  # of a node: channels x their rate
    notes: tuple[str, ...] = field(default=())
    calibration: Calibration | None = None  # what such a machine measured of itself

    @property
    def measured(self) -> Calibration | None:
        """The calibration, where it is of this card."""
        own = self.calibration
        return own if own is not None and own.gpu == self.gpu.id else None

    @property
    def ranks(self) -> int:
        return self.gpus_per_node * self.nodes

    @property
    def has_nvlink(self) -> bool:
        """All cards of a node reach each other by NVLink or its like: as the user said, else as the card is built."""
        if self.interconnect is not None:
            return self.interconnect == "nvlink"
        return self.gpu.link is not None and re.fullmatch(ALL_TO_ALL_LINKS, self.gpu.link) is not None


def parse_cluster(
    text: str,
    *,
    host_memory: str | int | None = None,
    nvme: str | int | None = None,
    network: str | float | None = None,
    interconnect: str | None = None,
    price: str | float | None = None,
    gpu_memory: str | int | None = None,
    tflops: str | float | None = None,
    bandwidth: str | float | None = None,
    cpu_cores: str | int | None = None,
    host_bandwidth: str | float | None = None,
    calibration: Calibration | None = None,
) -> Cluster:
    """``"2x8xH100"`` and the facts that are known -> ``Cluster``.

    ``host_memory`` and ``nvme`` are per node, ``network`` in Gbit/s per GPU (``"50GB/s"`` is read as bytes),
    ``price`` per GPU-hour. ``gpu_memory`` stands in for the catalogue's size and makes any name a card; ``tflops`` and
    ``bandwidth`` (GB/s) stand in for its rates, so that such a card has a time too.
    ``cpu_cores`` and ``host_bandwidth`` (GB/s of DRAM) of a node say how fast its CPU steps an offloaded optimizer.
    ``calibration`` (``estimators.calibration.load``) is used where it is of this card.

    Raises ``UnknownName`` for a card that no catalogue has, ``InputError`` for everything else that cannot be used.

    >>> parse_cluster("2x8xH100").ranks
    16
    """
    if not isinstance(text, str):
        raise InputError(f"cluster {short(text)} is not text; write it like 4xA10, 8xA100-80GB or 2x8xH100")
    if len(text) > MAX_TEXT:
        raise InputError(f"cluster {short(text)} is too long; write it like 4xA10, 8xA100-80GB or 2x8xH100")
    nodes, gpus_per_node, kind = _split(text)
    memory = _size(gpu_memory, "GPU memory")
    gpu, notes = _gpu(kind, memory)
    if interconnect is not None and str(interconnect).lower() not in INTERCONNECTS:
        raise UnknownName("interconnect", str(interconnect), INTERCONNECTS, "(nvlink or pcie)")
    cores = _figure(cpu_cores, "cpu_cores", "cannot be read; give cores of a node, like 64")
    dram = _figure(host_bandwidth, "host_bandwidth", "cannot be read; give GB/s, like 300")
    return _cluster(
        gpu, gpus_per_node, nodes, _size(host_memory, "host memory"), _size(nvme, "NVMe"), _rate(network),
        None if interconnect is None else str(interconnect).lower(),
        _figure(price, "price", "is not a price; give it per GPU-hour, like 2.5", zero=True),
        _figure(tflops, "tflops", "cannot be read; give dense TFLOPS, like 312"),
        _figure(bandwidth, "bandwidth", "cannot be read; give GB/s, like 2039"),
        None if cores is None else round(cores) or None, None if dram is None else 1e9 * dram, notes, calibration,
    )  # fmt: skip


# Equal values give the same object, so that everything downstream may be cached by identity.
_cluster = lru_cache(maxsize=1024)(Cluster)


def _split(text: str) -> tuple[int, int, str]:
    """``nodes x GPUs x kind`` -> the three; a number that is not said is 1."""
    rest, counts = text.strip(), []
    while match := _COUNT.match(rest):
        counts.append(match.group(1))
        rest = rest[match.end() :]
    if len(counts) > 2:
        raise InputError(f"cluster {short(text)} has {len(counts)} numbers; write nodes x GPUs x kind, like 2x8xH100")
    if not rest:
        raise InputError(f"cluster {short(text)} names no card; write it like 4xA10, 8xA100-80GB or 2x8xH100")
    names = ("GPUs",) if len(counts) < 2 else ("nodes", "GPUs of a node")
    numbers = [_count(c, what, text) for c, what in zip(counts, names, strict=False)]
    nodes, gpus = [1, 1, *numbers][-2:]
    return nodes, gpus, rest


def _count(digits: str, what: str, text: str) -> int:
    if not digits.isdecimal() or not 1 <= int(digits) <= MAX_COUNT:
        raise InputError(f"cluster {short(text)}: {short(digits)} {what}; give a whole number from 1 to {MAX_COUNT}")
    return int(digits)


@lru_cache(maxsize=1024)
def _gpu(kind: str, memory: int | None) -> tuple[Gpu, tuple[str, ...]]:
    """The card that a name means, with notes on what was assumed; ``memory`` in bytes overrides its size."""
    ids = _candidates(kind)
    if not ids:
        if memory is None or not _WORD.search(kind.lower()):
            raise _unknown(kind)
        name = kind.strip()
        return Gpu(name.lower(), name, memory), (f"{name} is not in the catalogue: only its memory is known, as given",)
    card, notes = _cards()[ids[0]], []
    sizes = sorted({_cards()[i].marketing_gb for i in ids})
    family = _family(_squash(kind))
    if memory is None and len(sizes) > 1 and family != "h100":  # every H100 is of 80 GB unless its name says more
        others = ", ".join(f"{family.upper()}-{size}GB" for size in sizes if size != card.marketing_gb)
        notes.append(f"{kind.strip()} is taken as the {card.marketing_gb} GB card; write {others} for another")
    given = f"{card.id}: memory is as given, not the catalogue's"
    capacity, note = (memory, given) if memory is not None else card.capacity()
    gpu = Gpu(card.id, (*card.names, card.id)[0], capacity, card.compute_capability, card.bf16, card.link)
    return gpu, tuple(n for n in (*notes, note) if n)


class Card(NamedTuple):
    """A row of ``data/gpu_index.json``."""

    id: str
    names: list[str]  # as torch reports them
    marketing_gb: int
    torch_gib: float | None  # smallest total seen
    smi_mib: int | None
    once: bool  # torch_gib comes from a single log
    compute_capability: str | None
    bf16: bool | None
    link: str | None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Card:
        """The row of a record of ``data/gpus.json``."""
        seen = record["torch_total_memory_gib"]
        once = "logs-1" in seen["source"] or seen.get("note") == "one log only"
        return cls(
            record["id"], record["torch_device_names"], record["memory_marketing_gb"], seen["min_seen"],
            record["nvidia_smi_total_mib"]["value"], once, record["compute_capability"]["value"],
            record["bf16_hardware"]["value"], record["link"]["kind"],
        )  # fmt: skip

    def capacity(self) -> tuple[int, str]:
        """Bytes that torch reports at least, and a note where that was not measured, or only once."""
        if self.torch_gib is not None:
            note = f"{self.id}: its {self.torch_gib} GiB were seen in one log only" if self.once else ""
            return int(self.torch_gib * GIB), note
        if self.smi_mib is not None:
            return self.smi_mib * MIB, f"{self.id}: nvidia-smi's total; torch reports a little less"
        return self.marketing_gb * 10**9, f"{self.id}: no measured total found; read as {self.marketing_gb}e9 bytes"


def _squash(kind: str) -> str:
    """Lower case, letters and digits only, without the makers' words: ``NVIDIA A100-SXM4-80GB`` -> a100sxm480gb."""
    return "".join(w for w in _WORD.findall(kind.lower()) if w not in _MAKERS)


def _family(squashed: str) -> str:
    return next((f for f in _LONGEST_FIRST if squashed.startswith(f) and _rest(squashed, f)), "")


def _rest(squashed: str, family: str) -> tuple[str, str | None] | None:
    """Form and size behind a family's name; None where something else stands there."""
    if squashed == family:
        return "", None
    match = re.fullmatch(_REST, squashed[len(family) :])
    return match and ((match[1] or match[3] or "")[:3], match[2])


@lru_cache(maxsize=1024)
def _candidates(kind: str) -> tuple[str, ...]:
    """Ids of the cards that a name can mean, preferred first; empty when there is none."""
    squashed = _squash(kind)
    if squashed in _exact():
        return (_exact()[squashed],)
    family = _family(squashed)
    rest = _rest(squashed, family) if family else None
    if rest is None:
        return ()
    form, size = rest
    ids = FAMILIES[family]
    if size is not None:
        ids = tuple(i for i in ids if _cards()[i].marketing_gb == int(size))
    if form and any(f in i for i in FAMILIES[family] for f in ("sxm", "pcie", "nvl")):
        ids = tuple(i for i in ids if form in i)
    return ids


def _unknown(kind: str) -> InputError:
    family = _family(_squash(kind))
    hint = "for a card that is not in the catalogue give its size, like --gpu-memory 24GB"
    if family:
        known = sorted({f"{_cards()[i].marketing_gb} GB ({i})" for i in FAMILIES[family]})
        return InputError(f"{short(kind)}: the catalogue has {family.upper()} with {', '.join(known)}; {hint}")
    names = [f.upper() for f in FAMILIES] + [i for ids in FAMILIES.values() for i in ids]
    return UnknownName("GPU", kind, names, f"({hint}; dist-advisor gpus lists them)")


def _size(value: str | int | None, what: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float) or len(_text(value)) > MAX_TEXT:
        raise InputError(f"{what}: {short(_text(value))} is not a size; write it like 512GB, 80GiB or 4TB")
    size = parse_bytes(value, what)
    if size < GIB and str(value).strip().isdigit():
        raise InputError(f"{what}: {value} would be {size:,} bytes; give the unit: {value}GB")
    return size


def _rate(value: str | float | None) -> float | None:
    """Gbit/s per GPU, or GB/s where the unit says bytes -> bits per second."""
    if value is None:
        return None
    match = re.fullmatch(_RATE, _text(value)[: MAX_TEXT + 1])
    bits = float(match.group(1)) * (8e9 if match.group(3) else 1e9) if match else 0.0
    if not 0 < bits <= 1e15:
        raise InputError(f"network: {short(_text(value))} is not a speed; give Gbit/s per GPU, like 400 or 50GB/s")
    return bits


def _figure(value: str | float | None, what: str, wrong: str, zero: bool = False) -> float | None:
    """A number up to a million, with ``zero`` also 0. ``wrong``: what is said of anything else."""
    if value is None:
        return None
    try:
        figure = float(_text(value)[:MAX_TEXT])
    except ValueError:
        figure = -1.0
    if not 0 <= figure <= 1e6 or not (figure or zero):
        raise InputError(f"{what}: {short(_text(value))} {wrong}")
    return figure


def _text(value: object) -> str:
    """``str``, also for an int that is too long to be written."""
    try:
        return str(value)
    except ValueError:
        return "a number of thousands of digits" + "!" * MAX_TEXT


@lru_cache(maxsize=2)
def _load(name: str) -> Any:
    import json  # here: a command that asks for no card does not pay for it

    with open(os.path.join(DATA, name), encoding="utf-8") as file:
        return json.load(file)


@lru_cache(maxsize=1)
def _cards() -> dict[str, Card]:
    return {row[0]: Card(*row) for row in _load("gpu_index.json")}


@lru_cache(maxsize=1)
def _exact() -> dict[str, str]:
    """Names that torch reports, and ids -> id."""
    return {_squash(name): card.id for card in _cards().values() for name in (card.id, *card.names)}


def gpus() -> tuple[dict[str, Any], ...]:
    """Every card of the catalogue as it stands in the file: a value, its sources and notes for each fact."""
    return tuple(_load("gpus.json")["gpus"])


def gpu_sources() -> dict[str, str]:
    """What each source's short name in ``gpus()`` stands for."""
    return dict(_load("gpus.json")["meta"]["sources"])


def gpu_fact(gpu: Gpu | str, path: str) -> Any:
    """One fact of a card, by its path in the catalogue: ``gpu_fact(gpu, "dense_tflops.bf16")``.

    None where nothing was found, or where the card is not in the catalogue; units stand in the file's ``meta``.
    """
    wanted = gpu if isinstance(gpu, str) else gpu.id
    found: Any = next((record for record in gpus() if record["id"] == wanted), None)
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found["value"] if isinstance(found, dict) and "value" in found else found
