"""Base weights of ``qlora``: packed bytes, and what lies beside them.

bitsandbytes 0.50 (functional.py ``quantize_4bit``, ``int8_vectorwise_quant``), transformers 5.24
(quantizers/base.py ``get_keys_to_not_convert``): every ``nn.Linear`` and ``Conv1D`` is replaced except the head, tied
modules, modules kept in fp32 and the owner of the very last parameter. Fused experts and routers are parameters, not
linears: they stay in 16 bit. Before transformers 5 experts were lists of linears, and were packed one by one.
"""

from __future__ import annotations

from math import prod

from estimators.model.methods.matching import ends_in, full_name, module_of
from estimators.model.spec import ModelSpec, Parameter, Part
from estimators.values import replace

BLOCK_4BIT = 64  # elements that share one absmax
BLOCK_ABSMAX = 256  # absmax values that share one fp32 in double quantisation
CODE_4BIT = 16 * 4  # fp32 code book of nf4, one a tensor
CODE_8BIT = 256 * 4  # fp32 code book of the quantised absmax, one a tensor
OFFSET = 4  # fp32 mean of the absmax
GROUP_GPTQ = 128  # rows that share one scale and zero
# Subclasses of nn.Linear, which transformers 5 leaves alone: FalconLinear everywhere, and single modules of others
# (routers of Phi-MoE and Llama 4, the out_proj of nn.MultiheadAttention in Siglip's pooling head).
LINEAR_SUBCLASS = ("falcon",)
SUBCLASS_MODULES = ("mlp.router", "feed_forward.router", "head.attention.out_proj")


def packed_bytes(quant: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """(bytes of the packed weight, bytes beside it) of a matrix: formulas Q.1-Q.3 of ``docs/formulas-memory.md``.

    Llama k_proj, 1024 x 4096: 4.127 bits an element with double quantisation.

    >>> packed_bytes("nf4-double", (1024, 4096))
    (2097152, 67652)
    >>> packed_bytes("nf4", (1024, 4096)), packed_bytes("int8", (1024, 4096))
    ((2097152, 262208), (4194304, 4096))
    """
    rows, columns = shape
    numel = rows * columns
    if quant == "int8":
        return numel, 4 * rows
    if quant == "gptq4":  # int32 words of 8 values; fp16 scales, packed zeros, int32 group of each input
        groups = -(-columns // GROUP_GPTQ)
        return -(-columns // 8) * 4 * rows, groups * (2 * rows + -(-rows // 8) * 4) + 4 * columns
    blocks = -(-numel // BLOCK_4BIT)
    if quant == "nf4":
        return -(-numel // 2), 4 * blocks + CODE_4BIT
    assert quant == "nf4-double", quant
    return -(-numel // 2), blocks + 4 * -(-blocks // BLOCK_ABSMAX) + CODE_8BIT + OFFSET + CODE_4BIT


def quantise(model: ModelSpec, quant: str, storage: str | None = None, subclasses_too: bool = False) -> ModelSpec:
    """``model`` with its linears quantised. ``storage``: 16-bit dtype as which FSDP shards the packed bytes.

    ``subclasses_too``: transformers before 5 also replaced subclasses of ``nn.Linear``, and experts were linears.
    """
    if model.family in LINEAR_SUBCLASS and not subclasses_too:
        return model
    spared = {model.head, *map(module_of, model.tied), *map(module_of, model.tied.values())}
    kept_classes = () if subclasses_too else SUBCLASS_MODULES

    def converts(part: Part, p: Parameter) -> bool:
        if subclasses_too and p.kind == "experts" and len(p.shape) == 3:
            return True
        if p.kind not in ("linear", "conv1d") or len(p.shape) != 2 or p.keep_fp32 == "fp16":
            return False
        path = full_name(part.prefix.format(part.first), module_of(p.name))
        return path not in spared and not ends_in(path, kept_classes)

    def converted(part: Part) -> Part:
        return replace(
            part,
            parameters=tuple(_packed(p, quant, storage) if converts(part, p) else p for p in part.parameters),
        )

    return replace(model, parts=_last_spared(model, tuple(converted(part) for part in model.parts)))


def _packed(p: Parameter, quant: str, storage: str | None) -> Parameter:
    *experts, rows, columns = p.shape
    if p.kind == "conv1d":
        rows, columns = columns, rows
    stored, side = (prod(experts) * size for size in packed_bytes(quant, (rows, columns)))
    dtype = "int8" if quant == "int8" else storage or "uint8"
    return replace(p, dtype=dtype, stored_bytes=stored, side_bytes=side)


def _last_spared(model: ModelSpec, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """transformers leaves the owner of the network's very last parameter alone, where that is a weight.

    Usually a norm. Where it is a linear inside a run of blocks (OLMo has no weights in its norms), the last block
    differs from the others.
    """
    index = max(i for i, part in enumerate(model.parts) if part.parameters)
    part, before = parts[index], model.parts[index]
    if part.parameters[-1].stored_bytes is None or not part.parameters[-1].name.endswith(".weight"):
        return parts
    last = replace(part, first=part.first + part.count - 1, count=1,
                   parameters=(*part.parameters[:-1], before.parameters[-1]))  # fmt: skip
    others = (replace(part, count=part.count - 1),) if part.count > 1 else ()
    return (*parts[:index], *others, last, *parts[index + 1 :])
