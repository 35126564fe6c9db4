"""How fast a run is: ``step_time(run)`` -> seconds of an optimizer step as an interval and named parts.

One formula, one function: ``shapes`` (what a token costs), ``flops``, ``traffic`` (memory-bound work), ``volumes``
(what engines send, in integers), ``network`` (seconds of collectives), ``offload``, ``optimizer_step``; ``constants``
is the only table of numbers, ``card`` what a card can do, ``phases`` and ``step`` compose. ``cost`` gives days, money
and energy. Formulas are derived in ``docs/formulas-time.md``.
"""

from __future__ import annotations

from estimators.time.card import Unknown
from estimators.time.step import Part, StepTime, step_time

__all__ = ["Part", "StepTime", "Unknown", "step_time"]
