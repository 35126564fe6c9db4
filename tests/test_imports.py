"""Who may import whom, and what importing must not bring along."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "deepspeed", "accelerate", "matplotlib", "networkx", "numpy", "gradio", "fastapi")

# package or module -> what it must not import at all; the most specific rule counts
FORBIDDEN = {
    "estimators": ("selector", "validate"),
    "selector": ("validate",),
    "selector.cli": (),
    "validate": ("selector",),
}
# layers inside estimators, lowest first: a module imports from its own layer or below
LAYERS = [
    ("values", "units", "errors", "result", "knobs", "devices", "sites", "calibration"),
    ("model.spec", "model.families", "model.catalogue", "model", "cluster", "workload", "strategy"),
    ("run", "stacks", "optimizers", "model.methods", "readers"),
    ("engines", "activations", "runtime", "host", "time", "step_temporaries"),
    ("held",),
    ("memory",),
]


def imported(path: Path) -> set[str]:
    """Every module that a file names in an import, wherever it stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def files_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("package", ["estimators", "selector", "validate"])
def test_directions_between_packages(package: str) -> None:
    for path in files_of(package):
        name = module_name(path)
        rule = next(FORBIDDEN[r] for r in sorted(FORBIDDEN, key=len, reverse=True) if (name + ".").startswith(r + "."))
        wrong = {m for m in imported(path) for banned in rule if (m + ".").startswith(banned + ".")}
        assert not wrong, f"{name} imports {wrong}"


def layer_of(module: str) -> int | None:
    inner = module.removeprefix("estimators.")
    best = None
    for level, names in enumerate(LAYERS):
        for name in names:
            if inner == name or inner.startswith(name + "."):
                if best is None or len(name) > best[1]:
                    best = (level, len(name))
    return None if best is None else best[0]


def test_layers_inside_estimators() -> None:
    for path in files_of("estimators"):
        name = module_name(path)
        level = layer_of(name)
        if level is None:
            assert name == "estimators", f"{name} stands in no layer: add it to LAYERS"
            continue
        for other in imported(path):
            other_level = layer_of(other) if other.startswith("estimators.") else None
            assert other_level is None or other_level <= level, f"{name} imports {other}, which lies above it"


def test_engines_do_not_import_each_other() -> None:
    shared = {"sharding"}
    for path in files_of("estimators/engines"):
        if path.stem == "__init__":
            continue
        engine = path.stem.split("_")[0].rstrip("0123456789") if path.stem.startswith("zero") else path.stem
        for other in imported(path):
            if other.startswith("estimators.engines."):
                target = other.split(".")[2]
                same = target.startswith("zero") and engine.startswith("zero")
                assert target in shared or target == path.stem or same, f"{path.name} imports {other}"


@pytest.mark.parametrize(
    "statement",
    [
        "import estimators",
        "import selector",
        "import selector.cli",
        "from validate import validate",
        "from estimators import estimate; estimate('llama-8b', '4xA10', 'zero3').verdict",
        "from selector.cli import main; main(['estimate', '--model', 'llama-8b', '--gpus', '4xA10', '--format', 'json'])",
        "from selector.cli import main; main(['explain', '--model', 'llama-8b', '--gpus', '4xA10', 'zero2', 'zero3'])",
    ],
)
def test_importing_brings_no_heavy_library(statement: str) -> None:
    code = (
        f"import sys\n{statement}\nheavy = sorted(set({HEAVY!r}) & set(sys.modules))\nsys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_check_itself_can_fail() -> None:
    code = "import sys, networkx\nsys.exit('networkx' if 'networkx' in sys.modules else 0)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 1
