"""Whatever a caller means by a model, turned into a ``ModelSpec``.

Order: a spec as it is; a live module; a name of the catalogue; a folder or ``config.json``; a Hugging Face id, from the
local cache and then the network. The same name gives the same object. What a catalogue name does not need is imported
where it is needed: start-up time counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from estimators.errors import AdvisorError, InputError, MissingDependency, NotModelled, UnknownName, short
from estimators.model import catalogue, families
from estimators.model.spec import ModelSpec
from estimators.values import replace

# What a formula may trip over in values that are legal JSON and nonsense: the user's mistake, not a crash.
_NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_from_files: dict[tuple[str, int, int, bool], ModelSpec] = {}


def resolve_model(model: object, *, trust_remote_code: bool = False, offline: bool | None = None) -> ModelSpec:
    """The architecture that ``model`` means.

    ``model`` is a name (``llama-8b``, ``meta-llama/Llama-3.1-8B``), the path of a folder or ``config.json``, a config
    as a mapping, a live ``torch.nn.Module``, or a ``ModelSpec``. ``trust_remote_code`` lets transformers run code that
    a model brings along; without it that code never runs. ``offline`` forbids the network; None asks
    ``HF_HUB_OFFLINE``.

    Raises ``UnknownName`` (with suggestions), ``InputError`` for a config that cannot be used, ``NotModelled`` for a
    network that nothing here can read, ``MissingDependency`` for what could be read with something installed.
    """
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, Mapping):
        return from_config(model, where="config", trust_remote_code=trust_remote_code)
    if hasattr(model, "named_parameters"):
        from estimators.model.module import read_module

        return read_module(model)
    if isinstance(model, os.PathLike):
        return _from_path(_text(os.fspath(model)), trust_remote_code)
    if isinstance(model, str):
        return _from_text(model.strip(), trust_remote_code, offline)
    raise InputError(f"model is {short(model)}; give a name, a path, a config, a module or a spec")


def from_config(
    config: Mapping[str, Any],
    *,
    where: str,
    name: str = "",
    source: str = "",
    trust_remote_code: bool = False,
    folder: str | None = None,
) -> ModelSpec:
    """A spec from a Hugging Face style dictionary: by its family's formula, else from its transformers class.

    ``where`` opens each message; ``folder`` is where the config and, if it is trusted, its code stand.
    """
    from estimators.model.files import check_depth

    check_depth(config, where)
    try:
        spec = families.build(config, where=where)
    except NotModelled:
        from estimators.model.meta import read_class

        spec = read_class(config, where=where, trust_remote_code=trust_remote_code, folder=folder)
    except AdvisorError:
        raise
    except _NONSENSE as wrong:
        raise InputError(f"{where} does not describe a network: {short(str(wrong), 200)}; check its values") from wrong
    return replace(spec, name=name or spec.name or spec.class_name, source=source or where)


def _text(path: str | bytes) -> str:
    if isinstance(path, bytes):
        raise InputError(f"model is {short(path)}; give the path as text")
    return path


def _from_text(text: str, trust_remote_code: bool, offline: bool | None) -> ModelSpec:
    if not text:
        raise InputError("model is empty; give a name such as 'llama-8b', or the path of a config.json")
    entry = catalogue.find(text)
    if entry is not None:
        return catalogue.spec_of(entry)
    if _is_path(text):
        return _from_path(os.path.expanduser(text), trust_remote_code)
    from estimators.model import hub

    if not hub.is_id(text):
        raise UnknownName("model", text, catalogue.names())
    path = hub.cached_config(text)
    if path is None:
        path = _fetched(text, offline)
    return _from_path(path, trust_remote_code, name=text)


def _fetched(text: str, offline: bool | None) -> str:
    """The downloaded config of an id; what went wrong otherwise, with the names that are close."""
    from estimators.model import hub

    if "/" not in text:
        raise UnknownName("model", text, catalogue.names(), _HINT)
    if hub.is_offline(offline):
        raise UnknownName("model", text, catalogue.names(), f"(not in the local cache, and offline). {_HINT}")
    try:
        return hub.download_config(text)
    except MissingDependency as missing:
        unknown = UnknownName("model", text, catalogue.names(), f"({missing})")
        raise unknown if unknown.suggestions else missing from None


_HINT = "`dist-advisor models` lists the catalogue; a folder, a config.json or a Hugging Face id will do as well"


def _is_path(text: str) -> bool:
    """Something on disk, or text that cannot be anything else."""
    looks = text.startswith((".", "~", os.sep)) or text.endswith(".json") or "\\" in text or text.count("/") > 1
    return looks or os.path.exists(text)


def _from_path(path: str, trust_remote_code: bool, name: str = "") -> ModelSpec:
    """Read a folder or file; the same file, unchanged, gives the same object."""
    from estimators.model import files

    file = files.config_path(path)
    try:
        status = os.stat(file)
    except (OSError, ValueError) as wrong:
        raise InputError(f"{short(file)} cannot be read: {wrong}") from None
    key = (os.path.realpath(file), status.st_mtime_ns, status.st_size, trust_remote_code)
    known = _from_files.get(key)
    if known is not None and (not name or known.name == name):
        return known
    spec = from_config(
        files.read_config(file),
        where=file,
        name=name or _folder_name(file),
        source=f"{name}: config.json in the local Hugging Face cache" if name else file,
        trust_remote_code=trust_remote_code,
        folder=os.path.dirname(file),
    )
    _from_files[key] = spec
    return spec


def _folder_name(file: str) -> str:
    """What to call a model on disk: its folder, or its file when that has a name of its own."""
    folder, base = os.path.split(os.path.abspath(file))
    stem = base[:-5] if base.endswith(".json") else base
    return (os.path.basename(folder) or stem) if stem == "config" else stem
