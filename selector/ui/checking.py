"""Uploaded configurations: checked and converted as text. They are parsed, never imported, executed or kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from estimators.errors import AdvisorError, InputError
from estimators.readers.follow import confined
from selector.checks import Finding, check_files
from selector.checks.machine import Machine
from selector.conversion.equivalence import TARGETS
from selector.ui.answer import kindly
from selector.ui.html import Markup, element, folded, join, listed, message, table
from selector.ui.link import Values
from selector.ui.questions import cluster_of, model_of, read, work_of
from selector.ui.texts import Words, words

MAX_BYTES = 2**20  # of one file
MOST_FILES = 8
ENDINGS = (".json", ".yaml", ".yml", ".py")
__all__ = ["ENDINGS", "MAX_BYTES", "TARGETS", "checking"]


def checking(paths: Sequence[str] | None, target: str, values: Values, language: str, local: bool) -> str:
    """HTML of the panel for uploaded files. ``target``: an engine to convert to, or empty. Never raises."""
    if not paths:
        return element("p", words(language)("check.nothing"), "quiet")
    return kindly(_checking, language, paths, target, values, language, local)


def _checking(paths: Sequence[str], target: str, values: Values, language: str, local: bool) -> str:
    say = words(language)
    known, note = _known(values, local, say)
    with beside_each_other(paths) as files, confined():
        findings = check_files(files, machine=Machine(), **known)  # the machine that serves is not the one that trains
        parts: list[object] = [note, *_findings(findings, say)]
        if target:
            parts += [kindly(_converted, language, path, target, known, say) for path in files if path.suffix != ".py"]
    return join(parts)


def _known(values: Values, local: bool, say: Words) -> tuple[dict[str, Any], Markup]:
    """Model, cluster and workload of the form, where they can be used; the files are read without them otherwise."""
    try:
        given = read(values)
        known = {"model": model_of(given.get("model", ""), local), "cluster": cluster_of(given), **work_of(given)}
    except AdvisorError as wrong:
        return {}, message(say("check.alone"), say.of(str(wrong)), "note")
    return known, element("p", say("check.for", model=known["model"].name, gpus=given["gpus"]), "about")


@contextmanager
def beside_each_other(paths: Sequence[str]) -> Iterator[list[Path]]:
    """The uploads in one folder of their own, under their own names, for as long as they are read."""
    if len(paths) > MOST_FILES:
        raise InputError(f"{len(paths)} files are more than {MOST_FILES}; give those of one run")
    folder = tempfile.mkdtemp(prefix="dist-advisor-")
    try:
        made = []
        for path in paths:
            name = os.path.basename(path)
            if not name.lower().endswith(ENDINGS):
                raise InputError(f"{name} ends in none of {', '.join(ENDINGS)}")
            if os.path.getsize(path) > MAX_BYTES:
                raise InputError(f"{name} is larger than {MAX_BYTES // 2**20} MiB; that is not a configuration")
            copy = Path(folder, name)
            if copy.exists():
                raise InputError(f"two files are called {name}; rename one")
            shutil.copyfile(path, copy)
            made.append(copy)
        yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _findings(findings: Sequence[Finding], say: Words) -> Iterator[Markup]:
    total = {s: sum(f.severity == s for f in findings) for s in ("error", "warning", "info")}
    counted = " · ".join(f"{say('severity.' + s)} {n}" for s, n in total.items() if n)
    yield element("p", counted or say("check.clean"), "headline")
    for found in findings:
        place = os.path.basename(found.file) + (f":{found.line}" if found.line else "")
        head = join(
            (element("span", say(f"severity.{found.severity}"), f"badge {found.severity}"), element("code", place),
             element("b", found.where)), " ",
        )  # fmt: skip
        fix = element("p", say("check.fix", fix=say.of(found.fix))) if found.fix else ""
        source = element("p", f"{found.rule} ({found.source})", "quiet")
        yield element("div", join((element("p", head), element("p", say.of(found.message)), fix, source)), "finding")


def _converted(path: Path, target: str, known: dict[str, Any], say: Words) -> str:
    from selector.convert import convert

    made = convert(path, target, **known)
    rows = [(line.source, say.of(str(line.value)), line.target, say.of(str(line.becomes))) for line in made.lines]
    titles = [say("column.setting"), say("column.was"), say("column.setting"), say("column.becomes")]
    parts: list[object] = [
        element("h3", say("converted", name=path.name, strategy=made.strategy.name)),
        element("pre", made.text, "file"), table(titles, rows),
    ]  # fmt: skip
    if made.lost:
        lost = listed(f"{lost.key} {lost.value}: {say.of(lost.why)}" for lost in made.lost)
        parts.append(folded(say("lost"), lost, True))
    notes = [*map(say.of, made.notes), *(f"{key}: {say.of(what)}" for key, what in made.placeholders.items())]
    if notes:
        parts.append(folded(say("notes"), listed(notes)))
    return join(parts)
