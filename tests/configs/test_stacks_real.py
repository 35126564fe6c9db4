"""ms-swift, LLaMA-Factory, Axolotl, torchtitan, torchtune, TRL: emitted files against the schemas of their own classes.

The schemas are dated and versioned; ``scripts/stack-schemas`` writes them anew. Beside them stands which emitted
configurations each stack's own parser accepted, by digest; ``scripts/stack-parsers`` asks the parsers again.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from runs import CLUSTER, LLAMA, ONE, name_of, of

from estimators import AdvisorError, IllegalCombination, estimate
from estimators.memory import resolve
from estimators.run import Run
from estimators.stacks import NEWEST
from selector.cli import main
from selector.configs import axolotl, files_of, hyper, llamafactory, swift, torchtitan, torchtune, trainer
from selector.configs.requirements import requirements

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "stack_parsers"))
from cases import STACKS, cases

SCHEMAS = Path(__file__).parent / "schemas"


def schema(package: str) -> dict[str, Any]:
    with open(SCHEMAS / f"{package}.json", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


@pytest.mark.parametrize("package", ["ms-swift", "llamafactory", "axolotl", "torchtitan", "torchtune", "trl"])
def test_the_schema_is_of_the_version_that_is_assumed(package: str) -> None:
    assert schema(package)["version"] == NEWEST[package]


@pytest.mark.parametrize("package", sorted(STACKS))
def test_its_own_parser_has_accepted_every_configuration(package: str) -> None:
    """If this fails after a change of what is emitted: run scripts/stack-parsers."""
    record = schema(f"{package}.parsed")
    assert record["version"] == NEWEST[package] and not record["refused"]
    unread = [case["name"] for digest, case in cases(package).items() if digest not in record["accepted"]]
    assert not unread, f"not read by {package}'s own parser: {unread[:5]}"


@pytest.mark.parametrize("package", ["ms-swift", "llamafactory", "axolotl", "torchtitan", "torchtune", "trl"])
def test_pip_can_install_what_is_asked_for(package: str) -> None:
    """No line excludes what the stack's own wheel asks for: else pip finds nothing that satisfies both."""
    asked = [r for r in map(Requirement, schema(package)["requires"]) if _applies(r)]
    stack = {"ms-swift": "swift"}.get(package, package)
    lines = {line for run in _installed(stack) for line in requirements(run).splitlines()}
    assert any(line.startswith(f"{package}==") for line in lines)
    for line in lines:
        ours = Requirement(line.partition("#")[0])
        theirs = SpecifierSet(",".join(str(a.specifier) for a in asked if a.name.lower() == ours.name.lower()))
        for bound in ours.specifier:
            agrees = theirs.contains(bound.version) if bound.operator == "==" else bound in set(theirs)
            assert agrees, f"{line}: {package} asks for {theirs}"


def _applies(asked: Requirement) -> bool:
    """Without extras; but what an extra says of DeepSpeed holds for whoever installs it."""
    return "extra" not in str(asked.marker) or asked.name in ("deepspeed", "flash-attn")


def _installed(stack: str) -> list[Run]:
    if stack.startswith("torcht"):
        precision = "bf16" if stack == "torchtune" else "bf16-mixed"
        return [resolve("llama-8b", CLUSTER, "fsdp-full-shard", stack=stack, precision=precision)]
    extra = (
        {"loss": "fused"},
        {"attention": "flash"},
        {"optimizer": "adamw-8bit"},
        {"method": "qlora"},
        {"method": "lora"},
    )
    return [*of(stack), *(resolve(LLAMA, CLUSTER, "zero2", stack=stack, **fields) for fields in extra)]


def test_a_version_that_was_given_is_kept_where_the_stack_takes_it() -> None:
    older = (("transformers", "5.6.0"), ("accelerate", "1.11.0"))
    lines = requirements(resolve(LLAMA, CLUSTER, "ddp", stack="llamafactory", versions=older)).splitlines()
    assert {"transformers==5.6.0", "accelerate==1.11.0"} <= set(lines)
    lines = requirements(resolve(LLAMA, CLUSTER, "ddp", stack="llamafactory", versions=(("llamafactory", "0.9.2"),)))
    assert "transformers  # in the version that llamafactory 0.9.2 asks for" in lines


@pytest.mark.parametrize(
    ("stack", "package", "arguments", "least"),
    [
        ("swift", "ms-swift", swift.arguments, 100),
        ("llamafactory", "llamafactory", llamafactory.arguments, 100),
        ("axolotl", "axolotl", axolotl.arguments, 80),
        ("trl", "trl", trainer.arguments, 100),
    ],
)
def test_every_argument_is_known(stack: str, package: str, arguments: Any, least: int) -> None:
    """Names, choices, and plain types, over every run that the stack has words for."""
    known = schema(package)["arguments"]
    count = 0
    for run in of(stack):
        try:
            made = arguments(run)
        except IllegalCombination:
            continue
        count += 1
        for name, value in made.items():
            assert name in known, (name, name_of(run))
            _fits(name, value, known[name], run)
        _same_batch(run, made)
    assert count >= least


