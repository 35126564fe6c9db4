"""What else means a model: paths, mappings, ids in a Hugging Face cache, families that only transformers knows."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from estimators.errors import InputError, MissingDependency, NotModelled, UnknownName
from estimators.model import hub, resolve_model
from estimators.model.spec import ModelSpec

SMALL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip
UNKNOWN_HERE: dict[str, Any] = {  # transformers knows it, no formula does
    "model_type": "xglm", "d_model": 32, "ffn_dim": 64, "num_layers": 3, "attention_heads": 4, "vocab_size": 64,
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "_reachable", lambda endpoint: False)


def write(folder: Path, config: Any = SMALL) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_spec_is_itself() -> None:
    spec = resolve_model("gpt2")
    assert resolve_model(spec) is spec


@pytest.mark.parametrize("as_text", [True, False])
def test_a_folder_and_its_file(tmp_path: Path, as_text: bool) -> None:
    folder = write(tmp_path / "my-llama")
    given: Any = str(folder) if as_text else folder
    spec = resolve_model(given)
    assert (spec.name, spec.num_layers, spec.family) == ("my-llama", 3, "llama")
    assert resolve_model(folder / "config.json") is spec, "the same file is the same model"
    assert spec.source == str(folder / "config.json")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    before = resolve_model(folder)
    write(folder, {**SMALL, "num_hidden_layers": 12})
    assert (before.num_layers, resolve_model(folder).num_layers) == (3, 12)


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("./here").name == "here"
    assert resolve_model("here").name == "here"
    with pytest.raises(InputError, match="'./absent' does not exist"):
        resolve_model("./absent")


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder without config.json"):
        resolve_model(tmp_path)


def test_a_mapping() -> None:
    assert resolve_model(SMALL).num_layers == 3
    with pytest.raises(InputError, match="config: num_attention_heads"):
        resolve_model({**SMALL, "num_attention_heads": "4"})


def cached(root: Path, model_id: str, config: Any = SMALL, commit: str = "c0ffee", ref: bool = True) -> None:
    folder = root / ("models--" + model_id.replace("/", "--"))
    write(folder / "snapshots" / commit, config)
    if ref:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(commit)


def test_an_id_in_the_cache(tmp_path: Path) -> None:
    cached(tmp_path / "hf" / "hub", "somebody/tiny-llama")
    spec = resolve_model("somebody/tiny-llama")
    assert (spec.name, spec.num_layers) == ("somebody/tiny-llama", 3)
    assert resolve_model("somebody/tiny-llama") is spec


def test_main_wins_and_without_it_the_newest(tmp_path: Path) -> None:
    root = tmp_path / "hf" / "hub"
    cached(root, "a/b", {**SMALL, "num_hidden_layers": 1}, "old")
    cached(root, "a/b", {**SMALL, "num_hidden_layers": 2}, "new", ref=False)
    assert resolve_model("a/b").num_layers == 1
    (root / "models--a--b" / "refs" / "main").unlink()
    os.utime(root / "models--a--b" / "snapshots" / "old", (1, 1))
    assert resolve_model("a/b").num_layers == 2


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"])
def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    cached(tmp_path / "elsewhere", "a/b")
    assert resolve_model("a/b").num_layers == 3


def test_a_damaged_cache_is_named(tmp_path: Path) -> None:
    cached(tmp_path / "hf" / "hub", "a/b")
    (tmp_path / "hf" / "hub" / "models--a--b" / "snapshots" / "c0ffee" / "config.json").write_text("{")
    with pytest.raises(InputError, match="config.json' is not JSON"):
        resolve_model("a/b")


def test_a_typing_mistake_gets_suggestions() -> None:
    with pytest.raises(UnknownName, match="did you mean Llama-3.1-8B"):
        resolve_model("Lama-3.1-8B")
    with pytest.raises(UnknownName, match="did you mean meta-llama/Llama-3.1-8B"):
        resolve_model("meta-lama/Llama-3.1-8B")
    with pytest.raises(UnknownName, match="unknown model 'what is this'"):
        resolve_model("what is this")


def test_an_id_that_is_nowhere() -> None:
    with pytest.raises(MissingDependency, match="zzz/qqq is not in the local Hugging Face cache .* cannot be reached"):
        resolve_model("zzz/qqq")
    with pytest.raises(UnknownName, match="not in the local cache, and offline"):
        resolve_model("zzz/qqq", offline=True)


def test_offline_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hub.is_offline(None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub.is_offline(None) and not hub.is_offline(False)


def test_the_network_is_asked_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = write(tmp_path / "fetched")
    monkeypatch.setattr(hub, "download_config", lambda model_id: str(folder / "config.json"))
    assert resolve_model("zzz/qqq").name == "zzz/qqq"


class Response:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code
        self.headers: dict[str, str] = {}
        self.request = None


@pytest.mark.parametrize(("status", "why"), [(401, "it is gated"), (403, "it is gated"), (404, "it answered 404")])
def test_what_the_hub_refuses(monkeypatch: pytest.MonkeyPatch, status: int, why: str) -> None:
    def refuse(*_: object, **__: object) -> str:
        from huggingface_hub.errors import HfHubHTTPError

        response: Any = Response(status)
        raise HfHubHTTPError("no", response=response)

    monkeypatch.setattr(hub, "_reachable", lambda endpoint: True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
    with pytest.raises(InputError, match=f"does not give config.json of 'zzz/qqq'; {why}"):
        resolve_model("zzz/qqq")


def test_a_line_that_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop(*_: object, **__: object) -> str:
        raise TimeoutError("slow")

    monkeypatch.setattr(hub, "_reachable", lambda endpoint: True)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", drop)
    with pytest.raises(MissingDependency, match="config.json of zzz/qqq could not be fetched: 'slow'"):
        resolve_model("zzz/qqq")


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependency, match="huggingface_hub is not installed to fetch it"):
        resolve_model("zzz/qqq")


@pytest.mark.parametrize("what", [None, 3, b"gpt2", ["gpt2"], "", "   "])
def test_what_is_no_model(what: object) -> None:
    with pytest.raises(InputError, match="model is"):
        resolve_model(what)


@pytest.mark.parametrize("text", ["\0", "a\0b/c", "x" * 5000, "../../etc/passwd", "a/../b", "~nobody/x"])
def test_odd_text_is_refused(text: str) -> None:
    with pytest.raises((InputError, MissingDependency)):
        resolve_model(text, offline=True)


def test_a_family_without_a_formula_is_read_from_its_class() -> None:
    spec = resolve_model(UNKNOWN_HERE)
    assert (spec.shapes, spec.family, spec.class_name) == ("meta", "xglm", "XGLMForCausalLM")
    assert [(part.class_name, part.count) for part in spec.blocks] == [("XGLMDecoderLayer", 3)]


def test_another_head_is_read_from_its_class() -> None:
    spec = resolve_model({**SMALL, "architectures": ["LlamaForSequenceClassification"], "num_labels": 5})
    assert (spec.shapes, spec.class_name) == ("meta", "LlamaForSequenceClassification")
    assert [p.shape for name, p in spec.named_parameters() if name == "score.weight"] == [(5, 64)]


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependency, match="no formula for model_type 'xglm'; pip install torch transformers"):
        resolve_model(UNKNOWN_HERE)
    assert isinstance(resolve_model(SMALL), ModelSpec), "a formula needs nothing"


def test_values_that_a_class_refuses() -> None:
    with pytest.raises(InputError, match="transformers cannot build 'xglm'"):
        resolve_model({**UNKNOWN_HERE, "d_model": "wide"})


def test_a_family_that_nobody_knows() -> None:
    with pytest.raises(NotModelled, match="neither the formulas here nor transformers know model_type 'nonesuch'"):
        resolve_model({**SMALL, "model_type": "nonesuch"})


HUB_CODE = """
import pathlib
pathlib.Path({marker!r}).write_text("ran")
from transformers import LlamaConfig, LlamaForCausalLM
class OwnConfig(LlamaConfig):
    model_type = "own_code"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def with_code(folder: Path, marker: Path, model_type: str = "own_code") -> Path:
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    write(folder, {**SMALL, "model_type": model_type, "auto_map": auto_map})
    (folder / "own.py").write_text(HUB_CODE.format(marker=str(marker)))
    return folder


