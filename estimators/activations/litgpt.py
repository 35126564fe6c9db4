"""litgpt's one model for all families, and its LoRA: what differs from transformers and peft in what autograd keeps.

Sources (litgpt 0.5.13): litgpt/model.py ``Block``, ``CausalSelfAttention``, ``LLaMAMLP``, ``GptNeoxMLP``; lora.py
``LoRALinear``, ``LoRAQKVLinear``; litgpt/finetune/lora.py (``lora_dropout`` 0.05). One product makes q, k and v: v is a
view of it, which keeps it whole. Grouped keys and values are copied for every query head. Parameters have the names of
transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from estimators.activations.attention import Scores
from estimators.activations.tape import Tensor

if TYPE_CHECKING:
    from estimators.activations.builder import Builder

LORA_DROPOUT = 0.05
ROLES = ("q", "k", "v")
UNIT_OFFSET = ("gemma", "gemma2", "gemma3_text")  # RMSNorm multiplies by 1 + weight


def lora_linear(b: Builder, x: Tensor, name: str) -> Tensor:
    """``LoRALinear.forward``: the adapter has its own dropped-out copy of the input."""
    pretrained = b.base(x, f"{name}.base_layer")
    return b.add(pretrained, b.scale(_adapter(b, b.dropout(x, LORA_DROPOUT, "lora dropout"), name), "scaled lora"))


def _adapter(b: Builder, dropped: Tensor, name: str) -> Tensor:
    down, up = (b.need(f"{name}.lora_{which}.default.weight") for which in "AB")
    return b.linear(b.linear(dropped, down, f"{name}.lora_A"), up, f"{name}.lora_B")


def block(b: Builder, hidden: Tensor) -> Tensor:
    """``Block.forward``: norms before, and for some families after, attention and MLP; in turn or in parallel."""
    after = _has(b, "pre_feedforward_layernorm")  # then post_* norms follow attention and MLP
    second = "pre_feedforward_layernorm" if after else "post_attention_layernorm"
    normed = _norm(b, hidden, "input_layernorm")
    attended = _attention(b, normed)
    if after:
        attended = _norm(b, attended, "post_attention_layernorm")
    if _has(b, second):
        hidden = b.add(attended, hidden)
        normed = _norm(b, hidden, second)
    else:  # parallel residual with a shared norm
        hidden = b.add(attended, hidden)
    del attended
    made = _mlp(b, normed)
    if after:
        made = _norm(b, made, "post_feedforward_layernorm")
    return b.add(made, hidden)


def _has(b: Builder, module: str) -> bool:
    return f"{module}.weight" in b.parameters


def _norm(b: Builder, x: Tensor, name: str) -> Tensor:
    if f"{name}.bias" in b.parameters:
        return b.norm(x, name)
    return b.gemma_norm(x, name) if b.text("model_type") in UNIT_OFFSET else b.rms_norm(x, name)


def _attention(b: Builder, x: Tensor) -> Tensor:
    size = b.head_size
    queries = b.number("num_attention_heads")
    groups = b.number("num_key_value_heads", default=queries)
    qkv = _qkv(b, x, (queries + 2 * groups) * size)
    cut = b.split(qkv, [("B", "S", n * size) for n in (queries, groups, groups)])
    del qkv
    q, k, v = (b.view(t, ("B", int(t.shape[-1]) // size, "S", size), swaps=True) for t in cut)
    cut.clear()
    turned = int(size * b.rotary_share)
    cos, sin = b.tables(turned)
    q, k = _rope(b, q, k, cos, sin, turned)
    if groups != queries:
        k, v = b.repeat_kv(k, queries), b.repeat_kv(v, queries)
    if b.fraction("attn_logit_softcapping"):
        mask = b.given("mask", (1, 1, "S", "S"))
        output = b.eager_attention(q, k, v, mask, Scores(softcap=True))
    else:
        output = b.attend(q, k, v, None)
    out = "self_attn.dense" if _any(b, "self_attn.dense") else "self_attn.o_proj"
    return b.module(b.view(output, ("B", "S", queries * size)), out)


def _rope(b: Builder, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turned: int) -> tuple[Tensor, Tensor]:
    """A share of each head turned, and joined with the rest by ``cat``, a copy."""
    if turned == b.head_size:
        q, k = b.rotary(q, k, cos, sin)
        return q, k
    q_rot, k_rot = (b.narrow(t, (*t.shape[:-1], turned)) for t in (q, k))
    q_rot, k_rot = b.rotary(q_rot, k_rot, cos, sin)
    rest = [b.narrow(t, (*t.shape[:-1], b.head_size - turned)) for t in (q, k)]
    return b.cat([q_rot, rest[0]], q.shape), b.cat([k_rot, rest[1]], k.shape)


def _any(b: Builder, module: str) -> bool:
    return any(name.startswith(f"{module}.") for name in b.parameters)


def _qkv(b: Builder, x: Tensor, width: int) -> Tensor:
    """``LoRAQKVLinear.forward``: updates of some of q, k and v are padded with zeros to the width of all."""
    names = ["self_attn.qkv_proj"] if _any(b, "self_attn.qkv_proj") else [f"self_attn.{r}_proj" for r in ROLES]
    adapted = [n for n in names if f"{n}.lora_A.default.weight" in b.parameters]
    made = [b.base(x, f"{n}.base_layer" if n in adapted else n) for n in names]
    shape = ("B", "S", width)
    result = made.pop() if len(made) == 1 else b.cat(made, shape, "qkv")
    made.clear()
    if not adapted:
        return result
    dropped = b.dropout(x, LORA_DROPOUT, "lora dropout")
    updates = [_adapter(b, dropped, n) for n in adapted]
    del dropped
    padded = updates.pop() if len(updates) == 1 else b.cat(updates, shape, "padded updates")
    updates.clear()
    return b.add(result, b.scale(padded, "scaled lora"))


def _mlp(b: Builder, x: Tensor) -> Tensor:
    act = b.text("hidden_act", "hidden_activation", default="silu")
    if _any(b, "mlp.fc1"):
        return b.module(b.pointwise("gelu", b.module(x, "mlp.fc1")), "mlp.fc2")
    if _any(b, "mlp.gate_up_proj"):
        both = b.module(x, "mlp.gate_up_proj")
        gate, up = b.split(both, [("B", "S", int(both.shape[-1]) // 2)] * 2)
        del both
    else:
        gate, up = b.module(x, "mlp.gate_proj"), b.module(x, "mlp.up_proj")
    name = "silu" if act == "silu" else "gelu"
    return b.module(b.multiply(b.pointwise(name, gate), up, "act x up"), "mlp.down_proj")
