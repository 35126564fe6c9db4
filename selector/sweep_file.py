"""A sweep's file -> combinations: YAML lists that are multiplied out, or a CSV with a combination a row."""

from __future__ import annotations

import csv
import hashlib
import itertools
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from estimators.errors import InputError, UnknownName, short
from estimators.values import dataclass
from estimators.workload import FIELD_ALIASES, FIELDS

CLUSTER_FACTS = ("host_memory", "nvme", "network", "interconnect", "price", "gpu_memory", "tflops", "bandwidth", "cpu_cores",
                 "host_bandwidth")  # fmt: skip
MAX_COMBINATIONS = 1_000_000
MAX_BYTES = 64 * 2**20
YAML_KEYS = {"models": "model", "model": "model", "gpus": "gpus", "strategies": "strategy", "strategy": "strategy"}


@dataclass(frozen=True, slots=True)
class Combination:
    """One question: ``strategy`` None asks for the first that fits, by communication and offload."""

    model: str
    gpus: str
    strategy: str | None
    facts: tuple[tuple[str, Any], ...]
    fields: tuple[tuple[str, Any], ...]

    @property
    def columns(self) -> dict[str, Any]:
        """What the row of a result begins with."""
        return {"model": self.model, "gpus": self.gpus, **dict(self.facts), **dict(self.fields)}


def read_sweep(path: str) -> tuple[list[Combination], str]:
    """The combinations in the file's order, and a digest of the file. Raises ``InputError``."""
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path} is larger than {MAX_BYTES // 2**20} MiB")
    is_csv = path.lower().endswith((".csv", ".tsv"))
    found = list(itertools.islice(_from_csv(path, raw) if is_csv else _from_yaml(path), MAX_COMBINATIONS + 1))
    if len(found) > MAX_COMBINATIONS:
        raise InputError(f"{path} asks more than {MAX_COMBINATIONS:,} combinations; split it")
    if not found:
        raise InputError(f"{path} asks nothing; give models and gpus")
    return found, hashlib.sha256(raw).hexdigest()


def _from_yaml(path: str) -> Iterator[Combination]:
    from estimators.readers.safe import load

    data = dict(load(path).data)
    name = os.path.basename(path)
    axes: dict[str, list[Any]] = {"model": [], "gpus": [], "strategy": [None]}
    work = data.pop("workload", {}) or {}
    if not isinstance(work, Mapping):
        raise InputError(f"{name}: workload is {short(work)}; give fields with a value or a list of values")
    for key, value in data.items():
        if key in YAML_KEYS:
            axes[YAML_KEYS[key]] = _texts(name, key, value)
        elif key in CLUSTER_FACTS or _is_field(key):
            axes[_field(key)] = _values(value)
        else:
            known = (*YAML_KEYS, *CLUSTER_FACTS, "workload", *FIELDS)
            raise UnknownName(f"key of {name}", str(key), known, "(models, gpus, strategies, workload)")
    for key, value in work.items():
        axes[_workload_key(name, str(key))] = _values(value)
    for needed in ("model", "gpus"):
        if not axes[needed]:
            raise InputError(f"{name} names no {needed}; write {'models' if needed == 'model' else 'gpus'}: [...]")
    if math.prod(map(len, axes.values())) > MAX_COMBINATIONS:
        raise InputError(f"{name} asks more than {MAX_COMBINATIONS:,} combinations; split it")
    keys = list(axes)
    for values in itertools.product(*axes.values()):
        yield _combination(dict(zip(keys, values, strict=True)))


def _texts(name: str, key: str, value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(v, str) and v.strip() for v in values):
        raise InputError(f"{name}: {key} is {short(value)}; give a name or a list of names")
    return values


def _values(value: Any) -> list[Any]:
    """A list is an axis; an inner list is one value (``lora_targets: [[q_proj, v_proj]]``)."""
    return value if isinstance(value, list) and value else [value]


def _is_field(key: Any) -> bool:
    return str(key).replace("-", "_") in (*FIELDS, *FIELD_ALIASES)


def _field(key: str) -> str:
    name = str(key).replace("-", "_")
    return FIELD_ALIASES.get(name, name)


def _workload_key(name: str, key: str) -> str:
    if not _is_field(key):
        raise UnknownName(f"workload field in {name}", key, (*FIELDS, *FIELD_ALIASES))
    return _field(key)


def _from_csv(path: str, raw: bytes) -> Iterator[Combination]:
    name = os.path.basename(path)
    try:
        lines = raw.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 (byte {error.start})") from None
    table = csv.DictReader(lines, delimiter="\t" if path.lower().endswith(".tsv") else ",", restkey="")
    columns = {c: _column(name, c) for c in table.fieldnames or ()}
    for needed in ("model", "gpus"):
        if needed not in columns.values():
            raise InputError(f"{name} has no column {needed}; its first line names the columns")
    try:
        for number, row in enumerate(table, 2):
            if row.get(""):
                raise InputError(f"{name}, line {number}: more cells than columns")
            given = {columns[c]: _cell(v) for c, v in row.items() if c and v is not None and v.strip()}
            if not given:
                continue
            if "model" not in given or "gpus" not in given:
                raise InputError(f"{name}, line {number}: model and gpus are both needed")
            yield _combination({"strategy": None, **given})
    except csv.Error as error:
        raise InputError(f"{name}: {error}") from None


def _column(name: str, column: str) -> str:
    key = column.strip().lower()
    if key in YAML_KEYS:
        return YAML_KEYS[key]
    if _field(key) in CLUSTER_FACTS or _is_field(key):
        return _field(key)
    raise UnknownName(f"column of {name}", column, ("model", "gpus", "strategy", *CLUSTER_FACTS, *FIELDS))


def _cell(text: str) -> Any:
    text = text.strip()
    return True if text.lower() in ("true", "yes") else False if text.lower() in ("false", "no") else text


def _combination(given: dict[str, Any]) -> Combination:
    model, gpus, strategy = given.pop("model"), given.pop("gpus"), given.pop("strategy")
    facts = tuple((k, given[k]) for k in CLUSTER_FACTS if given.get(k) is not None)
    fields = tuple(
        (k, tuple(v) if isinstance(v, list) else v)
        for k, v in given.items()
        if k not in CLUSTER_FACTS and v is not None
    )
    return Combination(str(model), str(gpus), strategy, facts, fields)
