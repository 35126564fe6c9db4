"""Days, money and energy of a training run: formulas C.1-C.3 of ``docs/formulas-time.md``."""

from __future__ import annotations

from estimators.result import Interval
from estimators.values import dataclass

HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True, slots=True)
class Cost:
    """``money`` where a price is known, ``energy_kwh`` where the board's power is: the cards', at full power."""

    seconds: Interval
    gpu_hours: float
    money: float | None
    energy_kwh: float | None
    tokens_per_day: float

    @property
    def days(self) -> Interval:
        return Interval(self.seconds.low / DAY, self.seconds.expected / DAY, self.seconds.high / DAY)


def cost(tokens: float, speed: Interval, ranks: int, price: float | None = None, power_w: float | None = None) -> Cost:
    """C.1-C.3: seconds = tokens / (speed x ranks); money = GPU-hours x price; energy = GPU-hours x power.

    ``speed`` in tokens per second and GPU. 1e12 tokens at 10,000 on 64 GPUs: 18.1 days, 27,778 GPU-hours.

    >>> found = cost(1e12, Interval(10_000, 10_000, 10_000), 64, price=2.0, power_w=700)
    >>> round(found.days.expected, 1), round(found.gpu_hours), round(found.money or 0), round(found.energy_kwh or 0)
    (18.1, 27778, 55556, 19444)
    """
    seconds = Interval(*(tokens / (rate * ranks) for rate in (speed.high, speed.expected, speed.low)))
    hours = seconds.expected * ranks / HOUR
    return Cost(
        seconds, hours, None if price is None else hours * price, None if power_w is None else hours * power_w / 1000,
        speed.expected * ranks * DAY,
    )  # fmt: skip
