"""Defaults of stacks and engines against the installed packages: the truth is read from them, never repeated here."""

from __future__ import annotations

import importlib.metadata
import inspect
import time
from types import SimpleNamespace

import pytest

from estimators.cluster import Cluster, Gpu
from estimators.errors import IllegalCombination
from estimators.knobs import KNOBS, defaults
from estimators.model.families import build
from estimators.model.methods import trained
from estimators.stacks import NEWEST, STACKS, settle
from estimators.stacks.deepspeed import file_knobs, hidden_size
from estimators.stacks.versions import at_least, installed
from estimators.strategy import DEFAULT_NAMES, OTHER_NAMES, parse_strategy
from estimators.workload import workload

LLAMA = {"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128,
         "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
MODEL = build(LLAMA)
A100 = Gpu("a100", "A100", 80 * 2**30, "8.0", True)
V100 = Gpu("v100", "V100", 32 * 2**30, "7.0", False)
CLUSTER = Cluster(A100, 4, 2)


def settled(name: str, cluster: Cluster = CLUSTER, model=MODEL, device: str = "cuda", **fields):
    return settle(model, cluster, workload(**fields), parse_strategy(name), device)


# ---- versions ----


def test_installed_is_what_importlib_says():
    for name in NEWEST:
        try:
            version = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            version = None
        assert installed().get(name) == version, name


def test_installed_is_fast():
    def once() -> float:
        installed.cache_clear()
        start = time.perf_counter()
        installed()
        return time.perf_counter() - start

    assert min(once() for _ in range(5)) < 0.003


def test_versions_of_the_user_win():
    assert settled("ddp", versions={"torch": "2.1.0"}).versions["torch"] == "2.1.0"


@pytest.mark.parametrize(("a", "b", "later"), [
    ("1.15", "1.15.0", True), ("1.9", "1.10", False), ("2.13.0+cpu", "2.8", True), ("5.0.0rc1", "5", True),
    ("main", "99", True),
])  # fmt: skip
def test_at_least(a, b, later):
    assert at_least(a, b) is later


# ---- the engines' own defaults ----


def test_zero_knobs_are_deepspeeds_defaults():
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.zero import offload_config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    sections = {
        "offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
        "offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
    }
    zero = {f.alias or name: f for name, f in DeepSpeedZeroConfig.model_fields.items()}
    checked = 0
    for knob in KNOBS:
        if not any(s.startswith("zero") for s in knob.strategies):
            continue
        section, _, key = knob.key.rpartition(".")
        fields = sections[section].model_fields if section in sections else zero
        if key in fields and knob.default is not None:
            assert fields[key].default == knob.default, knob.name
            checked += 1
    assert checked >= 20


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_defaults_that_depend(stage):
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig

    knobs = settled(f"zero{stage}", stack="deepspeed").knobs
    real = DeepSpeedZeroConfig(stage=stage)
    assert knobs["overlap_comm"] == real.overlap_comm
    assert knobs["reduce_bucket_size"] == real.reduce_bucket_size
    assert knobs["pin_memory"] == DeepSpeedZeroOffloadOptimizerConfig().pin_memory
    if stage == 3:
        assert knobs["gather_16bit_on_save"] == real.gather_16bit_weights_on_model_save


def test_ddp_knobs_are_torchs_defaults():
    torch = pytest.importorskip("torch")
    real = inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__).parameters
    knobs = settled("ddp", stack="torch").knobs
    assert knobs["bucket_cap_mb"] == 25 and "25" in torch.nn.parallel.DistributedDataParallel.__doc__
    for name in ("gradient_as_bucket_view", "static_graph", "find_unused_parameters"):
        assert knobs[name] == real[name].default, name


def test_fsdp1_knobs_are_torchs_defaults():
    pytest.importorskip("torch")
    from torch.distributed.fsdp import FullyShardedDataParallel

    real = inspect.signature(FullyShardedDataParallel.__init__).parameters
    knobs = settled("fsdp1-full-shard", stack="torch").knobs
    assert knobs["limit_all_gathers"] == real["limit_all_gathers"].default
    assert knobs["use_orig_params"] == real["use_orig_params"].default
    assert real["backward_prefetch"].default.name == f"BACKWARD_{str(knobs['backward_prefetch']).upper()}"


# ---- transformers, accelerate ----


