"""How fast a run is, and what it costs, in sentences: steps, tokens, what binds, GPU-hours, money, energy."""

from __future__ import annotations

from collections.abc import Iterator

from estimators.cluster import gpu_fact
from estimators.memory import Estimate
from estimators.time import StepTime
from estimators.time.cost import Cost, cost
from estimators.time.towers import lengths, only_images

BILLION = 1e9


def speed_sentences(estimate: Estimate) -> Iterator[str]:
    """Rate with its interval, MFU, the step and what binds it; tokens a day and what a billion of them cost.

    Where the card lacks a figure: which, and the flag that gives it. Nothing where activations are not known.
    """
    time = estimate.time
    if estimate.verdict == "unknown":
        return
    if not isinstance(time, StepTime):
        yield f"no time without {'; '.join(time.missing)}"
        return
    rate, seconds = time.tokens_per_s_per_gpu, time.step_seconds.expected
    what, each = _counted(estimate)
    yield (
        f"about {rate.expected / each:,.0f} {what} per second and GPU ({rate.low / each:,.0f} to {rate.high / each:,.0f}), "
        f"MFU {time.mfu:.0%}: a step takes {short(seconds)} s, most of it {time.bound_by}"
    )
    if what == "tokens":
        yield cost_sentence(estimate)


def cost_sentence(estimate: Estimate) -> str:
    """``24.6 billion tokens a day on all GPUs; a billion take 78 GPU-hours, 195 at 2.5 an hour, 31 kWh at full power``."""
    spent = cost_of_billion(estimate)
    assert spent is not None
    words = [f"a billion take {short(spent.gpu_hours)} GPU-hours"]
    if spent.money is not None:
        words.append(f"{short(spent.money)} at {estimate.run.cluster.price_per_gpu_hour:g} an hour")
    if spent.energy_kwh is not None:
        words.append(f"{short(spent.energy_kwh)} kWh at full board power")
    size, unit = (BILLION, "billion") if spent.tokens_per_day >= BILLION else (1e6, "million")
    return f"{short(spent.tokens_per_day / size)} {unit} tokens a day on all GPUs; {', '.join(words)}"


def cost_of_billion(estimate: Estimate) -> Cost | None:
    """What a billion tokens take; None where there is no time. Money where a price was given, energy of known boards."""
    time, run = estimate.time, estimate.run
    if not isinstance(time, StepTime):
        return None
    power = gpu_fact(run.cluster.gpu, "board_power_w")
    return cost(BILLION, time.tokens_per_s_per_gpu, run.ranks, run.cluster.price_per_gpu_hour, power)


def _counted(estimate: Estimate) -> tuple[str, int]:
    """What passes through, and how many positions each has: images of a model that sees nothing else."""
    found = lengths(estimate.run) if only_images(estimate.run.model) else None
    return ("images", found[0]) if found else ("tokens", 1)


def short(value: float) -> str:
    """Three digits: ``0.0412``, ``4.6``, ``78.1``, ``1,230``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
