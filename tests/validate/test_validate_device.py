"""The path of a GPU, run before there is one: a device that records what it is asked and answers from a script."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from estimators.memory import resolve  # noqa: E402
from validate import modes, session  # noqa: E402
from validate.cells.models import LLAMA  # noqa: E402
from validate.job import Broken, Task  # noqa: E402
from validate.loop import STEPS, TIMED, take  # noqa: E402

CONTEXT, RESERVE = 1 << 20, 3 << 20  # what the fake allocator holds beside tensors


class FakeDevice:
    """Counts in place of CUDA: each window's peak is larger than the one before."""

    type = "cpu"
    counts = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.windows = 0

    def reset(self) -> None:
        self.asked.append("reset")
        self.windows += 1

    def allocated(self) -> int:
        self.asked.append("allocated")
        return CONTEXT + self.windows

    def reserved(self) -> int:
        return RESERVE + self.windows

    def process(self) -> int:
        self.asked.append("process")
        return 2 * RESERVE

    def seconds(self) -> float:
        self.asked.append("seconds")
        return float(len(self.asked))


@pytest.mark.engines
def test_counters_are_read_once_a_window_and_become_the_report() -> None:
    run = resolve({**LLAMA, "architectures": ["LlamaForCausalLM"]}, "1xA10", "single", stack="torch", seq_len=16)
    device = FakeDevice()
    found = take(run, "gpu", device)
    asked = [word for word in device.asked if word != "seconds"]
    assert asked.count("allocated") <= asked.count("reset")  # every window is closed by a reset of the next
    assert device.asked.count("seconds") == 2 * (STEPS + TIMED)
    assert found.process_bytes == 2 * RESERVE
    assert found.step_seconds is not None and found.step_seconds > 0
    order = ["forward", "loss", "backward", "step"]
    peaks = [found.windows[name]["allocated_bytes"] for name in order]
    assert None not in peaks and peaks == sorted(peaks)  # type: ignore[type-var]
    assert found.windows["step"]["reserved_bytes"] == RESERVE + peaks[-1] - CONTEXT  # type: ignore[operator]
    # tensors of a CPU lie on the host when the device is a card
    assert not any(found.instants["step"]["gpu"].values()) and found.instants["step"]["host"]["params"]

    made = session.Planned("gpu", "", "cuda", run, {}, Task(run), ())
    report = session.judged(made, [found])
    assert report.counters["step"]["allocated_bytes"] == peaks[-1]
    assert report.document()["time"]["tokens_per_s_per_gpu"] == pytest.approx(16 / found.step_seconds)
    assert next(i for i in report.instants() if i["name"] == "step")["measured_bytes"] == peaks[-1]


def test_an_allocation_that_failed_names_instant_size_and_term() -> None:
    """The message is torch's own (CUDACachingAllocator.cpp)."""
    from validate.failure import broken

    run = resolve("llama-8b", "8xH100", "zero3", stack="deepspeed")
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 953.67 MiB. GPU 0 has a total capacity of ..."
    )
    found = broken(error, 3, "start")
    assert (found.kind, found.rank, found.instant, found.asked_bytes) == ("memory", 3, "load", 999_995_474)
    made = session.Planned("gpu", "", "cuda", run, {}, Task(run), ())
    report = session.judged(made, [found])
    assert (report.status, report.exit_status) == ("failed", 1)
    assert report.failure is not None and report.failure.term == "reduce bucket"
    assert "999,995,474 bytes were asked for" in str(report.failure)


def test_a_killed_rank_is_said_to_be_killed() -> None:
    from validate.failure import ended

    found = ended(-9, 1, "backward")
    assert found == Broken("killed", "rank 1 was killed during backward (SIGKILL): by hand, or by the kernel for want of "
                           "memory", 1, "backward", None, "")  # fmt: skip
    assert ended(137, 1, "").kind == "killed"


class Crowded(FakeDevice):
    """A card on which another process took what was free: forward's first allocation fails in torch's own words."""

    MESSAGE = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 22.06 GiB of which 119.12 MiB is "
        "free. Process 4242 has 20.50 GiB memory in use. Including non-PyTorch memory, this process has 1.44 GiB memory "
        "in use. Of the allocated memory 1.10 GiB is allocated by PyTorch"
    )

    def allocated(self) -> int:
        if self.windows > 2:
            raise torch.OutOfMemoryError(self.MESSAGE)
        return super().allocated()


@pytest.mark.engines
def test_a_card_that_another_process_took_is_said_to_be_shared() -> None:
    """Injected: the device and its message, in the words of CUDACachingAllocator.cpp."""
    from validate.failure import broken

    run = resolve({**LLAMA, "architectures": ["LlamaForCausalLM"]}, "1xA10", "single", stack="torch", seq_len=16)
    phases: list[str] = []
    with pytest.raises(torch.OutOfMemoryError) as failed:
        take(run, "gpu", Crowded(), notice=phases.append)
    found = broken(failed.value, 0, phases[-1])
    assert (found.kind, found.asked_bytes) == ("memory", 2 * 2**30)
    assert found.instant in ("forward", "loss") and "process 4242 holds 20.50 GiB of it" in found.reason
    assert session.taken(modes.Cards(1, 10 * 2**30, 22 * 2**30)) and not session.taken(modes.Cards(1, 21, 22))


def test_a_swap_that_fails_on_a_full_disk_names_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Injected: DeepSpeed's swapper says only that fewer bytes were written."""
    from validate import causes

    monkeypatch.setattr(causes, "_free", lambda place: 0)
    found = causes.explained(Broken("error", "AssertionError: 0 != 1", 1, "step"), ["/swap"])
    assert found.kind == "disk" and found.reason.startswith("the disk is full at /swap: AssertionError")
    assert causes.explained(Broken("memory", "out of memory", 1), ["/swap"]).kind == "memory"


def test_a_piece_of_a_term_names_the_weight_that_it_is_for() -> None:
    """One moment of Llama-8B's embedding in fp32; a size that no weight has stays with the nearest term."""
    run = resolve("llama-8b", "8xH100", "ddp", stack="torch", precision="fp32", optimizer="adamw")
    made = session.Planned("gpu", "", "cuda", run, {}, Task(run), ())
    for asked, term in ((128256 * 4096 * 4, "optimizer states, here a tensor of the size of model.embed_tokens.weight"),
                        (128256 * 4096 * 4 + 8, "")):  # fmt: skip
        failure = session.judged(made, [Broken("memory", "out of memory", 0, "step", asked)]).failure
        assert failure is not None and ("here a tensor" not in failure.term if not term else failure.term == term)
