"""Reading a live module: the names, shapes, blocks and ties that its family's formula gives; and any other module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from estimators.errors import InputError, NotModelled
from estimators.model import catalogue, resolve_model
from estimators.model.module import read_module
from estimators.model.spec import ModelSpec
from tests.model.meta import build_meta

PARITY = ["gpt2", "llama-1b", "qwen3-0.6b", "opt-350m", "bloom-560m", "pythia-70m", "phi-2", "qwen1.5-moe",
          "deepseek-v2-lite", "gpt-oss-20b", "gemma-2-2b", "bert-base", "distilbert", "t5-small", "vit",
          "gemma-3-4b", "qwen2.5-vl-3b"]  # fmt: skip


def blocks(spec: ModelSpec) -> list[tuple[Any, ...]]:
    return [
        (p.count, p.prefix, p.first, p.class_name, p.role, p.parameters, sorted(p.buffers, key=str))
        for p in spec.blocks
    ]  # fmt: skip


@pytest.mark.parametrize("name", PARITY)
def test_the_module_reads_as_its_formula(name: str) -> None:
    formula = resolve_model(name)
    entry = catalogue.find(name)
    assert entry is not None
    config = {key: value for key, value in entry.config.items() if key != "dtype"}
    read = read_module(build_meta(config, formula.class_name))
    assert list(read.named_parameters()) == list(formula.named_parameters())
    assert blocks(read) == blocks(formula)
    assert dict(read.tied) == dict(formula.tied)
    assert (read.embedding, read.head, read.class_name) == (formula.embedding, formula.head, formula.class_name)
    assert read.num_params == formula.num_params
    assert read.shapes == "module"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.register_buffer("mask", torch.ones(3), persistent=False)


class Net(nn.Module):
    def __init__(self, layers: int = 4, width: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(16, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.out = nn.Linear(width, 16, bias=False)
        self.out.weight = self.table.weight


def test_any_module() -> None:
    spec = resolve_model(Net())
    assert (spec.name, spec.family, spec.shapes, spec.source) == ("Net", "Net", "module", "live module")
    assert [(p.class_name, p.count, p.prefix) for p in spec.blocks] == [("Block", 4, "layers.{}")]
    assert dict(spec.tied) == {"out.weight": "table.weight"}
    assert spec.num_params == sum(p.numel() for p in Net().parameters())
    assert [b.name for b in spec.blocks[0].buffers] == ["mask"] and not spec.blocks[0].buffers[0].persistent
    assert [p.kind for p in spec.blocks[0].parameters] == ["norm", "norm", "linear"]


def test_blocks_that_differ_are_separate_runs() -> None:
    net = Net()
    net.layers[2] = Block(10)
    assert [(p.count, p.first) for p in resolve_model(net).blocks] == [(2, 0), (1, 2), (1, 3)]


def test_frozen_and_odd_dtypes_are_kept() -> None:
    net = Net().bfloat16()
    net.table.requires_grad_(False)
    net.layers[0].norm.float()
    spec = resolve_model(net)
    found = {name: (p.trainable, p.dtype) for name, p in spec.named_parameters()}
    assert found["table.weight"] == (False, None)
    assert found["layers.0.norm.weight"] == (True, "fp32")
    assert found["layers.1.norm.weight"] == (True, None)
    assert spec.num_trainable == spec.num_params - 16 * 8


def test_a_module_without_blocks_and_one_without_parameters() -> None:
    assert resolve_model(nn.Linear(2, 3)).num_params == 9
    with pytest.raises(InputError, match="Identity has no parameters"):
        resolve_model(nn.Identity())


def test_wrappers_are_looked_through() -> None:
    assert resolve_model(nn.DataParallel(Net())).class_name == "Net"
    compiled: Any = torch.compile(Net())
    assert resolve_model(compiled).class_name == "Net"


def test_quantised_weights_are_refused() -> None:
    net: Any = nn.Linear(4, 4)
    net.weight = nn.Parameter(torch.zeros(16, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(NotModelled, match="parameter weight is stored as uint8"):
        resolve_model(net)
