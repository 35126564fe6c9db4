"""What is emitted is read back by our own readers as the strategy and the workload that were asked for."""

from __future__ import annotations

import json
from pathlib import Path

from runs import name_of, of

from estimators.readers import Reading, read_config
from estimators.run import Run
from selector.configs import accelerate, bundle, deepspeed, trainer
from selector.configs.script import SCRIPTED, kind_of
from selector.configs.yaml_text import dump


def test_deepspeed_json(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    runs = [run for run in of(*SCRIPTED, engine="deepspeed") if kind_of(run) != "trainer"]
    for run in runs:
        path.write_text(json.dumps(deepspeed.native(run)))
        read = read_config(path, ranks=run.ranks)
        _same_strategy(run, read)
        work = run.workload
        assert read.workload["precision"] == work.precision, name_of(run)
        assert (read.workload["micro_batch"], read.workload["grad_accum"]) == (work.micro_batch, work.grad_accum)
        assert not [i for i in read.ignored if not i.known], name_of(run)
    assert len(runs) > 200


def test_training_arguments_with_deepspeed(tmp_path: Path) -> None:
    runs = of("trainer", engine="deepspeed")
    for run in runs:
        (tmp_path / "ds_config.json").write_text(json.dumps(bundle.deepspeed_json(run)))
        path = tmp_path / "training_args.json"
        path.write_text(json.dumps(trainer.arguments(run)))
        read = read_config(path, ranks=run.ranks).with_hidden_size(int(str(run.model.config["hidden_size"])))
        _same_strategy(run, read)
        assert read.workload["precision"] == run.workload.precision, name_of(run)
        assert read.workload["checkpointing"] == run.workload.checkpointing
        assert read.workload["micro_batch"] == run.workload.micro_batch
    assert len(runs) > 100


def test_accelerate_yaml(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    count = 0
    for run in of("accelerate"):
        if run.strategy.engine == "deepspeed":
            (tmp_path / "ds_config.json").write_text(json.dumps(deepspeed.native(run)))
        path.write_text(dump(accelerate.config(run)))
        read = read_config(path)
        _same_strategy(run, read)
        assert read.num_processes == run.ranks and read.num_machines == run.cluster.nodes
        if run.strategy.engine == "deepspeed":
            assert read.workload["grad_accum"] == run.workload.grad_accum
        elif run.workload.precision.endswith("-mixed"):
            assert read.workload["precision"] == run.workload.precision
        count += 1
    assert count > 100


def _same_strategy(run: Run, read: Reading) -> None:
    """The same engine, sharding and offload; and no knob that differs from what was settled."""
    ours, theirs = run.strategy, read.strategy
    where = name_of(run)
    assert (theirs.base, theirs.optimizer, theirs.params) == (ours.base, ours.optimizer, ours.params), where
    for name, value in theirs.options.items():
        assert value == run.settings.knobs[name], (where, name)
    assert not read.gaps, (where, read.gaps)
    for name, value in ours.options.items():
        if name in theirs.options:
            assert theirs.options[name] == value, (where, name)
