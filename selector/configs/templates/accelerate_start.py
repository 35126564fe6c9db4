# ruff: noqa: TID253
# mypy: ignore-errors
"""The accelerator: engine and precision come from accelerate.yaml."""

from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin

from selector.configs.templates.accelerate_ddp import ddp
from selector.configs.templates.settings import GRAD_ACCUM, SYNC_EACH_BATCH


def start():
    return Accelerator(gradient_accumulation_plugin=accumulation(), kwargs_handlers=[ddp()])  # when: ddp
    return Accelerator(gradient_accumulation_plugin=accumulation())  # unless: ddp


def accumulation():
    return GradientAccumulationPlugin(num_steps=GRAD_ACCUM, sync_each_batch=SYNC_EACH_BATCH)
