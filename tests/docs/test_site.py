"""The site builds strictly, needs no network, and has every picture that it shows."""

from __future__ import annotations

import json
import os
import re
import shutil
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
    if os.environ.get("DIST_ADVISOR_SITE"):  # scripts/test has just built it
        return ROOT / os.environ["DIST_ADVISOR_SITE"]
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


OVERFLOW = """<html><body><pre id=o></pre><script>
const pages = PAGES, out = [];
async function go() {
  for (const w of [390, 1440]) for (const p of pages) {
    const f = document.createElement('iframe');
    f.style.width = w + 'px'; f.style.height = '900px'; f.src = p;
    await new Promise(r => { f.onload = r; document.body.appendChild(f) });
    await new Promise(r => setTimeout(r, 100));
    const d = f.contentDocument;
    if (d.documentElement.scrollWidth > w) out.push(w + ' ' + p + ' is ' + d.documentElement.scrollWidth + ' wide');
    d.querySelectorAll('img').forEach(i => { if (!i.naturalWidth) out.push(p + ' lacks ' + i.getAttribute('src')) });
    f.remove();
  }
  document.getElementById('o').textContent = 'looked at ' + pages.length + '\\n' + out.join('\\n');
}
go();
</script></body></html>"""


def test_no_page_is_wider_than_a_phone(site: Path) -> None:
    """In a real browser, at 390 and 1440 pixels: nothing runs over the edge, and every picture is there."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no chromium here: apt-get install chromium")
    names = sorted(p.relative_to(site).as_posix() for p in site.rglob("*.html") if p.name != "404.html")
    frame = site / "frame.html"
    frame.write_text(OVERFLOW.replace("PAGES", json.dumps(names)), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    done = subprocess.run(
        [browser, *flags, "--virtual-time-budget=120000", "--dump-dom", frame.as_uri()],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    frame.unlink()
    found = re.search(r'<pre id="o">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found and found[1].strip() == f"looked at {len(names)}", found and found[1]
