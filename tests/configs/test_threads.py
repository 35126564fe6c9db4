"""Scripts are read by several threads at once, as users of one page do."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from selector.checks.script import read_script


@pytest.fixture
def collector_that_switches() -> Iterator[None]:
    """A callback of the collector, as some libraries register one: threads take turns inside the parser."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()

    def looked(phase: str, info: object) -> None:
        [None for _ in range(3)]

    gc.callbacks.append(looked)
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    yield
    gc.callbacks.remove(looked)
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("collector_that_switches")
def test_threads_do_not_meet_in_the_parser(tmp_path: Path) -> None:
    """CPython before 3.13 counts the depth of all threads in one number (python/cpython issue 106905)."""
    script = tmp_path / "train.py"
    script.write_text("\n".join(f"a{i} = f(b, c=[{i}, (1, 2)])" for i in range(100)))

    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(lambda _: read_script(script), range(40)))) == 40
