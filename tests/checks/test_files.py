"""Files side by side, positions, corrected copies, SARIF and the command line."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from selector.checks import check_files
from selector.checks.fixing import corrected
from selector.checks.machine import Machine
from selector.checks.sarif import sarif
from selector.cli import main
from tests.checks.building import args, ds, found, fsdp, py

JSON = """{
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 18,
    "zero_optimization": {
        "stage": 2,
        "reduce_buket_size": 5e8,
        "offload_param": {"device": "cpu"}
    }
}
"""
YAML = """# our cluster
distributed_type: FSDP
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP  # by class
  fsdp_reshard_after_forward: FULL_SHARD
  fsdp_state_dict_type: LOCAL_STATE_DICT
"""


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_positions(tmp_path: Path) -> None:
    findings = check_files([file(tmp_path, "ds.json", JSON)], machine=Machine(), cluster="7xA100")
    places = {f.rule: (f.where, f.line) for f in findings}
    assert places["ds-batch-triangle"] == ("train_batch_size", 2)
    assert places["ds-unknown-key"] == ("zero_optimization.reduce_buket_size", 7)
    assert places["offload-param-needs-stage3"] == ("zero_optimization.offload_param.device", 8)


def test_message_has_the_numbers(tmp_path: Path) -> None:
    """OpenRLHF#346: 256 on 7 GPUs; the nearest valid ones are 252 and 266."""
    findings = check_files([file(tmp_path, "ds.json", JSON)], machine=Machine(), cluster="7xA100")
    finding = next(f for f in findings if f.rule == "ds-batch-triangle")
    assert "256" in finding.message and "7 GPUs" in finding.message
    assert "252 (accumulation 18)" in finding.fix and "266 (accumulation 19)" in finding.fix


def test_suggestion_for_a_misspelt_key(tmp_path: Path) -> None:
    finding = next(f for f in found(tmp_path, (ds(2, reduce_buket_size=1),)) if f.rule == "ds-unknown-key")
    assert finding.suggestions[0] == "reduce_bucket_size"
    finding = next(f for f in found(tmp_path, (args(per_device_train_batch_sise=1),)) if f.rule == "misspelt-key")
    assert finding.suggestions == ("per_device_train_batch_size",)


def test_a_yaml_that_names_a_json(tmp_path: Path) -> None:
    file(tmp_path, "ds.json", json.dumps({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}))
    text = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    findings = check_files([file(tmp_path, "a.yaml", text)], machine=Machine())
    assert next((f.rule, Path(f.file).name) for f in findings) == ("offload-param-needs-stage3", "ds.json")


def test_a_missing_file_is_a_warning(tmp_path: Path) -> None:
    assert {f.rule for f in found(tmp_path, (args(deepspeed="none.json"),)) if f.severity == "warning"} == {
        "named-file"
    }


def test_several_of_a_kind_are_checked_one_by_one(tmp_path: Path) -> None:
    one, two = file(tmp_path, "one.json", JSON), file(tmp_path, "two.json", JSON)
    findings = check_files([one, two], machine=Machine(), cluster="7xA100")
    assert {Path(f.file).name for f in findings if f.rule == "ds-batch-triangle"} == {"one.json", "two.json"}


def test_script_arguments_and_dictionaries(tmp_path: Path) -> None:
    text = (
        "from transformers import TrainingArguments\n"
        "args = TrainingArguments(\n    output_dir='o',\n    fp16=True,\n    bf16=True,\n"
        "    deepspeed={'zero_optimization': {'stage': 2, 'offload_param': {'device': 'cpu'}}},\n)\n"
    )
    findings = {f.rule: f for f in found(tmp_path, (py(text),))}
    assert findings["trainer-fp16-bf16-both"].line == 4
    assert findings["offload-param-needs-stage3"].severity == "error"


def test_a_script_is_never_executed(tmp_path: Path) -> None:
    target = tmp_path / "executed"
    found(tmp_path, (py(f"open({str(target)!r}, 'w')\nTrainingArguments(fp16=True)\n"),))
    assert not target.exists()


# --------------------------------------------------------------------------------------------------- corrected copies


def test_corrected_json_is_clean(tmp_path: Path) -> None:
    path = file(tmp_path, "ds.json", JSON)
    (copy,) = corrected(check_files([path], machine=Machine(), cluster="7xA100"))
    assert copy.path.name == "ds.fixed.json" and path.read_text() == JSON and not copy.path.exists()
    data = json.loads(copy.text)
    assert data["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 5e8} and "train_batch_size" not in data
    again = file(tmp_path, "again.json", copy.text)
    assert not [f for f in check_files([again], machine=Machine(), cluster="7xA100") if f.severity == "error"]


def test_corrected_yaml_keeps_comments(tmp_path: Path) -> None:
    path = file(tmp_path, "a.yaml", YAML)
    (copy,) = corrected(check_files([path], machine=Machine()))
    assert "# our cluster" in copy.text and "# by class" in copy.text
    assert "fsdp_reshard_after_forward: true" in copy.text and "SHARDED_STATE_DICT" in copy.text
    assert "-  fsdp_state_dict_type: LOCAL_STATE_DICT" in copy.difference


# -------------------------------------------------------------------------------------------------------- command line


def test_exit_status_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = file(tmp_path, *ds(2)), file(tmp_path, "bad.json", JSON)
    assert main(["check", str(good), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "dist-advisor/check/1"
    assert main(["check", str(bad), "--gpus", "7xA100", "--format", "json"]) == 1
    rows = json.loads(capsys.readouterr().out)["findings"]
    assert {"rule", "severity", "file", "where", "message", "fix", "source", "line"} <= rows[0].keys()
    assert main(["check", str(file(tmp_path, "broken.json", "{")), "--format", "json"]) == 2
    assert main(["check", str(bad), "--format", "csv"]) == 1 and "ds-unknown-key" in capsys.readouterr().out
    assert main(["check", str(bad), "--rule", "ds-bool-as-string", "-q"]) == 0


def test_fix_writes_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, "ds.json", JSON)
    for name in ("ds.fixed.json", "ds.fixed-2.json"):
        assert main(["check", str(path), "--gpus", "7xA100", "--fix", "-q"]) == 1
        assert (tmp_path / name).exists() and path.read_text() == JSON
    assert "+++ ds.fixed-2.json" in capsys.readouterr().err


def test_sarif(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, "ds.json", JSON)
    assert main(["check", str(path), "--gpus", "7xA100", "--format", "sarif"]) == 1
    document = json.loads(capsys.readouterr().out)
    run = document["runs"][0]
    assert document["version"] == "2.1.0" and run["tool"]["driver"]["name"] == "dist-advisor"
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"] and result["level"] in ("error", "warning", "note")
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] >= 1
    assert sarif((), "1")["runs"][0]["results"] == []


def test_a_file_takes_milliseconds(tmp_path: Path) -> None:
    path = file(tmp_path, *fsdp(2))
    check_files([path], machine=Machine())
    times = []
    for _ in range(5):
        start = time.process_time()
        check_files([path], machine=Machine())
        times.append(time.process_time() - start)
    assert min(times) < 0.02
