"""Runs inside a stack's own environment: ``readers.py PACKAGE CASES.json`` reads each case with the stack's classes.

Prints one JSON object: for each case ``""``, or why it was refused. What is said on behalf of the machine, for no GPU is
needed to read: bf16 works, and a process group of eight ranks is up.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

Reader = Callable[[Any], None]
Refused = (Exception, SystemExit)


@contextmanager
def folder_of(case: dict[str, Any]) -> Iterator[None]:
    """The case's files, and the current folder among them."""
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in case["files"].items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        Path(folder, "train.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(home)


def pretend_gpus(ranks: int = 8) -> None:
    """bf16 and a process group: checks of the machine, not of the configuration."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers import training_args
    from transformers.utils import import_utils

    for module in (import_utils, training_args):
        if hasattr(module, "is_torch_bf16_gpu_available"):
            module.is_torch_bf16_gpu_available = lambda: True
    torch.cuda.is_bf16_supported = lambda *a, **k: True  # type: ignore[assignment]
    os.environ.update(LOCAL_RANK="0", RANK="0", WORLD_SIZE=str(ranks), MASTER_ADDR="localhost", MASTER_PORT="29500",
                      LOCAL_WORLD_SIZE=str(ranks))  # fmt: skip
    try:
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiles for minutes on a CPU
    except ImportError:
        pass
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)


def llamafactory() -> Reader:
    from llamafactory import hparams

    def read(given: Any) -> None:
        hparams.get_train_args(dict(given))

    pretend_gpus()
    from llamafactory.hparams import parser

    parser.is_torch_bf16_gpu_available = lambda: True
    return read


def ms_swift() -> Reader:
    pretend_gpus()
    from swift.arguments import PretrainArguments
    from swift.utils.utils import parse_args

    def read(given: Any) -> None:
        _, rest = parse_args(PretrainArguments, list(given))
        if rest:
            raise ValueError(f"not understood: {rest}")

    return read


def axolotl() -> Reader:
    """``validate_config`` with what ``axolotl train`` would find on an A100 machine of 8."""
    pretend_gpus()
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault

    machine = {"bf16": True, "fp8": False, "tf32": True, "n_gpu": 8, "n_node": 1, "compute_capability": "sm_80"}

    def read(given: Any) -> None:
        validate_config(DictDefault(given), capabilities=machine, env_capabilities={"torch_version": "2.13.0"})

    return read


def torchtitan() -> Reader:
    """Its ConfigManager runs the emitted module's function, as ``torchtitan.train`` does."""
    from torchtitan.config import ConfigManager

    sys.path.insert(0, "")  # the emitted launch line exports PYTHONPATH=.

    def read(given: Any) -> None:
        text, ranks = given
        Path("titan_config.py").write_text(text, encoding="utf-8")
        sys.modules.pop("titan_config", None)
        importlib.invalidate_caches()
        made = ConfigManager().parse_args(["--module", "titan_config", "--config", "run"])
        fp8 = [name for name in ("float8", "Float8") if name in repr(made.model_spec)]
        if fp8:
            raise ValueError("the model multiplies in fp8, which nothing in the estimate says")
        degrees = dataclasses.asdict(made.parallelism)
        sizes = {name: value for name, value in degrees.items() if name.endswith("_degree")}
        product = math.prod(value for name, value in sizes.items() if not name.startswith("expert"))
        if product != ranks:
            raise ValueError(f"{sizes} do not multiply to {ranks} ranks")

    return read


def torchtune() -> Reader:
    """``tune validate``: every component is found and takes its arguments."""
    from omegaconf import OmegaConf
    from torchtune import config

    return lambda given: config.validate(OmegaConf.create(given))


READERS = {
    "ms-swift": ms_swift, "llamafactory": llamafactory, "axolotl": axolotl, "torchtitan": torchtitan,
    "torchtune": torchtune,
}  # fmt: skip


def main() -> None:
    package, path = sys.argv[1:]
    cases = json.loads(Path(path).read_text(encoding="utf-8"))
    verdicts = {}
    with redirect_stdout(sys.stderr):
        read = READERS[package]()
        for digest, case in cases.items():
            with folder_of(case):
                try:
                    read(case["given"])
                    verdicts[digest] = ""
                except Refused as error:
                    verdicts[digest] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