def test_trainer_default_optimizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    names = {"adamw_torch_fused": "adamw-fused", "adamw_torch": "adamw"}
    default = transformers.TrainingArguments.__dataclass_fields__["optim"].default
    assert settled("single").optimizer == names[getattr(default, "value", default)]
    assert settled("single", versions={"torch": "2.6.0"}).optimizer == "adamw"


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("hidden", [64, 4096])
def test_auto_buckets(stage, hidden):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("deepspeed")
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    keys = {"reduce_bucket_size": "reduce_bucket_size", "prefetch_bucket_size": "stage3_prefetch_bucket_size",
            "param_persistence_threshold": "stage3_param_persistence_threshold"}  # fmt: skip
    zero = {"stage": stage, **{key: "auto" for key in (keys.values() if stage == 3 else ["reduce_bucket_size"])}}
    config = HfTrainerDeepSpeedConfig({"zero_optimization": zero, "train_batch_size": "auto"})
    model = SimpleNamespace(config=transformers.LlamaConfig(hidden_size=hidden))
    arguments = SimpleNamespace(get_warmup_steps=lambda n: 0)
    config.trainer_config_finalize(arguments, model, 10)
    ours = file_knobs("auto", stage, build({**LLAMA, "hidden_size": hidden}))
    for name, key in keys.items():
        if key in zero:
            assert ours[name] == config.get_value(f"zero_optimization.{key}"), name


@pytest.mark.parametrize("family", ["gpt2", "t5", "bloom", "opt", "mpt"])
def test_hidden_size_by_other_names(family):
    transformers = pytest.importorskip("transformers")
    real = transformers.CONFIG_MAPPING[family]()
    try:
        spec = build({"model_type": family, "vocab_size": 100})
    except ModuleNotFoundError:
        pytest.skip("family not there yet")
    assert hidden_size(spec) == real.hidden_size


def test_accelerate_deepspeed_plugin_defaults():
    accelerate = pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    real = accelerate.DeepSpeedPlugin(zero_stage=3)
    knobs = settled("zero3", stack="accelerate").knobs
    assert knobs["zero_init"] == real.zero3_init_flag
    assert knobs["gather_16bit_on_save"] == real.zero3_save_16bit_model
    written = real.deepspeed_config["zero_optimization"]
    assert not {"reduce_bucket_size", "stage3_prefetch_bucket_size", "overlap_comm"} & set(written)
    assert knobs["reduce_bucket_size"] == defaults("zero3")["reduce_bucket_size"]


@pytest.mark.parametrize(("version", "name"), [(1, "fsdp1-full-shard"), (2, "fsdp-full-shard")])
def test_accelerate_fsdp_reduces_in_the_compute_dtype(version, name):
    accelerate = pytest.importorskip("accelerate")
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=version, mixed_precision_policy="bf16")
    assert str(plugin.mixed_precision_policy.reduce_dtype) == "torch.bfloat16"
    assert settled(name).reduce_dtype == settled(name, stack="accelerate").reduce_dtype == "bf16"
    assert settled(name, stack="torch").reduce_dtype == settled(name, stack="torchtitan").reduce_dtype == "fp32"


def test_trainer_fsdp1_arguments(tmp_path):
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), fsdp="full_shard", fsdp_config={"version": 1}, use_cpu=True
    )
    plugin = arguments._process_fsdp_args()
    knobs = settled("fsdp1-full-shard").knobs
    assert plugin["use_orig_params"] == knobs["use_orig_params"]
    assert {"NO_PREFETCH": "none"}.get(plugin["backward_prefetch"]) == knobs["backward_prefetch"]


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_trainer_find_unused_parameters(checkpointing):
    pytest.importorskip("transformers")
    from transformers import Trainer

    source = inspect.getsource(Trainer._build_accelerator_args)
    assert "find_unused = not (self.model.is_activation_checkpointing or self.args.activation_checkpointing)" in source
    assert settled("ddp", checkpointing=checkpointing).knobs["find_unused_parameters"] is (checkpointing == "none")