def _fits(name: str, value: Any, row: dict[str, Any], run: Run) -> None:
    if row.get("choices") and not isinstance(value, bool | dict | list):
        assert value in row["choices"], (name, value, name_of(run))
    kind = row["type"]
    if isinstance(value, bool):
        assert "bool" in kind or "str" in kind or "Union" in kind or "Any" in kind or "|" in kind, (name, kind)
    elif isinstance(value, int) and not isinstance(value, bool):
        assert any(word in kind for word in ("int", "float", "Union", "Any", "str", "|")), (name, kind)


def _same_batch(run: Run, made: dict[str, Any]) -> None:
    micro = made.get("per_device_train_batch_size", made.get("micro_batch_size"))
    assert micro * made["gradient_accumulation_steps"] * run.ranks == hyper.global_batch(run)


def test_axolotl_sections_are_known() -> None:
    nested = schema("axolotl")["nested"]
    for run in of("axolotl", engine="fsdp2"):
        made = axolotl.arguments(run)
        assert set(made["fsdp_config"]) <= set(nested["FSDPConfig"])
        assert set(made["datasets"][0]) <= set(nested["SFTDataset"])


def test_swift_fsdp_file_is_what_its_own_says() -> None:
    made = swift.fsdp(of("swift", engine="fsdp2")[0])
    assert set(made) == {"fsdp", "fsdp_config"} and made["fsdp_config"]["fsdp_version"] == 2


def test_torchtune_keys_and_components() -> None:
    found = schema("torchtune")
    count = 0
    for name in torchtune.models():
        for strategy in ("single", "fsdp-full-shard", "fsdp-shard-grad-op+params@cpu"):
            for method in ("full", "lora", "qlora"):
                cluster = ONE if strategy == "single" else CLUSTER
                try:
                    run = resolve(name, cluster, strategy, stack="torchtune", method=method, precision="bf16")
                    made = torchtune.config(run)
                except AdvisorError:
                    continue
                kind = "full" if method == "full" else "lora"
                assert set(made) <= {*found["keys"][kind], "save_adapter_weights_only"}, set(made) - set(
                    found["keys"][kind]
                )
                assert made["model"]["_component_"].rpartition(".")[2] in found["components"]
                count += 1
    assert count > 100


@pytest.mark.parametrize("strategy", ["ddp", "fsdp-full-shard", "fsdp-shard-grad-op", "fsdp-hybrid-shard:shard=4"])
def test_torchtitan_sets_attributes_that_exist(strategy: str) -> None:
    found = schema("torchtitan")
    classes = {"training": "TrainingConfig", "parallelism": "ParallelismConfig", "compile": "CompileConfig",
               "debug": "DebugConfig", "checkpoint": "BaseCheckpointManager.Config"}  # fmt: skip
    for name, (module, function) in torchtitan.MODELS.items():
        run = resolve(name, CLUSTER, strategy, stack="torchtitan", loss="plain")
        assert function in found["functions"][f"torchtitan.models.{module}.config_registry"]
        for path, text in torchtitan.settings(run).items():
            section, _, attribute = path.rpartition(".")
            fields = found["classes"][classes[section] if section else "Trainer.Config"]
            assert attribute in fields, path
            choices = fields[attribute].get("choices")
            assert not choices or ast.literal_eval(text) in choices, path
        for node in ast.walk(ast.parse(torchtitan.config(run))):
            if isinstance(node, ast.ImportFrom):
                assert {alias.name for alias in node.names} <= set(found["functions"][str(node.module)])
        degrees = [
            int(v) for k, v in torchtitan.settings(run).items() if k.endswith(("replicate_degree", "shard_degree"))
        ]
        assert degrees[0] * degrees[1] == run.ranks


@pytest.mark.parametrize("stack", ["litgpt", "composer"])
def test_a_stack_without_files_is_said_before_anything_is_written(
    stack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And is not suggested: what follows a recommendation for it is no --emit."""
    words = ["recommend", "--model", "llama-8b", "--gpus", "8xA100-80GB", "--stack", stack]
    assert main([*words, "--emit", str(tmp_path / "run")]) == 2
    assert "no files are written for it" in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert main(words) == 0 and "--emit" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stack", "strategy", "fields", "reason"),
    [
        ("swift", "fsdp1-full-shard", {}, "FSDP2 over all ranks"),
        ("axolotl", "fsdp1-full-shard", {}, "FSDP1 is deprecated"),
        ("axolotl", "ddp", {}, "16-bit weights"),
        ("llamafactory", "ddp", {"loss": "fused"}, "norms"),
        ("llamafactory", "zero3", {"precision": "bf16"}, "pure_bf16"),
        ("torchtitan", "fsdp-full-shard", {}, "has a config for"),
        ("torchtune", "ddp", {}, "has no model"),
        ("composer", "fsdp-full-shard", {}, "no files are written for it.* torch, deepspeed, .*axolotl"),
        ("litgpt", "fsdp1-full-shard", {}, "no files are written for it"),
    ],
)
def test_refusals_say_why(stack: str, strategy: str, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(IllegalCombination, match=reason):
        files_of(estimate(LLAMA, CLUSTER, strategy, stack=stack, **fields))
