"""``dist-advisor completion``: a completion script for a shell, made by shtab from the real parser."""

from __future__ import annotations

import argparse
import sys

from estimators.errors import InputError, MissingDependency

SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = "example:\n  dist-advisor completion bash >> ~/.bash_completion"
    command.add_argument("shell", help=", ".join(SHELLS))


def run(parsed: argparse.Namespace) -> int:
    if parsed.shell not in SHELLS:
        raise InputError(f"shell {parsed.shell!r} is not one of {', '.join(SHELLS)}")
    try:
        import shtab
    except ImportError:
        raise MissingDependency("completion scripts are made by shtab; install it: pip install shtab") from None
    from selector.cli.parser import complete_parser

    sys.stdout.write(shtab.complete(complete_parser(), shell=parsed.shell) + "\n")
    return 0
