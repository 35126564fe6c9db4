"""Section A, rules of offload: CPU, NVMe, pinned memory. Checked against deepspeed 0.19.8."""

from __future__ import annotations

import os
import shutil

from estimators.readers import deepspeed_keys as keys
from estimators.units import gib, power_of_two
from selector.checks.machine import NOT_FOR_SWAP
from selector.checks.registry import COUNT, ERROR, RUN, SOURCE, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup

PARAM_SWAP, STATE_SWAP = 2, 16  # bytes a parameter on the disk: 16-bit weights; states, master and gradients
BUFFER_SIZE = 1e8  # elements, offload_config.py
BUFFER_COUNT = 5
_AIO = {"block_size": 1048576, "queue_depth": 8, "thread_count": 1, "single_submit": False, "overlap_events": True}
_BLOCKS = ("offload_optimizer", "offload_param")


@rule(
    "offload-param-needs-stage3",
    ERROR,
    fix="stage 3, or drop the block",
    confirmed=RUN,
    source="wenet PR2499, DeepSpeed#2977, DeepSpeed#1403",
)
def param_needs_stage3(setup: Setup) -> Hits:
    """offload_param below stage 3: DeepSpeed accepts it and offloads nothing."""
    kind, block, key = setup.offload("param")
    if kind and setup.stage is not None and setup.stage < 3:
        what = key.partition(".")[0]
        yield block.hit(key, f"{kind} at stage {setup.stage}: parameters stay on the GPU", block.drop(what))


@rule(
    "offload-needs-zero",
    ERROR,
    fix="stage 1 or higher",
    confirmed=RUN,
    source="DeepSpeed#1403, DeepSpeed#2174",
    corrected="DeepSpeed 0.19.8 reads the file without a word and offloads nothing.",
)
def needs_zero(setup: Setup) -> Hits:
    """offload_optimizer at stage 0. Stage 1 with it is valid."""
    kind, block, key = setup.offload("optimizer")
    if kind and setup.stage == 0:
        yield block.hit(key, f"{kind} at stage 0 offloads nothing")


@rule("ds-offload-object", ERROR, fix='{"device": "cpu"}', confirmed=RUN, source="Lightning PR17790")
def offload_object(setup: Setup) -> Hits:
    """offload_optimizer or offload_param is a boolean instead of an object: validation error."""
    for key in _BLOCKS:
        value = setup.zero.get(key)
        if isinstance(value, bool):
            edit = setup.zero.put(key, {"device": "cpu"}) if value else setup.zero.drop(key)
            yield setup.zero.hit(key, f"is {str(value).lower()}; it is an object", edit)


@rule(
    "ds-deprecated-cpu-offload",
    WARNING,
    fix="the new name",
    confirmed=RUN,
    source="DeepSpeed PR1536; runtime/zero/config.py",
)
def deprecated(setup: Setup) -> Hits:
    """cpu_offload, cpu_offload_param, cpu_offload_use_pin_memory or stage3_gather_fp16_weights_on_model_save."""
    for old, new in keys.DEPRECATED_OFFLOAD.items():
        if old in setup.zero.data:
            on = setup.zero.flag(old)
            edits = (
                setup.zero.drop(old),
                *((setup.zero.put(new, {"device": "cpu"}),) if on and new not in setup.zero else ()),
            )
            yield setup.zero.hit(old, f"is the old name of {new}", *edits)
    if "cpu_offload_use_pin_memory" in setup.zero.data:
        edit = setup.zero.drop("cpu_offload_use_pin_memory")
        yield setup.zero.hit("cpu_offload_use_pin_memory", "is the old name of offload_*.pin_memory", edit)
    old, new = "stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"
    if old in setup.zero.data:
        edits = (setup.zero.drop(old), setup.zero.put(new, setup.zero.get(old)))
        yield setup.zero.hit(old, f"is the old name of {new}", *edits)