def test_hub_code_never_runs(tmp_path: Path) -> None:
    folder, marker = with_code(tmp_path / "own", tmp_path / "marker"), tmp_path / "marker"
    with pytest.raises(NotModelled, match="code that comes with the model .* is not run"):
        resolve_model(folder)
    assert not marker.exists()


def test_a_known_family_needs_no_hub_code(tmp_path: Path) -> None:
    folder, marker = with_code(tmp_path / "own", tmp_path / "marker", "llama"), tmp_path / "marker"
    assert resolve_model(folder).shapes == "checked"
    assert not marker.exists()


def test_hub_code_runs_when_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.dynamic_module_utils as dynamic

    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder, marker = with_code(tmp_path / "own", tmp_path / "marker"), tmp_path / "marker"
    spec = resolve_model(folder, trust_remote_code=True)
    assert marker.exists()
    assert (spec.shapes, spec.class_name, spec.num_layers) == ("meta", "OwnModel", 3)


def test_a_mapping_without_a_name_is_called_by_its_class() -> None:
    assert resolve_model(SMALL).name == resolve_model(SMALL).class_name == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("name", "first"),
    [("vit-large", "vit-base"), ("roberta-large", "roberta-base"), ("t5-xl", "t5-small"), ("lama-8b", "llama-8b"),
     ("mistal-7b", "Mistral-7B"), ("clip-vit-large", None), ("dinov2-large", None)],
)  # fmt: skip
def test_another_family_is_no_near_miss(name: str, first: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnknownName) as refused:
        resolve_model(name)
    assert next(iter(refused.value.suggestions), None) == first
