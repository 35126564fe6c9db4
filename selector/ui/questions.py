"""A filled form -> what the Python functions take. What a page must not do stands here.

A page that other machines can reach reads no path of this one. Nobody's code runs: ``trust_remote_code`` is never given.
The network is asked for a Hugging Face id only when the user presses Enter, never while a name is being typed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from estimators.errors import InputError, UnknownName, short
from estimators.model import catalogue, resolve_model
from selector.question import FACTS
from selector.ui.fields import FIELDS, MAIN, MOST_LETTERS, NAMES, SWITCHES, WORKLOAD
from selector.ui.link import Values

if TYPE_CHECKING:
    from estimators.cluster import Cluster
    from estimators.model.spec import ModelSpec
    from selector.recommendation import Recommendation

_WORK = tuple(f.name for f in FIELDS if f.group in (MAIN, WORKLOAD) and f.name not in ("model", "gpus", "team"))
_CHOICE = ("team", "goal", "policy", "allow", "global_batch", "strategy")
MOST_ANSWERS = 256  # kept


def read(values: Values) -> dict[str, str]:
    """By name, what is not empty. Raises ``InputError`` for a text that is too long."""
    found = {}
    for name, value in zip(NAMES, values, strict=True):
        text = (value or "").strip()
        if len(text) > MOST_LETTERS:
            raise InputError(f"{name} {short(text)} is longer than {MOST_LETTERS} letters")
        if text:
            found[name] = text
    return found


def model_of(text: str, local: bool, online: bool = False) -> ModelSpec:
    """A catalogue name, an id in the cache; a path only where the page is ``local``; the network only ``online``."""
    if not text:
        raise InputError("model is empty; give a name such as llama-8b")
    from estimators.model import hub
    from estimators.model.resolve import _is_path

    if catalogue.find(text) is None and not local and (_is_path(text) or not hub.is_id(text)):
        raise UnknownName("model", text, catalogue.names(), "(this page reads no paths)")
    return resolve_model(text, offline=None if online else True)


def cluster_of(given: Mapping[str, str]) -> Cluster:
    from estimators.cluster import parse_cluster

    if "gpus" not in given:
        raise InputError("GPUs are empty; write them like 4xA10, 8xA100-80GB or 2x8xH100")
    facts: dict[str, Any] = {name: given[name] for name in FACTS if name in given}
    return parse_cluster(given["gpus"], **facts)


def work_of(given: Mapping[str, str]) -> dict[str, Any]:
    """The workload's fields alone."""
    return {name: True if name in SWITCHES else given[name] for name in _WORK if name in given}


def recommendation(values: Values, local: bool) -> Recommendation:
    """The recommendation for a form. Raises the errors of ``estimators.errors``; the same form gives the same object."""
    return _recommendation(values, model_of(read(values).get("model", ""), local))


@lru_cache(maxsize=MOST_ANSWERS)
def _recommendation(values: Values, model: ModelSpec) -> Recommendation:
    from selector import recommend

    given = read(values)
    choice: dict[str, Any] = {name: given[name] for name in _CHOICE if name in given}
    if "deepspeed_experience" in given:
        choice["deepspeed_experience"] = True
    return recommend(model, cluster_of(given), **choice, **work_of(given))
