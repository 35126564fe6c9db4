"""A bar on a terminal's stderr for what takes longer than a moment; gone before the answer is printed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from selector.watched import watching

DELAY_SECONDS = 0.4  # what is done sooner shows no bar
WIDTH = 30


class Bar:
    """Drawn over itself on one line, at most ten times a second."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.shown = stream, 0
        self.next = time.monotonic() + DELAY_SECONDS

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total:
            self.clear()
        elif now >= self.next:
            self.next = now + 0.1
            full = WIDTH * done // total
            line = f"{'█' * full}{'·' * (WIDTH - full)} {done:,} of {total:,}"
            self.stream.write("\r" + line.ljust(self.shown))
            self.stream.flush()
            self.shown = max(self.shown, len(line))

    def clear(self) -> None:
        """Leave nothing behind."""
        if self.shown:
            self.stream.write("\r" + " " * self.shown + "\r")
            self.stream.flush()
            self.shown = 0


@contextmanager
def shown(stream: TextIO) -> Iterator[None]:
    """A bar for everything that is watched inside."""
    bar = Bar(stream)
    try:
        with watching(bar):
            yield
    finally:
        bar.clear()
