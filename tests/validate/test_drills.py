"""What goes wrong in a run, provoked for real through the command where a machine without a GPU allows it.

Provoked: a rank killed, one that stands still, memory limited for one rank, Ctrl-C, SIGTERM, a port that is held, a
disk that is full, an operator that cannot be built. After each no process of the run is left, ``validation.json`` says
the reason in words, and the exit status is the contract's. What is injected says so in its name.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from estimators import estimate
from selector.configs import emit
from validate.cells.models import LLAMA

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = [pytest.mark.engines, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY, WIDTH = 70_001, 128  # one weight is most of the model, and malloc maps it on its own
LARGE = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_attention_heads": 4, "num_hidden_layers": 1}
WAIT = 240.0  # seconds; a busy machine imports torch in a minute


class Drill:
    """One start of the command on a tiny emitted folder."""

    def __init__(self, place: Path, strategy: str = "ddp", **workload: object) -> None:
        self.folder, self.keep = place / "run", place / "ranks"
        self.place = place
        model = {**LLAMA, "architectures": ["LlamaForCausalLM"], **workload.pop("model", {})}
        stack = "deepspeed" if strategy.startswith("zero") else "torch"
        emit(estimate(model, "2xA10", strategy, **{"stack": stack, "seq_len": 32, **workload}), self.folder)

    def start(self, *arguments: object, first: str = "", **environment: str) -> None:
        """``first``: Python that runs before the command does."""
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{first}\nimport dist_advisor; sys.exit(dist_advisor.main())"
        self.command = subprocess.Popen(
            [sys.executable, "-c", code, "validate", str(self.folder), "--mode", "cpu", "--keep", str(self.keep),
             *map(str, arguments)],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + WAIT
        while not condition():
            assert self.command.poll() is None, self.command.communicate()
            assert time.monotonic() < end, "the run did not come so far"
            time.sleep(0.002)

    def pid(self, rank: int) -> int:
        """Of the rank that runs, or of the next one when the launcher is between two starts."""
        found: list[str] = []

        def is_written() -> str:
            with suppress(FileNotFoundError):
                found.append((self.keep / f"rank-{rank}.pid").read_text())
            return found[-1] if found else ""

        self.until(is_written)
        return int(found[-1])

    def reaches(self, rank: int, phase: str) -> None:
        path = self.keep / f"rank-{rank}.events"

        def has_begun() -> bool:
            with suppress(FileNotFoundError):
                return f" {phase} " in path.read_text()
            return False

        self.until(has_begun)

    def left(self) -> list[int]:
        """Processes that still belong to the run: workers and ranks have its folder among their arguments."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except (OSError, IndexError):
                continue
            if entry.name.isdigit() and str(self.keep).encode() in words and state != "Z":
                found.append(int(entry.name))
        return found

    def end(self, status: int) -> dict:
        """The report that was written, after everything that holds for every end."""
        out, err = self.command.communicate(timeout=WAIT)
        said = out + err
        assert self.command.returncode == status, said
        assert not self.left()
        assert "Traceback" not in err
        report = json.loads((self.folder / "validation.json").read_text())
        assert (report["schema"], report["status"]) == ("dist-advisor/validation/1", "failed")
        assert report["failure"]["reason"].split(":")[0][:60] in " ".join(said.split())
        return report["failure"]


# -- drills ----------------------------------------------------------------------------------------------------------


def killed(place: Path) -> None:
    drill = Drill(place)
    drill.start()
    os.kill(drill.pid(1), signal.SIGKILL)
    failure = drill.end(1)
    assert (failure["kind"], failure["rank"]) == ("killed", 1)
    assert "rank 1 was killed" in failure["reason"] and "SIGKILL" in failure["reason"]


def stands_still(place: Path) -> None:
    drill = Drill(place)
    drill.start("--timeout", 6)
    drill.reaches(1, "forward")
    os.kill(drill.pid(1), signal.SIGSTOP)
    started = time.monotonic()
    failure = drill.end(1)
    assert failure["kind"] == "hang" and "no rank moved for 6 s" in failure["reason"]
    assert failure["rank"] == 1, failure
    assert time.monotonic() - started < 60


def memory_is_limited(place: Path) -> None:
    """Room for the weights, DDP's buckets and the gradients, not for the states: the first step fails."""
    drill = Drill(place, model=LARGE, precision="fp32", optimizer="adamw")
    weight = VOCABULARY * WIDTH * 4
    drill.start()
    drill.reaches(1, "start")
    rank = drill.pid(1)
    os.kill(rank, signal.SIGSTOP)
    used = int(re.search(r"VmData:\s+(\d+) kB", Path(f"/proc/{rank}/status").read_text())[1]) * 1024
    resource.prlimit(rank, resource.RLIMIT_DATA, (used + 7 * weight, used + 7 * weight))
    os.kill(rank, signal.SIGCONT)
    failure = drill.end(1)
    assert (failure["kind"], failure["rank"]) == ("memory", 1), failure
    assert failure["asked_bytes"] == weight
    # what a first step makes of a weight: its moments
    assert failure["instant"] == "step" and "optimizer" in failure["term"] and "weight" in failure["term"], failure


def interrupted(place: Path) -> None:
    drill = Drill(place)
    drill.start()
    drill.reaches(0, "join")
    os.kill(drill.command.pid, signal.SIGINT)
    assert drill.end(130)["kind"] == "interrupted"