@rule(
    "ds-offload-client-optimizer",
    ERROR,
    confirmed=SOURCE,
    source="LMFlow#693, MOSS#272, Megatron-DeepSpeed#298, instructlab PR122; DeepSpeed runtime/engine.py",
    fix="an optimizer block in the JSON, DeepSpeedCPUAdam, or zero_force_ds_cpu_optimizer false",
    corrected="accelerate 1.15 and the Trainer replace AdamW by DeepSpeedCPUAdam themselves: no error there.",
)
def client_optimizer(setup: Setup) -> Hits:
    """The optimizer is offloaded and user code hands its own to deepspeed.initialize: ZeRORuntimeException."""
    if not setup.offload("optimizer").kind or setup.ds.flag("zero_force_ds_cpu_optimizer") is False:
        return
    if any(setup.script.named("DeepSpeedCPUAdam")) or "optimizer" in setup.ds:
        return
    for call in setup.script.named("initialize"):
        if call.path == "deepspeed.initialize" and call.kwargs.get("optimizer", None) is not None:
            yield setup.script.hit(
                call, "optimizer", f"an optimizer of your own with offload_optimizer {setup.offload('optimizer').kind}"
            )


@rule(
    "offload-ratio-stage", ERROR, fix="stage 3, or ratio 1.0", confirmed=RUN, source="DeepSpeed runtime/zero/config.py"
)
def ratio_stage(setup: Setup) -> Hits:
    """offload_optimizer.ratio below 1 at another stage than 3: assert."""
    ratio = setup.zero.number("offload_optimizer.ratio")
    if ratio is not None and ratio < 1 and setup.stage != 3 and setup.ds:
        edit = setup.zero.put("offload_optimizer.ratio", 1.0)
        yield setup.zero.hit("offload_optimizer.ratio", f"{ratio:g} at stage {setup.stage}", edit)


@rule(
    "nvme-needs-path-aio",
    ERROR,
    fix="an nvme_path and an aio block",
    confirmed=RUN,
    source="DeepSpeed#5124, DeepSpeed#1534; runtime/swap_tensor",
    corrected="A missing aio block is no error: DeepSpeed 0.19.8 has defaults for it; a missing path is.",
)
def nvme_path(setup: Setup) -> Hits:
    """An offload to NVMe without nvme_path: the swapper joins a path with None."""
    for role, name in (("optimizer", _BLOCKS[0]), ("param", _BLOCKS[1])):
        kind, block, key = setup.offload(role)
        path = key.replace(".device", ".nvme_path") if setup.ds else f"{name}_nvme_path"
        if kind != "nvme":
            continue
        if path not in block:
            yield block.hit(key, "nvme without a path", block.put(path, "/local_nvme"))
        elif setup.ds and "aio" not in setup.ds:
            yield setup.ds.hit(
                "aio",
                "is absent: DeepSpeed's defaults are slow on most disks",
                setup.ds.put("aio", _AIO),
                severity=WARNING,
            )


