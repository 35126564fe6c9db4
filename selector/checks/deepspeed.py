"""Section A, rules of a DeepSpeed JSON: batch sizes, precision, keys, optimizer. Checked against deepspeed 0.19.8."""

from __future__ import annotations

from collections.abc import Iterator

from estimators.errors import closest
from estimators.readers import deepspeed_keys as keys
from estimators.readers.batch import MICRO, STEPS, TRAIN
from estimators.readers.reading import AUTO
from estimators.values import replace
from selector.checks.block import leaves
from selector.checks.deepspeed_words import BOOLEANS, PRECISION_KEYS, TOP_BOOLEANS
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
    if not train or train < 0 or AUTO in (setup.ds.get(MICRO), setup.ds.get(STEPS)):
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
    yield setup.ds.hit(
        TRAIN, f"{train} {relation} {' x '.join(parts)} = {known}", edit, fix=f"remove it, or write {wanted}"
    )


@rule("ds-batch-none", ERROR, fix=f"add {MICRO}", confirmed=RUN, source="DeepSpeed runtime/config.py")
def batch_none(setup: Setup) -> Hits:
    """Neither train_batch_size nor train_micro_batch_size_per_gpu is there and nobody fills them in: assert while the
    file is read. Accumulation alone is not enough. (A file
    that is only zero_optimization is a part of one: a warning.)"""
    fills = setup.hf or any(value == AUTO for _, value in leaves(setup.ds.data))
    if setup.ds and not fills and TRAIN not in setup.ds and MICRO not in setup.ds and "zero_optimization" in setup.ds:
        part = setup.ds.data.keys() == {"zero_optimization"}  # to be merged with the rest
        edit = setup.ds.put(MICRO, 1)
        yield setup.ds.hit(MICRO, "the file gives no batch size", edit, severity=WARNING if part else "")


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
        yield setup.ds.hit(
            TRAIN,
            f"{train} = {micro} x {steps} x {world} is right; if the assertion ends in '* 1', "
            "the world size was read as 1",
        )


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
        yield setup.ds.hit(
            path,
            f"{value!r} is text",
            setup.ds.put(path, value.lower() == "true"),
            fix=f"write {value.lower()} without quotes",
            severity=severity,
        )


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
            yield setup.ds.hit(
                path, f"'auto' and no Hugging Face stack fills it: {says}", severity=WARNING if inside else ERROR
            )


@rule(
    "ds-auto-hidden-size",
    ERROR,
    fix="write h^2, 0.9 h^2 and 10 h of the text backbone",
    confirmed=RUN,
    source="transformers#22176, transformers#21342, LLaMA-Factory#4754; transformers integrations/deepspeed.py",
)
def auto_hidden_size(setup: Setup) -> Hits:
    """A bucket is 'auto' and the model's configuration has no hidden_size: ValueError when training starts."""
    auto = [
        k
        for k in ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
        if setup.zero.get(k) == AUTO
    ]
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
        ("zero_optimization", _zero_keys()),
        ("fp16", PRECISION_KEYS["fp16"]),
        ("bf16", PRECISION_KEYS["bf16"]),
        *(
            (f"zero_optimization.{b}", frozenset(keys.OFFLOAD_KNOBS[b]) | keys.OFFLOAD_OTHER[b] | _PLACES)
            for b in ("offload_optimizer", "offload_param")
        ),
    ]
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
    return frozenset(
        {
            *keys.ZERO_KNOBS,
            *spelled,
            *keys.ZERO_OTHER,
            *keys.NOT_ESTIMATED,
            *keys.DEPRECATED_OFFLOAD,
            *keys.REMOVED_ZERO,
            "stage",
            "offload_optimizer",
            "offload_param",
        }
    )


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
