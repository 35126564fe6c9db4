"""All files of one run, by the stack that runs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from estimators.errors import IllegalCombination
from estimators.memory import Estimate
from estimators.model.positions import learned_positions
from estimators.run import Run
from selector.configs import accelerate, axolotl, deepspeed, launch, llamafactory, swift, torchtitan, torchtune, trainer
from selector.configs.launch import Start, files, start_of
from selector.configs.model_files import config_json
from selector.configs.plan import plan_json
from selector.configs.readme import readme
from selector.configs.requirements import requirements
from selector.configs.script import SCRIPTED, kind_of, script
from selector.configs.yaml_text import dump

Made = tuple[dict[str, str], Start]


def bundle(estimate: Estimate) -> dict[str, str]:
    """Name -> text. Raises ``IllegalCombination`` or ``NotModelled`` for what the stack has no word for."""
    run = estimate.run
    longest = learned_positions(run.model)
    if longest is not None and run.workload.seq_len > longest:
        raise IllegalCombination(
            f"{run.model.name} has {longest:,} positions: sequences of {run.workload.seq_len:,} tokens end in an IndexError; "
            f"give --seq-len {longest}"
        )
    made, start = _own(estimate)
    configs = [name for name in made if not name.endswith(".py")]
    made |= files(run, start)
    made["requirements.txt"] = requirements(run)
    made["model/config.json"] = config_json(run.model)
    kind = kind_of(run) if launch.is_scripted(run) else run.workload.stack
    made["plan.json"] = plan_json(estimate, kind, "train.py" if "train.py" in made else None, configs)
    made["README.md"] = readme(estimate, made, start)
    return made


def _own(estimate: Estimate) -> Made:
    """What the stack itself reads, and how it is started."""
    stack = estimate.run.workload.stack
    if stack in SCRIPTED:
        return _scripted(estimate)
    check_stack(stack)
    return TARGETS[stack](estimate)


def is_written(stack: str) -> bool:
    """Whether files are written for a stack; the others are estimated only."""
    return stack in SCRIPTED or stack in TARGETS


def check_stack(stack: str) -> None:
    """Raise ``IllegalCombination`` for a stack that is estimated and that no files are written for."""
    if not is_written(stack):
        raise IllegalCombination(
            f"stack {stack} is estimated, and no files are written for it: its runs are Python of your own. Files are "
            f"written for {', '.join((*SCRIPTED, *TARGETS))}: --stack torch drives the same engines from one script"
        )


def _scripted(estimate: Estimate) -> Made:
    run = estimate.run
    made = {"train.py": script(estimate)}
    if kind_of(run) == "trainer":
        made["training_args.json"] = as_json(trainer.arguments(run))
    if run.strategy.engine == "deepspeed":
        made["ds_config.json"] = as_json(deepspeed_json(run))
    if kind_of(run) in ("trainer", "accelerate"):
        made["accelerate.yaml"] = dump(accelerate.config(run))
    return made, start_of(run)


def deepspeed_json(run: Run) -> dict[str, object]:
    return deepspeed.hugging_face(run) if kind_of(run) == "trainer" else deepspeed.native(run)


def as_json(data: Mapping[str, object]) -> str:
    return json.dumps(data, indent=2) + "\n"


TARGETS: Mapping[str, Callable[[Estimate], Made]] = {
    "swift": swift.target,
    "llamafactory": llamafactory.target,
    "axolotl": axolotl.target,
    "torchtune": torchtune.target,
    "torchtitan": torchtitan.target,
}
