"""The page's panels as functions: what they say equals the Python API; wrong input and strangers' files do no harm."""

from __future__ import annotations

import io
import json
import re
import socket
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import selector.ui
from estimators.errors import InputError
from estimators.memory import estimate
from selector import recommend
from selector.chinese import said
from selector.cli import main
from selector.report.recommendation import settings_text
from selector.report.tree_svg import PLACES, tree_svg, way
from selector.tree.data import LEAVES, QUESTIONS
from selector.ui import checking, pictures, serve
from selector.ui.answer import answer
from selector.ui.explain import explain
from selector.ui.fields import FIELDS, NAMES
from selector.ui.files import files, zipped
from selector.ui.fitting import fitting
from selector.ui.link import Values, parse, query
from selector.ui.texts import LANGUAGES, catalogue, words

SOURCE = Path(selector.ui.__file__).parent


def form(**given: str) -> Values:
    assert set(given) <= set(NAMES)
    return tuple(given.get(name, "") for name in NAMES)


# ------------------------------------------------------------------------------------------------------ words and links


def test_every_text_stands_in_every_language_and_is_used() -> None:
    found = catalogue()
    for key, texts in found.items():
        assert set(texts) == set(LANGUAGES) and all(texts.values()), key
        assert len({tuple(sorted(re.findall(r"{(\w+)}", text))) for text in texts.values()}) == 1, key
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCE.glob("*.py"))
    asked = set(re.findall(r'say\("([\w.]+)"', source))
    assert asked and asked <= set(found)
    for key in found:
        prefix = key.rpartition(".")[0]
        assert f'"{key}"' in source or f"'{key}'" in source or (prefix and f"{prefix}." in source), key


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_field_and_choice_has_words(language: str) -> None:
    say = words(language)
    for field in FIELDS:
        assert say(f"field.{field.name}")
    for question in QUESTIONS.values():
        for reply in question.answers:
            assert say(f"tree.{reply.text}")


def test_a_link_reopens_the_same_question() -> None:
    asked = form(model="llama-8b", gpus="2x8xH100", seq_len="8192", allow="lora,qlora", compile="yes", a="zero2:hpz=8")
    text = query(asked)
    assert parse(text) == (asked, ())
    assert query(parse(text)[0]) == text


def test_what_a_link_gets_wrong_stays_empty_and_is_named() -> None:
    values, wrong = parse("model=llama-8b&method=magic&colour=red&gpus=" + "9" * 500)
    assert values == form(model="llama-8b") and set(wrong) == {"method", "colour", "gpus"}
    assert parse("&" * 9000)[0] == form() and parse("=" * 100 + "%ff%00")[0] == form()


# ----------------------------------------------------------------------------------------------------------- the answer


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_answer_is_that_of_recommend(language: str) -> None:
    made = answer(form(model="llama-8b", gpus="8xH100", team="pytorch", seq_len="4096"), language, True)
    found = recommend("llama-8b", "8xH100", team="pytorch", seq_len=4096)
    assert found.strategy and found.estimate
    plain = re.sub(r"<[^>]+>", "", made.summary)
    assert plain.startswith(found.question.model.name) and found.strategy in plain
    assert f"{found.estimate.gpu.process.expected / 2**30:.1f}" in plain
    told = [said(step.because, language) for step in found.path]
    assert all(because in re.sub(r"<[^>]+>", "", made.why) for because in told if "'" not in because)


def test_the_table_is_that_of_estimate() -> None:
    made = answer(form(model="llama-8b", gpus="4xA10"), "en", True).strategies
    text = re.sub(r"<[^>]+>", " ", made.replace("<wbr>", ""))
    for name in ("ddp", "zero3", "fsdp-full-shard"):
        found = estimate("llama-8b", "4xA10", name)
        assert re.search(rf"{name}\s+does not fit\s+{found.gpu.expected / 2**30:.2f}", text)


def test_the_answer_stands_first_in_the_table_with_its_settings() -> None:
    for model, gpus in (("llama-70b", "8xA100"), ("llama-8b", "4xA10"), ("llama-8b", "8xA100")):
        found = recommend(model, gpus)
        assert found.estimate
        first = re.findall("<tr>.*?</tr>", answer(form(model=model, gpus=gpus), "en", True).strategies)[1]
        text = re.sub(r"<[^>]+>", " ", first.replace("<wbr>", ""))
        assert text.split()[0] == found.strategy and f"{found.estimate.gpu.expected / 2**30:.2f}" in text
        assert settings_text(found.settings) in text


def test_the_question_is_that_of_the_user_where_nothing_fits() -> None:
    made = answer(form(model="llama-8b", gpus="T4", host_memory="8GB"), "en", True).summary
    assert "full training" in made.partition("Nothing fits")[0] and "QLoRA" not in made.partition("Nothing fits")[0]


