"""What a stack's own files cannot say: refused with the reason, rather than emitted and silently ignored."""

from __future__ import annotations

from collections.abc import Iterable

from estimators.errors import IllegalCombination
from estimators.run import Run
from estimators.strategy import knob_of

OTHERS = "stack torch says everything (deepspeed for ZeRO)"


def refuse(run: Run, what: str, instead: str = OTHERS) -> IllegalCombination:
    """The error to raise: stack, strategy, what its configuration has no word for, and the way out."""
    return IllegalCombination(f"stack {run.workload.stack}, {run.strategy.name}: {what}; {instead}")


def only_options(run: Run, sayable: Iterable[str], where: str) -> None:
    """Raise where the user set a knob that ``where`` has no word for. Defaults are settled as the stack has them."""
    for name in sorted(set(run.strategy.options) - set(sayable)):
        knob = knob_of(run.strategy.base, name)
        if run.strategy.options[name] != knob.default:
            raise refuse(run, f"{where} has no word for {name}")


def only_values(run: Run, field: str, known: Iterable[str], where: str) -> str:
    """The value of a workload field, or a refusal where ``where`` has no word for it."""
    value = getattr(run.workload, field)
    if value not in known:
        raise refuse(run, f"{where} has no word for {field} {value}")
    return str(value)


def own_dtypes(run: Run, sayable: Iterable[str], where: str) -> None:
    """Raise where the user chose a dtype that ``where`` has no word for."""
    for name in ("param_dtype", "state_dtype", "reduce_dtype", "adapter_dtype"):
        if getattr(run.workload, name) is not None and name not in sayable:
            raise refuse(run, f"{where} has no word for {name} {getattr(run.workload, name)}")
