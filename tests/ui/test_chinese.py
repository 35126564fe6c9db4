"""The Chinese of what answers say: every word stands once, and what is worded anew fails here until it has its Chinese."""

from __future__ import annotations

import json
import re
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from estimators.cluster import parse_cluster
from estimators.errors import AdvisorError
from estimators.memory import estimate_all
from estimators.model import resolve_model
from selector import recommend
from selector.chinese import FILES, HOLE, MAYBE, chinese, phrases, read, said
from selector.conversion.equivalence import TARGETS
from selector.convert import convert
from selector.report.recommendation import sections, settings_text
from selector.ui.answer import answer
from selector.ui.fields import NAMES
from selector.ui.link import Values
from selector.ui.pictures import PICTURES, pictures
from selector.ui.texts import catalogue
from tests.plots.test_pictures import wrong_texts

NUMBER = re.compile(r"\d+\.\d+")


def form(**given: str) -> Values:
    return tuple(given.get(name, "") for name in NAMES)


def test_every_word_stands_once() -> None:
    count = Counter(english for name in FILES for english in read(name))
    assert [english for english, times in count.items() if times > 1] == []
    assert len(count) == len(phrases()) and all(phrases().values())
    twice = {
        key: texts["en"] for key, texts in catalogue().items() if phrases().get(texts["en"], texts["zh"]) != texts["zh"]
    }
    assert set(twice.values()) <= {"no"}, twice  # a verdict, an answer of the tree, and what is not converted


def test_sentences_have_the_same_holes() -> None:
    for english, other in phrases().items():
        holes = HOLE.findall(english)
        assert set(holes) >= set(HOLE.findall(other)), english
        assert len(set(holes)) == len(holes), english
    assert chinese("a sentence that nobody translated") is None
    assert said("a sentence that nobody translated", "zh") == said("a sentence that nobody translated", "en")
    assert any(MAYBE in english for english in phrases())


@pytest.mark.parametrize(("model", "gpus", "more"), [
    ("llama-8b", "4xA10", {}), ("llama-8b", "T4", {"host_memory": "8GB"}), ("llama-7b", "4xV100-32GB", {}),
    ("mixtral-8x7b", "2x8xH100", {}), ("gpt2", "A10", {}), ("llama-8b", "4xA10", {"strategy": "zero2"}),
    ("llama-8b", "2xA10", {"allow": ("lora", "qlora"), "host_memory": "60GB"}),
    ("qwen2.5-7b", "2x8xA100-40GB", {"goal": "simplest", "global_batch": 256, "team": "deepspeed"}),
    ("llama-70b", "8xH100", {"policy": "documents", "compile": True}), ("llama-13b", "8xH100", {"seq_len": 16384}),
    ("llama-13b", "8xH100", {"team": "distributed", "method": "qlora"}),
])  # fmt: skip
def test_answers_have_their_chinese(model: str, gpus: str, more: dict[str, Any]) -> None:
    found = recommend(model, gpus, **more)
    told = [found.headline, *(line for _, lines in sections(found) for line in lines)]
    told += [*(r.why for r in found.rejected), *(a.why for a in found.alternatives)]
    told += filter(None, (settings_text(found.settings), *(settings_text(a.changes) for a in found.alternatives)))
    assert [line for line in told if chinese(line) is None] == []
    for line in told:  # numbers and names are those of the English sentence
        new = str(chinese(line))
        assert sorted(NUMBER.findall(line)) == sorted(NUMBER.findall(new)) or "tree" in line or "文档" in new


@pytest.mark.parametrize(("model", "gpus", "more"), [
    ("llama-8b", "4xA10", {}), ("qwen2.5-7b", "8xA100", {"method": "qlora"}), ("gpt2", "4xV100-32GB", {"grad_accum": 4}),
    ("qwen2.5-0.5b", "2xA10", {"stack": "deepspeed", "optimizer": "adamw-8bit"}), ("gpt2", "T4", {"seq_len": 4096}),
    ("mixtral-8x7b", "2x8xH100", {"stack": "torch", "loss": "chunked", "optimizer": "muon"}),
])  # fmt: skip
def test_terms_and_notes_have_their_chinese(model: str, gpus: str, more: dict[str, Any]) -> None:
    found, left_out = estimate_all(resolve_model(model), parse_cluster(gpus), None, **more)
    told = {note for e in found for note in e.notes} | set(left_out.values())
    told |= {text for e in found for i in e.instants for t in i.terms for text in (t.name, t.formula)}
    assert [line for line in told if chinese(line) is None] == []