@pytest.mark.parametrize("wrong", [
    {"model": "lama-8b"}, {"model": ""}, {"gpus": "4xA11"}, {"gpus": ""}, {"gpus": "0xA10"}, {"seq_len": "-5"},
    {"seq_len": "many"}, {"seq_len": "1e99"}, {"micro_batch": "0"}, {"lora_rank": "8"}, {"global_batch": "7"},
    {"strategy": "zero9"}, {"strategy": "zero2+params@cpu"}, {"host_memory": "much"}, {"price": "nan"},
    {"model": "<script>alert(1)</script>"}, {"model": "x" * 10_000}, {"gpus": "\0"}, {"model": "../../etc/passwd"},
])  # fmt: skip
def test_wrong_input_is_said_kindly(wrong: dict[str, str]) -> None:
    asked = form(**{"model": "llama-8b", "gpus": "4xA10", **wrong})
    for language in LANGUAGES:
        made = answer(asked, language, False)
        assert 'class="message wrong"' in made.summary and "Traceback" not in made.summary
        assert "<script" not in made.summary and len(made.summary) < 3000
        for panel in (explain(asked, language, False), files(asked, language, False), *fitting(asked, language, False)):
            assert "Traceback" not in panel and "<script" not in panel


def test_our_own_defect_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("selector.ui.answer._summary", broken)
    made = answer(form(model="llama-8b", gpus="4xA10"), "en", True)
    assert "Traceback" not in made.summary and "secret" not in made.summary and "ZeroDivisionError" in made.summary
    assert "secret" in capsys.readouterr().err


def test_nothing_fits_shows_what_would() -> None:
    made = answer(form(model="llama-8b", gpus="T4", host_memory="8GB"), "en", True)
    assert "Nothing fits" in made.summary and "would work" in made.summary


def test_a_page_that_others_reach_reads_no_path(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
                                  "num_attention_heads": 2, "intermediate_size": 128}))  # fmt: skip
    assert "reads no paths" in answer(form(model=str(config), gpus="4xA10"), "en", False).summary
    assert "reads no paths" not in answer(form(model=str(config), gpus="4xA10"), "en", True).summary


def test_twenty_at_once_get_their_own_answers() -> None:
    asked = [form(model=m, gpus=g) for m in ("llama-8b", "qwen2.5-7b", "mixtral-8x7b", "llama-70b")
             for g in ("4xA10", "8xH100", "2x8xH100", "T4", "8xA100-40GB")]  # fmt: skip
    with ThreadPoolExecutor(20) as users:
        made = list(users.map(lambda values: answer(values, "en", True).summary, asked))
    for values, summary in zip(asked, made, strict=True):
        found = recommend(values[0], values[1])
        text = re.sub(r"<[^>]+>", "", summary)
        assert found.question.model.name in text and f"x {found.question.cluster.gpu.label} " in text
        assert (found.strategy or "Nothing fits") in text


# ------------------------------------------------------------------------------------------------------ the other panels


def test_the_zip_is_the_emitted_folder(tmp_path: Path) -> None:
    written = recommend("llama-8b", "8xH100").emit(tmp_path / "run")
    asked = form(model="llama-8b", gpus="8xH100")
    archive = zipfile.ZipFile(io.BytesIO(zipped(asked, True)))
    assert sorted(archive.namelist()) == sorted(str(Path(p).relative_to(tmp_path)) for p in written)
    for name in archive.namelist():
        assert archive.read(name) == (tmp_path / name).read_bytes()
        assert archive.getinfo(name).external_attr >> 16 == (tmp_path / name).stat().st_mode & 0o777
    assert zipped(asked, True) == zipped(asked, True)


def test_fit_comes_row_by_row() -> None:
    steps = list(fitting(form(model="qwen2.5-0.5b", gpus="2xA10"), "en", True))
    rows = [step.count("<tr>") for step in steps]
    assert rows == sorted(rows) and rows[0] == 0 and "of 13 strategies" not in steps[-1]
    assert list(fitting(form(model="qwen2.5-0.5b", gpus="2xA10", strategy="zero3"), "zh", True))[-1].count("<tr>") == 2


def test_explain_names_both() -> None:
    made = explain(form(model="llama-8b", gpus="8xA100", a="zero2", b="zero3"), "en", True)
    a, b = (
        estimate("llama-8b", "8xA100", name, **recommend("llama-8b", "8xA100").question.fields)
        for name in ("zero2", "zero3")
    )
    assert f"zero3 needs {abs(b.gpu.expected - a.gpu.expected) / 2**30:.2f} GiB" in made


def test_every_node_of_the_tree_is_drawn_and_the_way_is_lit() -> None:
    assert set(PLACES) == {*QUESTIONS, *LEAVES}
    for asked in ({"team": "pytorch"}, {"compile": True}, {"policy": "documents"}):
        for model in ("qwen2.5-0.5b", "llama-13b", "llama-70b"):
            reading = recommend(model, "8xH100", **asked).reading
            steps = way(reading)
            assert steps[0][0] == "size" and steps[-1][1] == reading.leaf
            assert [a for _, a in steps[:-1]] == [b for b, _ in steps[1:]]
            assert tree_svg(reading).count('class="lit" d=') == len(steps)


