"""The command line's surface: commands, and the flags that several of them share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from estimators.errors import InputError, closest
from selector.cli.formatting import Help, columns, synopsis

if TYPE_CHECKING:
    from estimators.cluster import Cluster

COMMANDS = {
    "estimate": ("selector.cli.estimate", "memory of every strategy for a model on given GPUs"),
    "recommend": ("selector.cli.recommend", "which engine, strategy and settings, and why"),
    "explain": ("selector.cli.explain", "one strategy term by term, or why one needs more than another"),
    "fit": ("selector.cli.fit", "the largest micro-batch and sequence that fit, the fewest GPUs that do"),
    "plan": ("selector.cli.plan", "time and cost against the number of GPUs"),
    "models": ("selector.cli.models", "the catalogue of models, with sources"),
    "gpus": ("selector.cli.gpus", "the catalogue of GPUs, with sources"),
    "strategies": ("selector.cli.strategies", "the strategies and their options"),
    "sweep": ("selector.cli.sweep", "many models x clusters x workloads from YAML or CSV to one table"),
    "check": ("selector.cli.check", "findings on DeepSpeed, accelerate and Trainer files, with positions and fixes"),
    "diagnose": ("selector.cli.diagnose", "what an out-of-memory or engine error means, and what would mend it"),
    "convert": ("selector.cli.convert", "the nearest configuration of another engine, and what has no equivalent"),
    "tree": ("selector.cli.tree", "the decision tree of the two documents, as text, Mermaid, DOT or JSON"),
    "validate": ("selector.cli.validate", "predictions beside measured runs, scored"),
    "ui": ("selector.cli.ui", "the same answers in a web page on localhost"),
    "completion": ("selector.cli.completion", "completion script for bash, zsh or tcsh"),
}
FORMATS = ("table", "json", "csv", "markdown")
REPORTS = ("estimate", "recommend")  # answers that are pages too

# Workload fields that are flags: name -> what help says. Values are checked by estimators.workload, not by argparse.
WORKLOAD_FLAGS = {
    "method": "full, lora, dora, qlora, freeze",
    "precision": "bf16-mixed, fp16-mixed, bf16, fp16, fp32",
    "optimizer": "adamw, adamw-fused, adamw-8bit, paged-adamw, adafactor, lion, sgd, muon, ...",
    "seq-len": "tokens of a sequence (2048)",
    "micro-batch": "sequences per GPU and micro-step (1)",
    "grad-accum": "micro-steps per optimizer step (1)",
    "images": "images of a sample, tiles counted one by one (1; vision-language models)",
    "image-patches": "patches of an image, where the model takes any size (1024; Qwen2-VL)",
    "checkpointing": "none, full, selective, every-2, offload (full)",
    "attention": "eager, sdpa, flash (sdpa)",
    "loss": "plain, fused, chunked (plain)",
    "padding": "none, right (none)",
    "stack": "who drives the engine: trainer, trl, accelerate, deepspeed, torch, torchtitan, ... (trainer)",
    "lora-rank": "rank of the adapters (16)",
    "lora-targets": "all-linear, attention, or module names with commas",
    "modules-to-save": "modules that train whole beside the adapters",
    "freeze": "modules that do not train (method freeze)",
    "quant": "nf4, nf4-double, int8, gptq4 (method qlora)",
    "adapter-dtype": "fp32, bf16, fp16",
    "param-dtype": "dtype in which trainable parameters are stored",
    "state-dtype": "dtype of optimizer states",
    "reduce-dtype": "dtype of gradient reduction",
    "versions": "assumed versions: torch=2.13.0,deepspeed=0.19.8",
}
WORKLOAD_SWITCHES = {
    "compile": "torch.compile",
    "optimizer-in-backward": "the optimizer steps inside backward",
    "kbit-prepare": "peft.prepare_model_for_kbit_training runs",
}
HIDDEN_FLAGS = {"max-seq-length": "seq_len", "per-device-train-batch-size": "micro_batch",
                "gradient-accumulation-steps": "grad_accum", "loss-kernel": "loss_kernel", "seq-kind": "seq_kind"}  # fmt: skip
CLUSTER_FLAGS = {
    "host-memory": "host RAM per node: 512GB",
    "nvme": "NVMe per node: 4TB",
    "network": "Gbit/s per GPU between nodes",
    "interconnect": "nvlink or pcie inside a node",
    "price": "per GPU-hour",
    "gpu-memory": "memory of a card that is not in the catalogue: 24GB",
    "tflops": "its dense TFLOPS, for times: 312",
    "bandwidth": "its memory bandwidth in GB/s, for times: 2039",
    "cpu-cores": "CPU cores per node, for offload: 64",
    "host-bandwidth": "DRAM bandwidth per node in GB/s, for offload: 300",
}


class Parser(argparse.ArgumentParser):
    """argparse whose errors are this project's: one message, with the nearest valid words."""

    def error(self, message: str) -> NoReturn:
        known = self.options()
        near: list[str] = []
        for word in message.split():
            option = word.split("=")[0].rstrip(":")
            if option.startswith("--") and option not in known:
                near += closest(option, known, 1)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"{message}{hint} (see {self.prog} --help)")

    def options(self) -> list[str]:
        """Every flag of this parser and of the command that was chosen."""
        found = [option for action in self._actions for option in action.option_strings]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    found += [option for a in command._actions for option in a.option_strings]
        return found


