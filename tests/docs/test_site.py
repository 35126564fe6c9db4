"""The site builds strictly, needs no network, and has every picture that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"(https?:)?//|<link[^>]*rel=\"(?:stylesheet|preload|preconnect)\"[^>]*href=\"(https?:)?//"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("mkdocs", "material", "matplotlib"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not FETCHED.search(page.read_text("utf-8")), page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text("utf-8")), sheet.name


def test_every_engine_has_its_picture(site: Path) -> None:
    for page in (site / "engines").glob("*.html"):
        shown = re.findall(r'<img[^>]*src="([^"]+\.svg)"', page.read_text("utf-8"))
        assert shown and all((page.parent / name).stat().st_size > 1000 for name in shown), page.name


def test_no_source_is_published(site: Path) -> None:
    assert not [p for p in site.rglob("*") if p.suffix in (".py", ".1", ".jsonl")]