# ------------------------------------------------------------------------------------------------------ strangers' files


def upload(folder: Path, **texts: str) -> list[str]:
    """As Gradio keeps uploads: each in a folder of its own."""
    paths = []
    for number, (name, text) in enumerate(texts.items()):
        (folder / str(number)).mkdir()
        path = folder / str(number) / name.replace("__", ".")
        path.write_text(text)
        paths.append(str(path))
    return paths


def check(paths: list[str], target: str = "") -> str:
    return checking.checking(paths, target, form(model="llama-8b", gpus="4xA10"), "en", False)


def test_an_upload_is_checked_and_converted(tmp_path: Path) -> None:
    config = {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}, "bf16": {"enabled": True},
              "train_micro_batch_size_per_gpu": 1}  # fmt: skip
    made = check(upload(tmp_path, ds__json=json.dumps(config)), "fsdp")
    assert 'class="badge error"' in made and "stage 3" in made and str(tmp_path) not in made


def test_uploads_of_one_run_see_each_other(tmp_path: Path) -> None:
    accelerate = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    both = check(upload(tmp_path, a__yaml=accelerate, ds__json='{"zero_optimization": {"stage": 3}}'))
    assert "no file" not in both


def test_an_upload_reads_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.json").write_text('{"zero_optimization": {"stage": 3}, "treasure": 1}')
    monkeypatch.chdir(tmp_path)  # the launchers would look in the working folder
    for number, name in enumerate(("secret.json", str(tmp_path / "secret.json"), "../secret.json")):
        trainer = {"deepspeed": name, "per_device_train_batch_size": 1}
        accelerate = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": name}}
        for kind, config in (("trainer", trainer), ("accelerate", accelerate)):
            folder = tmp_path / f"{kind}{number}"
            folder.mkdir()
            made = check(upload(folder, **{f"{kind}__json": json.dumps(config)}), "fsdp")
            assert "treasure" not in made and "no file" in made


def test_an_uploaded_script_is_parsed_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    made = check(upload(tmp_path, train__py=f"open({str(mark)!r}, 'w')\nraise SystemExit\n"))
    assert not mark.exists() and "Traceback" not in made
    yaml = f"!!python/object/apply:os.system ['touch {mark}']\n"
    (tmp_path / "y").mkdir()
    made = check(upload(tmp_path / "y", evil__yaml=yaml))
    assert not mark.exists() and "message wrong" in made


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, "\0\0", "hello", '{"a": 1}', "a: &a [*a]", '{"bf16": {"enabled": true}} x']
)
def test_broken_uploads_are_said_kindly(tmp_path: Path, text: str) -> None:
    made = check(upload(tmp_path, broken__json=text), "deepspeed")
    assert "message wrong" in made and "Traceback" not in made


def test_uploads_are_limited(tmp_path: Path) -> None:
    assert "larger than 1 MiB" in check(upload(tmp_path, big__json=" " * (2**20 + 1)))
    other = tmp_path / "more"
    other.mkdir()
    assert "ends in none of" in check(upload(other, run__sh="rm -rf /"))
    assert "more than 8" in check(["x.json"] * 9)


# ------------------------------------------------------------------------------------------------------------ starting it


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert main(["ui"]) == 3
    assert "pip install 'dist-advisor[ui]'" in capsys.readouterr().err


def test_a_page_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    for language in LANGUAGES:
        made = pictures.pictures(form(model="llama-8b", gpus="4xA10"), language, True)
        assert made.count("dist-advisor[plots]") == 1 and "<img" not in made


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: object())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["ui", "--port", str(port)]) == 2
        assert f"--port {port} is already in use" in capsys.readouterr().err
        monkeypatch.setattr(serve, "PORT", port)
        with serve.bound("127.0.0.1", None) as other:  # nobody chose a port: the next one
            assert other.getsockname()[1] > port


@pytest.mark.parametrize("arguments", [["--port", "x"], ["--port", "70000"], ["--port", "-1"], ["--host", "256.1.1.1"]])
def test_what_cannot_be_a_port_or_host(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: object())
    assert main(["ui", *arguments]) == 2
    told = capsys.readouterr().err
    assert arguments[1] in told and "give" in told


def test_only_this_machine_unless_asked() -> None:
    assert serve.is_loopback("127.0.0.1") and serve.is_loopback("::1") and serve.is_loopback("localhost")
    assert not serve.is_loopback("0.0.0.0") and not serve.is_loopback("example.org")
    with pytest.raises(InputError, match="from 1 to 65535"):
        serve.bound("127.0.0.1", 65536)
