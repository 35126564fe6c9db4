"""Section A, rules of a DeepSpeed JSON: batch sizes, precision, keys, optimizer. Checked against deepspeed 0.19.8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from estimators.errors import closest
from estimators.readers import deepspeed_keys as keys
from estimators.readers.batch import MICRO, STEPS, TRAIN
from estimators.readers.reading import AUTO
from selector.checks.block import leaves
from selector.checks.deepspeed_words import BOOLEANS, PRECISION_KEYS, TESTED, TOP_BOOLEANS
from selector.checks.finding import REMOVE, Edit, Hit
from selector.checks.registry import ERROR, INFO, RUN, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup
from selector.checks.words import one_slip

MOST_SUGGESTIONS = 5  # looking for a similar name takes milliseconds


def data_parallel(setup: Setup) -> int | None:
    """Ranks that see different data: all, over sequence and tensor parallel ones."""
    if setup.world is None:
        return None
    degree = (setup.ds.whole("sequence_parallel_size") or 1) * (setup.ds.whole("tensor_parallel.autotp_size") or 1)
    return max(setup.world // max(degree, 1), 1)


@rule(
    "ds-batch-triangle",
    ERROR,
    fix="give only micro-batch and accumulation",
    confirmed=RUN,
    source="OpenRLHF#346, DeepSpeed#6914, DeepSpeed runtime/config.py",
)
def batch_triangle(setup: Setup) -> Hits:
    """train_batch_size is not micro-batch x accumulation x ranks, or does not divide where one of them is inferred:
    DeepSpeed floors while it infers and then asserts."""
    train, micro, steps = (setup.ds.whole(key) for key in (TRAIN, MICRO, STEPS))
    ranks = data_parallel(setup)
    if not train or AUTO in (setup.ds.get(MICRO), setup.ds.get(STEPS)):
        return
    known = (micro or 1) * (steps or 1) * (ranks or 1)
    exact = bool(micro and steps and ranks)
    if known <= 0 or (train == known if exact else train % known == 0):
        return
    below = train - train % known
    near = [known] if exact else [n for n in (below, below + known) if n]
    if exact and micro and ranks:
        below = train - train % (micro * ranks)
        near = sorted({n for n in (below, below + micro * ranks) if n})
    parts = [f"{MICRO} {micro}"] * bool(micro) + [f"{STEPS} {steps}"] * bool(steps) + [f"{ranks} GPUs"] * bool(ranks)
    relation = "is not" if exact else "is not a multiple of"
    wanted = " or ".join(f"{n} (accumulation {n // (micro * ranks)})" if micro and ranks else str(n) for n in near)
    edit = setup.ds.drop(TRAIN) if micro else setup.ds.put(TRAIN, near[0])
    yield setup.ds.hit(TRAIN, f"{train} {relation} {' x '.join(parts)} = {known}", edit,
                       fix=f"remove it, or write {wanted}")  # fmt: skip


@rule("ds-batch-none", ERROR, fix=f"add {MICRO}", confirmed=RUN, source="DeepSpeed runtime/config.py")
def batch_none(setup: Setup) -> Hits:
    """Neither train_batch_size nor train_micro_batch_size_per_gpu is there and nobody fills them in: assert while the
    file is read. Accumulation alone is not enough."""
    fills = setup.hf or any(value == AUTO for _, value in leaves(setup.ds.data))
    if setup.ds and not fills and TRAIN not in setup.ds and MICRO not in setup.ds and "zero_optimization" in setup.ds:
        yield setup.ds.hit(MICRO, "the file gives no batch size", setup.ds.put(MICRO, 1))


@rule(
    "ds-batch-ok-but-world1",
    INFO,
    confirmed=SOURCE,
    source="starcoder#41, DeepSpeed#3341, transformers#28803",
    fix="start the process group before the configuration is built; launch with deepspeed, torchrun or accelerate",
)
def batch_but_world_one(setup: Setup) -> Hits:
    """The three numbers are consistent for several GPUs: an assertion that ends in '* 1' is a launch without them."""
    train, micro, steps = (setup.ds.whole(key) for key in (TRAIN, MICRO, STEPS))
    world = data_parallel(setup) or 1
    if train and micro and steps and world > 1 and train == micro * steps * world:
        yield setup.ds.hit(TRAIN, f"{train} = {micro} x {steps} x {world} is right; if the assertion ends in '* 1', "
                                  "the world size was read as 1")  # fmt: skip


@rule(
    "ds-fp16-bf16-both",
    ERROR,
    fix="keep one: bf16 where the card has it",
    confirmed=RUN,
    source="Arctic-Platform PR78, DeepSpeed runtime/config.py",
)
def fp16_and_bf16(setup: Setup) -> Hits:
    """fp16.enabled and bf16.enabled are both true: assert while the file is read."""
    key = "bf16" if "bf16" in setup.ds else "bfloat16"
    if setup.ds.flag("fp16.enabled") and setup.ds.flag(f"{key}.enabled"):
        old_card = setup.capability is not None and setup.capability < 8
        drop = f"{key}.enabled" if old_card else "fp16.enabled"
        yield setup.ds.hit("fp16.enabled", f"fp16 and {key} are both enabled", setup.ds.put(drop, False))


@rule(
    "ds-bool-as-string",
    ERROR,
    fix="write true or false without quotes",
    confirmed=RUN,
    source="LLaMA-Factory#3493",
    corrected="DeepSpeed turns the text into a boolean inside its blocks: a warning there. The Trainer compares it "
    "with its own boolean and refuses; keys of the top level are not converted, so 'false' is true.",
)
def bool_as_string(setup: Setup) -> Hits:
    """A boolean is written as the text 'true' or 'false'; only 'auto' is legal text, and only under Hugging Face."""
    for path, value in leaves(setup.ds.data):
        name = path.rpartition(".")[2]
        if not isinstance(value, str) or value.lower() not in ("true", "false"):
            continue
        top = path in TOP_BOOLEANS
        compared = setup.hf and path in ("fp16.enabled", "bf16.enabled")
        if not top and name not in BOOLEANS:
            continue
        severity = ERROR if compared or (top and value.lower() == "false") else WARNING
        yield setup.ds.hit(path, f"{value!r} is text", setup.ds.put(path, value.lower() == "true"),
                           fix=f"write {value.lower()} without quotes", severity=severity)  # fmt: skip


@rule(
    "ds-legacy-bfloat16-key",
    WARNING,
    fix="rename the block to bf16",
    confirmed=RUN,
    source="LLaMA-Factory#2065, gpt-neox PR786",
)
def legacy_bfloat16(setup: Setup) -> Hits:
    """The block is called bfloat16: it is read only where no bf16 block is, and Hugging Face does not look at it."""
    if "bfloat16" not in setup.ds:
        return
    if "bf16" in setup.ds:
        mine, old = setup.ds.get("bf16.enabled"), setup.ds.get("bfloat16.enabled")
        if mine != old:
            yield setup.ds.hit("bfloat16", f"bfloat16.enabled {old} is not read: bf16.enabled {mine} wins",
                               setup.ds.drop("bfloat16"))  # fmt: skip
    else:
        edits = (setup.ds.put("bf16", setup.ds.get("bfloat16")), setup.ds.drop("bfloat16"))
        yield setup.ds.hit("bfloat16", "old name of bf16", *edits)


@rule(
    "ds-auto-without-hf",
    ERROR,
    fix="write numbers",
    confirmed=RUN,
    source="Megatron-DeepSpeed#298, transformers#16495",
    corrected="Inside blocks DeepSpeed 0.19.8 drops 'auto' and takes its own default: a warning there. At the top "
    "level the text reaches arithmetic and raises.",
)
def auto_without_hf(setup: Setup) -> Hits:
    """A value is 'auto' and neither the Trainer nor accelerate drives the engine, so nobody fills it in."""
    native = setup.fields.get("stack") in ("deepspeed", "torch") and not (setup.args or setup.accel)
    initialised = any(call.path == "deepspeed.initialize" for call in setup.script.named("initialize"))
    if not native and (setup.hf or not initialised):
        return
    for path, value in leaves(setup.ds.data):
        if value == AUTO:
            inside = "." in path
            says = "DeepSpeed takes its default" if inside else "DeepSpeed needs a number here"
            yield setup.ds.hit(path, f"'auto' and no Hugging Face stack fills it: {says}",
                               severity=WARNING if inside else ERROR)  # fmt: skip


@rule(
    "ds-auto-hidden-size",
    ERROR,
    fix="write h^2, 0.9 h^2 and 10 h of the text backbone",
    confirmed=SOURCE,
    source="transformers#22176, transformers#21342, LLaMA-Factory#4754; transformers integrations/deepspeed.py",
)
def auto_hidden_size(setup: Setup) -> Hits:
    """A bucket is 'auto' and the model's configuration has no hidden_size: ValueError when training starts."""
    auto = [k for k in ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
            if setup.zero.get(k) == AUTO]  # fmt: skip
    if not auto or setup.model is None:
        return
    config = setup.model.config
    text = config.get("text_config")
    places = (config, text if isinstance(text, dict) else {})
    if any(name in place for place in places for name in ("hidden_size", "hidden_sizes", "d_model", "n_embd")):
        return
    yield setup.zero.hit(auto[0], f"{setup.model.name} has no hidden_size to fill {', '.join(auto)} from")


