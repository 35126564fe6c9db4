"""What is emitted for a stack over every legal run, as its own classes are asked to read it."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "configs")]

from runs import CLUSTER, ONE, name_of, of  # noqa: E402

from estimators import AdvisorError, IllegalCombination  # noqa: E402
from estimators.memory import resolve  # noqa: E402
from estimators.run import Run  # noqa: E402
from selector.configs import axolotl, hugging_face, llamafactory, swift, torchtitan, torchtune  # noqa: E402
from selector.configs.model_files import config_json  # noqa: E402

Case = dict[str, Any]


def cases(package: str) -> dict[str, Case]:
    """Digest -> name, what the stack's entry point is given, and the files beside it. Equal ones stand once."""
    runs, given = STACKS[package]
    found: dict[str, Case] = {}
    for run in runs():
        try:
            case = {"given": given(run), "files": _beside(run)}
        except IllegalCombination:
            continue
        found.setdefault(digest(case), {"name": name_of(run), **case})
    return found


def digest(case: Case) -> str:
    """Of what the parser sees."""
    text = json.dumps([case["given"], case["files"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _beside(run: Run) -> dict[str, str]:
    made = {"model/config.json": config_json(run.model), **hugging_face.deepspeed_file(run)}
    if run.workload.stack == "swift" and run.strategy.engine == "fsdp2":
        made["fsdp_config.json"] = json.dumps(swift.fsdp(run))
    return made


def _swift(run: Run) -> list[str]:
    if run.strategy.engine in ("fsdp1", "fsdp2"):
        swift.fsdp(run)
    return list(swift.words(run)[2:])


def _of_models(models: Callable[[], Any], stack: str, **fields: Any) -> Iterator[Run]:
    """Stacks whose configurations exist for named models only."""
    strategies = ("single", "ddp", "fsdp-full-shard", "fsdp-shard-grad-op", "fsdp-full-shard+params@cpu",
                  "fsdp-hybrid-shard:shard=4")  # fmt: skip
    for name in models():
        for strategy in strategies:
            for method in ("full", "lora", "qlora"):
                for extra in ({}, {"loss": "plain"}, {"checkpointing": "full"}, {"precision": "bf16"}):
                    try:
                        cluster = ONE if strategy == "single" else CLUSTER
                        yield resolve(name, cluster, strategy, stack=stack, method=method, **{**fields, **extra})
                    except AdvisorError:
                        continue


STACKS: dict[str, tuple[Callable[[], Any], Callable[[Run], Any]]] = {
    "ms-swift": (lambda: of("swift"), _swift),
    "llamafactory": (lambda: of("llamafactory"), llamafactory.arguments),
    "axolotl": (lambda: of("axolotl"), axolotl.arguments),
    "torchtitan": (
        lambda: _of_models(lambda: torchtitan.MODELS, "torchtitan"),
        lambda run: [torchtitan.config(run), run.ranks],
    ),
    "torchtune": (lambda: _of_models(torchtune.models, "torchtune", precision="bf16"), torchtune.config),
}
