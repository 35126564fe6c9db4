# ruff: noqa: TID253
# mypy: ignore-errors
"""Train with the Trainer; training_args.json holds its arguments."""

import json

import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from selector.configs.templates.adapters import add_adapters
from selector.configs.templates.arguments import arguments
from selector.configs.templates.data import dataset
from selector.configs.templates.deepspeed_rehearsal import rehearsal
from selector.configs.templates.freezing import freeze
from selector.configs.templates.model import load_model
from selector.configs.templates.recompute import checkpoint_activations
from selector.configs.templates.settings import LEARNING_RATE, MOMENTUM


def main():
    args = arguments()
    training = training_arguments(args)  # first: zero.Init has to know DeepSpeed before the model is built
    model = load_model(args.random_weights)
    freeze(model)  # when: freezing
    model = add_adapters(model)  # when: adapters
    checkpoint_activations(model)  # when: recompute
    trainer = Trainer(
        model,
        training,
        train_dataset=dataset(args.data, model),
        optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": LEARNING_RATE, "momentum": MOMENTUM}),  # when: momentum
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(training.output_dir) if args.resume else None)
    if args.save_every:
        save(trainer, f"{training.output_dir}/model")


def training_arguments(args):
    with open("training_args.json", encoding="utf-8") as file:
        values = json.load(file)
    values |= {"max_steps": args.steps, "output_dir": args.output, "save_steps": args.save_every or args.steps}
    if not args.save_every:
        values["save_strategy"] = "no"
    if not torch.cuda.is_available():
        values["use_cpu"] = True  # a rehearsal
        values["deepspeed"] = rehearsal(json.load(open(values["deepspeed"])))  # noqa: SIM115  # when: deepspeed
    return HfArgumentParser(TrainingArguments).parse_dict(values)[0]


def save(trainer, folder):
    """Gather the whole model in rank 0's host RAM and write it as from_pretrained reads it."""
    if trainer.is_fsdp_enabled:
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model(folder)
