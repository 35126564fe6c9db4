"""Section B: rule -> (parts, keywords) that fire it, and that do not."""

from __future__ import annotations

from tests.checks.building import accel, args, ds, py
from tests.checks.cases_deepspeed import A100, L8, old

FILE = {"deepspeed_config_file": "ds.json"}
LOAD = "from transformers import AutoModelForCausalLM, TrainingArguments\n"
MODEL = "model = AutoModelForCausalLM.from_pretrained('x'{})\n"
LORA = {"gradient_checkpointing": True, "finetuning_type": "lora"}


def inline(**data: object) -> tuple[str, str]:
    return accel("DEEPSPEED", deepspeed_config=data)


CASES = {
    "hf-ds-mismatch": (
        ((ds(2), args(per_device_train_batch_size=4)), {}),
        ((ds(2, {"train_micro_batch_size_per_gpu": "auto"}), args(per_device_train_batch_size=4)), {}),
    ),
    "ds-batch-missing-gas": (
        ((ds(2, {"train_batch_size": "auto"}), args(gradient_accumulation_steps=4)), {}),
        (
            (
                ds(2, {"train_batch_size": "auto", "gradient_accumulation_steps": "auto"}),
                args(gradient_accumulation_steps=4),
            ),
            {},
        ),
    ),
    "accel-ds-file-and-inline": (
        ((ds(2), inline(**FILE, zero_stage=2)), {}),
        ((ds(2), inline(**FILE, zero3_init_flag=False)), {}),
    ),
    "accel-unknown-key": (((inline(zero_stage=3, stage3_max_live_parameters=1e9),), {}), ((inline(zero_stage=3),), {})),
    "accel-zero3-save-16bit": (
        ((inline(zero_stage=3),), {}),
        ((inline(zero_stage=3, zero3_save_16bit_model=True),), {}),
    ),
    "accel-zero3-init-flag": (
        ((inline(zero_stage=2, zero3_init_flag=True),), {}),
        ((inline(zero_stage=3, zero3_init_flag=True),), {}),
    ),
    "accel-gas-auto": (
        (
            (
                ds(2, {"gradient_accumulation_steps": "auto"}),
                py("from accelerate import Accelerator\na = Accelerator()\n"),
            ),
            {},
        ),
        (
            (
                ds(2, {"gradient_accumulation_steps": "auto"}),
                py("from accelerate import Accelerator\na = Accelerator(gradient_accumulation_steps=4)\n"),
            ),
            {},
        ),
    ),
    "zero3-init-order": (
        ((ds(3), py(LOAD + MODEL.format("") + "a = TrainingArguments(output_dir='o')\n")), {}),
        ((ds(3), py(LOAD + "a = TrainingArguments(output_dir='o')\n" + MODEL.format(""))), {}),
    ),
    "zero3-device-map": (
        ((ds(3), py(LOAD + MODEL.format(", device_map='auto'"))), {}),
        ((ds(3), py(LOAD + MODEL.format(""))), {}),
    ),
    "bnb-8bit-zero3": (((ds(3), args(load_in_8bit=True)), {}), ((ds(2), args(load_in_8bit=True)), {})),
    "zero3-qlora-versions": (
        ((ds(3), args(load_in_4bit=True)), old(transformers="4.31.0")),
        ((ds(3), args(load_in_4bit=True)), old(transformers="5.24.0", bitsandbytes="0.50.2")),
    ),
    "zero3-peft-nonreentrant": (
        ((ds(3), args(**LORA)), old(deepspeed="0.19.2", transformers="5.13.0")),
        ((ds(3), args(**LORA)), old(deepspeed="0.19.8")),
    ),
    "zero3-generate-synced": (
        ((ds(3), py("model.generate(x, synced_gpus=False)\n")), {}),
        ((ds(3), py("model.generate(x, synced_gpus=True)\n")), {}),
    ),
    "trl-ds3-gather-false": (
        ((ds(3), args(ds3_gather_for_generation=False)), {}),
        ((ds(3), args(ds3_gather_for_generation=True)), {}),
    ),
    "zero3-multimodal-branch": (((ds(3),), {"model": "qwen2-vl-7b", **A100}), ((ds(3),), L8 | A100)),
    "accel-ds-multi-model": (
        (
            (
                inline(zero_stage=2),
                py("from accelerate import Accelerator\na = Accelerator()\na.prepare('model_a', 'model_b')\n"),
            ),
            {},
        ),
        (
            (
                inline(zero_stage=2),
                py("from accelerate import Accelerator\na = Accelerator()\na.prepare('model', 'opt')\n"),
            ),
            {},
        ),
    ),
    "deepspeed-min-version": (((inline(zero_stage=2),), old(deepspeed="0.9.0")), ((inline(zero_stage=2),), {})),
    "resume-world-size": (
        ((ds(2), args(resume_from_checkpoint="RESUME")), {"cluster": "4xA100"}),
        ((ds(2), args(resume_from_checkpoint="RESUME")), {"cluster": "2xA100"}),
    ),
}
