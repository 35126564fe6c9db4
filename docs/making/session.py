"""Runs what a page shows: commands of this program in this process, small shell commands beside them, Python."""

from __future__ import annotations

import code
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from estimators.stacks import versions
from estimators.units import gib
from selector.cli import main as dist_advisor

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
WIDTH = "80"
TOOLS = ("cat", "ls", "head", "tail", "grep", "sed", "wc", "bash -n")  # what a page may run beside dist-advisor
STATUS = re.compile(r"\s+# exit (\d)$")


class Broken(Exception):
    """A snippet that does not run, or not as it says."""


class Session:
    """A folder with the sample files, and a Python namespace: what the blocks of one page share.

    Versions are the newest that were checked, whatever is installed, and the terminal has 80 columns: the same page
    comes out everywhere.
    """

    def __enter__(self) -> Session:
        self.folder = Path(tempfile.mkdtemp(prefix="page-"))
        shutil.copytree(SAMPLES, self.folder, dirs_exist_ok=True)
        self.names: dict[str, Any] = {"__name__": "__page__", "ask": ask, "gib": gib}
        self._before = (os.getcwd(), dict(os.environ), versions.installed)
        os.chdir(self.folder)
        os.environ.update(COLUMNS=WIDTH, NO_COLOR="1", TERM="dumb", HF_HUB_OFFLINE="1")
        for name in ("FORCE_COLOR", "LINES"):
            os.environ.pop(name, None)
        versions.installed = dict  # type: ignore[assignment]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        folder, environment, installed = self._before
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        versions.installed = installed
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def command(self, line: str, statuses: tuple[int, ...] = (0,)) -> str:
        """What a terminal shows of one line: stdout, and stderr where the line says ``2>&1`` or ``# exit 2``."""
        stated = STATUS.search(line)
        expected = {int(stated[1])} if stated else set(statuses)
        first, _, rest = STATUS.sub("", line).partition(" | ")
        both = first.endswith(" 2>&1")
        words = shlex.split(first.removesuffix(" 2>&1"))
        if words[0] == "dist-advisor":
            status, out, err = own(words[1:])
            shown = out + err if both or status > 1 else out
            if status not in expected:
                raise Broken(f"{line}: exit status {status}\n{err or out}")
        elif first.startswith(TOOLS):
            shown, rest = self._shell(first if not rest else f"{first} | {rest}", ""), ""
        else:
            raise Broken(f"{line}: a page runs dist-advisor and {', '.join(TOOLS)}; say `<!-- not run: why -->`")
        if rest:
            shown = self._shell(rest, shown)
        return self._clean(shown)

    def _shell(self, line: str, text: str) -> str:
        done = subprocess.run(["bash", "-o", "pipefail", "-c", line], input=text, capture_output=True, text=True)
        if done.returncode not in (0, 141):
            raise Broken(f"{line}: exit status {done.returncode}\n{done.stderr}")
        return done.stdout

    def _clean(self, text: str) -> str:
        text = text.replace(f"{self.folder}/", "").replace(str(self.folder), ".")
        return "\n".join(line.rstrip() for line in text.rstrip().splitlines())

    def execute(self, source: str, where: str) -> None:
        """A Python block."""
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                exec(compile(source, where, "exec"), self.names)
            except Exception as error:
                raise Broken(f"{where}: {type(error).__name__}: {error}\n{source}") from error

    def prompt(self, statement: str) -> str:
        """What the interactive interpreter prints for one statement."""
        page = io.StringIO()
        compiled = code.compile_command(statement, "<page>", "single")
        if compiled is None:
            raise Broken(f"an unfinished statement: {statement}")
        with contextlib.redirect_stdout(page):
            try:
                exec(compiled, self.names)
            except Exception as error:
                raise Broken(f"{type(error).__name__}: {error}\n{statement}") from error
        return self._clean(page.getvalue())

    def value(self, expression: str) -> str:
        try:
            return str(eval(expression, self.names))
        except Exception as error:
            raise Broken(f"{type(error).__name__}: {error} in {expression}") from error


def ask(command: str) -> Any:
    """The JSON of one command, for values in prose: ``len(ask("models")["rows"])``."""
    status, out, err = own([*shlex.split(command), "--format", "json", "-q"])
    if status > 1:
        raise Broken(f"dist-advisor {command}: {err}")
    return json.loads(out)


def own(words: list[str]) -> tuple[int, str, str]:
    """One command line of this program, in this process: exit status, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = dist_advisor(words)
        except SystemExit as stop:  # --help, --version
            status = int(stop.code or 0)
    return status, out.getvalue(), err.getvalue()
