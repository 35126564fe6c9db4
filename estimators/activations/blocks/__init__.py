"""Which file describes the forward of a block, by the class that transformers calls it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module

from estimators.activations.blocks.others import OTHERS
from estimators.activations.builder import Builder
from estimators.activations.tape import Tensor
from estimators.errors import NotModelled

# class of a block -> module in this package, function in it
BLOCKS: dict[str, tuple[str, str]] = {
    "LlamaDecoderLayer": ("llama", "block"),
    "MistralDecoderLayer": ("llama", "block"),
    "MinistralDecoderLayer": ("llama", "block"),
    "Ministral3DecoderLayer": ("relatives", "ministral3"),
    "Qwen2DecoderLayer": ("llama", "block"),
    "SmolLM3DecoderLayer": ("llama", "block"),
    "SeedOssDecoderLayer": ("relatives", "seed_oss"),
    "Ernie4_5DecoderLayer": ("relatives", "ernie4_5"),
    "HeliumDecoderLayer": ("relatives", "helium"),
    "Qwen3DecoderLayer": ("llama", "qwen3"),
    "GraniteDecoderLayer": ("llama", "granite"),
    "GemmaDecoderLayer": ("llama", "gemma"),
    "Phi3DecoderLayer": ("llama", "phi3"),
    "OlmoDecoderLayer": ("llama", "olmo"),
    "Starcoder2DecoderLayer": ("llama", "starcoder2"),
    "NemotronDecoderLayer": ("llama", "nemotron"),
    "GlmDecoderLayer": ("llama", "glm"),
    "StableLmDecoderLayer": ("llama", "stablelm"),
    "ArceeDecoderLayer": ("relatives", "arcee"),
    "Jais2DecoderLayer": ("relatives", "jais2"),
    "HunYuanDenseV1DecoderLayer": ("relatives", "hunyuan"),
    "InternLMDecoderLayer": ("llama", "block"),
    "ApertusDecoderLayer": ("relatives", "apertus"),
    "BaichuanLayer": ("hub", "baichuan_alibi"),
    "DecoderLayer": ("hub", "baichuan"),
    "InternLM2DecoderLayer": ("hub", "internlm2"),
    "QWenBlock": ("hub", "qwen"),
    "GLMBlock": ("hub", "chatglm"),
    "MiniCPMDecoderLayer": ("llama", "granite"),  # branches scaled, by depth
    "BloomBlock": ("falcon", "bloom"),
    "FalconDecoderLayer": ("falcon", "falcon"),
    "GPTJBlock": ("classic", "gptj"),
    "CodeGenBlock": ("classic", "codegen"),
    "GPTNeoBlock": ("classic", "gpt_neo"),
    "MptBlock": ("classic", "mpt"),
    "Gemma2DecoderLayer": ("sandwich", "gemma2"),
    "Gemma3DecoderLayer": ("sandwich", "gemma3"),
    "Glm4DecoderLayer": ("sandwich", "glm4"),
    "Olmo2DecoderLayer": ("sandwich", "olmo2"),
    "Olmo3DecoderLayer": ("sandwich", "olmo2"),
    "Exaone4DecoderLayer": ("sandwich", "exaone4"),
    "GPT2Block": ("gpt", "gpt2"),
    "GPTBigCodeBlock": ("gpt", "gpt_bigcode"),
    "OPTDecoderLayer": ("gpt", "opt"),
    "GPTNeoXLayer": ("gpt", "gpt_neox"),
    "PhiDecoderLayer": ("gpt", "phi"),
    "CohereDecoderLayer": ("gpt", "cohere"),
    "Cohere2DecoderLayer": ("gpt", "cohere"),
}

# Blocks whose code lives on the hub and is never run here: described by their nearest relative, not compared.
BY_RELATIVE: frozenset[str] = frozenset(
    {
        "InternLMDecoderLayer",
        "BaichuanLayer",
        "DecoderLayer",
        "InternLM2DecoderLayer",
        "QWenBlock",
        "GLMBlock",
        "MiniCPMDecoderLayer",
    }
)

BLOCKS.update(OTHERS)

Block = Callable[[Builder, Tensor], Tensor]


@lru_cache(maxsize=256)
def block_of(class_name: str) -> Block:
    """The forward of a block. Raises ``NotModelled`` for a class that nobody described."""
    if class_name not in BLOCKS:
        raise NotModelled(f"what autograd keeps of {class_name} is not described; known blocks: {len(BLOCKS)}")
    module, name = BLOCKS[class_name]
    block: Block = getattr(import_module(f"{__name__}.{module}"), name)
    return block
