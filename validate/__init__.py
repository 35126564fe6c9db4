"""Is it so: real engines and published measurements beside what ``estimators`` predict.

    from validate import validate
    report = validate("run/", mode="auto")

Importing this package imports no torch; starting an engine does, in processes of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from validate.report import Report

__all__ = ["validate"]


def validate(folder: str | os.PathLike[str] = ".", mode: str = "auto", **options: Any) -> Report:
    """Start the engine that a folder describes, take a few steps, set measured beside predicted.

    ``folder``: written by ``recommend --emit`` or by hand (then ``model``, and ``gpus``, ``config`` and workload fields
    as they are needed). ``mode``: auto, gpu, cpu, simulate or rehearse. Further options are those of
    :func:`validate.session.run`.

    Raises the errors of ``estimators.errors`` for what cannot be asked; what goes wrong afterwards is a report with
    status ``failed``.
    """
    from validate.session import run

    return run(folder, mode, **options)
