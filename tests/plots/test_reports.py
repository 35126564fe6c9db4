"""Reports: one file without network, nothing of a user's runs, every part is there, the path is the one that was gone."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from estimators import estimate
from estimators.memory import Estimate
from estimators.model import resolve_model
from selector import plots, recommend
from selector.cli import main
from selector.recommendation import Recommendation
from selector.report import pictures
from selector.report.bars import instants
from selector.report.tree_svg import policy_svg, tree_svg
from selector.tree.draw import edges
from selector.tree.policies import POLICIES
from selector.trust import trust

GIB = 2**30
VOID = {"meta", "rect", "line", "use", "path", "br"}
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


class Reader(HTMLParser):
    """Checks that every tag is closed; keeps tags, attributes and headings."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    return reader


def is_self_contained(page: str) -> None:
    reader = read(page)
    for tag, attributes in reader.tags:
        assert tag not in ("script", "link", "iframe", "img", "object", "embed", "base", "form"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                assert (value or "").startswith("#"), (tag, name, value)
    assert not re.search(r"url\((?!#)", page) and "@import" not in page


@pytest.fixture(scope="module")
def answer() -> Recommendation:
    return recommend("llama-8b", "8xH100", team="pytorch")


@pytest.fixture(scope="module")
def page(answer: Recommendation) -> str:
    return answer.report()


def test_every_part_is_there(answer: Recommendation, page: str) -> None:
    assert read(page).headings[1:] == [
        "Question", "Answer", "Why", "The path through the tree", "Numbers", "Rejected", "What else there is",
        "Files to run", "How far to trust it", *(["What would change the answer"] if answer.would_change else []),
        *(["Where the documents disagree"] if answer.conflicts else []), "Beside it", "Notes", "Versions",
    ]  # fmt: skip
    text = unescape(page)
    assert answer.strategy and answer.estimate
    for words in (answer.strategy, answer.commands["launch"], answer.trust, *answer.reasons, *answer.remarks):
        assert words in text
    for out in answer.rejected:
        assert out.strategy in text and out.why in text
    for name, version in answer.estimate.run.settings.versions.items():
        assert name in text and version in text
    for term in answer.estimate.peak.terms:
        assert term.place != "gpu" or term.formula in text


def test_files_are_those_that_emit_writes(answer: Recommendation, page: str, tmp_path: Path) -> None:
    answer.emit(tmp_path / "run")
    text = unescape(page)
    for file in (tmp_path / "run").rglob("*"):
        if file.is_file():
            assert str(file.relative_to(tmp_path / "run")) in text
            assert file.read_text(encoding="utf-8")[:20000] in text


def test_it_needs_no_network_and_is_the_same_twice(answer: Recommendation, page: str) -> None:
    is_self_contained(page)
    assert page == answer.report()
    assert 'name="viewport" content="width=device-width' in page and "@media print" in page


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars in place of matplotlib's pictures: quicker, and their names are escaped here."""
    monkeypatch.setattr(pictures, "has_matplotlib", lambda: False)


@pytest.mark.usefixtures("by_hand")
def test_what_a_user_writes_is_text() -> None:
    config = {**resolve_model("smollm2-135m").config, "_name_or_path": EVIL, "name": EVIL}
    model = resolve_model(config)
    object.__setattr__(model, "name", EVIL)
    evil = recommend(model, "8xH100")
    one = estimate(model, "8xH100", "zero3")
    from selector.report.estimate_page import estimates_page

    for html in (
        evil.report(),
        evil._repr_html_(),
        one._repr_html_(),
        estimates_page(model, [one], {EVIL: EVIL}, [EVIL]),
        plots.svg(one.plot(), EVIL),
    ):
        assert "<script" not in html and "<img" not in html
        assert "&lt;script&gt;" in html or "alert" not in html
        read(html)


def test_the_path_is_lit(answer: Recommendation) -> None:
    def lit(drawn: str) -> set[str]:
        return set(re.findall(r'<g class="lit" data-node="(\w+)"', drawn))

    def said(drawn: str) -> list[str]:
        return [unescape(text) for text in re.findall(r'font-weight="bold" fill="[^"]*">([^<]*)<', drawn)]

    drawn = tree_svg(answer.reading)
    assert (
        drawn in answer.report() and lit(drawn) == {"size", "team", "fsdp"} and said(drawn) == ["7B to 30B", "PyTorch"]
    )
    assert said(tree_svg(recommend("llama-13b", "8xH100").reading)) == ["7B to 30B", "not given, at most 13B"]
    small = tree_svg(recommend("gpt2", "8xH100").reading)  # an amendment leads on from FSDP
    assert lit(small) >= {"fsdp", "ddp"} and "stroke-dasharray" in small


@pytest.mark.parametrize("policy", POLICIES)
def test_the_whole_tree_names_what_a_policy_adds(policy: str) -> None:
    drawn = fromstring(policy_svg(policy))
    told = [text for text in drawn.itertext() if text.strip()]
    assert all(label in told for _, _, label, _ in edges(policy))
    assert "stroke-dasharray" in policy_svg("current") and "stroke-dasharray" not in policy_svg("documents")


@pytest.mark.usefixtures("by_hand")
def test_nothing_fits() -> None:
    nothing = recommend("llama-8b", "1xA10", host_memory="64GB")
    assert nothing.strategy is None
    page = nothing.report()
    is_self_contained(page)
    text = unescape(page)
    assert "Nothing that was looked at trains Llama-3.1-8B here" in text and nothing.next_command in text
    assert "What would work, and what came nearest" in text and "Files to run" not in text
    assert all(a.why in text for a in nothing.alternatives)


def test_bars_without_matplotlib_are_the_terms(over_the_card: Estimate) -> None:
    """The same amounts, to the 0.01 GiB that a title says."""
    drawn = instants(over_the_card)
    titles = re.findall(r"<title>[a-z ]+ ([\d.,]+) GiB</title>", drawn)
    amounts = [b for i in over_the_card.instants for b in i.by_category().values() if b]
    assert sum(float(t.replace(",", "")) for t in titles) == pytest.approx(sum(amounts) / GIB, abs=0.01 * len(amounts))
    assert drawn.count(f"{over_the_card.run.cluster.gpu.label} 22.06 GiB") == 1


def test_without_matplotlib_a_report_has_bars(tmp_path: Path) -> None:
    file = tmp_path / "r.html"
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from selector.cli import main\n"
        f"sys.exit(main(['estimate', '--model', 'llama-8b', '--gpus', '4xA10', '--format', 'html', '--out', {str(file)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = file.read_text(encoding="utf-8")
    is_self_contained(page)
    assert page.count("<svg") == 2 and "A10 22.06 GiB" in page


def test_commands_write_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "e.html"
    question = ["--model", "llama-8b", "--gpus", "4xA10", "--format", "html"]
    assert main(["estimate", *question, "--out", str(file)]) == 0
    assert f"the report is in {file}" in capsys.readouterr().err
    page = file.read_text(encoding="utf-8")
    is_self_contained(page)
    assert "4 of 14 strategies fit" in page
    assert trust(estimate("llama-8b", "4xA10", "zero3")) in unescape(page)
    monkeypatch.setattr(pictures, "has_matplotlib", lambda: False)
    assert main(["recommend", *question, "--strategy", "zero3-offload"]) == 0
    assert capsys.readouterr().out.startswith("<!DOCTYPE html>")
    assert main(["fit", *question]) == 2
    assert "format 'html' is not one of table, json, csv, markdown" in capsys.readouterr().err


@pytest.mark.usefixtures("by_hand")
def test_a_report_is_written_whole_or_not_at_all(answer: Recommendation, tmp_path: Path) -> None:
    from estimators.errors import InputError

    assert answer.report(tmp_path / "a.html") == (tmp_path / "a.html").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="cannot be written"):
        answer.report(tmp_path / "no-such-folder" / "a.html")
    assert [f.name for f in tmp_path.iterdir()] == ["a.html"]


def test_a_notebook_shows_the_picture(answer: Recommendation, over_the_card: Estimate) -> None:
    for html in (answer._repr_html_(), over_the_card._repr_html_()):
        is_self_contained(html)
        assert "<svg" in html and "<details" in html
    assert over_the_card.peak.terms[0].name in unescape(over_the_card._repr_html_())
