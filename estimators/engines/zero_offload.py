"""What DeepSpeed keeps on the host and on NVMe when optimizer or parameters are offloaded.

Sources: zero/stage_1_and_2.py (``initialize_optimizer_states``, the buffers for ``cpu_offload``), zero/stage3.py
(``_create_fp32_partitions``, ``_create_param_groups_fp16_flat_cpu_memory``), swap_tensor/*.py (0.19.8).
"""

from __future__ import annotations

from estimators.devices import DEVICES
from estimators.engines.zero_common import PINNED_MINIMUM, Sizes, Terms, host_term
from estimators.engines.zero_layout import Partition, shards, trainable
from estimators.result import Term
from estimators.run import Run
from estimators.units import ceil_div, power_of_two, round_up


def staging12(run: Run, sizes: Sizes, share: Partition) -> Terms:
    """Stages 1 and 2 (H.3): masters and fp32 gradients in host RAM, and what gradients and weights travel through."""
    layout, n = trainable(run.model), share.share
    largest = layout.largest * sizes.element
    return (
        host_term(run, "master weights", "master", n * sizes.master, f"{n:,} elements of the share x {sizes.master} B"),
        host_term(run, "offloaded gradients", "gradients", n * sizes.master,
                  f"{n:,} elements of the share x {sizes.master} B, from the start"),
        host_term(run, "16-bit staging of the share", "buffers", n * sizes.element,
                  f"{n:,} elements of the share x {sizes.element} B (param_buffer_of_bit16_for_cpu_offload_groups)"),
        host_term(run, "gradient staging on the host", "buffers", largest,
                  f"largest parameter x {sizes.element} B (temp_grad_buffer_for_cpu_offload)"),
        Term("gradient staging on the GPU", "buffers", largest,
             f"largest parameter x {sizes.element} B (temp_grad_buffer_for_gpu_offload)"),
    )  # fmt: skip


