"""One server and one headless Chromium for all tests of the page; skipped with a reason where either is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 120


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The page as a user starts it, on a port of its own; its address."""
    if find_spec("gradio") is None:
        pytest.skip("gradio is not installed: pip install 'dist-advisor[ui]'")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "selector.cli", "ui", "--port", "0"]
    started = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    assert started.stderr
    limit = threading.Timer(START_SECONDS, started.kill)
    limit.start()
    told = []
    try:
        for line in started.stderr:
            told.append(line)
            if found := re.search(r"ready at (\S+)", line):
                break
        else:
            pytest.fail(f"the page did not start: {''.join(told)}")
        limit.cancel()
        rest = threading.Thread(target=lambda: told.extend(started.stderr or ()), daemon=True)
        rest.start()
        yield found[1]
        assert "Traceback" not in "".join(told) and "internal error" not in "".join(told), "".join(told)
    finally:
        limit.cancel()
        started.terminate()
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            started.kill()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Debian's Chromium without a window; downloads go to its ``downloads`` folder."""
    if find_spec("selenium") is None:
        pytest.skip("selenium is not installed")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("no chromium with chromedriver here: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    profile, downloads = tmp_path_factory.mktemp("profile"), tmp_path_factory.mktemp("downloads")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-background-networking", "--lang=en", f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=Service(driver))
    made.downloads = downloads
    try:
        yield made
    finally:
        made.quit()