@rule(
    "ds-auto-bucket-stage2",
    WARNING,
    fix="write a number",
    confirmed=THREAD,
    versions="transformers < 4.18",
    source="transformers#16495",
)
def auto_bucket_stage2(setup: Setup) -> Hits:
    """reduce_bucket_size is 'auto' below stage 3 on an old transformers: the text reaches DeepSpeed."""
    old = setup.older("transformers", "4.18")
    if old and setup.stage in (1, 2) and setup.zero.get("reduce_bucket_size") == AUTO:
        edit = setup.zero.put("reduce_bucket_size", 500_000_000)
        yield setup.zero.hit("reduce_bucket_size", f"'auto' at stage {setup.stage} is not filled", edit)


@rule(
    "ds-bf16-stage0",
    WARNING,
    fix="use stage 1",
    confirmed=THREAD,
    versions="deepspeed < 0.14",
    source="DeepSpeed PR5154",
)
def bf16_stage0(setup: Setup) -> Hits:
    """bf16 at stage 0 with accumulation: gradients were not kept between micro-steps."""
    if setup.older("deepspeed", "0.14") and setup.stage == 0 and setup.ds.flag("bf16.enabled") and setup.steps > 1:
        yield setup.ds.hit("bf16.enabled", f"bf16 at stage 0 with accumulation {setup.steps} on DeepSpeed "
                                           f"{setup.versions['deepspeed']}")  # fmt: skip


