"""A folder -> the configurations that it holds, told by their content; what was left out is said."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from estimators.errors import InputError, short
from estimators.readers import recognise
from estimators.readers.safe import MAX_BYTES, YAML_SUFFIXES, load
from selector.checks.script import ARGUMENT_CLASSES, read_script

SUFFIXES = (".json", *YAML_SUFFIXES, ".py")
MOST = 200  # files of one folder that are opened
NOT_CONFIGURED = ("trainer_state.json", "plan.json")  # what a run writes; their keys look like a configuration's
STARTS = {*ARGUMENT_CLASSES, "Accelerator", "FullyShardedDataParallel", "FSDP", "fully_shard", "DistributedDataParallel",
          "DDP"}  # fmt: skip
MARKS = ("zero_optimization", "distributed_type", "per_device_train_batch_size", "train_micro_batch_size_per_gpu")


def expanded(paths: Iterable[str | Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files as they are, a folder as the configurations directly in it; and a note for each folder.

    Raises ``InputError`` for a folder without any, and for a damaged file there that is one by its words.
    """
    files: list[str] = []
    notes: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            files.append(str(path))
            continue
        found = tuple(_configurations(Path(path)))
        if not found:
            raise InputError(_nothing(Path(path)))
        files += [str(file) for file in found]
        notes.append(f"{path} holds {', '.join(file.name for file in found)}")
    return tuple(files), tuple(notes)


def _candidates(folder: Path) -> list[Path]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError as error:
        raise InputError(f"cannot read {short(str(folder), 200)}: {(error.strerror or 'no access').lower()}") from None
    return [folder / n for n in names if n.lower().endswith(SUFFIXES) and n not in NOT_CONFIGURED][:MOST]


def _configurations(folder: Path) -> Iterator[Path]:
    for file in _candidates(folder):
        if file.stat().st_size <= MAX_BYTES and (_starts(file) if file.suffix == ".py" else _is_one(file)):
            yield file


def _starts(file: Path) -> bool:
    """A script that starts an engine, or holds a DeepSpeed dictionary."""
    try:
        script = read_script(file)
    except InputError:
        return False
    return bool(script.dicts) or any(
        call.name in STARTS or call.path == "deepspeed.initialize" for call in script.calls
    )


def _is_one(file: Path) -> bool:
    try:
        document = load(file)
    except InputError:
        if _looks_like_one(file):
            raise
        return False
    try:
        recognise(document)
    except InputError:
        return False
    # a model's config.json may say bf16, and no configuration of a run names the network's class
    return "architectures" not in document.data


def _looks_like_one(file: Path) -> bool:
    text = file.read_bytes().decode("utf-8", "replace")
    return any(json.dumps(mark) in text or f"\n{mark}:" in f"\n{text}" for mark in MARKS)


def _nothing(folder: Path) -> str:
    """What there is instead, and what to name."""
    names = [file.name for file in _candidates(folder)]
    below = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    inside = [name for name in below[:50] if any(_candidates(folder / name))]
    there = f" among {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}" if names else ""
    where = f"; folders in it with such files: {', '.join(inside[:6])}" if inside else ""
    return (
        f"{folder} holds no configuration{there}{where}; name a DeepSpeed JSON, an accelerate YAML, TrainingArguments "
        "(JSON or YAML) or a train.py"
    )
