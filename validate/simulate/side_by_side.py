"""Independent measurements of one process, a core each: its forks share what was imported."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from validate.rank import die_with_parent

T = TypeVar("T")


def side_by_side(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Results in the order of ``calls``, which may not depend on what another of them leaves behind.

    One after another where there is one core, no fork, a daemon (which may have no children), or another thread
    (which a fork would not take along). What a call raises is raised here, that of the first call that failed.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    alone = sys.platform != "linux" or threading.active_count() > 1 or multiprocessing.current_process().daemon
    if alone or min(cores, len(calls)) < 2:
        return [call() for call in calls]
    context = multiprocessing.get_context("fork")
    found: list[Any] = [None] * len(calls)
    left = list(enumerate(calls))[::-1]
    running: dict[Connection, tuple[int, Any]] = {}
    try:
        while left or running:
            while left and len(running) < cores:
                at, call = left.pop()
                reader, writer = context.Pipe(duplex=False)
                child = context.Process(target=_answer, args=(call, writer))
                child.start()
                writer.close()
                running[reader] = at, child
            for reader in multiprocessing.connection.wait(list(running)):
                at, child = running.pop(reader)
                found[at] = _received(reader)
                child.join()
    finally:
        for _, child in running.values():
            child.kill()
            child.join()
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


def _received(reader: Connection) -> Any:
    try:
        return reader.recv()
    except EOFError:
        return RuntimeError("a process that simulated was ended from outside, perhaps for want of memory")


def _answer(call: Callable[[], Any], writer: Connection) -> None:
    die_with_parent()
    try:
        found: Any = call()
    except Exception as reason:
        found = reason
    try:
        writer.send(found)
    except Exception:  # an error that cannot be sent: in words
        writer.send(RuntimeError(f"{type(found).__name__}: {found}"))
