"""Damaged, contradictory, unfamiliar configs end in one message that names the key; defaults are transformers'."""

from __future__ import annotations

from importlib import import_module
from time import perf_counter
from typing import Any

import pytest

from estimators.errors import AdvisorError, InputError, NotModelled, UnknownName
from estimators.model.families import FAMILIES, build

LLAMA = {"model_type": "llama"}
DENSE = [
    "apertus", "arcee", "baichuan", "bloom", "chatglm", "codegen", "cohere", "cohere2", "ernie4_5", "exaone",
    "exaone4", "falcon", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neo",
    "gpt_neox", "gptj", "granite", "helium", "hunyuan_v1_dense", "internlm", "internlm2", "internlm3", "iquestcoder",
    "jais2", "llama", "minicpm", "ministral", "ministral3", "mistral", "mpt", "nemotron", "olmo", "olmo2", "olmo3",
    "opt", "phi", "phi3", "qwen", "qwen2", "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2",
]  # fmt: skip
HUB_CODE = {"baichuan", "chatglm", "internlm", "internlm2", "minicpm", "qwen"}
NONSENSE: list[Any] = ["4096", "", -1, 0, 1.5, True, [], {}, [1, "a"], {"a": None}, None, float("nan"), 10**30]


def defaults(family: str) -> dict[str, Any]:
    return dict(import_module(f"estimators.model.families.{FAMILIES[family]}").DEFAULTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "4096"}, "hidden_size is '4096'; give a whole number"),
        ({"hidden_size": -4096}, "hidden_size is -4096; give 1 to"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000; give 1 to"),
        ({"hidden_size": 4095}, "hidden_size 4095 is not a multiple of num_attention_heads 32"),
        ({"hidden_size": 4095, "head_dim": 128}, "hidden_size 4095 is not a multiple of num_attention_heads 32"),
        ({"num_key_value_heads": 5}, "num_attention_heads 32 is not a multiple of num_key_value_heads 5"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True; give a whole number"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'; give true or false"),
        ({"head_dim": 33}, "a head has 33 elements of which 33 turn; give an even head size"),
        ({"rope_scaling": "linear"}, "rope_parameters is 'linear'; give an object"),
        ({"rope_scaling": {"type": "yarn"}, "partial_rotary_factor": 2}, "partial_rotary_factor is 2; give a number"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'; give a list"),
        ({"model_type": "helium", "head_dim": 64}, "num_attention_heads 20 x head_dim 64 is 1280"),
        ({"model_type": "internlm3", "qkv_bias": True}, "qkv_bias is True and bias is False"),
        ({"model_type": "gpt2", "n_embd": 768, "hidden_size": 760}, "n_embd is 768 and hidden_size is 760; they are"),
        ({"model_type": "gpt_neo", "num_layers": 3}, "attention_types is .* describe 3 layers"),
        ({"model_type": "gpt_neo", "attention_types": "local"}, "attention_types is 'local'"),
        ({"model_type": "olmo3", "layer_types": ["full_attention"]}, "layer_types is .* each of the 32 layers"),
        ({"model_type": "qwen", "intermediate_size": 22017}, "intermediate_size is 22017; Qwen 1 halves it"),
        ({"model_type": "chatglm", "multi_query_attention": True, "multi_query_group_num": 3},
         "num_attention_heads 32 is not a multiple of multi_query_group_num 3"),
        ({"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 8},
         "num_attention_heads 71 is not a multiple of num_kv_heads 8"),
        ({"model_type": 7}, "model_type is 7; give a name"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build({**LLAMA, **changes})


def test_message_opens_with_the_place() -> None:
    with pytest.raises(InputError, match=r"^models/x/config\.json: vocab_size"):
        build({**LLAMA, "vocab_size": 0}, where="models/x/config.json")


def test_unknown_family_is_both_unknown_and_not_modelled() -> None:
    with pytest.raises(UnknownName, match="did you mean llama") as caught:
        build({"model_type": "lama"})
    assert isinstance(caught.value, NotModelled)


def test_a_config_that_is_no_object() -> None:
    with pytest.raises(InputError, match="give an object with model_type"):
        build([1, 2])  # type: ignore[arg-type]


def test_another_head_is_left_to_transformers() -> None:
    with pytest.raises(NotModelled, match=r"LlamaForSequenceClassification.*read from transformers"):
        build({**LLAMA, "architectures": ["LlamaForSequenceClassification"]})
    with pytest.raises(NotModelled, match="add_cross_attention"):
        build({"model_type": "gpt2", "add_cross_attention": True})
    assert build({**LLAMA, "architectures": ["LlamaForCausalLM"]}).class_name == "LlamaForCausalLM"
    assert build({"model_type": "mpt", "architectures": ["MPTForCausalLM"]}).class_name == "MptForCausalLM"


@pytest.mark.parametrize("family", DENSE)
def test_nonsense_ends_in_our_own_error_or_in_a_spec(family: str) -> None:
    for key in (*defaults(family), "head_dim", "num_key_value_heads", "layer_types", "rope_scaling", "n_inner",
                "num_kv_heads", "architectures", "rope_parameters", "sliding_window_pattern"):  # fmt: skip
        for value in NONSENSE:
            try:
                build({"model_type": family, key: value})
            except AdvisorError as error:
                assert len(str(error)) < 400


@pytest.mark.parametrize("family", DENSE)
def test_cost_does_not_depend_on_depth(family: str) -> None:
    layers = next(key for key in ("num_hidden_layers", "num_layers", "n_layers", "n_layer") if key in defaults(family))
    deep: dict[str, Any] = {"model_type": family, layers: 10_000_000}
    if family == "gpt_neo":
        deep["attention_types"] = [[["global"], 10_000_000]]
    start = perf_counter()
    spec = build(deep)
    assert perf_counter() - start < 0.2
    assert spec.num_layers == 10_000_000


@pytest.mark.parametrize("family", sorted(set(DENSE) - HUB_CODE))
def test_defaults_are_those_of_transformers(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.CONFIG_MAPPING[family]()
    for key, value in defaults(family).items():
        assert getattr(theirs, key) == value, key


@pytest.mark.parametrize("family", sorted(set(DENSE) - HUB_CODE - {"ministral", "nemotron", "hunyuan_v1_dense"}))
def test_an_empty_config_is_the_default_network(family: str) -> None:
    """The three left out cannot be built from their own defaults: head size or key-value heads are null."""
    pytest.importorskip("transformers")
    from tests.model.meta import compare_with_transformers

    compare_with_transformers(build({"model_type": family}), {"model_type": family})
