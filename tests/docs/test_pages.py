"""What the pages, README and the manual page show is what a fresh run prints."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import build  # noqa: E402
from making import pages  # noqa: E402
from making.session import Broken  # noqa: E402

FORMULA = re.compile(r"\b[PQDZFALHR]\.\d+\b")


@pytest.mark.parametrize("name", [*build.GENERATED, *build.run_pages()])
def test_page_is_fresh(name: str) -> None:
    found = build.difference(name)
    assert not found, f"run: python docs/build.py {name}\n{found[:4000]}"


def test_both_readmes_have_the_same_two_commands() -> None:
    blocks = [re.findall(r"```bash\n(.*?)\n```", (ROOT / name).read_text("utf-8"), re.DOTALL)[:2]
              for name in ("README.md", "README.zh.md")]  # fmt: skip
    assert blocks[0] == blocks[1] and blocks[0][1] == "scripts/test"
    code = [re.findall(r"```python\n(.*?)\n```", (ROOT / name).read_text("utf-8"), re.DOTALL)
            for name in ("README.md", "README.zh.md")]  # fmt: skip
    assert code[0] == code[1] and len(code[0]) == 1


def test_the_chinese_readme_says_what_readme_says() -> None:
    """The same sections, blocks, commands and names; words beside them are the translation."""

    def parts(name: str) -> tuple[int, list[tuple[str, str]], set[str]]:
        text = (ROOT / name).read_text("utf-8")
        blocks = re.findall(r"```(\w+)\n(.*?)\n```", text, re.DOTALL)
        code = [(kind, re.sub(r"\s+#.*", "", block)) for kind, block in blocks]
        return (
            text.count("\n## "),
            code,
            set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))),
        )

    (sections, code, names), (theirs, their_code, their_names) = parts("README.md"), parts("README.zh.md")
    assert sections == theirs and code == their_code and names <= their_names


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("```text\n42 GiB\n```", "neither run nor excused"),
        ("```console\n$ dist-advisor estimate --model nonsense-9b --gpus 4xA10\n```", "exit status 2"),
        ("```console\n$ curl example.org\n```", "a page runs"),
        ("```python\nraise ValueError(3)\n```", "ValueError"),
        ("```pycon\n>>> undefined\n```", "NameError"),
        ("```console\n$ dist-advisor gpus a10", "not closed"),
        ("<!--= 1 / 0 -->x<!--/-->", "ZeroDivisionError"),
    ],
)
def test_a_page_that_does_not_run_is_refused(page: str, says: str) -> None:
    with pytest.raises(Broken, match=says):
        pages.refreshed(page, "page.md")


def test_output_is_replaced() -> None:
    page = (
        "```pycon\n>>> for i in range(2):\n...     print(i)\n...\nwrong\n>>> 6 * 7\n41\n```\n<!--= 1 + 1 -->3<!--/-->"
    )
    fresh = pages.refreshed(page, "page.md")
    assert (
        fresh
        == "```pycon\n>>> for i in range(2):\n...     print(i)\n...\n0\n1\n>>> 6 * 7\n42\n```\n<!--= 1 + 1 -->2<!--/-->"
    )


def test_formulas_of_memory_are_those_that_code_names() -> None:
    """Every number in code stands in the page, and every formula of the page is named by the code that computes it."""
    page = (ROOT / "docs" / "formulas-memory.md").read_text("utf-8")
    derived = set(re.findall(r"\*\*([PQDZFALHR]\.\d+)\*\*", page))
    named: set[str] = set()
    for file in (ROOT / "estimators").rglob("*.py"):
        if "time" in file.relative_to(ROOT).parts:
            continue
        text = file.read_text("utf-8")
        named |= set(FORMULA.findall(text))
        for letter, first, last in re.findall(r"\b([PQDZFALHR])\.(\d+)-(?:[PQDZFALHR]\.)?(\d+)\b", text):
            named |= {f"{letter}.{n}" for n in range(int(first), int(last) + 1)}
    assert named == derived


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
def test_the_manual_page_is_clean() -> None:
    done = subprocess.run(
        ["man", "--warnings", "-l", str(ROOT / "docs" / "dist-advisor.1")],
        capture_output=True, text=True, env={"MANWIDTH": "80", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert "EXIT STATUS" in done.stdout and not done.stderr


def test_formulas_agree_with_what_they_stand_beside() -> None:
    """Within what the page says that a formula leaves out: 7 %."""
    page = (ROOT / "docs" / "formulas-memory.md").read_text("utf-8")
    pairs = re.findall(r"^\((\d{4,}(?:, \d{4,})+)\)$", page, re.MULTILINE)
    assert len(pairs) > 20
    for pair in pairs:
        numbers = [int(n) for n in pair.split(", ")]
        assert max(numbers) < 1.07 * min(numbers), pair
