"""What this machine can do, measured: rates and overheads for ``estimators.calibration``. A few seconds a quantity.

Every function returns samples, one a repetition; ``measured`` makes low, value and high of them. Products and copies
run on any device, so that a CPU can show that they measure what they say; context, communicators and copies to the host
need a GPU and are left out without one.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from estimators.calibration import QUANTITIES, SCHEMA, Measured, entry, load, parsed
from estimators.cluster import parse_cluster
from estimators.errors import AdvisorError, InputError, MissingDependency

SAMPLES = 12
LARGE = 8192  # rows and columns of the product on a GPU: 1.1 TFLOP
COPY_BYTES = 2**30
SPREAD = (0.1, 0.5, 0.9)  # quantiles: low, value, high


@dataclass(frozen=True)
class Result:
    """What was measured of one kind of card, and why the rest was not."""

    gpu: str
    values: Mapping[str, Measured]
    left_out: Mapping[str, str]
    versions: Mapping[str, str]
    date: str

    def entry(self) -> dict[str, Any]:
        return entry(self.values, self.date, self.versions)


def measured(samples: Sequence[float]) -> Measured:
    """Samples -> an interval: the 10 %, 50 % and 90 % quantiles. Raises ``InputError`` for none.

    >>> measured([3.0, 1.0, 2.0])
    Measured(low=1.0, value=2.0, high=3.0, n=3)
    """
    if not samples:
        raise InputError("nothing was measured: no samples")
    ordered = sorted(samples)
    low, value, high = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in SPREAD)
    return Measured(low, value, high, len(ordered))


def timed(work: Callable[[], Any], device: str, samples: int = SAMPLES, least: float = 0.02) -> list[float]:
    """Seconds of one call, so many times; each sample repeats it until ``least`` seconds have passed. Warm first."""
    import torch

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    def seconds(times: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(times):
            work()
        wait()
        return time.perf_counter() - start

    seconds(2)
    times = max(1, round(least / max(seconds(1), 1e-7)))
    return [seconds(times) / times for _ in range(samples)]


def matmul_flops(device: str, size: int = LARGE, dtype: str = "bfloat16", samples: int = SAMPLES) -> list[float]:
    """FLOP/s of ``size`` x ``size`` products: 2 size^3 over seconds."""
    import torch

    kind = getattr(torch, dtype)
    a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    return [2 * size**3 / s for s in timed(lambda: a @ b, device, samples)]


def copy_bandwidth(device: str, num_bytes: int = COPY_BYTES, samples: int = SAMPLES) -> list[float]:
    """bytes/s that a copy inside the device's memory reads and writes: 2 x bytes over seconds."""
    import torch

    source = torch.ones(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    return [2 * num_bytes / s for s in timed(lambda: target.copy_(source), device, samples)]


def host_bandwidth(num_bytes: int = COPY_BYTES // 4, samples: int = SAMPLES) -> list[float]:
    """bytes/s of one GPU while all GPUs of the node copy to pinned host memory: the slower direction of each sample."""
    import torch

    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    there = [torch.ones(num_bytes // 4, device=gpu) for gpu in gpus]
    here = [torch.empty(num_bytes // 4, pin_memory=True) for _ in gpus]

    def both(pairs: Iterable[tuple[Any, Any]]) -> list[float]:
        listed = list(pairs)

        def work() -> None:
            for target, source in listed:
                target.copy_(source, non_blocking=True)
            for gpu in gpus:
                torch.cuda.synchronize(gpu)

        return timed(work, gpus[0], samples)

    down, up = both(zip(here, there, strict=True)), both(zip(there, here, strict=True))
    return [num_bytes / max(pair) for pair in zip(down, up, strict=True)]


def cpu_adam_rate(params: int = 2**26, samples: int = 6) -> list[float]:
    """parameters/s of DeepSpeed's CPU Adam in one process: the node's rate when its threads have all cores.

    Raises ``MissingDependency`` where DeepSpeed or the compiler that builds it is not there.
    """
    try:
        import torch
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        weight = torch.nn.Parameter(torch.randn(params))
        weight.grad = torch.randn(params)
        optimizer = DeepSpeedCPUAdam([weight])
    except Exception as error:  # an import, a compiler, an instruction set: all mean that there is none here
        raise MissingDependency(f"DeepSpeed's CPU Adam does not run here ({type(error).__name__}: {error})") from None
    return [params / s for s in timed(optimizer.step, "cpu", samples)]


def collective_bandwidth(ranks: int, backend: str = "nccl", num_bytes: int = COPY_BYTES // 2, samples: int = 6,
                         timeout: float = 300) -> tuple[list[float], list[float]]:  # fmt: skip
    """bytes/s per GPU of an all-gather over the ranks of this node, (n - 1) / n x bytes over seconds (nccl-tests'
    bus bandwidth), and the bytes that the communicator took of each card (none under gloo).

    Runs ``torch.distributed.run`` on this file in a process of its own.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", __file__,
               backend, str(num_bytes), str(samples)]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    except subprocess.TimeoutExpired:
        raise InputError(f"an all-gather over {ranks} ranks did not end in {timeout:g} s") from None
    rows = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("sample ")]
    if done.returncode or not rows:
        raise InputError(f"an all-gather over {ranks} ranks failed: {' '.join(done.stderr.split())[-300:]}")
    return [float(speed) for speed, _ in rows], [float(taken) for _, taken in rows if float(taken) > 0]


def _collective(backend: str, num_bytes: int, samples: int) -> None:
    """One rank of :func:`collective_bandwidth`; rank 0 prints the samples."""
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend)
    share = torch.ones(num_bytes // 4 // ranks, device=device)
    whole = torch.empty(share.numel() * ranks, device=device)
    before = torch.cuda.mem_get_info(rank)[0] if backend == "nccl" else 0
    dist.all_gather_into_tensor(whole, share)
    if backend == "nccl":
        torch.cuda.synchronize()
    taken = before - torch.cuda.mem_get_info(rank)[0] if backend == "nccl" else 0
    moved = (ranks - 1) / ranks * whole.numel() * 4
    for _ in range(samples):
        dist.barrier()
        spent = timed(lambda: dist.all_gather_into_tensor(whole, share), device, 1, least=0)[0]
        if rank == 0:
            print("sample", moved / spent, taken, flush=True)
    dist.destroy_process_group()


def context_bytes() -> list[float]:
    """Bytes that a process takes of the first card beside what torch reserved: nvidia-smi before and after."""
    import torch

    def used() -> float:
        asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
        return float(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout) * 2**20

    if torch.cuda.is_initialized():
        raise InputError("the context was made before it could be measured")
    before = used()
    _ = torch.ones(1, device="cuda:0") @ torch.ones(1, device="cuda:0")
    torch.cuda.synchronize()
    return [max(0.0, used() - before - torch.cuda.memory_reserved(0))]


def reserve_ratio(allocated_bytes: float, reserved_bytes: float) -> float:
    """(reserved - allocated) / allocated of one run: a sample of ``reserve_ratio_<engine>``.

    >>> reserve_ratio(8e9, 10e9)
    0.25
    """
    if not 0 < allocated_bytes <= reserved_bytes:
        raise InputError(f"{reserved_bytes:g} B reserved for {allocated_bytes:g} B allocated: not peaks of one run")
    return reserved_bytes / allocated_bytes - 1


def profile(gpu: str, samples: Mapping[str, Sequence[float]], left_out: Mapping[str, str] | None = None) -> Result:
    """Samples by quantity -> a profile. Raises ``InputError`` for a quantity that no estimate would read."""
    unknown = set(samples) - set(QUANTITIES)
    if unknown:
        raise InputError(f"{', '.join(sorted(unknown))}: no such quantity; known are {', '.join(QUANTITIES)}")
    values = {name: measured(found) for name, found in samples.items() if found}
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return Result(gpu, values, dict(left_out or {}), _versions(), today)


def write(path: str, gpu: str, card: Mapping[str, Any]) -> None:
    """Put one card's entry into the file, beside those of other cards; whole or not at all. Raises ``InputError``."""
    parsed(card, gpu, path)
    cards: dict[str, Any] = {}
    if os.path.exists(path):
        load(path, gpu)  # refuses to overwrite what is not a calibration
        with open(path, encoding="utf-8") as file:
            cards = json.load(file)["cards"]
    cards[gpu] = dict(card)
    beside = f"{path}.{os.getpid()}.part"
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(beside, "w", encoding="utf-8") as file:
            file.write(json.dumps({"schema": SCHEMA, "cards": cards}, indent=1) + "\n")
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; name another file with --out") from None


def calibrate(path: str) -> Result:
    """Measure this machine's GPUs and write the profile. Raises ``MissingDependency`` without one."""
    try:
        import torch
    except ModuleNotFoundError:
        raise MissingDependency("torch is not installed; pip install 'dist-advisor[engines]'") from None
    if not torch.cuda.is_available():
        raise MissingDependency("no CUDA device is here: a calibration is of a GPU, and of the node that it is in")
    taken = _samples({"context_bytes": context_bytes})  # first: before anything makes a context
    name, count = torch.cuda.get_device_name(0), torch.cuda.device_count()
    gpu = parse_cluster(name, gpu_memory=torch.cuda.get_device_properties(0).total_memory).gpu.id
    more = _samples({
        "matmul_flops_per_s": lambda: matmul_flops("cuda:0"),
        "copy_bytes_per_s": lambda: copy_bandwidth("cuda:0"),
        "host_copy_bytes_per_s": host_bandwidth,
        "cpu_adam_params_per_s": cpu_adam_rate,
    })  # fmt: skip
    samples, left_out = {**taken[0], **more[0]}, {**taken[1], **more[1]}
    if count > 1:
        torch.cuda.empty_cache()
        try:
            samples["link_bytes_per_s"], samples["communicator_bytes"] = collective_bandwidth(count)
        except AdvisorError as error:
            left_out["link_bytes_per_s"] = str(error)
    else:
        left_out["link_bytes_per_s"] = "one GPU is here"
    left_out["network_bytes_per_s"] = "one node is measured"
    left_out["reserve_ratio"] = "comes from a run: validate DIR --mode gpu"
    found = profile(gpu, samples, left_out)
    write(path, gpu, found.entry())
    return found


def _samples(asked: Mapping[str, Callable[[], list[float]]]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Every quantity that could be measured, and why the others could not."""
    found, left_out = {}, {}
    for name, measure in asked.items():
        try:
            found[name] = measure()
        except (AdvisorError, RuntimeError, OSError, subprocess.SubprocessError) as error:
            left_out[name] = " ".join(str(error).split())[:200]
    return found, left_out


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("torch", "deepspeed"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    _collective(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
