# ruff: noqa: TID253
# mypy: ignore-errors
"""Train with accelerate; accelerate.yaml names the engine."""

import torch

from selector.configs.templates.accelerate_leaves import wrap_trained_leaves
from selector.configs.templates.accelerate_saving import export, resume
from selector.configs.templates.accelerate_start import start
from selector.configs.templates.adapters import add_adapters
from selector.configs.templates.arguments import arguments
from selector.configs.templates.data import dataset
from selector.configs.templates.freezing import freeze
from selector.configs.templates.loss_plain import forward
from selector.configs.templates.model import load_model
from selector.configs.templates.optimizer import make_optimizer
from selector.configs.templates.recompute import checkpoint_activations
from selector.configs.templates.report import Report
from selector.configs.templates.settings import GRAD_ACCUM, GRADIENT_CLIPPING, MICRO_BATCH, SEED


def main():
    args = arguments()
    torch.manual_seed(SEED)
    accelerator = start()
    model = load_model(args.random_weights)
    freeze(model)  # when: freezing
    model = add_adapters(model)  # when: adapters
    checkpoint_activations(model)  # when: recompute
    model.gradient_checkpointing_enable({"use_reentrant": False})  # when: full_recompute
    model = torch.compile(model)  # when: compile
    wrap_trained_leaves(accelerator, model)  # when: leaf_units
    optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])
    examples = dataset(args.data, model)
    batches = torch.utils.data.DataLoader(examples, MICRO_BATCH, shuffle=True, drop_last=True)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    model.train()
    first = resume(accelerator, args.output) if args.resume else 0
    batches = endless(accelerator.skip_first_batches(batches, first * GRAD_ACCUM), batches)
    report = Report(accelerator.process_index)
    for step in range(first, args.steps):
        for _ in range(GRAD_ACCUM):
            with accelerator.accumulate(model):
                loss = forward(model, next(batches))
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), GRADIENT_CLIPPING)
                optimizer.step()
                optimizer.zero_grad()
        report.step(step + 1, loss.detach())
        if args.save_every and (step + 1) % args.save_every == 0:
            accelerator.save_state(f"{args.output}/step-{step + 1:06d}")
    report.end()
    if args.save_every:
        export(accelerator, model, args.output)
    accelerator.end_training()


def endless(batches, every_epoch):
    yield from batches
    while True:
        yield from every_epoch
