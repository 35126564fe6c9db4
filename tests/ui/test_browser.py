"""The page in a real browser, as people use it: each panel, wrong input, a phone, both languages, twenty users at once."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from estimators.memory import estimate
from selector import recommend
from selector.ui.fields import FIELDS, NAMES
from selector.ui.page import shown
from selector.ui.texts import words

PATIENCE = 40.0
SIZES = {"phone": (390, 844), "desk": (1440, 900)}
QUESTION = "model=llama-8b&gpus=4xA10"


class User:
    """What a person does: opens, types, chooses, clicks, reads."""

    def __init__(self, driver: Any, base: str) -> None:
        self.driver, self.base = driver, base

    def open(self, path: str = f"/en/?{QUESTION}", size: str = "desk") -> User:
        width, height = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get(self.base + path)
        self.wait(lambda: self.js("return document.body.dataset.ready"), "the page to be ready")
        return self

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def read(self, css: str) -> str:
        return str(self.js("return document.querySelector(arguments[0])?.innerText ?? ''", css))

    def wait(self, met: Callable[[], Any], what: str = "") -> Any:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if found := met():
                return found
            time.sleep(0.03)
        raise AssertionError(f"waited {PATIENCE} s for {what or met}; the page says: {self.read('body')[:1500]}")

    def sees(self, text: str, where: str = "#summary") -> None:
        self.wait(lambda: text in self.read(where), f"{text!r} in {where}")

    def type(self, field: str, text: str) -> None:
        box = self.driver.find_element("css selector", f"#field-{field} input")
        box.send_keys("\ue009a\ue000" + (text or "\ue017"))  # Ctrl-A, then the text or Delete

    def tab(self, name: str) -> None:
        """The tab, from the menu of those that had no room where it stands there."""
        clicked = "const b = document.querySelector(`#panel-${arguments[0]}-button`); b?.click(); return !!b"
        if not self.js(clicked, name):
            self.js("document.querySelector('#panels .overflow-menu > button').click()")
            label = words("zh" if "/zh/" in self.driver.current_url else "en")(f"tab.{name}")
            self.wait(lambda: self.js(
                "const b = [...document.querySelectorAll('#panels .overflow-dropdown button')]"
                ".find(b => b.innerText.trim() === arguments[0]); b?.click(); return !!b", label))  # fmt: skip
        self.wait(
            lambda: self.js("return document.querySelector(arguments[0])?.offsetParent !== null", f"#panel-{name}")
        )

    def fits_the_screen(self) -> None:
        """Nothing sticks out to the right of the window."""
        wide = self.js(
            """const w = document.documentElement.clientWidth;
            const outside = e => { const r = e.getBoundingClientRect();
              return r.width && r.left >= 0 && r.top >= 0 && r.right > w + 1 && getComputedStyle(e).visibility !== 'hidden'
                && !e.closest('.scroll, pre, .visually-hidden') };
            return [...document.querySelectorAll('#answer *, #form *, .top *')].filter(outside)
              .map(e => e.outerHTML.slice(0, 120))"""
        )
        assert not wide, wide[:5]
        assert self.js("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.fixture
def user(browser: Any, server: str) -> User:
    return User(browser, server)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_panel(user: User, size: str, language: str) -> None:
    found = recommend("llama-8b", "4xA10")
    assert found.strategy
    user.open(f"/{language}/?{QUESTION}&a=zero2&b=zero3", size)
    user.sees(found.strategy)
    user.fits_the_screen()
    user.tab("why")
    user.wait(lambda: user.js("return document.querySelectorAll('svg.tree path.lit').length") == 2)
    user.fits_the_screen()
    user.tab("plots")
    user.wait(lambda: user.js("return document.querySelectorAll('#plots-html img').length >= 5"))
    loaded = "return [...document.querySelectorAll('#plots-html img')].some(i => i.complete && i.naturalWidth > 100)"
    user.wait(lambda: user.js(loaded))
    user.fits_the_screen()
    user.tab("explain")
    a, b = (estimate("llama-8b", "4xA10", name) for name in ("zero2", "zero3"))
    user.sees(f"{abs(b.gpu.expected - a.gpu.expected) / 2**30:.2f} GiB", "#explain-html")
    user.fits_the_screen()
    user.tab("files")
    user.wait(lambda: user.js("return document.querySelectorAll('#files-html [data-file]').length >= 5"))
    user.fits_the_screen()


def test_answers_while_typing(user: User) -> None:
    user.open()
    user.type("model", "qwen2.5-0.5b")
    user.sees("Qwen2.5-0.5B")
    user.type("gpus", "8xH100")
    user.sees("8 x H100")
    user.type("seq_len", "4096")
    user.sees("4,096 tokens")
    found = recommend("qwen2.5-0.5b", "8xH100", seq_len=4096)
    user.sees(str(found.strategy))
    user.wait(lambda: "seq_len=4096" in user.driver.current_url)
    user.js("document.querySelector('#group-workload > button').click()")
    user.wait(lambda: user.js("return !!document.querySelector('#field-compile input')"))
    user.js("document.querySelector('#field-compile input').click()")
    user.wait(lambda: "compile=yes" in user.driver.current_url)
    before = user.read("#summary"), user.driver.current_url
    user.open(before[1].removeprefix(user.base))  # the link reopens the same question
    user.sees("4,096 tokens")
    assert (user.read("#summary"), user.driver.current_url) == before
    user.js("document.getElementById('language').click()")  # and so does the other language
    user.wait(lambda: "/zh/" in user.driver.current_url and "4,096 个 token" in user.read("#summary"))
    assert str(found.strategy) in user.read("#summary")


def test_wrong_input_is_said_kindly(user: User) -> None:
    user.open()
    for field, wrong, told in (
        ("model", "lama-8b", "did you mean llama-8b"), ("gpus", "4xA11", "did you mean a10"), ("seq_len", "-3", "seq_len"),
    ):  # fmt: skip
        right = user.js("return document.querySelector(arguments[0]).value", f"#field-{field} input")
        user.type(field, wrong)
        user.sees(told)
        assert "cannot be answered yet" in user.read("#summary") and "Traceback" not in user.read("body")
        user.type(field, right)
        user.sees("zero3+optimizer@cpu")
    user.open("/en/?model=llama-8b&gpus=4xA10&method=magic&colour=red")
    user.sees("method, colour" if "method, colour" in user.read("#summary") else "colour")
    user.sees("zero3+optimizer@cpu")


def test_what_fits(user: User) -> None:
    user.open("/en/?model=qwen2.5-0.5b&gpus=2xA10")
    user.tab("fit")
    user.js("document.querySelector('#fit-button').click()")
    user.sees("zero3", "#fit-html")
    user.wait(lambda: "strategies" not in user.read("#fit-html"))
    user.fits_the_screen()


def test_a_file_is_checked_converted_and_limited(user: User, tmp_path: Path) -> None:
    user.open()
    user.tab("check")
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}},
                                  "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}))  # fmt: skip
    user.driver.find_element("css selector", "#check-files input[type=file]").send_keys(str(config))
    user.sees("stage 3", "#check-html")
    user.fits_the_screen()
    user.open()
    user.tab("check")
    large = tmp_path / "large.json"
    large.write_text(" " * (2**20 + 10))
    user.driver.find_element("css selector", "#check-files input[type=file]").send_keys(str(large))
    user.wait(lambda: re.search("size|large|limit", user.read("body").split("Download")[0]), "a word about the size")
    assert "Traceback" not in user.read("body")


def test_the_folder_is_downloaded(user: User) -> None:
    user.open()
    user.tab("files")
    user.wait(lambda: user.js("const a = document.querySelector('#download'); a?.click(); return !!a"))
    user.wait(lambda: list(user.driver.downloads.glob("dist-advisor*.zip")))
    found = zipfile.ZipFile(next(user.driver.downloads.glob("dist-advisor*.zip")))
    assert {"run/train.py", "run/launch.sh", "run/plan.json"} <= set(found.namelist())


def test_nothing_comes_from_elsewhere(user: User) -> None:
    user.driver.get_log("performance")
    user.open()
    user.sees("zero3+optimizer@cpu")
    asked = [json.loads(entry["message"])["message"] for entry in user.driver.get_log("performance")]
    urls = {m["params"]["request"]["url"] for m in asked if m["method"] == "Network.requestWillBeSent"}
    away = [u for u in urls if not u.startswith((user.base, "data:", "blob:", "chrome:", "about:"))]
    assert urls and not away
    assert not [e["message"] for e in user.driver.get_log("browser") if "Content Security" in e["message"]]


def test_an_answer_takes_at_most_300_ms(user: User) -> None:
    """From the key to the new answer on the screen: the slowest of several answers, in the best of three rounds, as a
    machine that does other things can only make it longer."""
    user.open("/en/?model=llama-8b&gpus=8xA100")
    watch = """const field = document.querySelector('#field-seq_len input');
      field.addEventListener('input', () => { window.asked = performance.now() }, true);
      window.expect = (wanted) => { window.asked = window.told = undefined; window.wanted = wanted };
      new MutationObserver(() => {
        if (window.told === undefined && document.querySelector('#summary')?.textContent.includes(window.wanted))
          requestAnimationFrame(() => { window.told ??= performance.now() });  // drawn with the next frame
      }).observe(document.body, {childList: true, subtree: true, characterData: true});"""
    user.js(watch)
    rounds = []
    for start in (1024, 1088, 1152):
        taken = []
        for tokens in (start, 3 * start, 4 * start, 6 * start, 8 * start, 12 * start):
            user.js("window.expect(arguments[0])", f" {tokens:,} tokens")
            user.type("seq_len", str(tokens))
            taken.append(user.wait(lambda: user.js("return window.told - window.asked")))
            time.sleep(0.4)  # what follows an answer, the address of the page, is not part of the next
        rounds.append(max(taken))
        print(f"an answer takes {min(taken):.0f} to {max(taken):.0f} ms")
        if rounds[-1] <= 300:
            break
    if min(rounds) > 300 and os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        pytest.skip(f"the machine is busy with other things (load {os.getloadavg()[0]:.0f}): {min(rounds):.0f} ms")
    assert min(rounds) <= 300


def call(base: str, name: str, data: list[Any]) -> list[Any]:
    """One request as the page sends it."""
    body = json.dumps({"data": data}).encode()
    request = urllib.request.Request(
        f"{base}/en/gradio_api/run/{name}", body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        found: list[Any] = json.load(reply)["data"]
    return found


def test_twenty_users_at_once(server: str) -> None:
    asked = [(m, g, s) for m in ("llama-8b", "qwen2.5-7b", "mixtral-8x7b", "llama-13b", "llama-70b")
             for g, s in (("4xA10", "1024"), ("8xH100", "2048"), ("2x8xA100-40GB", "4096"), ("8xL40S", "512"))]  # fmt: skip

    def one(question: tuple[str, str, str]) -> str:
        given = dict(zip(("model", "gpus", "seq_len"), question, strict=True))
        return str(call(server, "answer", shown(tuple(given.get(n, "") for n in NAMES)))[0])

    with ThreadPoolExecutor(20) as users:
        made = list(users.map(one, asked))
    for (model, gpus, tokens), html in zip(asked, made, strict=True):
        found = recommend(model, gpus, seq_len=int(tokens))
        text = re.sub(r"<[^>]+>", "", html)
        assert text.startswith(f"{found.question.model.name} (") and f"{int(tokens):,} tokens" in text
        assert f"x {found.question.cluster.gpu.label} (" in text and (found.strategy or "Nothing fits") in text
        if found.estimate:
            assert f"{found.estimate.gpu.process.expected / 2**30:.1f} of" in text


def test_addresses_of_their_own(server: str) -> None:
    with urllib.request.urlopen(f"{server}/files.zip?model=llama-8b&gpus=8xH100", timeout=60) as reply:
        assert "run/launch.sh" in zipfile.ZipFile(BytesIO(reply.read())).namelist()
        assert "default-src 'self'" in reply.headers["Content-Security-Policy"]
    for address in ("/files.zip?model=lama", "/files.zip"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(server + address, timeout=60)
        assert refused.value.code == 422 and "Traceback" not in refused.value.read().decode()
    with urllib.request.urlopen(f"{server}/plot/instants.svg?model=lama", timeout=60) as reply:
        assert "unknown model" in reply.read().decode()
    elsewhere = urllib.request.Request(f"{server}/en/", headers={"Host": "attacker.example"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(elsewhere, timeout=60)
    assert refused.value.code == 400
    assert len(FIELDS) == len(NAMES)
