"""Reading a ``config.json`` that may be anything: one ``InputError`` that names the file, never another exception."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from typing import Any, NoReturn

from estimators.errors import InputError, short

MAX_BYTES = 4 * 2**20  # a config is kilobytes; this keeps a mistaken path from being read into memory
MAX_LAYERS = 10_000  # ten times the deepest network that was published
LAYER_KEYS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers",
    "decoder_layers", "depth",
)  # fmt: skip


def config_path(path: str) -> str:
    """The config file that ``path`` means: itself, or the one in the folder.

    Raises ``InputError`` when there is none.
    """
    try:
        if os.path.isdir(path):
            inside = os.path.join(path, "config.json")
            if os.path.exists(inside):
                return inside
            raise InputError(f"{short(path)} is a folder without config.json; give a model's folder")
        if os.path.exists(path):
            return path
    except (OSError, ValueError) as wrong:
        raise InputError(f"{short(path)} cannot be used as a path: {wrong}") from None
    raise InputError(f"{short(path)} does not exist; give a model's folder or its config.json")


def read_config(path: str) -> Mapping[str, Any]:
    """The object in a ``config.json``.

    Raises ``InputError`` for a file that is absent, unreadable, too large, not text, not JSON, nested without end, or
    not an object, and for NaN and infinity.
    """
    where = short(path, 200)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{where} is not a regular file; give a config.json")
        if status.st_size > MAX_BYTES:
            raise InputError(f"{where} has {status.st_size:,} bytes, a config.json at most {MAX_BYTES:,}")
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as wrong:
        raise InputError(f"{where} cannot be read: {wrong.strerror or wrong}") from None
    try:
        value = json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except InputError as wrong:
        raise InputError(f"{where}: {wrong}") from None
    except UnicodeDecodeError:
        raise InputError(f"{where} is not text; give a config.json, not weights or a tokenizer") from None
    except RecursionError:
        raise InputError(f"{where} is nested too deeply to be a config") from None
    except ValueError as wrong:
        raise InputError(f"{where} is not JSON: {wrong}") from None
    if not isinstance(value, Mapping):
        raise InputError(f"{where} holds {short(value)}; a config is an object with model_type and the sizes")
    return value


def check_depth(config: Mapping[str, Any], where: str, prefix: str = "") -> None:
    """Refuse a number of layers that nobody means, before anything counts up to it. Raises ``InputError``."""
    for key in LAYER_KEYS:
        value = config.get(key)
        if isinstance(value, int) and value > MAX_LAYERS:
            raise InputError(f"{where}: {prefix}{key} is {short(value)}; give 1 to {MAX_LAYERS:,}")
    for key, value in config.items():
        if not prefix and isinstance(value, Mapping):
            check_depth(value, where, f"{key}.")


def _refuse_constant(text: str) -> NoReturn:
    raise InputError(f"a value is {text}; a config has whole and finite numbers")
