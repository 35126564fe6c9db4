"""Names that others use too: a foreign ``validate`` or ``selector`` must not run in place of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", ["validate", "selector", "estimators"])
@pytest.mark.parametrize("kind", ["module", "package"])
def test_the_command_runs_its_own(tmp_path: Path, name: str, kind: str) -> None:
    if kind == "module":
        (tmp_path / f"{name}.py").write_text("raise SystemExit('foreign')\n")
    else:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('foreign')\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "dist_advisor.py"), "strategies", "--format", "csv"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("strategy,")
    if str(ROOT) != sys.path[0]:
        assert not done.stderr or f"import {name}" in done.stderr


def test_a_foreign_module_is_named(tmp_path: Path) -> None:
    (tmp_path / "validate.py").write_text("")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.path.append({str(ROOT)!r})\n"
        "import dist_advisor\nprint(dist_advisor.foreign())"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert str(tmp_path / "validate.py") in done.stdout, done.stderr