@rule(
    "bf16-grad-accum",
    INFO,
    fix='"data_types": {"grad_accum_dtype": "fp32"}, and count its memory',
    confirmed=SOURCE,
    source="DeepSpeed#2768, DeepSpeed#2352, DeepSpeed#1800; runtime/engine.py",
)
def bf16_accumulation(setup: Setup) -> Hits:
    """bf16 with accumulation and no data_types.grad_accum_dtype: stages 2 and 3 add up in bf16."""
    if setup.ds.flag("bf16.enabled") and setup.steps > 1 and "data_types.grad_accum_dtype" not in setup.ds:
        more = f": fp32 adds 4 B x {setup.params / 1e9:.1f} B parameters" if setup.params and setup.stage == 1 else ""
        yield setup.ds.hit("data_types.grad_accum_dtype", f"{setup.steps} micro-steps are added up in bf16{more}")


@rule(
    "ds-bf16-master-flags",
    ERROR,
    fix="enable both, at stage 1 to 3",
    confirmed=RUN,
    source="DeepSpeed runtime/config.py",
)
def bf16_master_flags(setup: Setup) -> Hits:
    """bf16_optimizer_states without bf16_master_weights_and_grads, or either at stage 0: assert."""
    states, master = "bf16.bf16_optimizer_states", "bf16.bf16_master_weights_and_grads"
    if setup.ds.flag(states) and not setup.ds.flag(master):
        yield setup.ds.hit(states, "needs bf16_master_weights_and_grads as well", setup.ds.put(master, True))
    elif setup.stage == 0 and (setup.ds.flag(master) or setup.ds.flag(states)):
        yield setup.ds.hit(master, "needs ZeRO stage 1, 2 or 3; the file says 0")


@rule(
    "ds-amp-with-zero",
    ERROR,
    fix="remove amp; use fp16 or bf16",
    confirmed=RUN,
    source="DeepSpeed runtime/config.py",
    corrected="DeepSpeed 0.19.8 refuses the block alone as well.",
)
def amp_with_zero(setup: Setup) -> Hits:
    """amp with ZeRO, fp16 or bf16: assert; from DeepSpeed 0.19.7 the block is refused in any case."""
    if "amp" not in setup.ds:
        return
    gone = not setup.older("deepspeed", "0.19.7")
    clash = setup.ds.flag("amp.enabled") and (setup.stage or setup.ds.flag("fp16.enabled"))
    if gone or clash:
        says = f"gone from DeepSpeed {setup.versions['deepspeed']}" if gone else f"excludes ZeRO stage {setup.stage}"
        yield setup.ds.hit("amp", says, setup.ds.drop("amp"))


@rule(
    "onebit-with-zero",
    ERROR,
    fix="use AdamW",
    confirmed=SOURCE,
    source="DeepSpeed runtime/engine.py",
    corrected="The 1-bit optimizers are gone from DeepSpeed 0.19.8.",
)
def onebit_with_zero(setup: Setup) -> Hits:
    """OneBitAdam, ZeroOneAdam or OneBitLamb under ZeRO: assert."""
    name = setup.ds.word("optimizer.type")
    if name in keys.ONE_BIT and (setup.stage or not setup.older("deepspeed", "0.19.8")):
        edit = setup.ds.put("optimizer.type", "AdamW")
        says = (
            f"cannot run at stage {setup.stage}"
            if setup.stage
            else f"is gone from DeepSpeed {setup.versions['deepspeed']}"
        )
        yield setup.ds.hit("optimizer.type", f"{setup.ds.get('optimizer.type')} {says}", edit)


