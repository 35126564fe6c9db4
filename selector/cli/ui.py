"""``dist-advisor ui``: the same answers in a web page on localhost."""

from __future__ import annotations

import argparse

from estimators.errors import InputError, short

EXAMPLE = """examples:
  dist-advisor ui
  dist-advisor ui --port 8080
  dist-advisor ui --host 0.0.0.0 --port 8080

needs Gradio: pip install 'dist-advisor[ui]'. Without --host only this machine can reach the page."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.epilog = EXAMPLE
    command.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    command.add_argument("--port", metavar="N", help="port to listen on; 0 for any (7860, or the next that is free)")


def run(parsed: argparse.Namespace) -> int:
    from selector.ui.serve import serve

    try:
        port = None if parsed.port is None else int(parsed.port)
    except ValueError:
        raise InputError(f"--port {short(parsed.port)} is not a number; give one from 1 to 65535") from None
    return serve(parsed.host, port)
