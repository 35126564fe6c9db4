"""Section C, adapters and quantised bases under FSDP1. Checked against accelerate 1.15."""

from __future__ import annotations

from selector.checks.registry import ERROR, RUN, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup

ADAPTERS = ("lora", "qlora")


def quant_storage(setup: Setup) -> str:
    """bnb_4bit_quant_storage: the dtype's name without torch., or empty where nothing says."""
    value = setup.args.get("bnb_4bit_quant_storage")
    for call in setup.script.named("BitsAndBytesConfig"):
        value = call.kwargs.get("bnb_4bit_quant_storage", value)
    return value.removeprefix("torch.") if isinstance(value, str) else ""


@rule(
    "fsdp-use-orig-params",
    ERROR,
    fix="true",
    confirmed=RUN,
    source="llm-foundry#414, flan-alpaca#10",
    corrected="Only units that mix frozen and trained parameters fail; accelerate gives PEFT models a policy that "
    "separates them (fsdp_auto_wrap_policy), and then false works: a warning under the Trainer.",
)
def orig_params(setup: Setup) -> Hits:
    """Frozen parameters (PEFT) with use_orig_params false: a unit must have one requires_grad."""
    if (
        setup.fsdp.version == 1
        and setup.fsdp.flag("use_orig_params") is False
        and setup.method in (*ADAPTERS, "freeze")
    ):
        mends = setup.hf and setup.method in ADAPTERS
        yield setup.fsdp.hit(
            "use_orig_params",
            f"false with {setup.method}",
            setup.fsdp.put("use_orig_params", True),
            severity=WARNING if mends else ERROR,
        )


@rule(
    "fsdp-mixed-frozen",
    WARNING,
    fix="PEFT's wrap policy, or fsdp_version 2",
    confirmed=THREAD,
    source="litgpt#1417, litgpt PR1538",
)
def mixed_frozen(setup: Setup) -> Hits:
    """FSDP1 with adapters inside units of whole blocks and use_orig_params true: gradients of the whole block are
    allocated, not of the adapters alone."""
    keeps = setup.fsdp.flag("use_orig_params") is True
    if (
        setup.fsdp.version == 1
        and setup.method in ADAPTERS
        and keeps
        and setup.fsdp.wrapping == "TRANSFORMER_BASED_WRAP"
    ):
        yield setup.fsdp.hit("use_orig_params", f"true with {setup.method}: units mix frozen and trained parameters")


@rule(
    "fsdp-lora-dtype",
    ERROR,
    fix="autocast_adapter_dtype=False, or units of their own",
    confirmed=RUN,
    source="trl#1723, LLaMA-Factory PR10157",
)
def lora_dtype(setup: Setup) -> Hits:
    """A base in bf16 and adapters in fp32 inside one unit of FSDP1: a unit has one dtype."""
    loaded = next(
        (
            str(c.kwargs[k])
            for c in setup.script.named("from_pretrained")
            for k in ("dtype", "torch_dtype")
            if k in c.kwargs
        ),
        "",
    )
    wraps = [c for c in setup.script.named("get_peft_model")]
    explicit = any(c.kwargs.get("autocast_adapter_dtype") is False for c in wraps)
    if (
        setup.fsdp.version == 1
        and setup.fsdp.flag("use_orig_params") is False
        and wraps
        and not explicit
        and loaded.endswith(("bfloat16", "float16"))
    ):
        yield setup.script.hit(wraps[0], "", f"the base is {loaded} and adapters are fp32 in the same unit")


@rule("fsdp-qlora-dtype", ERROR, fix="all bf16", confirmed=RUN, source="axolotl#1494, LLaMA-Factory#3853, peft#1432")
def qlora_dtype(setup: Setup) -> Hits:
    """4-bit storage in another dtype than the other modules: a unit has one dtype."""
    loaded = next(
        (
            str(c.kwargs[k])
            for c in setup.script.named("from_pretrained")
            for k in ("dtype", "torch_dtype")
            if k in c.kwargs
        ),
        "",
    ) or str(setup.args.get("torch_dtype") or "")
    storage, dtype = quant_storage(setup), loaded.removeprefix("torch.")
    if (
        setup.fsdp.version == 1
        and setup.bits == 4
        and storage
        and dtype in ("bfloat16", "float16", "float32")
        and storage != dtype
    ):
        yield setup.fsdp.hit("version", f"bnb_4bit_quant_storage {storage} beside modules in {dtype}")


@rule(
    "fsdp-8bit",
    ERROR,
    fix="4-bit, or bf16",
    confirmed=RUN,
    source="bitsandbytes#1709, llama-cookbook#945, llama-cookbook#240; torch distributed/fsdp/_flat_param.py",
    corrected="FSDP2 leaves integers out of sharding: a warning there.",
)
def eight_bit(setup: Setup) -> Hits:
    """A base in 8 bit or another integer format under FSDP1: integers cannot be flattened."""
    if setup.fsdp and setup.bits == 8:
        first = setup.fsdp.version == 1
        says = "cannot be flattened" if first else "is not sharded: 1 B a parameter on every GPU"
        yield setup.fsdp.hit("version", f"a base model in 8 bit {says}", severity="" if first else WARNING)
