"""What the family files share: reading a config safely, and the few module kinds that all networks are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.errors import InputError, short
from estimators.model.spec import Parameter

MAX_DIMENSION = 10**8  # above any dimension that was ever trained; a larger one is a slip or an attack


class Config:
    """A Hugging Face style dictionary with a family's defaults beneath it, read with checks.

    Every read names the key and the value when it cannot be used, so that a damaged ``config.json`` ends in one
    message. Raises ``InputError``.
    """

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any], where: str = "config") -> None:
        self._given = dict(values)
        self._values = {**defaults, **values}
        self._where = where

    @property
    def values(self) -> dict[str, Any]:
        """The merged dictionary, for ``ModelSpec.config``."""
        return dict(self._values)

    @property
    def where(self) -> str:
        """What opens each message."""
        return self._where

    def renamed(self, names: Mapping[str, str]) -> Config:
        """The same config with a family's own key names (``n_embd``) also under the common ones (``hidden_size``).

        transformers accepts either (``attribute_map``); what the file gives goes before a default.
        """
        given = dict(self._given)
        for own, common in names.items():
            if own in given and common in given and given[own] != given[common]:
                raise InputError(
                    f"{self._where}: {own} is {short(given[own])} and {common} is {short(given[common])}; "
                    "they are two names of one value, so drop one"
                )
            given[common] = given.get(own, given.get(common, self._values.get(own, self._values.get(common))))
            if own in self._values:
                given[own] = given[common]
        return Config(given, self._values, self._where)

    def without(self, key: str) -> Config:
        """The same config with one key absent, for classes that ignore it."""
        given, rest = dict(self._given), dict(self._values)
        given.pop(key, None)
        rest.pop(key, None)
        return Config(given, rest, self._where)

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """A dimension or count. ``default`` applies when the key is absent or null."""
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise InputError(f"{self._where}: {key} is missing; give a whole number")
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{self._where}: {key} is {short(value)}; give a whole number")
        if not minimum <= value <= MAX_DIMENSION:
            raise InputError(f"{self._where}: {key} is {value}; give {minimum} to {MAX_DIMENSION:,}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{self._where}: {key} is {short(value)}; give true or false")
        return value

    def fraction(self, key: str, default: float = 1.0) -> float:
        """A share above 0 and up to 1."""
        value = self._values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise InputError(f"{self._where}: {key} is {short(value)}; give a number above 0 and up to 1")
        return float(value)

    def raw(self, key: str, default: Any = None) -> Any:
        """The value as it stands, for keys that hold names or nested objects; check it yourself."""
        value = self._values.get(key)
        return default if value is None else value

    def text(self, key: str, default: str = "") -> str:
        value = self.raw(key, default)
        if not isinstance(value, str):
            raise InputError(f"{self._where}: {key} is {short(value)}; give a name")
        return value

    def section(self, key: str, defaults: Mapping[str, Any]) -> Config:
        """A nested config (``text_config``, ``vision_config``)."""
        value = self.raw(key, {})
        if not isinstance(value, Mapping):
            raise InputError(f"{self._where}: {key} is {short(value)}; give an object")
        return Config(value, defaults, f"{self._where}.{key}")

    def divided(self, key: str, by: str) -> int:
        """``hidden_size / num_attention_heads`` and the like; they must divide."""
        whole, parts = self.integer(key), self.integer(by)
        if whole % parts:
            raise InputError(f"{self._where}: {key} {whole} is not a multiple of {by} {parts}; correct one of them")
        return whole // parts


def linear(name: str, out_features: int, in_features: int, bias: bool = False, **marks: Any) -> tuple[Parameter, ...]:
    """``nn.Linear``: weight [out, in] and perhaps bias [out]."""
    weight = Parameter(f"{name}.weight", (out_features, in_features), "linear", **marks)
    return (weight, Parameter(f"{name}.bias", (out_features,), "linear", **marks)) if bias else (weight,)


def conv1d(name: str, in_features: int, out_features: int) -> tuple[Parameter, ...]:
    """transformers' ``Conv1D`` of GPT-2: weight [in, out], bias [out]."""
    return (
        Parameter(f"{name}.weight", (in_features, out_features), "conv1d"),
        Parameter(f"{name}.bias", (out_features,), "conv1d"),
    )


def norm(name: str, size: int, bias: bool = False) -> tuple[Parameter, ...]:
    """RMSNorm (weight) or LayerNorm (weight, bias)."""
    weight = Parameter(f"{name}.weight", (size,), "norm")
    return (weight, Parameter(f"{name}.bias", (size,), "norm")) if bias else (weight,)


def embedding(name: str, rows: int, columns: int) -> tuple[Parameter, ...]:
    """``nn.Embedding``: weight [rows, columns]."""
    return (Parameter(f"{name}.weight", (rows, columns), "embedding"),)