# what stays as it is: names of strategies, cards and models, units, letters
NAME = re.compile(r"[\w.@+:=-]*\d[\w.@+:=-]*|[A-Z]|GiB|GPU|logits|ddp|fsdp\S*|token(/s/卡)?|x|k|ms|s")


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("width", [9.0, 4.6])
def test_pictures_have_their_chinese(name: str, width: float) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.text import Text

    from selector.plots.chinese import font, in_chinese

    figure = PICTURES[name](form(model="llama-8b", gpus="4xA10"), True, width)
    if font() is None:
        pytest.skip("no font with Chinese signs here: apt-get install fonts-noto-cjk")
    figure = in_chinese(figure)
    assert wrong_texts(figure) == []  # it draws the picture
    texts = [t.get_text() for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    assert any(re.search("[\u4e00-\u9fff]", text) for text in texts)
    left = {w for text in texts for w in re.findall(r"[A-Za-z][\w@+/.-]*", text) if not NAME.fullmatch(w)}
    assert not left


def test_without_a_chinese_font_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from selector.plots import chinese as drawn

    asked = form(model="llama-8b", gpus="4xA10")
    told = catalogue()["plots.english"]["zh"]
    monkeypatch.setattr(drawn, "font", lambda: None)
    assert told in pictures(asked, "zh", True) and told not in pictures(asked, "en", True)
    figure = PICTURES["instants"](asked, True, 9.0)
    before = figure.axes[0].get_ylabel()
    assert drawn.in_chinese(figure).axes[0].get_ylabel() == before
    monkeypatch.setattr(drawn, "font", lambda: "Noto Sans CJK SC")
    assert told not in pictures(asked, "zh", True)


@pytest.mark.parametrize("wrong", [
    {"model": "lama-8b"}, {"model": ""}, {"gpus": "4xA11"}, {"gpus": "0xA10"}, {"gpus": "2x2x2xA10"}, {"seq_len": "-5"},
    {"seq_len": "many"}, {"lora_rank": "8"}, {"global_batch": "7"}, {"strategy": "zero9"}, {"strategy": "zero3:foo=1"},
    {"strategy": "zero2+params@cpu"}, {"strategy": "fsdp-full-shard+optimizer@cpu"}, {"host_memory": "much"},
    {"price": "nan"}, {"network": "fast"}, {"host_memory": "2000"}, {"quant": "int8"}, {"model": "../../etc/passwd"},
])  # fmt: skip
def test_wrong_input_is_said_in_chinese(wrong: dict[str, str]) -> None:
    made = answer(form(**{"model": "llama-8b", "gpus": "4xA10", **wrong}), "zh", True).summary
    told = unescape(re.sub(r"<[^>]+>", " ", made))
    assert catalogue()["wrong"]["zh"] in told
    assert not re.search(r"[a-z]{3,} [a-z]{2,} [a-z]{2,} [a-z]{2,}", told), told


ADAM = {
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    "bf16": {"enabled": True},
    "train_micro_batch_size_per_gpu": 1,
}
FSDP = """distributed_type: FSDP
mixed_precision: bf16
num_processes: 16
num_machines: 2
fsdp_config: {fsdp_version: 1, fsdp_sharding_strategy: HYBRID_SHARD, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP,
  fsdp_offload_params: true, fsdp_activation_checkpointing: true, fsdp_state_dict_type: FULL_STATE_DICT}
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "text"), [
    ("ds.json", json.dumps({**ADAM, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})),
    ("ds.json", json.dumps({**ADAM, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/x"},
                                                          "zero_hpz_partition_size": 4}})),
    ("accelerate.yaml", FSDP), ("accelerate.yaml", "distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: bf16\n"),
])  # fmt: skip
def test_conversions_have_their_chinese(name: str, text: str, target: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    try:
        made = convert(tmp_path / name, target)
    except AdvisorError as reason:
        assert chinese(str(reason)), reason
        return
    told = [*(lost.why for lost in made.lost), *made.notes, *made.placeholders.values()]
    assert [line for line in told if chinese(line) is None] == []
