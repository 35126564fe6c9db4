"""Catalogue entries: complete, equal to the real classes, with the published totals; names that mean what they say."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from estimators.model import catalogue, families, models, resolve_model
from estimators.model.catalogue import Entry, entries
from tests.model.meta import build_meta, compare_with_transformers

ENTRIES = entries()
PUBLISHED = [entry for entry in ENTRIES if entry.published_params is not None]
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers",
          "decoder_layers", "depth")  # fmt: skip
SHALLOW = 4  # enough layers for a leading dense one beside experts; every layer more repeats one of them


def by_name(entry: Entry) -> str:
    return entry.name


def shallow(config: Any) -> Any:
    """The same widths with at most ``SHALLOW`` layers in each stack."""
    small = {key: shallow(value) if isinstance(value, dict) else value for key, value in config.items()}
    small |= {key: min(small[key], SHALLOW) for key in DEPTHS if key in small}
    if "attention_types" in small:
        small["attention_types"] = [[["global", "local"], SHALLOW // 2]]
    return {key: value for key, value in small.items() if key != "dtype"}


def repeated(model: Any) -> set[str]:
    """Classes that a model checkpoints, or keeps in a list and does not split."""
    checkpointed = {type(m).__name__ for m in model.modules() if isinstance(m, GradientCheckpointingLayer)}
    listed = {type(m).__name__ for stack in model.modules() if isinstance(stack, nn.ModuleList) for m in stack}
    return checkpointed | (listed & set(model._no_split_modules or ()))


def one_of_each_family() -> Iterator[Entry]:
    smallest: dict[str, Entry] = {}
    for entry in ENTRIES:
        family = entry.config["model_type"]
        if family not in smallest or count(entry) < count(smallest[family]):
            smallest[family] = entry
    return iter(smallest.values())


def count(entry: Entry) -> int:
    return catalogue.spec_of(entry).num_params


def compare(entry: Entry, config: dict[str, Any]) -> None:
    spec = families.build(config, where=entry.name)
    if spec.shapes != "checked":
        pytest.skip("transformers has no class for it; see the published total")
    model: Any = build_meta(config, spec.class_name)
    model._no_split_modules = repeated(model)
    compare_with_transformers(spec, config, model=model)


def test_the_catalogue_is_large_enough() -> None:
    assert len(ENTRIES) >= 110
    assert len({count(entry) for entry in ENTRIES}) >= 80
    assert len(PUBLISHED) >= 100


@pytest.mark.parametrize("entry", ENTRIES, ids=by_name)
def test_an_entry_is_complete(entry: Entry) -> None:
    assert entry.name and entry.source and entry.config["model_type"]
    assert (entry.published_params is None) == (entry.published_source is None)
    assert entry.hf_id is None or entry.hf_id.count("/") == 1
    assert catalogue.find(entry.name) is entry
    assert entry.hf_id is None or catalogue.find(entry.hf_id) is entry
    if entry.nominal_billions is not None:
        assert 0.5 < count(entry) / 1e9 / entry.nominal_billions < 1.9, "nominal size and total disagree"


@pytest.mark.parametrize("entry", ENTRIES, ids=by_name)
def test_an_entry_equals_its_class(entry: Entry) -> None:
    compare(entry, shallow(entry.config))


@pytest.mark.parametrize("entry", list(one_of_each_family()), ids=by_name)
def test_a_whole_network_equals_its_class(entry: Entry) -> None:
    compare(entry, {key: value for key, value in entry.config.items() if key != "dtype"})


@pytest.mark.parametrize("entry", PUBLISHED, ids=by_name)
def test_an_entry_has_the_published_total(entry: Entry) -> None:
    assert count(entry) == entry.published_params, entry.published_source


# Every spelling of a row means the first one.
SPELLINGS = [
    ("Llama-3.1-8B", "llama-8b", "meta-llama/Llama-3.1-8B", "Llama 3.1 8B", "llama3.1-8b", "llama_3.1_8b",
     "meta-llama/Meta-Llama-3.1-8B-Instruct", "unsloth/Meta-Llama-3.1-8B", "llama-3-1-8b"),
    ("Llama-3-8B", "llama-3-8b", "llama3-8b", "meta-llama/Meta-Llama-3-8B-Instruct"),
    ("Llama-2-7B", "llama-7b", "Llama-2-7b-hf", "llama-2-7b-chat-hf", "NousResearch/Llama-2-7b-hf"),
    ("LLaMA-1-7B", "llama-1-7b", "huggyllama/llama-7b"),
    ("Llama-3.1-70B", "llama-70b"),
    ("Llama-3.3-70B", "meta-llama/Llama-3.3-70B-Instruct"),
    ("Qwen-7B", "qwen-7b", "Qwen/Qwen-7B-Chat"),
    ("Qwen2.5-7B", "qwen2.5-7b", "Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2-5-7b"),
    ("Qwen3-30B-A3B", "qwen3-30b"),
    ("Mistral-7B", "mistral-7b", "mistralai/Mistral-7B-Instruct-v0.2"),
    ("Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"),
    ("Mixtral-8x7B", "mixtral", "mixtral-8x7b-instruct-v0.1"),
    ("Gemma-3-27B", "google/gemma-3-27b-it"),
    ("GPT-2", "gpt2", "gpt-2", "openai-community/gpt2"),
    ("BERT-base-uncased", "bert-base", "bert-base-uncased"),
    ("T5-base", "t5-base", "google-t5/t5-base"),
    ("DeepSeek-R1", "deepseek-ai/DeepSeek-R1"),
    ("Whisper-base", "whisper-base"),
    ("ViT-base-patch16-224", "vit-base"),
]  # fmt: skip


@pytest.mark.parametrize("spellings", SPELLINGS, ids=lambda row: row[0])
def test_spellings(spellings: tuple[str, ...]) -> None:
    specs = {id(resolve_model(name)) for name in spellings}
    assert len(specs) == 1
    assert resolve_model(spellings[1]).name == spellings[0]


def test_names_that_differ_in_a_digit_stay_apart() -> None:
    near = ["llama-1-7b", "llama-2-7b", "llama-3-8b", "llama-3.1-8b", "qwen-7b", "qwen1.5-7b", "qwen2-7b", "qwen2.5-7b"]
    assert len({resolve_model(name).name for name in near}) == len(near)
    assert catalogue.find("llama-38b") is None


def test_no_name_means_two_entries() -> None:
    owners: dict[str, set[str]] = {}
    for entry in ENTRIES:
        for name in (entry.name, *entry.aliases):
            owners.setdefault(catalogue.normalise(name), set()).add(entry.name)
    assert {name: who for name, who in owners.items() if len(who) > 1} == {}


def test_somebody_elses_repository_is_not_the_catalogues() -> None:
    assert catalogue.find("somebody/llama-8b") is None
    assert catalogue.find("models/meta-llama/Llama-3.1-8B") is None


def test_a_spec_carries_name_source_and_nominal_size() -> None:
    spec = resolve_model("llama-8b")
    assert (spec.name, spec.nominal_billions) == ("Llama-3.1-8B", 8)
    assert "mlc-llm" in spec.source


def test_rows_of_the_models_command() -> None:
    rows = {row["name"]: row for row in models()}
    assert len(rows) == len(ENTRIES)
    row = rows["Llama-3.1-8B"]
    assert (row["family"], row["params"], row["shapes"]) == ("llama", 8_030_261_248, "checked")
    assert all(row["source"] for row in rows.values())


def test_worked_values() -> None:
    assert doctest.testmod(catalogue).failed == 0


def test_the_written_index_is_that_of_the_entries() -> None:
    """One name needs one file. After a change of an entry: ``scripts/model-index``."""
    assert catalogue._index() == catalogue.written(), "run scripts/model-index"
    assert all(catalogue.named(key) is entry for key, entry in catalogue.index().items())
    assert catalogue.named("no such model") is None
