"""The pictures of the pages, drawn when the site is built: by name, each a function that returns an SVG."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The run that every engine's page shows, so that the pictures can be compared.
MODEL, CLUSTER = "llama-8b", "8xA100-80GB"
ENGINES = {
    "ddp": "ddp", "fsdp1": "fsdp1-full-shard", "fsdp2": "fsdp-full-shard", "zero1": "zero1", "zero2": "zero2",
    "zero3": "zero3", "offload": "zero3-offload",
}  # fmt: skip


def instants(strategy: str, stack: str = "trainer", place: str = "gpu") -> Figure:
    from estimators import estimate
    from selector import plots

    return plots.memory_by_instant(estimate(MODEL, CLUSTER, strategy, stack=stack), place=place)


def clock() -> Figure:
    from estimators import estimate
    from selector import plots

    return plots.step_clock(estimate(MODEL, CLUSTER, "fsdp-full-shard"))


def side_by_side(model: str, cluster: str) -> Figure:
    from estimators.cluster import parse_cluster
    from estimators.memory import estimate_all
    from estimators.model import resolve_model
    from selector import plots
    from selector.report.text import by_verdict

    estimates, _ = estimate_all(resolve_model(model), parse_cluster(cluster))
    return plots.strategies(by_verdict(estimates))


def grows(**fields: str) -> Figure:
    from estimators.cluster import parse_cluster
    from estimators.model import resolve_model
    from selector import plots

    return plots.limits(resolve_model(MODEL), parse_cluster(CLUSTER), ("zero2", "zero3", "fsdp-full-shard"), **fields)


def measured() -> Figure:
    from making.session import ask
    from selector import plots

    return plots.accuracy(ask("validate --cases"))


FIGURES: dict[str, Callable[[], Figure]] = {
    **{f"engine-{name}.svg": partial(instants, strategy) for name, strategy in ENGINES.items()},
    "engine-offload-host.svg": partial(instants, "zero3-offload", place="host"),
    "clock.svg": clock,
    "limits.svg": partial(grows, loss="fused"),
    "accuracy.svg": measured,
    "strategies-4xa10.svg": partial(side_by_side, "llama-8b", "4xA10"),
    "strategies-8xa100.svg": partial(side_by_side, "llama-8b", "8xA100-80GB"),
}


def by_command(command: str) -> str:
    """What ``--plot`` of one command writes."""
    from making.session import Broken, own

    status, _, err = own([*command.split(), "--plot", "plot.svg", "-q"])
    if status:
        raise Broken(f"dist-advisor {command}: {err}")
    return Path("plot.svg").read_text(encoding="utf-8")


def tree(policy: str) -> str:
    """The decision tree, as reports draw it."""
    from selector.report.tree_svg import policy_svg

    return policy_svg(policy)


DRAWN: dict[str, Callable[[], str]] = {
    "plan-8b.svg": partial(by_command, "plan --model llama-8b --gpu A100-80GB --tokens 100B --price 1.8 --max-gpus 64"),
    "tree-documents.svg": partial(tree, "documents"),
    "tree-current.svg": partial(tree, "current"),
}


def names() -> list[str]:
    return [*FIGURES, *DRAWN]


def svg(name: str) -> str:
    """The picture's text. Raises ``MissingDependency`` without matplotlib."""
    if name in DRAWN:
        return DRAWN[name]()
    from selector.plots.saving import rendered

    text = rendered(FIGURES[name](), "svg").decode("utf-8")
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