@pytest.fixture
def fake_ranks():
    """A process group of four that talks to nobody."""
    torch = pytest.importorskip("torch")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield torch
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_accelerate_fsdp2_units_and_dtypes(fake_ranks, tied, method):
    """accelerate's own preparation: which modules become units, what is resharded, what is lifted to fp32."""
    torch = fake_ranks
    accelerate, transformers = pytest.importorskip("accelerate"), pytest.importorskip("transformers")
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    values = {**LLAMA, "tie_word_embeddings": tied}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**values)).to(torch.bfloat16)
    if method == "lora":
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], modules_to_save=[]))
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", mixed_precision_policy="bf16"
    )
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision="bf16", is_main_process=False,
        device=torch.device("cpu"), torch_device_mesh=mesh, parallelism_config=SimpleNamespace(fsdp_dim_names=("dp",)),
    )  # fmt: skip
    fsdp2_prepare_model(accelerator, model)
    spec = build({**values, "model_type": "llama"})
    settings = settled("fsdp-full-shard", model=spec, method=method)
    base = model.get_base_model() if method == "lora" else model
    units = {n for n, m in base.named_modules() if isinstance(m, torch.distributed.fsdp.FSDPModule)}
    assert {f"model.layers.{i}" for i in range(4)} <= units
    tail = base.lm_head._get_fsdp_state()._fsdp_param_groups[0]
    in_tail = {id(p._module_info.module) for p in tail.fsdp_params}
    # peft's wrapper hides the final norm from accelerate: it stays with the root then
    assert (id(base.model.norm) in in_tail) is (method == "full")
    shared = base.model.embed_tokens._get_fsdp_state() is base.lm_head._get_fsdp_state()
    assert settings.knobs["wrap"] == ("blocks" if shared else "blocks+embedding+head") and shared is tied
    assert settings.knobs["reshard_tail"] is (tail.post_forward_mesh_info is not None)
    embedding = base.model.embed_tokens._get_fsdp_state()._fsdp_param_groups[0]
    assert tied or embedding.post_forward_mesh_info is not None
    names = {torch.float32: "fp32", torch.bfloat16: "bf16"}
    found = {(p.requires_grad, names[p.dtype]) for p in model.parameters()}
    expected = {(True, settings.adapter_dtype), (False, settings.frozen_dtype)}
    assert found == (expected if method == "lora" else {(True, settings.param_dtype)})


def test_older_accelerate_wrapped_and_lifted_otherwise():
    old = settled("fsdp-full-shard", method="lora", versions={"accelerate": "1.12.0"})
    assert old.frozen_dtype == "fp32" and old.knobs["wrap"] == "blocks" and old.knobs["reshard_root"] is True
    assert settled("fsdp-full-shard", method="lora", versions={"accelerate": "1.13.0"}).frozen_dtype == "bf16"


@pytest.mark.parametrize("name", ["adamw-8bit", "paged-adamw", "lion", "adafactor", "adamw-fused", "muon"])
def test_which_optimizers_step_sharded_tensors(fake_ranks, name):
    """FSDP2's parameters are DTensors: what refuses them really does, what is allowed really steps."""
    torch = fake_ranks
    bnb, transformers = pytest.importorskip("bitsandbytes"), pytest.importorskip("transformers")
    makers = {
        "adamw-8bit": lambda p: bnb.optim.AdamW(p, optim_bits=8),
        "paged-adamw": lambda p: bnb.optim.AdamW(p, optim_bits=32),
        "lion": lambda p: bnb.optim.Lion(p),
        "adafactor": lambda p: transformers.Adafactor(p, lr=1e-3, scale_parameter=False, relative_step=False),
        "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
        "muon": lambda p: torch.optim.Muon(p),
    }
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (4,))
    layer = torch.nn.Linear(128, 128, bias=False)
    torch.distributed.fsdp.fully_shard(layer, mesh=mesh)
    optimizer = makers[name](list(layer.parameters()))
    layer(torch.ones(2, 128)).sum().backward()
    if name in ("adamw-fused", "muon"):
        optimizer.step()
        assert settled("fsdp-full-shard", optimizer=name).optimizer == name
        return
    with pytest.raises((RuntimeError, NotImplementedError)):
        optimizer.step()
    with pytest.raises(IllegalCombination, match="DTensor"):
        settled("fsdp-full-shard", optimizer=name)


# ---- rules of the contract ----


