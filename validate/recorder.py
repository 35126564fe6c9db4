"""A ledger of real tensors that also reads the device's own counters, window by window.

A window is an instant of the step: it ends where the next begins, or where a reduction begins and ends inside
backward. The counters are read there and nowhere else, so a step without the dispatch mode runs as the user's would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from validate.census import Block
from validate.device import CpuDevice, Device
from validate.simulate.ledger import REDUCE, Ledger

# gloo's own copies of what it sends: NCCL has none.
NOT_COUNTED = ("deepspeed/comm/", "_fsdp_collectives.py:__call__", "_runtime_utils.py:_reduce_grad")


@dataclass
class Window:
    """The largest that the device's counters showed inside one instant of one step."""

    allocated: int = 0
    reserved: int | None = None

    def take(self, device: Device) -> None:
        self.allocated = max(self.allocated, device.allocated())
        reserved = device.reserved()
        self.reserved = reserved if self.reserved is None or reserved is None else max(self.reserved, reserved)


class Recorder(Ledger):
    """``device`` makes the device of the run; without one it is this process's CPU, whose counter is the census."""

    def __init__(self, device: Device | None = None, notice: Callable[[str], None] = lambda phase: None) -> None:
        super().__init__(fakes_only=False)
        self.live = self.largest = 0
        self.device: Device = device or CpuDevice(lambda: self.largest, self._forget)
        self.windows: dict[str, Window] = {}
        self._open = ""
        self._notice = notice
        self.addresses: dict[Block, int] = {}  # of blocks seen on a card, for a snapshot

    # -- windows -------------------------------------------------------------------------------------------------

    def begin(self, phase: str) -> None:
        self._window(phase)
        self._notice(phase)
        super().begin(phase)

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        outer = self._open
        if name == REDUCE:
            self._window(REDUCE)
        with super().region(name):
            yield
        if name == REDUCE:
            self._window(outer)

    def new_step(self) -> None:
        """Windows of the steps before are dropped: the last one counts."""
        self.windows = {name: window for name, window in self.windows.items() if name in ("build", "start")}

    def end(self) -> None:
        """Close the window that is open."""
        self._window("")

    def _window(self, name: str) -> None:
        if self._open:
            self.windows.setdefault(self._open, Window()).take(self.device)
        self.device.reset()
        self._open = name

    def _forget(self) -> None:
        self.largest = self.live

    # -- census --------------------------------------------------------------------------------------------------

    def _note(self, tensor: torch.Tensor) -> Block | None:
        block = super()._note(tensor)
        if block is None:
            return None
        local = getattr(tensor, "_local_tensor", tensor)
        if self.device.counts and local.device.type == "cpu":
            self._on_host.add(block)
        elif self.device.counts and not local.is_meta:
            self.addresses[block] = local.untyped_storage().data_ptr()
        return block

    def place_on_host(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """Nothing to say: on a card every tensor knows where it lies, and a CPU is device and host in one."""

    def place_site_on_host(self, site: str) -> None:
        """As above."""

    def _change(self, block: Block, size: int) -> None:
        if any(piece in block.site for piece in NOT_COUNTED):
            block.bytes = 0
            return
        self.live += size - block.bytes
        self.largest = max(self.largest, self.live)
        super()._change(block, size)