def parser_for(arguments: Sequence[str], everything: bool = False) -> argparse.ArgumentParser:
    """The parser for this command line: only the command that is named gets its flags, so that start-up stays short."""
    named = next((a for a in arguments if not a.startswith("-")), None)
    top = Parser(
        prog="dist-advisor",
        description="Will this model train on these GPUs, with which engine and settings, and why?",
        epilog="example: dist-advisor estimate --model llama-8b --gpus 4xA10",
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=columns() - 2),
    )
    top.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    top.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser, prog="dist-advisor")
    if named is not None and named not in COMMANDS:
        near = closest(named, COMMANDS)
        top.error(f"unknown command {named!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    lists_all = named is None or everything or "-h" in arguments or "--help" in arguments
    for name, (module, help_text) in COMMANDS.items():
        if name != named and not lists_all:
            continue
        command = commands.add_parser(name, help=help_text, description=help_text.capitalize() + ".", allow_abbrev=False,
                                      formatter_class=Help)  # fmt: skip
        if named == name or everything:
            import_module(module).add_arguments(command)
            add_output_flags(command, name)
            command.usage = synopsis(command).replace("%", "%%")
    return top


def complete_parser() -> argparse.ArgumentParser:
    """The whole surface, with the words that a shell can complete: models, cards, strategies, formats."""
    from estimators.cluster import gpus
    from estimators.model.catalogue import models
    from estimators.strategy import ALIASES, ENGINES

    words = {
        "--model": [entry["name"] for entry in models()],
        "--gpus": [card["id"] for card in gpus()],
        "--strategy": [*ENGINES, *ALIASES],
        "--format": [*FORMATS, "html"],
    }
    top = parser_for([], everything=True)
    commands = next(a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    for command in commands.choices.values():
        for action in command._actions:
            for option in action.option_strings:
                if option in words:
                    action.choices = words[option]
    return top


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version

        print(f"dist-advisor {version('dist-advisor')}")
        parser.exit()


def formats_of(command: str | None) -> tuple[str, ...]:
    """What ``--format`` of a command may be."""
    return (*FORMATS, "html") if command in REPORTS else FORMATS


def add_output_flags(command: argparse.ArgumentParser, name: str) -> None:
    formats = formats_of(name)
    group = command.add_argument_group("output")
    group.add_argument("--format", default="table", metavar="FORMAT", help=", ".join(formats) + " (table)")
    group.add_argument("--out", metavar="FILE", help="write there instead of to the terminal")
    group.add_argument("-q", "--quiet", action="store_true", help="no notes on stderr")
    group.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)


def add_plot_flag(command: argparse.ArgumentParser, what: str) -> None:
    """``--plot FILE`` for commands whose answer can be drawn; ``what`` says what the picture shows."""
    command.add_argument("--plot", metavar="FILE", help=f"also draw {what} (.png, .svg, .pdf)")


def add_question_flags(command: argparse.ArgumentParser, need_model: bool = True) -> None:
    """``--model``, ``--gpus``, the cluster's facts and the whole workload."""
    question = command.add_argument_group("question")
    question.add_argument("--model", required=need_model, metavar="M", help="catalogue name, folder, config.json or id")
    question.add_argument("--gpus", required=need_model, metavar="C", help="4xA10, 8xA100-80GB, 2x8xH100")
    question.add_argument("--trust-remote-code", action="store_true", help="run a model's own code to read its shapes")
    add_run_flags(command)


def add_run_flags(command: argparse.ArgumentParser) -> None:
    """The cluster's facts and the whole workload, for every command that asks about a run."""
    cluster = command.add_argument_group("cluster")
    for flag, text in CLUSTER_FLAGS.items():
        cluster.add_argument(f"--{flag}", metavar="X", help=text)
    cluster.add_argument("--no-calibration", action="store_true", help="leave out what this machine measured of itself")
    work = command.add_argument_group("workload")
    for flag, text in WORKLOAD_FLAGS.items():
        work.add_argument(f"--{flag}", metavar="X", help=text)
    for flag, text in WORKLOAD_SWITCHES.items():
        work.add_argument(f"--{flag}", action=argparse.BooleanOptionalAction, default=None, help=text)
    for flag in HIDDEN_FLAGS:
        work.add_argument(f"--{flag}", help=argparse.SUPPRESS)


def question_of(parsed: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    """Model, cluster and workload fields of a parsed command line, resolved."""
    from estimators.cluster import parse_cluster
    from estimators.model import resolve_model

    facts = {flag.replace("-", "_"): getattr(parsed, flag.replace("-", "_")) for flag in CLUSTER_FLAGS}
    cluster = calibrated(parsed, parse_cluster(parsed.gpus, **facts))
    model = resolve_model(parsed.model, trust_remote_code=parsed.trust_remote_code)
    return model, cluster, workload_fields(parsed)


def calibration_file() -> str:
    """Where ``validate --calibrate`` writes: ``dist-advisor/calibration.json`` of the user's configuration (XDG)."""
    import os

    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "dist-advisor", "calibration.json")


def calibrated(parsed: argparse.Namespace, cluster: Cluster) -> Cluster:
    """The cluster with what this machine measured of its card, where it did and nobody forbade it."""
    import os

    path = calibration_file()
    if parsed.no_calibration or not os.path.exists(path):
        return cluster
    from estimators.calibration import load
    from estimators.values import replace

    own = load(path, cluster.gpu.id)
    return cluster if own is None else replace(cluster, calibration=own)


def workload_fields(parsed: argparse.Namespace) -> dict[str, Any]:
    """The workload fields that were given on the command line, under the contract's names."""
    fields: dict[str, Any] = {}
    for flag in (*WORKLOAD_FLAGS, *WORKLOAD_SWITCHES, *HIDDEN_FLAGS):
        value = getattr(parsed, flag.replace("-", "_"))
        if value is None:
            continue
        name = HIDDEN_FLAGS.get(flag, flag.replace("-", "_"))
        if name in fields:
            raise InputError(f"--{flag} and --{name.replace('_', '-')} say the same thing; give one")
        fields[name] = value
    return fields
