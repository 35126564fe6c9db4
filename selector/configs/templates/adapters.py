# mypy: ignore-errors
"""LoRA or DoRA adapters (peft)."""

import peft

from selector.configs.templates.settings import (
    FP32_ADAPTERS,
    LORA_ALPHA,
    LORA_RANK,
    LORA_TARGETS,
    MODULES_TO_SAVE,
    TASK_TYPE,
    USE_DORA,
)


def adapter_config():
    return peft.LoraConfig(
        r=LORA_RANK,
        lora_alpha=LORA_ALPHA,
        target_modules=LORA_TARGETS,
        modules_to_save=list(MODULES_TO_SAVE) or None,
        use_dora=USE_DORA,
        task_type=TASK_TYPE,
    )


def add_adapters(model):
    model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)  # when: kbit
    model.enable_input_require_grads()  # when: checkpointing
    return peft.get_peft_model(model, adapter_config(), autocast_adapter_dtype=FP32_ADAPTERS)