def test_stack_torch():
    ddp = settled("ddp", stack="torch")
    assert (ddp.param_dtype, ddp.compute_dtype, ddp.autocast, ddp.load_dtype) == ("fp32", "bf16", True, "fp32")
    fsdp = settled("fsdp-full-shard", stack="torch")
    assert (fsdp.param_dtype, fsdp.reduce_dtype, fsdp.autocast) == ("fp32", "fp32", False)
    assert fsdp.knobs["reshard_root"] is True and fsdp.knobs["wrap"] == "blocks" and "fp32_outputs" not in fsdp.knobs


def test_stack_deepspeed_builds_in_16_bit():
    settings = settled("zero3", stack="deepspeed")
    assert (settings.load_dtype, settings.param_dtype, settings.master_dtype, settings.state_dtype) == (
        "bf16", "bf16", "fp32", "fp32",
    )  # fmt: skip
    assert settings.knobs["zero_init"] is False and settings.optimizer_impl == "ds-fused"


def test_trainer_loads_in_fp32_and_says_what_else_would_be():
    settings = settled("ddp")
    assert settings.load_dtype == settings.param_dtype == settings.state_dtype == "fp32"
    assert any("transformers 5" in note and "GiB" in note for note in settings.notes)
    own = settled("ddp", param_dtype="bf16")
    assert own.param_dtype == own.grad_dtype == own.reduce_dtype == own.state_dtype == "bf16"
    assert own.origins["param_dtype"] == "user" and not own.autocast


@pytest.mark.parametrize("name", ["single", "ddp", "zero2", "zero3", "fsdp-full-shard", "fsdp1-full-shard"])
def test_pure_precision_is_16_bit_throughout(name):
    s = settled(name, precision="bf16")
    assert {s.param_dtype, s.grad_dtype, s.reduce_dtype, s.state_dtype, s.compute_dtype} == {"bf16"} and not s.autocast
    assert s.master_dtype == ("bf16" if name.startswith("zero") else None)


def test_deepspeed_by_version():
    """Read in the source distributions: 0.19.0 and 0.19.2 (bf16 states on the host), 0.19.4 and 0.19.5 (pinning)."""
    name, pure = "zero2+optimizer@cpu", {"stack": "deepspeed", "precision": "bf16"}
    assert settled(name, versions={"deepspeed": "0.19.0"}, **pure).state_dtype == "fp32"
    assert settled(name, versions={"deepspeed": "0.19.2"}, **pure).state_dtype == "bf16"
    assert settled(name, stack="deepspeed", versions={"deepspeed": "0.19.4"}).knobs["pin_memory"] is False
    assert settled("zero3:mics=4", versions={"deepspeed": "0.19.6"}).knobs["mics"] == 4


def test_mics_is_gone_from_the_installed_engine():
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    gone = at_least(importlib.metadata.version("deepspeed"), "0.19.7")
    assert ("mics_shard_size" in DeepSpeedZeroConfig.model_fields) is not gone


def test_offload_steps_with_cpu_adam():
    settings = settled("zero3+optimizer@cpu", optimizer="adamw-fused")
    assert settings.optimizer_impl == "ds-cpu" and any("DeepSpeedCPUAdam" in note for note in settings.notes)
    assert settled("zero2+optimizer@cpu", stack="swift").optimizer_impl == "ds-cpu"
    assert settled("zero2", stack="swift").optimizer_impl == "fused"


def test_quantised_base():
    assert settled("fsdp-full-shard", method="qlora").knobs["quant_storage"] == "bf16"
    assert "quant_storage" not in settled("ddp", method="qlora").knobs
    assert settled("ddp", method="qlora", kbit_prepare=True).frozen_dtype == "fp32"
    assert settled("ddp", method="qlora").frozen_dtype == "bf16"
    assert settled("ddp", method="qlora", stack="axolotl").frozen_dtype == "fp32"
    assert settled("ddp", method="qlora", stack="trl").adapter_dtype == "bf16"
    assert settled("zero2", method="qlora").adapter_dtype == "bf16"


