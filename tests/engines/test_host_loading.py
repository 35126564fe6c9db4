"""What each rank reads of a checkpoint under ZeRO-3, from transformers itself: values on rank 0 alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from estimators import estimate

pytestmark = pytest.mark.engines


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_reads_values(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.modeling_utils")
    from safetensors.torch import save_file

    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(64, 32)}, str(path))
    read: dict[str, Any] = {}
    monkeypatch.setattr(modeling, "is_deepspeed_zero3_enabled", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(
        modeling, "_load_state_dict_into_zero3_model", lambda model, found, config: (read.update(found), ([], set()))[1]
    )
    model = torch.nn.Linear(32, 64, bias=False)
    modeling.PreTrainedModel._load_pretrained_model(
        model, None, [str(path)], modeling.LoadStateDictConfig(), ["weight"]
    )
    assert read["weight"].is_meta is (rank > 0)


def test_the_estimate_counts_one_copy_where_parameters_are_cut_as_they_load() -> None:
    whole = 2 * 8030261248
    for strategy, fields, copies in (
        ("zero3", {}, 1), ("zero3:zero_init=false", {}, 8), ("zero2", {}, 8), ("fsdp", {}, 8),
        ("zero3", {"method": "qlora"}, 8), ("ddp", {"method": "qlora"}, 0), ("zero2", {"method": "qlora"}, 0),
    ):  # fmt: skip
        terms = estimate("llama-8b", "8xA100", strategy, **fields)["load"].terms
        read = sum(t.bytes for t in terms if t.name == "checkpoint copies")
        assert round(read / whole, 2) == pytest.approx(copies, rel=0.01), (strategy, fields)  # adapters beside
