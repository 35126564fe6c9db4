"""A block's forward, cut at its modules: nothing is lost, and a place that is not known is the whole around it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from estimators.activations.amounts import runs_of
from estimators.activations.checkpointing import Kept
from estimators.activations.question import question_of
from estimators.activations.tape import Moment, Tape, evaluate
from estimators.activations.visits import Visits
from estimators.engines.zero_modules import FETCH, FORWARD, modules
from estimators.memory import resolve

MODELS = ("llama-8b", "gemma-2-9b", "mixtral-8x7b", "gpt2-xl", "t5-large", "qwen2-vl-7b", "deepseek-v3")


def most(moments: Iterable[Moment]) -> int:
    return max((evaluate(m.live, 1, 512) for m in moments), default=-1)


def kept(model: str, method: str, checkpointing: str) -> tuple[Kept, ...]:
    run = resolve(model, "8xH100", "zero3", method=method, checkpointing=checkpointing)
    return tuple(of.kept[0] for of in runs_of(question_of(run)))


@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
@pytest.mark.parametrize("model", MODELS)
def test_places_are_the_whole_forward(model: str, checkpointing: str) -> None:
    """Every module with parameters that the engine sees is a place, and the largest of all is the block's own."""
    run = resolve(model, "8xH100", "zero3", checkpointing=checkpointing)
    calls = [c for r in modules(run.model, True).rounds for c in r.calls if c.phase == FORWARD and c.kind == FETCH]
    for number, of in enumerate(runs_of(question_of(run))):
        block = of.kept[0]
        places = {("behind", "")}
        for call in calls:
            if call.spot and call.spot[0] == number and call.owned:
                places |= {(s, call.inner) for s in ("through" if call.is_whole else "inside", "behind")}
        sizes = [most(block.visits.at(*place)) for place in places]
        assert max(sizes) == most(block.forward) and min(sizes) > 0


def test_attention_is_smaller_than_the_mlp() -> None:
    (block,) = kept("llama-8b", "full", "full")
    inside = [most(block.visits.at("inside", f"{name}_proj")) for name in ("self_attn.o", "mlp.down")]
    assert inside[0] < inside[1] < most(block.forward)


def test_an_adapter_stands_in_its_layer() -> None:
    """Between the layer's own entrance and its base nothing happens, though the layer as a whole needs most."""
    (block,) = kept("llama-8b", "lora", "full")
    name = "mlp.up_proj"
    assert block.visits.at("inside", name) == block.visits.at("entering", f"{name}.base_layer")
    assert most(block.visits.at("through", name)) > most(block.visits.at("inside", name))


def test_unknown_modules() -> None:
    tape = Tape()
    with tape.inside("mlp"):
        made = tape.new("made", (7,), "int64")
    visits = Visits.of(tape)
    assert visits.at("behind", "mlp.router") == visits.at("through", "mlp") != ()
    assert visits.at("behind", "norm") == () and made.size[0] == 56
