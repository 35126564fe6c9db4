"""Entry point with a name of its own.

``estimators``, ``selector`` and ``validate`` are names that others use too: a package may install a top-level
``validate``, a folder on ``PYTHONPATH`` may hold a ``validate.py``. The command always runs its own, and says so when
another one stands before it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

OWN = ("estimators", "selector", "validate")
# Objects made before Python looks for cycles: an answer makes tens of thousands, and nearly all live until it is printed.
COLLECT_AFTER = 200_000
HERE = os.path.dirname(os.path.abspath(__file__))


class OwnPackages:
    """Finds the three packages beside this file, whatever the import path says."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [HERE], target) if name in OWN else None


def foreign() -> list[str]:
    """Files of other modules that carry one of the three names and come first on the import path."""
    found = []
    for name in OWN:
        spec = PathFinder.find_spec(name)
        origin = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
        if origin and not os.path.abspath(origin).startswith(os.path.join(HERE, name)):
            found.append(origin)
    return found


def main() -> int:
    """``dist-advisor``."""
    gc.set_threshold(COLLECT_AFTER)
    for origin in foreign():
        name = os.path.splitext(os.path.basename(origin.removesuffix("/__init__.py")))[0]
        print(
            f"dist-advisor: note: {origin} stands before this project's {name} on the import path; the command uses "
            f"its own, `import {name}` in your code would not",
            file=sys.stderr,
        )
    sys.meta_path.insert(0, OwnPackages())
    from selector.cli import main as run

    status = run()
    gc.freeze()  # or Python would look for cycles among all of them once more before it ends
    return status


if __name__ == "__main__":
    sys.exit(main())
