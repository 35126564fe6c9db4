"""``dist-advisor``: one file a subcommand, each of which parses, calls and prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from estimators.errors import AdvisorError
from selector.cli.parser import COMMANDS, parser_for

PROGRAM = "dist-advisor"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status of the contract: 0 done, 1 no, 2 wrong input, 3 something is missing."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        parsed = parser_for(arguments).parse_args(arguments)
        if parsed.command is None:
            parser_for([]).print_help()
            return 0
        module, _ = COMMANDS[parsed.command]
        run = import_module(module).run
        if parsed.quiet or not sys.stderr.isatty():
            return int(run(parsed))
        from selector.cli.progress import shown

        with shown(sys.stderr):
            return int(run(parsed))
    except AdvisorError as error:
        if debug:
            raise
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # a defect of ours: say so in one line, keep the traceback for --debug
        if debug:
            raise
        print(f"{PROGRAM}: internal error ({type(error).__name__}: {error}); --debug shows where", file=sys.stderr)
        return 2
