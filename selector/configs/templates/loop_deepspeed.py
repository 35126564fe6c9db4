# ruff: noqa: TID253
# mypy: ignore-errors
"""Train with deepspeed.initialize."""

import deepspeed
import torch
import torch.distributed as dist
from transformers.integrations import HfDeepSpeedConfig

from selector.configs.templates.adapters import add_adapters
from selector.configs.templates.arguments import arguments
from selector.configs.templates.data import dataset
from selector.configs.templates.deepspeed_engine import export, start
from selector.configs.templates.freezing import freeze
from selector.configs.templates.loader import loader
from selector.configs.templates.loss_plain import forward
from selector.configs.templates.model import load_model
from selector.configs.templates.optimizer import make_optimizer
from selector.configs.templates.recompute import checkpoint_activations
from selector.configs.templates.report import Report
from selector.configs.templates.settings import GRAD_ACCUM, SEED


def main():
    args = arguments()
    torch.manual_seed(SEED)
    config = start()
    partitioned = HfDeepSpeedConfig(config)  # noqa: F841 - kept alive: weights are cut as they load  # when: zero_init
    model = load_model(args.random_weights)
    freeze(model)  # when: freezing
    model = add_adapters(model)  # when: adapters
    checkpoint_activations(model)  # when: recompute
    model.gradient_checkpointing_enable({"use_reentrant": False})  # when: full_recompute
    examples = dataset(args.data, model)
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config)  # unless: own_optimizer
    optimizer = make_optimizer(trained)  # when: own_optimizer
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)  # when: own_optimizer
    engine.compile()  # when: compile
    engine.train()
    first = 0
    if args.resume:
        path, state = engine.load_checkpoint(args.output)
        first = state["step"] if path else 0
    batches = loader(examples, engine.device, first)
    report = Report(dist.get_rank())
    for step in range(first, args.steps):
        for _ in range(GRAD_ACCUM):  # the engine divides the loss, and steps at the last micro-step
            loss = forward(engine, next(batches))
            engine.backward(loss)
            engine.step()
        report.step(step + 1, loss.detach())
        if args.save_every and (step + 1) % args.save_every == 0:
            engine.save_checkpoint(args.output, client_state={"step": step + 1})
    report.end()
    if args.save_every:
        export(engine, args.output)
    dist.destroy_process_group()
