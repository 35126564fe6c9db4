"""Facts of this machine that some rules ask for. Nothing is imported or started to find them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from estimators.values import dataclass, field

_TORCH_CUDA = re.compile(r"^cuda(?::[^=]*)?\s*=\s*['\"]([0-9.]+)['\"]", re.MULTILINE)
_TOOLKIT = re.compile(r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([0-9.]+)"')
NOT_FOR_SWAP = ("tmpfs", "ramfs", "nfs", "nfs4", "overlay", "cifs", "fuse.sshfs", "9p")


@dataclass(frozen=True)
class Machine:
    """What is known; the defaults mean nothing is. ``Machine.here()`` looks."""

    env: Mapping[str, str] = field(default_factory=dict)
    has_gpu: bool = False  # a driver is loaded: the files are probably meant for this machine
    wsl: bool = False
    default_config: Path | None = None  # accelerate's, where it exists
    torch_cuda: str = ""
    cuda_toolkit: str = ""
    has_compiler: bool = True
    has_libaio: bool = True
    mounts: Mapping[str, str] = field(default_factory=dict)  # mount point -> file system

    @classmethod
    def here(cls) -> Machine:
        env = dict(os.environ)
        return cls(
            env=env,
            has_gpu=os.path.exists("/dev/nvidiactl"),
            wsl="microsoft" in _text("/proc/version").lower(),
            default_config=_default_config(env),
            torch_cuda=_torch_cuda(),
            cuda_toolkit=_toolkit(env),
            has_compiler=bool(shutil.which("g++") or shutil.which("c++")) and bool(shutil.which("ninja")),
            has_libaio=any(os.path.exists(f) for f in ("/usr/include/libaio.h", "/usr/local/include/libaio.h")),
            mounts=_mounts(),
        )

    def file_system(self, path: str) -> str:
        """The file system that holds a path; empty when unknown."""
        candidates = [point for point in self.mounts if path == point or path.startswith(point.rstrip("/") + "/")]
        return self.mounts[max(candidates, key=len)] if candidates else ""


def _text(path: str | Path, limit: int = 200_000) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""


def _default_config(env: Mapping[str, str]) -> Path | None:
    home = env.get("HF_HOME") or os.path.join(env.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "huggingface")
    for name in ("default_config.yaml", "default_config.json"):
        file = Path(home, "accelerate", name)
        if os.path.isfile(file):
            return file
    return None


def _torch_cuda() -> str:
    for folder in sys.path:
        if found := _TORCH_CUDA.search(_text(os.path.join(folder or ".", "torch", "version.py"))):
            return found[1]
    return ""


def _toolkit(env: Mapping[str, str]) -> str:
    found = _TOOLKIT.search(_text(os.path.join(env.get("CUDA_HOME") or "/usr/local/cuda", "version.json")))
    return found[1] if found else ""


def _mounts() -> dict[str, str]:
    parts = (line.split() for line in _text("/proc/mounts").splitlines())
    return {part[1]: part[2] for part in parts if len(part) > 2}
