"""What one machine measured of itself: rates and overheads that stand in for published intervals of its card.

A profile says how fast a machine is and what its runtime takes beside tensors; it never changes a tensor's size.
``dist-advisor validate --calibrate`` writes it, the command line reads it for clusters of that card, and every estimate
that uses it names it. In Python it is a fact of the cluster: ``parse_cluster("8xA100", calibration=load(path, card))``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.errors import InputError, short
from estimators.values import dataclass

SCHEMA = "dist-advisor/calibration/1"
MAX_BYTES = 2**20
# What may be measured: unit, words, smallest and largest value that can be true.
QUANTITIES: Mapping[str, tuple[str, str, float, float]] = {
    "matmul_flops_per_s": ("FLOP/s", "16-bit matrix products", 1e9, 1e17),
    "copy_bytes_per_s": ("bytes/s", "memory of the card, read and written", 1e9, 1e15),
    "link_bytes_per_s": ("bytes/s", "collectives inside a node, per GPU", 1e7, 1e14),
    "network_bytes_per_s": ("bytes/s", "collectives between nodes, per GPU", 1e6, 1e14),
    "host_copy_bytes_per_s": ("bytes/s", "copies to and from the host, per GPU, all at once", 1e7, 1e13),
    "cpu_adam_params_per_s": ("parameters/s", "Adam on the CPUs of a node", 1e5, 1e13),
    "context_bytes": ("bytes", "context", 0, 2**36),
    "communicator_bytes": ("bytes", "one communicator inside a node", 0, 2**36),
    **{f"reserve_ratio_{engine}": ("of allocated", f"allocator's reserve under {engine}", 0, 10)
       for engine in ("torch", "ddp", "fsdp1", "fsdp2", "deepspeed")},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """low <= value <= high of ``n`` samples, in the quantity's unit."""

    low: float
    value: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """The profile of a machine with one kind of card; ``values`` by name of :data:`QUANTITIES`."""

    gpu: str
    date: str
    path: str
    values: tuple[tuple[str, Measured], ...]

    def get(self, name: str) -> Measured | None:
        """What was measured of a quantity; None where it was not."""
        return next((found for key, found in self.values if key == name), None)

    def three(self, name: str) -> tuple[float, float, float] | None:
        """A rate as (fast, expected, slow)."""
        found = self.get(name)
        return None if found is None else (found.high, found.value, found.low)

    @property
    def source(self) -> str:
        return f"measured on this machine, {self.date} ({self.path})"

    @property
    def note(self) -> str:
        """What every estimate says that used it."""
        words = ", ".join(QUANTITIES[name][1] for name, _ in self.values)
        return f"calibrated: {self.path}, {self.date}, {self.gpu}: {words}; --no-calibration leaves it out"


def load(path: str, gpu: str) -> Calibration | None:
    """The profile of a card in a file; None where there is no file, or it has nothing on this card.

    Raises ``InputError`` for a file that is there and cannot be used.
    """
    import json

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(path, getattr(error, "strerror", None) or "is not text") from None
    try:
        found = json.loads(text) if len(text) <= MAX_BYTES else None
    except ValueError as error:
        raise _wrong(path, f"is not JSON ({error})") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not isinstance(found.get("cards"), dict):
        raise _wrong(path, f"is not a calibration ({SCHEMA})")
    card = found["cards"].get(gpu)
    return None if card is None else parsed(card, gpu, path)


def parsed(card: Any, gpu: str, path: str) -> Calibration:
    """One card's entry, checked. Raises ``InputError`` that names the key and its value."""
    measured = card.get("measured") if isinstance(card, dict) else None
    if not isinstance(measured, dict):
        raise _wrong(path, f"has no measured values for {gpu}")
    values = []
    for name, entry in measured.items():
        if name not in QUANTITIES:
            raise _wrong(path, f"names an unknown quantity {short(name)}; known are {', '.join(QUANTITIES)}")
        _, _, least, most = QUANTITIES[name]
        try:
            low, value, high = (float(entry[key]) for key in ("low", "value", "high"))
            number = int(entry.get("n", 1))
        except (TypeError, KeyError, ValueError, AttributeError):
            raise _wrong(path, f"{name} is {short(entry)}; give low, value, high and n") from None
        if not least <= low <= value <= high <= most:
            raise _wrong(path, f"{name} is {short(entry)}; low <= value <= high between {least:g} and {most:g}")
        values.append((name, Measured(low, value, high, number)))
    return Calibration(gpu, str(card.get("date", "undated")), path, tuple(values))


def entry(values: Mapping[str, Measured], date: str, versions: Mapping[str, str]) -> dict[str, Any]:
    """One card's entry as the file has it; :func:`parsed` reads it back."""
    return {
        "date": date,
        "versions": dict(versions),
        "measured": {
            name: {"low": m.low, "value": m.value, "high": m.high, "n": m.n, "unit": QUANTITIES[name][0]}
            for name, m in values.items()
        },
    }


def _wrong(path: str, what: str) -> InputError:
    return InputError(f"calibration {path}: {what}; measure again with validate --calibrate, delete it, or give "
                      "--no-calibration")  # fmt: skip