def accumulated12(run: Run, sizes: Sizes, share: Partition) -> Terms:
    """Stage 2 with accumulation: a host copy of each whole gradient of the share (``accumulated_grads_in_cpu``).

    The node whose ranks touch most is the one that counts.
    """
    if run.workload.grad_accum == 1 or run.strategy.stage == 1 or sizes.accumulates_fp32:
        return ()
    per_node = run.cluster.gpus_per_node
    nodes = [sum(share.pieces[i : i + per_node]) for i in range(0, run.ranks, per_node)]
    worst = max(share.pieces) if run.settings.device == "cpu" else -(-max(nodes) // per_node)
    return (
        host_term(run, "accumulated gradients", "gradients", worst * sizes.element,
                  f"{worst:,} elements x {sizes.element} B: whole parameters that the share touches"),
    )  # fmt: skip


# -- stage 3 ---------------------------------------------------------------------------------------------------------

# swap_tensor/utils.py and aio_config.py: files and buffers are padded to 1024 B a thread, smaller tensors stay in RAM.
AIO_ALIGNED_BYTES = 1024
MIN_SWAP_BYTES = 1024**2


def on_gpu(run: Run, groups: tuple[int, ...]) -> tuple[int, ...]:
    """Sub-groups whose masters and states stay on the GPU: all, none, or the first of them (``ratio``)."""
    if not run.strategy.optimizer:
        return groups
    ratio = float(run.settings.knobs.get("ratio", 1.0)) if run.strategy.optimizer == "cpu" else 1.0
    return groups[: int((1 - ratio) * len(groups))]


def host3(run: Run, sizes: Sizes, n: int, staging: bool = True) -> Terms:
    """Everything that stage 3 keeps outside the GPU (H.4); ``staging``: with the gradients that wait for the step."""
    from estimators.engines.zero3 import sub_groups  # what the sub-groups are is said there

    groups = sub_groups(run.model, n, int(run.settings.knobs["sub_group_size"]))
    return (*_host_params(run, sizes, n, groups), *_host_optimizer(run, sizes, n, groups, staging))


def _host_params(run: Run, sizes: Sizes, n: int, groups: tuple[int, ...]) -> Terms:
    where = run.strategy.params
    if not where:
        return ()
    mine = shards(run.model, n)[0]
    frozen = [
        (part.count, ceil_div(p.numel, n) * (run.bytes_of(p) // max(p.numel, 1)))
        for part in run.model.parts for p in part.parameters if not p.trainable
    ]  # fmt: skip
    if where == "nvme":
        return _swapped_params(run, sizes, n, groups, mine)
    flat = host_term(run, "offloaded parameters", "params", mine * sizes.element,
                     f"{mine:,} elements of the shard x {sizes.element} B, one block", pinned=_pins(run))  # fmt: skip
    return (flat, *_frozen_on_host(run, frozen))


def _frozen_on_host(run: Run, frozen: list[tuple[int, int]]) -> Terms:
    """Each frozen shard is a page-locked block of its own."""
    if not frozen:
        return ()
    stored = sum(count * size for count, size in frozen)
    if _pins(run) and run.settings.knobs.get("pin_memory"):
        stored = sum(count * max(PINNED_MINIMUM, power_of_two(size)) for count, size in frozen)
    return (host_term(run, "offloaded frozen parameters", "params", stored, "one block a parameter", pinned=False),)


def _swapped_params(run: Run, sizes: Sizes, n: int, groups: tuple[int, ...], mine: int) -> Terms:
    """NVMe parameters (partitioned_param_swapper.py): a file each, buffers to swap in, and ``max_in_cpu`` in RAM."""
    knobs, e = run.settings.knobs, sizes.element
    count, size = int(knobs["param_buffer_count"]), round_up(int(knobs["param_buffer_size"]), AIO_ALIGNED_BYTES // e)
    in_ram = min(mine, int(knobs["max_in_cpu"]))
    files = sum(
        part.count * round_up(ceil_div(p.numel, n) * e, AIO_ALIGNED_BYTES)
        for part in run.model.parts for p in part.parameters if ceil_div(p.numel, n) * e >= MIN_SWAP_BYTES
    )  # fmt: skip
    spilled = max(groups, default=0) * e if mine > in_ram else 0
    return (
        host_term(run, "parameters kept in RAM", "params", in_ram * e, f"max_in_cpu: {in_ram:,} x {e} B", _pins(run)),
        host_term(run, "parameter swap buffers", "buffers", count * size * e,
                  f"{count} buffers of {size:,} elements x {e} B", pinned=False),
        host_term(run, "swap-out buffer", "buffers", spilled, "largest sub-group", pinned=False),
        _nvme(run, "parameter files", "params", files, f"shards of at least 1 MiB, padded to {AIO_ALIGNED_BYTES} B"),
    )  # fmt: skip


def _host_optimizer(run: Run, sizes: Sizes, n: int, groups: tuple[int, ...], staging: bool) -> Terms:
    if not run.strategy.optimizer:
        return ()
    mine = shards(run.model, n)[0]
    away = groups[len(on_gpu(run, groups)) :]
    flat = host_term(run, "gradients", "gradients", mine * sizes.accumulated * staging,
                     f"{mine:,} elements of the shard x {sizes.accumulated} B, from the start")  # fmt: skip
    m = sizes.master
    if run.strategy.optimizer == "nvme":
        return (flat, *_swapped_optimizer(run, sizes, n, groups))
    return (
        flat,
        host_term(
            run, "master weights", "master", sum(away) * m, f"{sum(away):,} elements of the shard x {m} B", pinned=False
        ),
        *(
            host_term(run, "fp32 gradients", "gradients", g * m, f"sub-group of {g:,} elements x {m} B")
            for g in away[:1]
        ),
        *_more_groups(run, away[1:], m),
    )


def _more_groups(run: Run, groups: tuple[int, ...], element: int) -> Terms:
    """fp32 gradients of further sub-groups, each a block of its own."""
    pinned = bool(run.settings.knobs.get("pin_memory")) and _pins(run)
    stored = sum(max(PINNED_MINIMUM, power_of_two(g * element)) if pinned else g * element for g in groups)
    return (host_term(run, "fp32 gradients", "gradients", stored, f"{len(groups)} more sub-groups", pinned=False),)


def _swapped_optimizer(run: Run, sizes: Sizes, n: int, groups: tuple[int, ...]) -> Terms:
    """NVMe states, H.5 (swap_tensor/optimizer_utils.py): master and states of a sub-group a file each, gradients too."""
    knobs, m = run.settings.knobs, sizes.master
    swapped = [g for g in groups if g * m >= MIN_SWAP_BYTES]
    kept = sum(groups) - sum(swapped)
    count, largest = int(knobs["optimizer_buffer_count"]), round_up(max(groups, default=0) * m, AIO_ALIGNED_BYTES)
    files = sum(round_up(g * m, AIO_ALIGNED_BYTES) for g in swapped)
    states = sum(t.bytes for t in sizes.state_terms(run, swapped, "", False) if t.place == "gpu") if swapped else 0
    gradients = sum(
        ceil_div(numel, n) * m for numel in trainable(run.model).sizes if ceil_div(numel, n) * m >= MIN_SWAP_BYTES
    )
    in_ram = (
        host_term(
            run, "master weights", "master", kept * m, f"{kept:,} elements of sub-groups below 1 MiB x {m} B", False
        ),
        host_term(
            run, "fp32 gradients", "gradients", kept * m, f"{kept:,} elements of sub-groups below 1 MiB x {m} B", False
        ),
    )
    return (
        *(in_ram if kept else ()),
        host_term(run, "optimizer swap buffers", "buffers", count * largest,
                  f"{count} buffers of the largest sub-group x {m} B", pinned=False),
        _nvme(run, "master files", "master", files, f"{len(swapped)} sub-groups x {m} B"),
        _nvme(run, "state files", "optimizer", states, f"states of {len(swapped)} sub-groups"),
        _nvme(run, "gradient files", "gradients", gradients, f"gradient shards of at least 1 MiB x {m} B"),
    )  # fmt: skip


def _nvme(run: Run, name: str, category: str, bytes_per_rank: int, formula: str) -> Term:
    ranks = run.cluster.gpus_per_node
    return Term(name, category, ranks * bytes_per_rank, f"{ranks} ranks of a node x ({formula})", "nvme")


def _pins(run: Run) -> bool:
    """Parameter shards are pinned whatever ``pin_memory`` says (``_create_param_groups_fp16_flat_cpu_memory``)."""
    return DEVICES[run.settings.device].pins_host
