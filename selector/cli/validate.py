"""``dist-advisor validate --cases FILE``: predictions beside measured runs, scored."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from estimators.errors import InputError, NotModelled
from selector.cli.output import check_format, picture, write
from selector.cli.parser import add_plot_flag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLE = """examples:
  dist-advisor validate --cases
  dist-advisor validate --cases my_runs.jsonl --format json"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    command.add_argument("folder", nargs="?", metavar="DIR", help="a folder that recommend --emit wrote")
    command.add_argument("--cases", nargs="?", const="", metavar="FILE",
                         help="measured runs, one JSON object a line; without FILE the published ones of the package")  # fmt: skip
    add_plot_flag(command, "predicted against measured (with --cases)")


def run(parsed: argparse.Namespace) -> int:
    check_format(parsed)
    if parsed.cases is None:
        raise NotModelled(
            "validate starts no engine from a folder yet: score measured runs with --cases, compare with the real engine "
            "at full size with python -m validate.simulate, or on this machine with python -m validate.cells"
        )
    if parsed.cases and not os.path.isfile(parsed.cases):
        raise InputError(f"--cases {parsed.cases}: there is no such file")
    from validate import published, published_cases, published_print, speed

    report = published.evaluate(published_cases.read(parsed.cases or None))
    document = published.as_json(report)
    try:
        found = speed.report(parsed.cases or None).headline
        names = ("n", "groups", "mape", "bias", "p90", "worst")
        document["by_quantity"]["tokens_per_s"] = {name: getattr(found, name) for name in names}
    except InputError:
        pass  # a file without speeds: the memory scores stand alone
    picture(parsed, lambda: draw_picture(document))
    if parsed.format == "json":
        write(parsed, json.dumps(document, indent=1) + "\n")
        return 0
    if parsed.format == "csv":
        raise InputError("validate --cases prints table, json or markdown")
    text = published_print.PRINTERS[parsed.format](document)
    print(text) if not parsed.out else write(parsed, text + "\n")
    return 0


def draw_picture(document: Mapping[str, Any]) -> Figure:
    from selector.plots import accuracy

    return accuracy(document)
