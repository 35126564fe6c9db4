"""Section A, buckets and what stage 3 keeps gathered. Checked against deepspeed 0.19.8."""

from __future__ import annotations

from estimators.units import gib
from selector.checks.registry import COUNT, ERROR, INFO, THREAD, WARNING, Hits, rule
from selector.checks.setup import Setup

HALF = 2  # bytes of a 16-bit element
MIB = 2**20
SMALL_BUCKET = 10**7


@rule(
    "bucket-larger-than-model",
    WARNING,
    fix="at most the number of parameters, e.g. 5e7",
    confirmed=COUNT,
    source="DeepSpeed#2992, DeepSpeed#1302",
)
def bucket_over_model(setup: Setup) -> Hits:
    """A bucket of stage 1 or 2 has more elements than there are trainable parameters: more memory than DDP."""
    if setup.model is None or setup.stage not in (1, 2) or not setup.ds:
        return
    run = setup.estimate.run.model if setup.estimate else setup.model
    for key in ("reduce_bucket_size", "allgather_bucket_size"):
        size = setup.zero.number(key) if key in setup.zero else 5e8
        if size and size > run.num_trainable:
            yield setup.zero.hit(
                key,
                f"{size:,.0f} elements ({size * HALF / MIB:,.1f} MiB in 16 bit), and the model trains "
                f"{run.num_trainable:,}",
                setup.zero.put(key, min(50_000_000, run.num_trainable)),
            )


@rule(
    "overlap-comm-buffer",
    INFO,
    fix="lower the bucket, or overlap_comm false, where memory is tight",
    confirmed=COUNT,
    source="DeepSpeed#1302, DeepSpeed#467",
)
def overlap_buffer(setup: Setup) -> Hits:
    """overlap_comm (true by default at stage 3 only) with contiguous gradients holds a second bucket."""
    stage, given = setup.stage, setup.zero.flag("overlap_comm")
    on = stage == 3 if given is None else given
    if not setup.ds or not stage or not on or setup.zero.flag("contiguous_gradients") is False:
        return
    size = setup.zero.number("reduce_bucket_size") if "reduce_bucket_size" in setup.zero else 5e8
    if size:
        yield setup.zero.hit(
            "overlap_comm", f"a second bucket of {size:,.0f} elements: {size * HALF / MIB:,.1f} MiB in 16 bit"
        )


@rule(
    "tiny-bucket-overlap",
    WARNING,
    fix="raise the bucket, or overlap_comm false",
    confirmed=THREAD,
    source="DeepSpeed#6351, gpt-neox#1354",
)
def tiny_bucket(setup: Setup) -> Hits:
    """overlap_comm at stage 1 or 2 with a bucket below the largest tensor: NaN and bad convergence were reported."""
    size = setup.zero.number("reduce_bucket_size")
    largest = max((p.numel for part in setup.model.parts for p in part.parameters), default=0) if setup.model else 0
    limit = min(SMALL_BUCKET, largest or SMALL_BUCKET)
    if setup.stage in (1, 2) and setup.zero.flag("overlap_comm") and size and size < limit:
        than = f"the largest tensor, {largest:,}" if largest else f"{limit:,}"
        yield setup.zero.hit(
            "reduce_bucket_size",
            f"{size:,.0f} elements with overlap_comm is below {than}",
            setup.zero.put("reduce_bucket_size", 50_000_000),
        )


@rule(
    "stage3-live-params",
    INFO,
    fix="lower stage3_max_live_parameters to 1e8",
    confirmed=COUNT,
    source="DeepSpeed#3901, DeepSpeed PR7661",
)
def live_parameters(setup: Setup) -> Hits:
    """Stage 3 may keep stage3_max_live_parameters gathered: why it can need more than FSDP."""
    if setup.stage != 3 or not setup.ds or setup.gpu_bytes is None:
        return
    live = setup.zero.number("stage3_max_live_parameters") or 1e9
    prefetch = setup.zero.number("stage3_prefetch_bucket_size") or 5e7
    size = (min(live, setup.params or live) + prefetch) * HALF
    if size > 0.05 * setup.gpu_bytes:
        yield setup.zero.hit(
            "stage3_max_live_parameters",
            f"{live:,.0f} gathered and {prefetch:,.0f} prefetched elements "
            f"may hold {gib(size)} of {gib(setup.gpu_bytes)} GiB",
        )


@rule(
    "hpz-memory",
    WARNING,
    fix="the GPUs of a node, or 1",
    confirmed=COUNT,
    source="DeepSpeed#6467, DeepSpeed#6889, DeepSpeedExamples PR717",
)
def hpz_memory(setup: Setup) -> Hits:
    """zero_hpz_partition_size g keeps another 16-bit shard of 1/g; useless on one node."""
    group = setup.zero.whole("zero_hpz_partition_size") or 1
    if group <= 1 or setup.stage != 3:
        return
    more = f": {gib(setup.params * HALF / group)} GiB more on each GPU" if setup.params else ""
    if setup.world and setup.nodes == 1:
        yield setup.zero.hit(
            "zero_hpz_partition_size",
            f"{group} on one node saves no traffic between nodes{more}",
            setup.zero.put("zero_hpz_partition_size", 1),
        )
    elif setup.per_node and group != setup.per_node:
        yield setup.zero.hit("zero_hpz_partition_size", f"{group} is not the {setup.per_node} GPUs of a node{more}")
    elif more:
        yield setup.zero.hit("zero_hpz_partition_size", f"{group}{more}", severity=INFO)


@rule(
    "hpz-with-offload",
    ERROR,
    fix="drop the offload or hpZ",
    confirmed=THREAD,
    source="LLaMA-Factory#6372, DeepSpeed#6889",
)
def hpz_with_offload(setup: Setup) -> Hits:
    """zero_hpz_partition_size above 1 with an offload: a constant loss and gradient norm 0 were reported."""
    group = setup.zero.whole("zero_hpz_partition_size") or 1
    if group > 1 and setup.offloads:
        key = "zero_hpz_partition_size"
        yield setup.zero.hit(
            key, f"{group} together with {setup.offload('param').kind or 'optimizer'} offload", setup.zero.put(key, 1)
        )