@rule(
    "nvme-buffer-size",
    ERROR,
    fix="at least the largest parameter: vocabulary x hidden size",
    confirmed=SOURCE,
    source="DeepSpeed#3506; runtime/swap_tensor/partitioned_param_swapper.py",
)
def buffer_size(setup: Setup) -> Hits:
    """Parameters go to NVMe and buffer_size is below the largest one's share: more elements than the buffer."""
    if setup.offload("param").kind != "nvme" or setup.model is None:
        return
    size = setup.zero.number("offload_param.buffer_size") or BUFFER_SIZE
    count = setup.zero.whole("offload_param.buffer_count") or BUFFER_COUNT
    largest = max(p.numel for part in setup.model.parts for p in part.parameters)
    share = -(-largest // (setup.world or 1))
    if size < share:
        pinned = gib(count * share * 2)
        yield setup.zero.hit(
            "offload_param.buffer_size",
            f"{size:,.0f} elements, and a rank's share of the largest "
            f"parameter is {share:,} ({count} buffers of that pin {pinned} GiB a rank)",
            setup.zero.put("offload_param.buffer_size", largest),
        )


@rule(
    "nvme-misplaced-keys",
    ERROR,
    fix="move them to offload_param",
    confirmed=RUN,
    source="DeepSpeed#1627",
    corrected="DeepSpeed 0.19.8 refuses them there: an error.",
)
def misplaced(setup: Setup) -> Hits:
    """buffer_size or max_in_cpu inside offload_optimizer: they belong to offload_param."""
    for key in ("buffer_size", "max_in_cpu"):
        path = f"offload_optimizer.{key}"
        if path in setup.zero:
            yield setup.zero.hit(path, "belongs to offload_param", setup.zero.drop(path))


@rule(
    "nvme-disk-space",
    ERROR,
    fix="a larger local NVMe",
    confirmed=COUNT,
    source="DeepSpeed#3376, DeepSpeed#1627, DeepSpeed#2006, DeepSpeed#1070",
)
def disk_space(setup: Setup) -> Hits:
    """The disk has less than 2 B (parameters) and 16 B (states, gradients) x parameters / nodes, or nvme_path lies on a
    network or memory file system."""
    need = sum(
        size for role, size in (("param", PARAM_SWAP), ("optimizer", STATE_SWAP)) if setup.offload(role).kind == "nvme"
    )
    if not need:
        return
    block = setup.zero if setup.ds else setup.deciding
    key = block.first(*(f"{b}.nvme_path" for b in _BLOCKS), *(f"{b}_nvme_path" for b in _BLOCKS))
    wanted = need * setup.params // max(setup.nodes, 1) if setup.params else 0
    given = setup.cluster.nvme_bytes if setup.cluster else None
    if key and given is not None and wanted > given:
        yield block.hit(key, f"a node needs {gib(wanted, 0)} GiB of NVMe and has {gib(given, 0)}")
    path = block.get(key) if key else None
    if not key or not isinstance(path, str) or len(path) > 4000 or "\0" in path or not os.path.isdir(path):
        return
    kind = setup.machine.file_system(os.path.abspath(path))
    if kind in NOT_FOR_SWAP:
        yield block.hit(key, f"{path} lies on {kind}, which is no local disk")
    elif given is None and wanted > (free := shutil.disk_usage(path).free):
        yield block.hit(key, f"a node needs {gib(wanted, 0)} GiB and {path} has {gib(free, 0)} free")


@rule(
    "pin-memory-host",
    WARNING,
    fix="pin_memory false where the host is tight",
    confirmed=COUNT,
    source="QwenLM/Qwen3#804, DeepSpeed#3481, DeepSpeed PR7689, vllm#56410, textgen#969",
)
def pinned_host(setup: Setup) -> Hits:
    """Pinned blocks are rounded up to powers of two and cannot be swapped; the host has less than twice what is
    offloaded. pin_memory is true unless the file says otherwise."""
    role = next((r for r in ("optimizer", "param") if setup.offload(r).kind), "")
    if not role or setup.host_bytes is None or setup.estimate is None:
        return
    block, key = setup.offload(role)[1:]
    pinned = setup.zero.flag(f"offload_{role}.pin_memory") is not False if setup.ds else False
    expected = round(setup.estimate.host.expected)
    if pinned and expected and setup.host_bytes < 2 * expected:
        worst = gib(power_of_two(expected), 0)
        edits = (block.put(f"offload_{role}.pin_memory", False),) if setup.ds else ()
        yield block.hit(
            key,
            f"{gib(expected, 0)} GiB offloaded, pinned in powers of two up to {worst}, and the host has "
            f"{gib(setup.host_bytes, 0)} GiB",
            *edits,
        )


@rule("pin-memory-wsl2", WARNING, fix="pin_memory false", confirmed=THREAD, source="DeepSpeed#2977, DeepSpeed#3869")
def pinned_wsl(setup: Setup) -> Hits:
    """Pinned memory under WSL2, which has little of it: out of memory in pin_memory."""
    for block in _BLOCKS:
        if setup.machine.wsl and setup.zero.flag(f"{block}.pin_memory"):
            edit = setup.zero.put(f"{block}.pin_memory", False)
            yield setup.zero.hit(f"{block}.pin_memory", "true under WSL2", edit)
