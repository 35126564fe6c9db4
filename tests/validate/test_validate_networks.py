"""Networks of every kind of input under FSDP2: a simulation holds what real ranks hold, and the estimate agrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators import estimate
from selector.configs import emit
from tests.validate.test_validate_engines import holds_the_same
from tests.validate.tiny import NETWORKS
from validate import session
from validate.question import read
from validate.report import Report

pytest.importorskip("torch")
pytest.importorskip("transformers")

WITH_TEXT = [name for name in NETWORKS if name != "vit"]  # the scripts' data is tokens
# network -> the most that the peak may be off, and why
OFF = {
    "llava": (0.06, "of two vision blocks the second is behind the layer whose features are used: it has no gradient"),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Report]]:
    """Mode -> network -> report; ranks are started once for a mode."""
    place = tmp_path_factory.mktemp("networks")
    asked = {}
    for name in WITH_TEXT:
        config, workload = NETWORKS[name]
        given = {"stack": "torch", "seq_len": 32, "checkpointing": "none", **workload}
        emit(estimate(config, "2xA10", "fsdp-full-shard", **given), place / name)
        asked[name] = read(place / name)
    return {
        mode: dict(zip(asked, session.answers([session.plan(q, mode, 2) for q in asked.values()], 300.0), strict=True))
        for mode in ("cpu", "simulate")
    }


@pytest.mark.engines
@pytest.mark.parametrize("name", WITH_TEXT)
def test_a_simulation_holds_what_gloo_holds(reports: dict[str, dict[str, Report]], name: str) -> None:
    holds_the_same(reports["simulate"][name], reports["cpu"][name])


@pytest.mark.engines
@pytest.mark.parametrize("name", WITH_TEXT)
def test_the_peak_is_predicted(reports: dict[str, dict[str, Report]], name: str) -> None:
    report = reports["cpu"][name]
    assert report.failure is None, str(report.failure)
    limit, _ = OFF.get(name, (0.01, ""))
    assert abs(report.error) <= limit, (report.error, [row for row in report.rows if not row.agrees])


@pytest.mark.engines
def test_zero3_keeps_gathered_experts_of_which_autograd_has_a_view(tmp_path: Path) -> None:
    """Without checkpointing they are all there at the loss; recomputed, none is."""
    pytest.importorskip("deepspeed")
    config, _ = NETWORKS["mixtral"]
    knobs = "reduce_bucket_size=100000,param_persistence_threshold=0,prefetch_bucket_size=0,max_reuse_distance=0"
    found = {}
    for how in ("none", "full"):
        given = estimate(config, "2xA10", f"zero3:{knobs}", stack="deepspeed", seq_len=32, checkpointing=how)
        emit(given, tmp_path / how)
        (found[how],) = session.answers([session.plan(read(tmp_path / how), "cpu", 2)], 300.0)
    held = {how: next(r for r in found[how].rows if (r.instant, r.category) == ("loss", "all")) for how in found}
    experts = 4 * 8 * 3 * 64 * 128 * 2  # blocks, experts, matrices, bf16
    assert held["none"].measured - held["full"].measured > experts
    assert all(abs(row.error) < 0.01 for row in held.values()), held