@pytest.mark.parametrize(
    ("name", "fields", "match"),
    [
        ("zero3:mics=4", {}, "mics: gone from DeepSpeed 0.19.7; you have 0.19.8"),
        ("zero3:hpz=2", {"versions": {"deepspeed": "0.9.0"}}, "hpz: new in DeepSpeed 0.10.0; you have 0.9.0"),
        ("zero3:hpz=3", {}, "hpz=3 .* does not divide 8 ranks; give one of 1, 2, 4, 8"),
        ("fsdp-hybrid-shard:shard=3", {}, "shard=3"),
        ("fsdp-full-shard:reshard_after_forward=3", {}, "reshard_after_forward=3"),
        ("fsdp-full-shard", {"versions": {"torch": "2.4.0"}}, "needs torch 2.6.0; you have 2.4.0"),
        ("zero3", {"stack": "torchtitan"}, "torchtitan does not drive zero3"),
        ("zero2", {"precision": "fp16"}, "fp16-mixed"),
        ("zero0", {"precision": "bf16"}, "stage 1, 2 or 3"),
        ("zero2", {"precision": "bf16", "versions": {"deepspeed": "0.16.0"}}, "0.18.3; you have 0.16.0"),
        ("fsdp-full-shard", {"method": "qlora", "quant": "int8"}, "cannot be flattened"),
        ("zero3", {"method": "qlora", "quant": "gptq4"}, "cannot be flattened"),
        ("fsdp1-full-shard", {"method": "qlora", "kbit_prepare": True}, "one dtype"),
        ("fsdp1-full-shard", {"optimizer": "muon"}, "matrices"),
        ("zero3+optimizer@cpu", {"optimizer": "adamw-8bit"}, "32 bit"),
        ("zero2+optimizer@cpu", {"optimizer": "sgd"}, "in their place"),
        ("fsdp1-full-shard+params@cpu", {"optimizer": "lion"}, "on the card"),
    ],
)
def test_refusals(name, fields, match):
    fields = {"versions": {"deepspeed": "0.19.8", "torch": "2.13.0"}, **fields}
    with pytest.raises(IllegalCombination, match=match):
        settled(name, **fields)


def test_card_without_bf16():
    with pytest.raises(IllegalCombination, match="V100 .*fp16-mixed"):
        settled("ddp", Cluster(V100, 4))
    assert settled("ddp", Cluster(V100, 4), precision="fp16-mixed").compute_dtype == "fp16"
    assert settled("ddp", Cluster(V100, 4), device="cpu").compute_dtype == "bf16"


def test_llamafactory_lifts_only_what_trains():
    settings = settled("ddp", stack="llamafactory", method="freeze")
    assert (settings.load_dtype, settings.param_dtype, settings.frozen_dtype) == ("bf16", "fp32", "bf16")
    assert settled("ddp", method="freeze").frozen_dtype == "fp32"


def test_hybrid_on_one_node_is_noted():
    assert any("one node" in note for note in settled("fsdp-hybrid-shard", Cluster(A100, 4)).notes)
    assert settled("fsdp-hybrid-shard").knobs["shard"] == 4


@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_and_strategy(stack):
    """Settles or refuses with a reason; every value has an origin; equal questions get one object."""
    for name in ("single", *DEFAULT_NAMES, *OTHER_NAMES):
        for method in ("full", "qlora", "freeze"):
            try:
                s = settled(name, stack=stack, method=method)
            except IllegalCombination as reason:
                assert len(str(reason)) > 30
                continue
            assert s is settled(name, stack=stack, method=method)
            assert set(s.knobs) <= set(s.origins)
            assert {"load_dtype", "param_dtype", "optimizer", "state_dtype", "reduce_dtype"} <= set(s.origins)
            missing = {k for k, v in defaults(parse_strategy(name).base).items() if v is not None} - set(s.knobs)
            assert not missing, (name, missing)
            spec = trained(MODEL, workload(stack=stack, method=method), s)
            assert spec is trained(MODEL, workload(stack=stack, method=method), s)


def test_origins_read_like_a_sentence():
    origins = settled("zero3:hpz=2", versions={"deepspeed": "0.19.8", "transformers": "5.24.0"}).origins
    assert origins["hpz"] == "user"
    assert origins["reduce_bucket_size"] == "stack trainer (transformers 5.24.0)"
    assert origins["sub_group_size"] == "engine default (DeepSpeed 0.19.8)"


def test_settling_is_fast():
    question = (MODEL, CLUSTER, workload(), parse_strategy("zero3"))
    start = time.perf_counter()
    for _ in range(200):
        settle.__wrapped__(*question)
    assert (time.perf_counter() - start) / 200 < 0.001