def terminated(place: Path) -> None:
    """As a batch system ends a job, here while the worker imports."""
    drill = Drill(place)
    drill.start()
    drill.until(lambda: set(drill.left()) - {drill.command.pid})
    os.kill(drill.command.pid, signal.SIGTERM)
    assert drill.end(143)["kind"] == "terminated"


def port_is_taken_injected(place: Path) -> None:
    """The port was free when it was chosen: the launcher is made to choose one that is held, then chooses again."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        first = (
            "import dist_advisor; sys.meta_path.insert(0, dist_advisor.OwnPackages())\n"
            "import validate.launch as l\n"
            f"import pathlib; ports = iter([{port}]); real = l.free_port; again = pathlib.Path({str(place / 'again')!r})\n"
            "l.free_port = lambda: next(ports, None) or (again.touch(), real())[1]"
        )
        drill = Drill(place)
        drill.start(first=first, MASTER_PORT=str(port))
        drill.until((place / "again").exists)  # the first start met nobody
        drill.reaches(0, "build")  # has met its peer
        os.kill(drill.command.pid, signal.SIGINT)
        drill.end(130)


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A tmpfs of so many bytes."""
    path.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "drill", str(path)], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def disk_of_the_job_is_full(place: Path) -> None:
    with small_disk(place / "ranks", "64k") as disk:
        with pytest.raises(OSError, match="No space"), open(disk / "filler", "wb", buffering=0) as file:
            while True:
                assert file.write(bytes(4096))
        drill = Drill(place)
        drill.start()
        failure = drill.end(1)
    assert failure["kind"] == "disk" and str(disk) in failure["reason"]


def disk_of_nvme_is_full(place: Path) -> None:
    drill = Drill(place, "zero3+optimizer@nvme", model=LARGE)
    with small_disk(drill.folder / "nvme_swap", "1m") as disk:
        drill.start()
        failure = drill.end(1)
    assert (
        failure["kind"] == "disk" and str(disk) in failure["reason"] and "1,048,576 bytes are free" in failure["reason"]
    )


def operator_is_not_built(place: Path) -> None:
    """No compiler and no ninja on the path, nothing built before: DeepSpeed's own error, and what to install."""
    drill = Drill(place, "zero3+optimizer@nvme")
    drill.start(PATH=str(place), TORCH_EXTENSIONS_DIR=str(place / "built"))
    failure = drill.end(3)
    assert failure["kind"] == "compiler"
    assert re.search(r"JIT load the \w+ op.* needs .*apt install .*ninja", failure["reason"], re.DOTALL)


def kernel_kills_a_rank(place: Path) -> None:
    """A control group (version 1 or 2) whose limit leaves no room for the model."""
    with control_group() as (join, limit):
        drill = Drill(place, model=LARGE, precision="fp32")
        drill.start(first=join)
        drill.until(lambda: (drill.keep / "rank-1.pid").exists())
        limit()
        failure = drill.end(1)
    assert failure["kind"] == "memory" and "by the kernel" in failure["reason"]


@contextmanager
def control_group() -> Iterator[tuple[str, Callable[[], None]]]:
    """Code that moves a process into a new group, and what limits the group to a little more than it uses."""
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    own = {names: path.strip("/") for _, names, path in groups}
    first = Path("/sys/fs/cgroup/memory", own["memory"]) if "memory" in own else Path("/sys/fs/cgroup", own.get("", ""))
    group = first / f"drill-{os.getpid()}"
    name, anonymous = ("memory.limit_in_bytes", "rss") if "memory" in own else ("memory.max", "anon")
    try:
        group.mkdir()
        if not (group / name).exists():
            group.rmdir()
            raise OSError
    except OSError:
        pytest.skip("a control group with a limit on memory cannot be made here")

    def limit() -> None:
        used = int(re.search(rf"^{anonymous} (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)[1])
        (group / name).write_text(str(used + 8 * 2**20))

    try:
        yield f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')", limit
    finally:
        group.rmdir()


DRILLS = {
    drill.__name__: drill
    for drill in (
        killed, stands_still, memory_is_limited, kernel_kills_a_rank, interrupted, terminated, port_is_taken_injected,
        disk_of_the_job_is_full, disk_of_nvme_is_full, operator_is_not_built,
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future]]:
    """Two at a time: most of a drill is the import of torch on one core."""
    wanted = [i.callspec.params["name"] for i in request.session.items if i.path == request.path and hasattr(i, "callspec")
              and "name" in i.callspec.params]  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(_held, DRILLS[name], tmp_path_factory.mktemp(name)) for name in dict.fromkeys(wanted)}


def _held(drill: Callable[[Path], None], place: Path) -> str | BaseException:
    try:
        drill(place)
    except pytest.skip.Exception as skipped:
        return skipped
    except BaseException:
        return traceback.format_exc()
    return ""


@pytest.mark.parametrize("name", DRILLS)
def test_what_goes_wrong_is_said_and_nothing_is_left(name: str, running: dict[str, Future]) -> None:
    """A drill's thread hands over words: pytest reads sources to show an exception, which two threads cannot do at once."""
    said = running[name].result()
    if isinstance(said, pytest.skip.Exception):
        raise said
    if said:
        pytest.fail(said, pytrace=False)
