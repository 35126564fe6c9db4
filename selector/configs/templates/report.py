# ruff: noqa: TID253
# mypy: ignore-errors
"""What a run prints."""

import time

import torch

from selector.configs.templates.settings import GLOBAL_BATCH, PREDICTED_PEAK_BYTES, SEQ_LEN


class Report:
    """One line a step from rank 0; at the end the measured peak beside the predicted one."""

    def __init__(self, rank):
        self.rank, self.started = rank, time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def step(self, number, loss):
        value, now = float(loss), time.perf_counter()  # reading the loss waits for the device
        if self.rank == 0:
            rate = GLOBAL_BATCH * SEQ_LEN / (now - self.started)
            print(f"step {number} loss {value:.4f} {rate:,.0f} tokens/s", flush=True)
        self.started = now

    def end(self):
        if self.rank == 0 and torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
            print(f"peak {peak / 2**30:.2f} GiB, predicted {PREDICTED_PEAK_BYTES / 2**30:.2f} GiB", flush=True)
