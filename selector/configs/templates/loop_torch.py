# ruff: noqa: TID253
# mypy: ignore-errors
"""Train with plain PyTorch."""

import torch
import torch.distributed as dist

from selector.configs.templates.adapters import add_adapters
from selector.configs.templates.arguments import arguments
from selector.configs.templates.autocast import autocast
from selector.configs.templates.checkpoint import export, resume, save
from selector.configs.templates.data import dataset
from selector.configs.templates.freezing import freeze
from selector.configs.templates.fsdp2 import clip, micro_step, wrap
from selector.configs.templates.loader import loader
from selector.configs.templates.loss_plain import forward
from selector.configs.templates.model import blocks, load_model
from selector.configs.templates.optimizer import make_optimizer
from selector.configs.templates.recompute import checkpoint_activations
from selector.configs.templates.report import Report
from selector.configs.templates.settings import GRAD_ACCUM, SEED
from selector.configs.templates.start import start


def main():
    args = arguments()
    torch.manual_seed(SEED)
    device = start()
    model = load_model(args.random_weights)
    freeze(model)  # when: freezing
    model = add_adapters(model)  # when: adapters
    checkpoint_activations(model)  # when: recompute
    model.gradient_checkpointing_enable({"use_reentrant": False})  # when: full_recompute
    for block in blocks(model):  # when: compile
        block.compile()  # when: compile
    examples = dataset(args.data, model)
    model = wrap(model, device)
    model.train()
    optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])
    scaler = torch.amp.GradScaler(device.type)  # when: scaled
    first = resume(model, optimizer, args.output) if args.resume else 0
    batches = loader(examples, device, first)
    report = Report(dist.get_rank() if dist.is_initialized() else 0)
    for step in range(first, args.steps):
        for micro in range(GRAD_ACCUM):
            with micro_step(model, last=micro == GRAD_ACCUM - 1):
                with autocast(device):  # when: autocast
                    loss = forward(model, next(batches)) / GRAD_ACCUM  # when: autocast
                loss = forward(model, next(batches)) / GRAD_ACCUM  # unless: autocast
                loss.backward()  # unless: scaled
                scaler.scale(loss).backward()  # when: scaled
        scaler.unscale_(optimizer)  # when: scaled
        clip(model)
        optimizer.step()  # unless: scaled
        scaler.step(optimizer)  # when: scaled
        scaler.update()  # when: scaled
        optimizer.zero_grad(set_to_none=True)
        report.step(step + 1, loss.detach() * GRAD_ACCUM)
        if args.save_every and (step + 1) % args.save_every == 0:
            save(model, optimizer, step + 1, args.output)
    report.end()
    if args.save_every:
        export(model, args.output)
    if dist.is_initialized():
        dist.destroy_process_group()
