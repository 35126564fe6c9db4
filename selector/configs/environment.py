"""Environment variables of a run, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator

from estimators.run import Run
from selector.configs.deepspeed import NVME_FOLDER


def variables(run: Run) -> Iterator[tuple[str, str, str]]:
    """Name, value, reason."""
    yield ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True",
           "segments grow instead of fragmenting: less memory is reserved and unused")  # fmt: skip
    yield "OMP_NUM_THREADS", str(_threads(run)), _THREADS_WHY[bool(run.strategy.optimizer or run.strategy.params)]
    yield "TOKENIZERS_PARALLELISM", "false", "tokenizers' threads and forked data workers do not mix"
    if run.ranks > 1:
        yield "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "a rank that hangs ends the job instead of all waiting"
    gpu = run.cluster.gpu.id
    if gpu.startswith(("rtx-40", "rtx-50")) and run.ranks > 1:
        yield "NCCL_P2P_DISABLE", "1", "GeForce cards of this generation have no peer-to-peer; NCCL would hang or fail"
    if run.strategy.engine == "deepspeed":
        yield "DEEPSPEED_TIMEOUT", "60", "minutes: loading and the first save may take longer than the default 30"


_THREADS_WHY = {
    True: "the optimizer steps on the CPU, and each rank has this share of its cores",
    False: "the launcher's own default of 1 is enough, said here so that no warning is printed",
}


def _threads(run: Run) -> int:
    """Cores are not known: a GPU's usual share of a server where the CPU works, else 1."""
    return 8 if run.strategy.optimizer or run.strategy.params else 1


def exports(run: Run) -> str:
    """Lines of shell; what is set already stays."""
    lines = [f'# {why}\nexport {name}="${{{name}:-{value}}}"' for name, value, why in variables(run)]
    if "nvme" in (run.strategy.optimizer, run.strategy.params):
        lines.append(f"# make it a link to a folder on the node's own NVMe\nmkdir -p {NVME_FOLDER}")
    return "\n".join(lines) + "\n"
