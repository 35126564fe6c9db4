"""The defaults that a stack, its versions and the device bring, settled into ``Settings``.

    versions.py     what is installed, what is newest, which of two versions is later
    table.py        one row a stack: what it does by default
    deepspeed.py    ZeRO settings that the stacks' own configuration files give
    optimizers.py   which optimizer, carried out how, and which engines cannot run it
    dtypes.py       what is stored, computed, reduced in which dtype
    knobs.py        every knob of the strategy, from the user, the stack or the engine
    legal.py        what a stack, version or card cannot do
    settle.py       all of it, once

Order of precedence for every value: the user's workload or strategy option, the stack by version, the engine's own
default. ``Settings.origins`` records which it was.
"""

from estimators.stacks.settle import settle
from estimators.stacks.table import STACKS
from estimators.stacks.versions import NEWEST

__all__ = ["NEWEST", "STACKS", "settle"]
