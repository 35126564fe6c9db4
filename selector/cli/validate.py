"""``dist-advisor validate``: an emitted folder started and measured, or measured cases scored."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from estimators.errors import InputError
from selector.cli.output import check_format, emit, picture, write
from selector.cli.parser import add_plot_flag, add_run_flags, workload_fields
from selector.watched import watched

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLE = """examples:
  dist-advisor validate run/
  dist-advisor validate run/ --mode cpu --nproc 2
  dist-advisor validate my_folder/ --model llama-8b --gpus 4xA10 --seq-len 1024
  dist-advisor validate --config ds_config.json --model llama-8b --gpus 4xA10
  dist-advisor validate --self-check
  dist-advisor validate --cases my_runs.jsonl --format json"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    command.add_argument("folder", nargs="?", metavar="DIR", help="a folder that recommend --emit wrote, or your own")
    command.add_argument("--mode", default="auto", metavar="M", help="auto, gpu, cpu, simulate or rehearse (auto)")
    command.add_argument("--nproc", type=int, metavar="N", help="ranks to start on this machine")
    command.add_argument("--layers", type=int, metavar="N", help="run so many blocks of the model")
    command.add_argument("--timeout", type=float, default=900.0, metavar="S",
                         help="seconds without a sign of life from any rank before all are stopped (900)")  # fmt: skip
    command.add_argument("--cases", nargs="?", const="", metavar="FILE",
                         help="measured runs, one JSON object a line; without FILE the published ones of the package")  # fmt: skip
    command.add_argument("--calibrate", action="store_true",
                         help="measure this machine's rates and overheads, which then narrow what is estimated for it "
                         "(the profile goes to --out FILE)")  # fmt: skip
    add_plot_flag(command, "predicted against measured")
    command.add_argument("--self-check", action="store_true", help="tiny cells of every engine on the present device")
    command.add_argument("--save-case", metavar="FILE", help="append what a GPU measured as a case for --cases")
    command.add_argument("--snapshot", metavar="FILE", help="the GPU allocator's history for pytorch.org/memory_viz")
    command.add_argument("--all", action="store_true", help="every category of every instant in the table")
    command.add_argument("--keep", metavar="DIR", help="keep what the ranks wrote and printed there")
    own = command.add_argument_group("a folder of your own")
    own.add_argument("--config", metavar="FILE", help="a DeepSpeed JSON, accelerate YAML or TrainingArguments file")
    own.add_argument("--model", metavar="M", help="catalogue name, folder, config.json or id")
    own.add_argument("--gpus", metavar="C", help="4xA10, 8xA100-80GB, 2x8xH100")
    own.add_argument("--trust-remote-code", action="store_true", help="run a model's own code to read its shapes")
    add_run_flags(command)


def run(parsed: argparse.Namespace) -> int:
    if parsed.calibrate:
        from selector.cli.calibration import calibrate

        return calibrate(parsed)
    check_format(parsed)
    if parsed.cases is not None:
        return _cases(parsed)
    if parsed.self_check:
        return _self_check(parsed)
    if parsed.folder is None and parsed.config is None:
        raise InputError(
            "name a folder that recommend --emit wrote, a --config FILE, --cases, --self-check or --calibrate"
        )
    return _folder(parsed)


def _folder(parsed: argparse.Namespace) -> int:
    from validate.session import run as validate
    from validate.table import draw, progress

    if parsed.timeout <= 0:
        raise InputError(f"--timeout {parsed.timeout:g}: give seconds, more than 0")
    asked: dict[str, Any] = workload_fields(parsed)
    model = parsed.model
    if model is not None and parsed.trust_remote_code:
        from estimators.model import resolve_model

        model = resolve_model(model, trust_remote_code=True)
    folder = parsed.folder or os.path.dirname(os.path.abspath(parsed.config))
    with progress(parsed.quiet) as told:
        report = validate(
            folder, parsed.mode, nproc=parsed.nproc, layers=parsed.layers, timeout=parsed.timeout, progress=told,
            keep=parsed.keep, snapshot=parsed.snapshot or "", model=model, gpus=parsed.gpus, config=parsed.config, **asked,
        )  # fmt: skip
    notes = [f"mode {report.mode}: {report.why}", *report.notes]
    rows = [
        {"instant": r.instant, "place": r.place, "category": r.category, "predicted_bytes": r.predicted,
         "measured_bytes": r.measured, "agrees": r.agrees}
        for r in report.rows
    ]  # fmt: skip
    picture(parsed, lambda: draw_picture(report.document()))
    emit(parsed, report.document(), rows, lambda console: draw(console, report, parsed.all), notes)
    if parsed.save_case:
        from validate.save_case import append

        append(report, parsed.save_case)
    return report.exit_status


def _self_check(parsed: argparse.Namespace) -> int:
    from validate.self_check import check
    from validate.table import draw_checks, progress

    with progress(parsed.quiet) as told:
        rows = [one.row() for one in check(parsed.timeout, told)]
    emit(
        parsed, {"schema": "dist-advisor/self-check/1", "rows": rows}, rows, lambda console: draw_checks(console, rows)
    )
    return 0 if all(row["status"] == "agrees" for row in rows) else 1


def _cases(parsed: argparse.Namespace) -> int:
    if parsed.cases and not os.path.isfile(parsed.cases):
        raise InputError(f"--cases {parsed.cases}: there is no such file")
    from validate import published, published_cases, published_print, speed

    report = published.evaluate(watched(list(published_cases.read(parsed.cases or None))))
    document = published.as_json(report)
    try:
        found = speed.report(parsed.cases or None, watched).headline
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
    from selector import plots

    return plots.validation(document) if "instants" in document else plots.accuracy(document)
