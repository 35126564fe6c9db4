"""Adapters, quantised bases, frozen parts against peft, bitsandbytes, transformers: names, order, shapes, bytes."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest

from estimators.errors import IllegalCombination, UnknownName
from estimators.model.families import build
from estimators.model.methods import target_names
from estimators.model.methods.adapters import insert_adapters
from estimators.model.methods.freezing import freeze
from estimators.model.methods.quantised import packed_bytes, quantise

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

SIZES: dict[str, Any] = {"vocab_size": 131, "hidden_size": 48, "intermediate_size": 76, "num_hidden_layers": 3,
                         "num_attention_heads": 6, "num_key_value_heads": 2}  # fmt: skip
MOE = {**SIZES, "num_hidden_layers": 2, "num_experts_per_tok": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SIZES, "attention_bias": True},
    "llama-tied": {"model_type": "llama", **SIZES, "tie_word_embeddings": True},
    "gemma2": {"model_type": "gemma2", **SIZES, "head_dim": 10},
    "gpt2": {"model_type": "gpt2", "vocab_size": 131, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 37},
    "phi3": {"model_type": "phi3", **SIZES, "pad_token_id": 0},
    "falcon": {"model_type": "falcon", "vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 3,
               "num_attention_heads": 6},
    "t5": {"model_type": "t5", "vocab_size": 131, "d_model": 48, "d_kv": 8, "d_ff": 76, "num_layers": 2,
           "num_heads": 6},
    "mixtral": {"model_type": "mixtral", **MOE, "num_local_experts": 4},
    "qwen2_moe": {"model_type": "qwen2_moe", **MOE, "num_experts": 4, "moe_intermediate_size": 20,
                  "shared_expert_intermediate_size": 24},
    "qwen3_moe": {"model_type": "qwen3_moe", **MOE, "num_experts": 4, "moe_intermediate_size": 20, "head_dim": 8},
    "olmoe": {"model_type": "olmoe", **MOE, "num_experts": 4},
    "deepseek_v3": {"model_type": "deepseek_v3", **MOE, "n_routed_experts": 4, "moe_intermediate_size": 20,
                    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8,
                    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    "olmo": {"model_type": "olmo", **SIZES, "tie_word_embeddings": True},
    "phimoe": {"model_type": "phimoe", **MOE, "num_local_experts": 4},
    "gpt_oss": {"model_type": "gpt_oss", **MOE, "num_local_experts": 4, "head_dim": 8},
}  # fmt: skip
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.uint8: "uint8", torch.int8: "int8"}


def spec_of(name: str):
    try:
        return build(CONFIGS[name])
    except Exception as reason:
        if isinstance(reason, ModuleNotFoundError):
            pytest.skip(f"family {name} is not there yet")
        raise


def real_model(name: str, dtype=torch.bfloat16):
    values = dict(CONFIGS[name])
    config = transformers.CONFIG_MAPPING[values.pop("model_type")](**values)
    model = getattr(transformers, spec_of(name).class_name)(config)
    return model.to(dtype)


def listed(model) -> list[tuple[str, tuple[int, ...], bool]]:
    """Names without peft's prefix, shapes, trainable; in the module's order."""
    return [(n.removeprefix("base_model.model."), tuple(p.shape), p.requires_grad) for n, p in model.named_parameters()]


def ours(spec) -> list[tuple[str, tuple[int, ...], bool]]:
    return [(n, p.shape, p.trainable) for n, p in spec.named_parameters()]


def with_peft(model, targets, rank, dora=False, saved=()):
    config = peft.LoraConfig(
        r=rank,
        target_modules=targets if isinstance(targets, str) else list(targets),
        use_dora=dora,
        modules_to_save=list(saved) or None,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.get_peft_model(model, config)


@pytest.mark.parametrize("name", CONFIGS)
def test_all_linear(name):
    made = insert_adapters(spec_of(name), "all-linear", 5, False, (), "fp32")
    assert ours(made) == listed(with_peft(real_model(name), "all-linear", 5))


@pytest.mark.parametrize("name", CONFIGS)
def test_all_linear_as_names(name):
    """What an emitted configuration lists means the same to peft as the word."""
    names = target_names(spec_of(name), "all-linear")
    assert ours(insert_adapters(spec_of(name), names, 5, False, (), "fp32")) == listed(
        with_peft(real_model(name), names, 5)
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_attention(name):
    names = target_names(spec_of(name), "attention")
    made = insert_adapters(spec_of(name), "attention", 3, True, (), "fp32")
    assert ours(made) == listed(with_peft(real_model(name), names, 3, dora=True))
    adapted = {n.partition(".base_layer")[0].rpartition(".")[0] for n, _, _ in ours(made) if "base_layer" in n}
    assert adapted and all("attn" in path.lower() or "attention" in path.lower() for path in adapted)


@pytest.mark.parametrize(
    ("name", "targets", "dora", "saved"),
    [
        ("llama", ("q_proj", "v_proj"), False, ("embed_tokens", "lm_head")),
        ("llama", ("q_proj", "embed_tokens", "lm_head"), False, ()),
        ("llama", ("q_proj", "embed_tokens"), True, ("norm",)),
        ("llama", ("layers.0.self_attn.q_proj", "layers.2.mlp.up_proj"), True, ()),
        ("llama-tied", ("q_proj",), False, ("embed_tokens", "lm_head")),
        ("llama-tied", ("q_proj",), False, ("embed_tokens",)),
        ("llama-tied", ("q_proj",), False, ("lm_head",)),
        ("llama-tied", ("q_proj", "lm_head"), False, ()),
        ("llama", ("q_proj", "c_attn"), False, ()),  # peft lets a name that matches nothing pass beside one that does
        ("gpt2", ("c_attn",), True, ("wte", "ln_f")),
        ("mixtral", ("q_proj", "w1", "w2", "w3"), False, ("embed_tokens",)),
        ("mixtral", ("q_proj", "w2"), False, ()),
        ("deepseek_v3", ("gate_proj", "up_proj", "o_proj"), False, ()),
    ],
)
def test_lists(name, targets, dora, saved):
    made = insert_adapters(spec_of(name), targets, 4, dora, saved, "fp32")
    assert ours(made) == listed(with_peft(real_model(name), targets, 4, dora, saved))


@pytest.mark.parametrize("base", [torch.bfloat16, torch.float32])
def test_adapter_dtype_and_saved_copies(base):
    """peft lifts adapters to fp32 and leaves the copies of modules_to_save in the dtype of the base."""
    real = dict(with_peft(real_model("llama", base), ("q_proj",), 4, saved=("lm_head",)).named_parameters())
    made = insert_adapters(spec_of("llama"), ("q_proj",), 4, False, ("lm_head",), "fp32")
    for name, p in made.named_parameters():
        assert (p.dtype or NAMES[base]) == NAMES[real[f"base_model.model.{name}"].dtype], name


def test_ties_follow_renames():
    made = insert_adapters(spec_of("llama-tied"), ("q_proj",), 4, False, ("embed_tokens",), "fp32")
    assert made.tied == {"lm_head.weight": "model.embed_tokens.original_module.weight"}


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda s: insert_adapters(s, ("q_porj",), 4, False, (), "fp32"), UnknownName, "q_proj"),
        (lambda s: insert_adapters(s, ("norm",), 4, False, (), "fp32"), IllegalCombination, "not norm"),
        (lambda s: insert_adapters(s, ("q_proj",), 4, False, ("lm_haed",), "fp32"), UnknownName, "lm_head"),
        (lambda s: freeze(s, ("vision_tower",)), UnknownName, "vision_tower"),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call(spec_of("llama"))


def test_experts_refuse_what_peft_refuses():
    for targets, dora in ((("w1",), False), (("w1", "w3"), True)):
        with pytest.raises(IllegalCombination):
            insert_adapters(spec_of("mixtral"), targets, 4, dora, (), "fp32")
        with pytest.raises(ValueError):
            with_peft(real_model("mixtral"), targets, 4, dora)


@pytest.mark.parametrize("depth", [1, 3, 10_000])
def test_cost_does_not_grow_with_depth(depth):
    spec = build({**CONFIGS["llama"], "num_hidden_layers": depth})
    assert len(insert_adapters(spec, "all-linear", 4, False, ("lm_head",), "fp32").parts) == len(spec.parts)
    assert len(quantise(spec, "nf4").parts) == len(spec.parts)
    assert len(freeze(spec, ()).parts) <= len(spec.parts) + 1


SHAPES = [(64, 64), (3, 5), (7, 64), (100, 33), (256, 130), (513, 64), (4096, 257), (2, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("quant", "double"), [("nf4", False), ("nf4-double", True)])
@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16])
def test_linear4bit(shape, quant, double, storage):
    bnb = pytest.importorskip("bitsandbytes")
    if storage is torch.bfloat16 and -(-shape[0] * shape[1] // 2) % 2:
        pytest.skip("an odd number of bytes has no 16-bit storage")
    layer = bnb.nn.Linear4bit(shape[1], shape[0], bias=False, compress_statistics=double, quant_type="nf4",
                              quant_storage=storage).to("cpu")  # fmt: skip
    state = layer.weight.quant_state
    beside = [state.absmax, state.code]
    if state.nested:
        beside += [state.state2.absmax, state.state2.code, state.offset]
    size = [sum(t.numel() * t.element_size() for t in tensors) for tensors in ([layer.weight], beside)]
    assert packed_bytes(quant, shape) == tuple(size)
    if state.nested:  # code books are copies, one for each tensor
        other = bnb.nn.Linear4bit(4, 4, compress_statistics=True, quant_type="nf4").to("cpu").weight.quant_state
        assert other.state2.code.data_ptr() != state.state2.code.data_ptr()
        assert other.code.data_ptr() != state.code.data_ptr()


@pytest.mark.parametrize("shape", SHAPES)
def test_linear8bit(shape):
    bnb = pytest.importorskip("bitsandbytes")
    layer = bnb.nn.Linear8bitLt(shape[1], shape[0], bias=False, has_fp16_weights=False).to("cpu")
    assert layer.weight.CB.data_ptr() == layer.weight.data_ptr()  # one copy, not two
    size = layer.weight.numel(), layer.weight.SCB.numel() * layer.weight.SCB.element_size()
    assert packed_bytes("int8", shape) == size


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("quant", ["nf4", "int8"])
def test_what_is_quantised(name, quant):
    """The modules that transformers replaces, and no other."""
    bnb = pytest.importorskip("bitsandbytes")
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers.base import HfQuantizer

    model = real_model(name)
    skip = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    config = transformers.BitsAndBytesConfig(**{"load_in_4bit" if quant == "nf4" else "load_in_8bit": True})
    replaced = replace_with_bnb_linear(model, skip, config)
    kinds = (bnb.nn.Linear4bit, bnb.nn.Linear8bitLt)
    theirs = {f"{n}.weight" for n, m in replaced.named_modules() if isinstance(m, kinds)}
    assert {n for n, p in quantise(spec_of(name), quant).named_parameters() if p.stored_bytes is not None} == theirs


def test_prepare_for_kbit_training_lifts_everything_unquantised():
    """Embedding, norms, head - and fused experts - become fp32: what Settings.frozen_dtype fp32 stands for."""
    model = real_model("mixtral")
    model.is_loaded_in_4bit = True
    peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    dtypes = {n: p.dtype for n, p in model.named_parameters()}
    assert dtypes["model.layers.0.mlp.experts.down_proj"] == torch.float32
    assert set(dtypes.values()) == {torch.float32}


def test_freeze_default_is_the_last_two_blocks():
    made = freeze(spec_of("llama"), ())
    trains = {n for n, p in made.named_parameters() if p.trainable}
    assert trains == {n for n, _ in made.named_parameters() if n.startswith(("model.layers.1.", "model.layers.2."))}
    assert [n for n, _ in made.named_parameters()] == [n for n, _ in spec_of("llama").named_parameters()]


def test_freeze_by_name():
    spec = build({**CONFIGS["llama"], "num_hidden_layers": 12})
    made = freeze(spec, ("model.layers.1", "embed_tokens", "mlp.up_proj"))
    still = {n for n, p in made.named_parameters() if not p.trainable}
    assert still == {
        n for n, _ in made.named_parameters()
        if n.startswith("model.layers.1.") or "embed_tokens" in n or "mlp.up_proj" in n
    }  # fmt: skip


def test_specs_are_not_shared_by_accident():
    spec = spec_of("llama")
    assert replace(quantise(spec, "nf4")).num_params == spec.num_params
