"""Optimizer states against the real optimizer objects, tensor by tensor."""

from __future__ import annotations

import warnings

import pytest

from estimators.optimizers import BESIDE, CPU, MANAGED, State, resolved_dtype, state_bytes, states, tables_bytes

torch = pytest.importorskip("torch")

SHAPES = [(1, 1), (7,), (4095,), (4096,), (4097,), (64, 64), (3, 257, 5), (33, 129), (512, 300)]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def held(optimizer, parameter) -> int:
    """Bytes of every tensor of a parameter's state but the shared code tables."""
    tables = ("qmap1", "qmap2")
    return sum(
        v.numel() * v.element_size()
        for k, v in optimizer.state[parameter].items()
        if torch.is_tensor(v) and k not in tables
    )


def stepped(factory, shape, dtype="fp32", owner=None):
    parameter = torch.nn.Parameter(torch.ones(shape, dtype=DTYPES[dtype]))
    if owner is not None:
        owner.weight = parameter
    optimizer = factory([parameter])
    for _ in range(2):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return optimizer, parameter


def predicted(optimizer, shape, dtype, impl, kind="linear") -> int:
    return sum(s.bytes for s in states(optimizer, shape, resolved_dtype(optimizer, impl, dtype), impl, kind))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "impl", "factory"),
    [
        ("adamw", "foreach", lambda p: torch.optim.AdamW(p, foreach=True)),
        ("adamw", "single", lambda p: torch.optim.AdamW(p, foreach=False)),
        ("adamw-fused", "fused", lambda p: torch.optim.AdamW(p, fused=True)),
        ("sgd", "foreach", lambda p: torch.optim.SGD(p, lr=0.1)),
        ("sgd-momentum", "foreach", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ("adafactor", "foreach", lambda p: torch.optim.Adafactor(p)),
    ],
)
def test_torch(name, impl, factory, shape, dtype):
    optimizer, parameter = stepped(factory, shape, dtype)
    assert predicted(name, shape, dtype, impl) == held(optimizer, parameter)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_adafactor(shape, dtype):
    from transformers.optimization import Adafactor

    optimizer, parameter = stepped(
        lambda p: Adafactor(p, lr=1e-3, scale_parameter=False, relative_step=False), shape, dtype
    )
    assert predicted("adafactor", shape, dtype, "hf") == held(optimizer, parameter)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "cls", "bits"), [("adamw-8bit", "AdamW", 8), ("paged-adamw", "AdamW", 32),
                                                   ("lion", "Lion", 32)])  # fmt: skip
def test_bitsandbytes(name, cls, bits, shape, dtype):
    bnb = pytest.importorskip("bitsandbytes")
    parameter = torch.nn.Parameter(torch.ones(shape, dtype=DTYPES[dtype]))
    optimizer = getattr(bnb.optim, cls)([parameter], optim_bits=bits)
    parameter.grad = torch.ones_like(parameter)
    optimizer.init_state(optimizer.param_groups[0], parameter, 0, 0)  # the update itself needs a card for 32 bit
    assert predicted(name, shape, dtype, "bnb") == held(optimizer, parameter)
    tables = {k: v for k, v in optimizer.state[parameter].items() if k.startswith("qmap")}
    if tables:
        assert sum(t.numel() * t.element_size() for t in tables.values()) == tables_bytes(name)


def test_trainer_keeps_embeddings_in_32_bit():
    """The override of Trainer.create_optimizer, replayed on the manager that it uses."""
    bnb = pytest.importorskip("bitsandbytes")
    embedding = torch.nn.Embedding(64, 256)
    optimizer = bnb.optim.AdamW(embedding.parameters(), optim_bits=8)
    manager = bnb.optim.GlobalOptimManager.get_instance()
    manager.register_module_override(embedding, "weight", {"optim_bits": 32})
    optimizer.check_overrides()
    optimizer.init_state(optimizer.param_groups[0], embedding.weight, 0, 0)
    assert predicted("adamw-8bit", (64, 256), "fp32", "bnb-trainer", "embedding") == held(optimizer, embedding.weight)
    assert predicted("adamw-8bit", (64, 256), "fp32", "bnb", "embedding") < held(optimizer, embedding.weight)