@rule(
    "ds-untested-optimizer",
    ERROR,
    fix='"zero_allow_untested_optimizer": true',
    confirmed=SOURCE,
    source="DeepSpeed runtime/zero/utils.py, runtime/engine.py; LLaMA-Factory#3493",
)
def untested_optimizer(setup: Setup) -> Hits:
    """ZeRO with an optimizer outside its tested list and zero_allow_untested_optimizer not true: assert."""
    name = setup.ds.get("optimizer.type")
    if not isinstance(name, str) or not setup.stage or setup.ds.flag("zero_allow_untested_optimizer"):
        return
    if name.lower() not in TESTED | keys.ONE_BIT and (
        name in keys.TORCH_OPTIMIZERS or name.lower() in keys.UNMODELLED_OPTIMIZERS
    ):
        edit = setup.ds.put("zero_allow_untested_optimizer", True)
        yield setup.ds.hit("optimizer.type", f"{name[:40]} is not on ZeRO's list of tested optimizers", edit)


@rule(
    "ds-unknown-key",
    ERROR,
    fix="remove or rename it, or use a version that has it",
    confirmed=RUN,
    source="OpenRLHF#63, DeepSpeedExamples#287; DeepSpeed runtime/zero/config.py",
    corrected="Only blocks with a schema refuse (zero_optimization, offload_*, fp16, bf16); an unknown key of the "
    "top level is ignored: a warning.",
)
def unknown_key(setup: Setup) -> Hits:
    """A key that the schema of the assumed DeepSpeed does not have."""
    blocks: list[tuple[str, frozenset[str]]] = [
        ("zero_optimization", _zero_keys()), ("fp16", PRECISION_KEYS["fp16"]), ("bf16", PRECISION_KEYS["bf16"]),
        *((f"zero_optimization.{b}", frozenset(keys.OFFLOAD_KNOBS[b]) | keys.OFFLOAD_OTHER[b] | _PLACES)
          for b in ("offload_optimizer", "offload_param")),
    ]  # fmt: skip
    suggested = 0
    for path, known in blocks:
        block = setup.ds.sub(path)
        for key in block.data:
            if key not in known and not key.startswith("_") and key not in MISPLACED.get(path, ()):
                hit = block.hit(key, f"unknown to DeepSpeed {setup.versions['deepspeed']}")
                yield _unknown(setup, hit, key, known) if (suggested := suggested + 1) <= MOST_SUGGESTIONS else hit
    yield from _gone(setup)
    top = keys.TOP_OTHER | keys.REMOVED | _TOP
    for key in setup.ds.data:
        if key not in top and not key.startswith(("_", "comment")):
            hit = setup.ds.hit(key, "unknown to DeepSpeed, which ignores it", severity=WARNING)
            yield _unknown(setup, hit, key, top) if (suggested := suggested + 1) <= MOST_SUGGESTIONS else hit


MISPLACED = {"zero_optimization.offload_optimizer": ("buffer_size", "max_in_cpu")}  # a rule of their own
_PLACES = frozenset(("device", "nvme_path", "pin_memory"))
_TOP = frozenset(("zero_optimization", "fp16", "bf16", "gradient_clipping", TRAIN, MICRO, STEPS))


def _zero_keys() -> frozenset[str]:
    spelled = (name for names in keys.SPELLINGS.values() for name in names)
    return frozenset({*keys.ZERO_KNOBS, *spelled, *keys.ZERO_OTHER, *keys.NOT_ESTIMATED, *keys.DEPRECATED_OFFLOAD,
                      *keys.REMOVED_ZERO, "stage", "offload_optimizer", "offload_param"})  # fmt: skip


def _unknown(setup: Setup, hit: Hit, key: str, known: frozenset[str]) -> Hit:
    near = tuple(closest(key, known)) if len(key) < 60 else ()
    edits = hit.edits
    if near and hit.file:
        stem = hit.where[: len(hit.where) - len(key)]
        block = setup.ds.sub(stem.rstrip(".")) if stem else setup.ds
        if one_slip(key, near[0]) and near[0] not in block:
            edits = (Edit(hit.file, hit.where, REMOVE), Edit(hit.file, stem + near[0], block.get(key)))
    return replace(hit, suggestions=near, edits=edits, fix=f"did you mean {' or '.join(near)}?" if near else "")


def _gone(setup: Setup) -> Iterator[Hit]:
    if setup.older("deepspeed", "0.19.7"):
        return
    says = f"removed from DeepSpeed {setup.versions['deepspeed']}, which refuses the file"
    for key in sorted(keys.REMOVED & setup.ds.data.keys() - {"amp"}):
        yield setup.ds.hit(key, says, setup.ds.drop(key))
    for key in sorted(keys.REMOVED_ZERO & setup.zero.data.keys()):
        yield setup.zero.hit(key, says, setup.zero.drop(key))
