"""Run an emitted train.py on two ranks of the CPU: fork after one import, gloo between them."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

RANKS = 2


def prepare() -> None:
    """Import what is slow once, before ranks are forked, and choose the CPU."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import accelerate  # noqa: F401
    import deepspeed
    import peft  # noqa: F401
    import torch
    import torch.distributed.checkpoint
    import transformers
    import transformers.models.llama.modeling_llama

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.set_num_threads(1)  # a forked child cannot use the parent's thread pool
    transformers.utils.logging.set_verbosity_error()


def run(folder: Path, arguments: Sequence[str], seconds: float = 170.0, ranks: int = RANKS) -> list[str]:
    """What each rank printed. Raises ``AssertionError`` with the traceback of the first rank that failed."""
    context = multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
    processes = [
        context.Process(target=_rank, args=(rank, ranks, port, folder, list(arguments), pipes[rank][1]), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        answers = []
        for reader, _ in pipes:
            assert reader.poll(seconds), f"no answer within {seconds:g} s; printed {_printed(folder, ranks)}"
            answers.append(reader.recv())
        failed = [answer for answer in answers if answer]
        assert not failed, failed[0]
        return _printed(folder, ranks)
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _printed(folder: Path, ranks: int) -> list[str]:
    return [(folder / f"rank{rank}.log").read_text(encoding="utf-8", errors="replace") for rank in range(ranks)]


def _launched() -> dict[str, str]:
    """What ``accelerate launch --config_file accelerate.yaml`` tells its processes of the engine."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import launch

    parsed = launch_command_parser().parse_args(["--config_file", "accelerate.yaml", "train.py"])
    checked, defaults, _ = _validate_launch_command(parsed)
    if not checked.use_deepspeed:
        return {}  # FSDP of accelerate wants a GPU
    checked.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    _, environment = launch.prepare_deepspeed_cmd_env(checked)
    return {name: value for name, value in environment.items() if name.startswith("ACCELERATE_")}


def _rank(rank: int, ranks: int, port: int, folder: Path, arguments: list[str], answers: Connection) -> None:
    os.chdir(folder)
    log = os.open(f"rank{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)  # not pytest's
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    sys.argv = ["train.py", *arguments]
    if Path("accelerate.yaml").exists():
        os.environ.update(_launched())
    try:
        runpy.run_path("train.py", run_name="__main__")
        answers.send("")
    except BaseException:
        answers.send(f"rank {rank}: {traceback.format_exc(limit=-22)}")
    finally:
        sys.stdout.flush()
        answers.close()
        os._exit(0)  # leave at once: nothing of the parent's may run at exit in a fork