@pytest.mark.parametrize("shape", [(64, 32), (33, 129)])
def test_muon_matrix(shape):
    optimizer, parameter = stepped(lambda p: torch.optim.Muon(p), shape)
    assert predicted("muon", shape, "fp32", "single") == held(optimizer, parameter)


def test_muon_refuses_what_goes_to_adamw():
    with pytest.raises(ValueError, match="2D"):
        torch.optim.Muon([torch.nn.Parameter(torch.ones(4, 4, 4))])
    for shape, kind, head in [((4, 4, 4), "experts", False), ((8,), "norm", False), ((8, 4), "linear", True),
                              ((8, 4), "embedding", False)]:  # fmt: skip
        assert states("muon", shape, kind=kind, is_head=head) == states("adamw", shape)


def test_deepspeed_muon_takes_what_deepspeed_flags():
    pytest.importorskip("deepspeed")
    import deepspeed
    from deepspeed.runtime.config import MUON_OPTIMIZER

    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = torch.nn.Embedding(8, 4)
            self.norm = torch.nn.LayerNorm(4)
            self.proj = torch.nn.Linear(4, 4)
            self.experts = torch.nn.Parameter(torch.ones(2, 4, 4))
            self.lm_head = torch.nn.Linear(4, 8, bias=False)

    model = Tiny()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = type("Config", (), {"optimizer_name": MUON_OPTIMIZER, "optimizer_params": {}})
        deepspeed.set_optimizer_flags(config, model)
    kinds = {"embed_tokens.weight": "embedding", "norm.weight": "norm", "norm.bias": "norm", "experts": "experts",
             "proj.weight": "linear", "proj.bias": "linear", "lm_head.weight": "linear"}  # fmt: skip
    for name, parameter in model.named_parameters():
        made = states("muon", tuple(parameter.shape), impl="ds-fused", kind=kinds[name], is_head="lm_head" in name)
        assert made[0].name == ("momentum_buffer" if parameter.use_muon else "exp_avg"), name


def test_deepspeed_cpu_adam_and_fused_adam_count_steps_in_python():
    assert states("adamw", 10, impl="ds-cpu") == (State("exp_avg", 40), State("exp_avg_sq", 40))
    assert states("adamw", 10, impl="ds-fused") == states("adamw", 10, impl="ds-cpu")


def test_deepspeed_flat_muon_partition():
    """ZeRO keeps Muon's parameters and AdamW's in partitions of their own: one momentum or two."""
    assert states("muon", 10, impl="ds-fused") == (State("momentum_buffer", 40),)
    assert states("muon", 10, impl="ds-fused", kind="other") == states("adamw", 10, impl="ds-fused")


def test_flat_partitions():
    """A flat partition is one-dimensional: nothing to factor, and its own size decides about 8 bits."""
    assert state_bytes("adafactor", 4096 * 4, impl="hf") == 4 * 4096 * 4 + 4
    assert state_bytes("adamw-8bit", 4095, impl="bnb") == 8 * 4095
    assert state_bytes("adamw-8bit", 4096, impl="bnb") == 2 * 4096 + 2 * 4 * 16


def test_places():
    """Steps of foreach lie in host RAM; paged buffers of 100,000 elements and more in managed memory."""
    assert state_bytes("adamw", (8, 8), place=CPU) == 4 and state_bytes("adamw", (8, 8), impl="fused", place=CPU) == 0
    assert state_bytes("paged-adamw", 99_999, impl="bnb", place=MANAGED) == 0
    assert state_bytes("paged-adamw", 100_000, impl="bnb", place=MANAGED) == 800_000
    assert state_bytes("paged-adamw-8bit", 100_000, impl="bnb", place=BESIDE) == 2 * 4 * 391


def test_fast():
    import timeit

    assert min(timeit.repeat(lambda: states("adamw-8bit", (4096, 4096)), number=1000, repeat=3)) < 0.005
