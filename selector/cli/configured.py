"""``--config FILE``: the user's own configuration as strategy and workload; flags on the command line come on top."""

from __future__ import annotations

from typing import Any

from estimators.cluster import Cluster
from estimators.errors import IllegalCombination


def merge_config(
    path: str, cluster: Cluster, strategies: list[str] | None, fields: dict[str, Any]
) -> tuple[list[Any], dict[str, Any], list[str]]:
    """Strategy and workload fields of a file, with what the command line adds; notes say where values came from."""
    from estimators.readers import read_config

    reading = read_config(path, ranks=cluster.ranks)
    if strategies:
        raise IllegalCombination(
            f"--config {path} already names the strategy ({reading.strategy.name}); drop --strategy"
        )
    notes = [f"{path} is read as {reading.kind.replace('_', ' ')}: {reading.strategy.name}", *reading.notes]
    for name, value in fields.items():
        if name in reading.workload and str(reading.workload[name]) != str(value):
            notes.append(f"--{name.replace('_', '-')} {value} overrides {reading.workload[name]} of {path}")
    return [reading.strategy], {**reading.workload, **fields}, notes
