"""The table of rules: each is a small function, and this decorator puts it here with what a reader must know.

    @rule("ds-fp16-bf16-both", ERROR, fix="keep one", source="DeepSpeed runtime/config.py", confirmed=RUN)
    def both(setup): '''fp16 and bf16 are both enabled: DeepSpeed asserts while it reads the file.'''

The docstring is the rule's trigger and consequence; ``docs/rules.md`` is generated from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from estimators.values import dataclass
from selector.checks.finding import Hit

if TYPE_CHECKING:
    from selector.checks.setup import Setup

ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (ERROR, WARNING, INFO)

# How a rule is known: a test runs the installed package; its source was read; a thread says so; it is arithmetic.
RUN, SOURCE, THREAD, COUNT = "run", "source", "thread", "count"

Hits = Iterator[Hit]
Function = Callable[["Setup"], Hits]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``versions`` says which versions it is for; ``corrected`` where it differs from how it was reported."""

    name: str
    severity: str
    section: str
    trigger: str
    fix: str
    source: str
    confirmed: str
    function: Function
    versions: str = ""
    corrected: str = ""


RULES: dict[str, Rule] = {}


def rule(
    name: str, severity: str, *, fix: str, source: str, confirmed: str, versions: str = "", corrected: str = ""
) -> Callable[[Function], Function]:
    """Register a function as the rule ``name``; its module is the section."""

    def register(function: Function) -> Function:
        assert name not in RULES, f"two rules are called {name}"
        section = function.__module__.rpartition(".")[2]
        trigger = " ".join((function.__doc__ or "").split())
        RULES[name] = Rule(name, severity, section, trigger, fix, source, confirmed, function, versions, corrected)
        return function

    return register
