"""How a run trains, from the keys of Trainer supersets and from a script: full, adapters, quantised base."""

from __future__ import annotations

from selector.checks.block import Block
from selector.checks.script import Script


def bits_of(args: Block, script: Script) -> int | None:
    """4 or 8 where a file or a call loads the base model quantised."""
    for bits, key in ((4, "load_in_4bit"), (8, "load_in_8bit")):
        if args.get(key) is True:
            return bits
        for call in script.named("BitsAndBytesConfig", "from_pretrained"):
            if call.kwargs.get(key) is True:
                return bits
    key_of_superset = args.first("quantization_bit", "quant_bits", "quantize_bit")
    bits_given = args.whole(key_of_superset) if key_of_superset else None
    return bits_given if bits_given in (4, 8) else None


def method_of(args: Block, script: Script) -> str:
    """``full``, ``lora``, ``qlora``, ``freeze`` or empty."""
    adapters = next(
        (str(args.get(k)).lower() for k in ("finetuning_type", "tuner_type", "train_type", "adapter") if args.get(k)),
        "",
    )
    lora = adapters in ("lora", "qlora", "adalora", "oft", "longlora") or args.get("use_peft") is True
    lora = lora or "lora_r" in args or any(script.named("LoraConfig", "get_peft_model"))
    if lora:
        return "qlora" if bits_of(args, script) else "lora"
    if adapters == "freeze":
        return "freeze"
    return "full" if adapters == "full" or args.get("full_finetune") is True else ""
