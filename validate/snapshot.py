"""The allocator's history of rank 0 for the usual viewer (pytorch.org/memory_viz), with our categories in it.

The viewer shows the frames of each allocation; the innermost frame of those that the census knows becomes one named
after the category. Private to torch: ``torch.cuda.memory._record_memory_history`` and ``_snapshot``.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_ENTRIES = 1_000_000


@contextmanager
def recorded(path: str, categories: Mapping[int, str]) -> Iterator[None]:
    """Record inside; at the end write the history. ``categories``: address -> category, filled meanwhile."""
    import torch

    torch.cuda.memory._record_memory_history(max_entries=MOST_ENTRIES)
    try:
        yield
    finally:
        found = named(torch.cuda.memory._snapshot(), categories)
        torch.cuda.memory._record_memory_history(enabled=None)
        Path(path).write_bytes(pickle.dumps(found))


def named(snapshot: dict[str, Any], categories: Mapping[int, str]) -> dict[str, Any]:
    """The snapshot with a frame that says the category before the others of each allocation that has one."""
    for trace in snapshot.get("device_traces", ()):
        for entry in trace:
            if entry.get("action") == "alloc" and (category := categories.get(entry.get("addr", -1))):
                entry["frames"] = [_frame(category), *entry.get("frames", ())]
    for segment in snapshot.get("segments", ()):
        for block in segment.get("blocks", ()):
            if category := categories.get(block.get("address", -1)):
                block["frames"] = [_frame(category), *block.get("frames", ())]
    return snapshot


def _frame(category: str) -> dict[str, Any]:
    return {"name": category, "filename": "dist-advisor", "line": 0}
