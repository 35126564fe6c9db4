"""A page: Markdown whose blocks are run.

    ```console              each `$ command` is run, its output replaces what stands beneath
    ```pycon                each `>>> statement` likewise
    ```python               executed
    ```bash                 each line that starts with dist-advisor is run, its output is not shown
    ```yaml title="a.yaml"  any block with a title is written to that file first
    <!-- not run: why -->   on the line before a block that cannot be run here
    <!--= expression -->x<!--/-->   x is the value of a Python expression

Blocks of a page share a folder (with the files of ``docs/samples``) and a namespace. Any other block is refused, so that
nothing on a page is typed in as if a program had printed it.
"""

from __future__ import annotations

import re

from making.session import Broken, Session

FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<kind>\w*)(?P<rest>.*)$")
TITLE = re.compile(r'title="([^"]+)"')
EXCUSE = re.compile(r"^\s*<!-- not run: \S.*-->\s*$")
VALUE = re.compile(r"<!--= (?P<expression>.+?) -->.*?<!--/-->", re.DOTALL)
COMMENT = re.compile(r"\s+#(?! exit \d).*$")


def refreshed(text: str, name: str) -> str:
    """The page as a fresh run writes it. Raises ``Broken`` where a snippet fails."""
    with Session() as session:
        lines = text.split("\n")
        page: list[str] = []
        at = 0
        while at < len(lines):
            fence = FENCE.match(lines[at])
            if not fence:
                end = next((i for i in range(at, len(lines)) if FENCE.match(lines[i])), len(lines))
                page += _prose("\n".join(lines[at:end]), session, name).split("\n")
                at = end
                continue
            closing = fence["indent"] + fence["marks"]
            end = next((i for i in range(at + 1, len(lines)) if lines[i].rstrip() == closing), None)
            if end is None:
                raise Broken(f"{name}:{at + 1}: the block is not closed")
            excused = bool(page) and EXCUSE.match(page[-1]) is not None
            width = len(fence["indent"])
            body = [line[width:] for line in lines[at + 1 : end]]
            try:
                made = body if excused else _block(fence["kind"], fence["rest"], body, session, f"{name}:{at + 1}")
            except Broken as error:
                raise Broken(f"{name}:{at + 1}: {error}") from error
            page += [lines[at], *((fence["indent"] + line).rstrip() for line in made), lines[end]]
            at = end + 1
    return "\n".join(page)


def _prose(text: str, session: Session, name: str) -> str:
    def fresh(match: re.Match[str]) -> str:
        return f"<!--= {match['expression']} -->{session.value(match['expression'])}<!--/-->"

    try:
        return VALUE.sub(fresh, text)
    except Broken as error:
        raise Broken(f"{name}: {error}") from error


def _block(kind: str, rest: str, body: list[str], session: Session, where: str) -> list[str]:
    titled = TITLE.search(rest)
    if titled:
        session.write(titled[1], "\n".join(body) + "\n")
        return body
    if kind == "console":
        return _console(body, session)
    if kind == "pycon":
        return _prompts(body, session)
    if kind == "python":
        session.execute("\n".join(body), where)
        return body
    if kind == "bash":
        for line in body:
            session.command(COMMENT.sub("", line), statuses=(0, 1))
        return body
    raise Broken(f"a block of kind {kind or 'none'!r} is neither run nor excused")


def _joined(body: list[str], first: str, more: str) -> list[list[str]]:
    """Inputs of a console block, each with its lines of continuation; output lines are dropped."""
    found: list[list[str]] = []
    inside = False
    for line in body:
        if line.startswith(first):
            found.append([line])
            inside = True
        elif inside and line.startswith(more) and (more == "... " or found[-1][-1].endswith("\\")):
            found[-1].append(line)
        else:
            inside = inside and more == "... " and line == "..."
            if inside:
                found[-1].append(line)
    return found


def _console(body: list[str], session: Session) -> list[str]:
    made: list[str] = []
    for lines in _joined(body, "$ ", "> "):
        command = " ".join(line[2:].removesuffix("\\").strip() for line in lines)
        shown = session.command(command)
        made += [*lines, *(shown.split("\n") if shown else [])]
    return made


def _prompts(body: list[str], session: Session) -> list[str]:
    made: list[str] = []
    for lines in _joined(body, ">>> ", "... "):
        shown = session.prompt("\n".join(line[4:] for line in lines) + ("\n" if len(lines) > 1 else ""))
        made += [*lines, *(shown.split("\n") if shown else [])]
    return made
