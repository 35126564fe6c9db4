"""Files side by side, positions, corrected copies, SARIF and the command line."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from selector.checks import check_files
from selector.checks.fixing import corrected
from selector.checks.folders import expanded
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


def test_an_error_does_not_hide_another(tmp_path: Path) -> None:
    """What a reader refuses is said beside the errors of rules, unless they point at the same key."""
    source = {"bf16": True, "fp16": True, "fsdp": "full_shard", "deepspeed": {"zero_optimization": {"stage": 2}}}
    findings = check_files([file(tmp_path, "args.json", json.dumps(source))], machine=Machine())
    errors = [(f.rule, f.where) for f in findings if f.severity == "error"]
    assert ("trainer-fp16-bf16-both", "fp16") in errors and ("refused-value", "fsdp") in errors
    assert len({where for _, where in errors}) == len(errors)


def test_axolotls_micro_batch_counts(tmp_path: Path) -> None:
    text = "base_model: x\nmicro_batch_size: 4\nsequence_len: 8192\nbf16: true\n"
    path = file(tmp_path, "a.yml", text)
    findings = check_files([path], machine=Machine(), model="llama-8b", cluster="8xA100-80GB")
    (finding,) = (f for f in findings if f.rule == "logits-memory")
    assert finding.message.startswith("4 x 8192 x 128256") and finding.where == "micro_batch_size"


def test_a_missing_file_is_a_warning(tmp_path: Path) -> None:
    assert {f.rule for f in found(tmp_path, (args(deepspeed="none.json"),)) if f.severity == "warning"} == {
        "named-file"
    }


def test_several_of_a_kind_are_checked_one_by_one(tmp_path: Path) -> None:
    one, two = file(tmp_path, "one.json", JSON), file(tmp_path, "two.json", JSON)
    findings = check_files([one, two], machine=Machine(), cluster="7xA100")
    assert {Path(f.file).name for f in findings if f.rule == "ds-batch-triangle"} == {"one.json", "two.json"}


def test_the_named_json_decides_and_not_what_stands_beside_it(tmp_path: Path) -> None:
    """Stage and offload are the JSON's; the YAML's own are refused, and no rule judges them."""
    file(tmp_path, "ds.json", json.dumps({"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 1}))
    other = file(tmp_path, "other.json", json.dumps({"zero_optimization": {"stage": 3, "offload_param": True}}))
    inline = "zero_stage: 3, offload_param_device: cpu, zero3_init_flag: true, deepspeed_config_file"
    yaml = file(tmp_path, "a.yaml", f"distributed_type: DEEPSPEED\ndeepspeed_config: {{{inline}: ds.json}}\n")
    findings = {f.rule: f for f in check_files([yaml], machine=Machine(), model="llama-8b", cluster="8xA10")}
    assert findings["does-not-fit"].message.startswith("zero1 needs") and "accel-zero3-save-16bit" not in findings
    assert "stage 1 is forced off" in findings["accel-zero3-init-flag"].message
    both = check_files([yaml, other], machine=Machine(), model="llama-8b", cluster="8xA10")
    assert any(f.rule == "ds-offload-object" and f.file.endswith("other.json") for f in both)  # a run of its own
    assert any(f.rule == "does-not-fit" and f.file.endswith("ds.json") for f in both)


@pytest.mark.parametrize("name", ["a.yaml", "args.json"])
def test_a_run_whose_engine_file_is_missing_is_not_estimated(name: str, tmp_path: Path) -> None:
    """It is neither DDP nor the stage that stands beside the missing file."""
    yaml = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: gone.json, zero_stage: 3}\n"
    text = yaml if name == "a.yaml" else '{"deepspeed": "gone.json", "per_device_train_batch_size": 1, "bf16": true}'
    findings = check_files([file(tmp_path, name, text)], machine=Machine(), model="llama-70b", cluster="8xA10")
    assert {f.rule for f in findings} <= {"named-file", "accel-ds-file-and-inline"}
    assert "correct the path" in next(f.fix for f in findings if f.rule == "named-file")


# -------------------------------------------------------------------------------------------------------------- folders


def folder(path: Path) -> Path:
    path.mkdir()
    file(path, "ds.json", json.dumps({"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}))
    file(path, "args.yaml", "per_device_train_batch_size: 1\nbf16: true\nfp16: true\ndeepspeed: ds.json\n")
    file(path, "spare.json", json.dumps({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}))
    file(path, "config.json", json.dumps({"architectures": ["LlamaForCausalLM"], "bf16": True}))
    file(path, "trainer_state.json", json.dumps({"train_batch_size": 8, "global_step": 5}))
    file(path, "broken.json", "{")
    file(path, "train.py", "from transformers import TrainingArguments\nTrainingArguments('o', bf16=True)\n")
    file(path, "helper.py", "print(1)\n")
    return path


def test_a_folder_stands_for_its_configurations(tmp_path: Path) -> None:
    files, notes = expanded([folder(tmp_path / "run")])
    assert [Path(name).name for name in files] == ["args.yaml", "ds.json", "spare.json", "train.py"]
    assert notes == (f"{tmp_path / 'run'} holds args.yaml, ds.json, spare.json, train.py",)
    found_here = {(f.rule, Path(f.file).name) for f in check_files([tmp_path / "run"], machine=Machine())}
    assert {("trainer-fp16-bf16-both", "args.yaml"), ("zero3-gather-on-save", "ds.json"),
            ("offload-param-needs-stage3", "spare.json")} <= found_here  # fmt: skip


def test_a_folder_without_any_says_what_to_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder(tmp_path / "configs")
    file(tmp_path, "package.json", "{}")
    assert main(["check", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "no configuration among package.json; folders in it with such files: configs; name a DeepSpeed" in message
    file(tmp_path, "ds.json", '{"zero_optimization": {"stage": 2},}')  # one that is meant, and damaged
    assert main(["check", str(tmp_path)]) == 2 and "ds.json, line 1, column" in capsys.readouterr().err


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
