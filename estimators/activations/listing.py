"""Which models have a ledger of activations, for which attention kernels, and what it was compared with."""

from __future__ import annotations

from estimators.activations.attention import Kernels
from estimators.activations.blocks import BY_RELATIVE
from estimators.activations.head import head
from estimators.activations.profile import Conditions, profile
from estimators.activations.roots import ROOTS, roots_of
from estimators.errors import NotModelled
from estimators.model.spec import ModelSpec
from estimators.values import NamedTuple

ATTENTION = ("eager", "sdpa", "flash")
REAL, RELATIVE, NONE = "the real classes", "its nearest relative", "-"


class Ledger(NamedTuple):
    """What is described of a model. ``kernels``: attention that its blocks are described for. ``missing``: why others are
    not, or nothing is. ``basis``: what the descriptions were compared with, or taken from."""

    blocks: tuple[str, ...]
    kernels: tuple[str, ...]
    root: str
    basis: str
    missing: str


def ledger_of(model: ModelSpec) -> Ledger:
    """The ledger of a model: its blocks and its root run on sizes, without numbers.

    >>> from estimators import resolve_model
    >>> ledger_of(resolve_model("llama-8b")).kernels
    ('eager', 'sdpa', 'flash')
    """
    blocks = tuple(dict.fromkeys(part.class_name for part in model.blocks))
    found, missing = [], ""
    for attention in ATTENTION:
        try:
            _run(model, Conditions(kernels=Kernels(attention)))
            found.append(attention)
        except NotModelled as error:
            missing = str(error)
    basis = RELATIVE if any(name in BY_RELATIVE for name in blocks) else REAL
    root = "its own" if model.family in ROOTS else "words, last norm, head"
    return Ledger(blocks, tuple(found), root if found else NONE, basis if found else NONE, missing)


def _run(model: ModelSpec, conditions: Conditions) -> None:
    if not model.head and not roots_of(model).head:
        raise NotModelled(f"what the head of {model.class_name} keeps has not been described")
    for part in model.blocks:
        profile(part, model, conditions)
    head(model, conditions)
