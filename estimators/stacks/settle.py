"""``settle``: workload, strategy, stack and versions become the one ``Settings`` that every estimator reads."""

from __future__ import annotations

from functools import lru_cache

from estimators.cluster import Cluster
from estimators.model.spec import ModelSpec
from estimators.optimizers import resolved_dtype
from estimators.run import Settings
from estimators.stacks import dtypes, legal, optimizers
from estimators.stacks.knobs import settle_knobs
from estimators.stacks.table import STACKS, Stack
from estimators.stacks.versions import at_least, resolve
from estimators.strategy import Strategy
from estimators.units import gib
from estimators.workload import DTYPE_BYTES, Workload


@lru_cache(maxsize=4096)
def settle(
    model: ModelSpec, cluster: Cluster, workload: Workload, strategy: Strategy, device: str = "cuda"
) -> Settings:
    """What this stack does with this workload under this strategy; equal questions get the same object.

    Raises ``IllegalCombination`` where stack, version, engine or card cannot do it.
    """
    stack = STACKS[workload.stack]
    versions = resolve(workload.versions)
    legal.check(stack, cluster, workload, strategy, device, versions)
    package = legal.PACKAGES[strategy.engine]
    by_stack = f"stack {workload.stack} ({stack.package} {versions[stack.package]})"
    by_engine = f"engine default ({legal.NAMES.get(package, package)} {versions[package]})"
    kbit = _kbit_prepare(stack, workload, strategy)
    chosen = dtypes.choose(stack, workload, strategy, versions, kbit)
    optimizer = optimizers.choose(stack, workload, strategy, device, versions, by_stack)
    knobs = settle_knobs(stack, model, cluster, workload, strategy, device, versions, chosen.compute, optimizer.name,
                         by_stack, by_engine)  # fmt: skip
    given = workload.param_dtype
    param, frozen = given or chosen.param, given or chosen.frozen
    adapter = workload.adapter_dtype or chosen.adapter
    trained = adapter if workload.has_adapters else param
    grad = trained if given or workload.adapter_dtype else chosen.grad
    owner = "fp32" if _states_stay_fp32(workload, strategy, versions["deepspeed"]) else chosen.master or trained
    state = workload.state_dtype or resolved_dtype(optimizer.name, optimizer.impl, owner)
    fields = {
        "load_dtype": (given if given and strategy.engine != "deepspeed" else None, chosen.load),
        "param_dtype": (given, chosen.param),
        "frozen_dtype": (given, chosen.frozen),
        "reduce_dtype": (workload.reduce_dtype, grad if given and strategy.engine == "ddp" else chosen.reduce),
        "adapter_dtype": (workload.adapter_dtype, chosen.adapter),
    }
    origins = {name: "user" if mine else f"{by_stack}: {chosen.why}" for name, (mine, _) in fields.items()}
    origins |= dict.fromkeys(("compute_dtype", "grad_dtype", "master_dtype", "autocast"), f"{by_stack}: {chosen.why}")
    origins |= {"state_dtype": "user" if workload.state_dtype else f"{optimizer.name} ({optimizer.impl})",
                "optimizer": optimizer.origin, "optimizer_impl": by_stack,
                "kbit_prepare": "user" if workload.kbit_prepare is not None else by_stack}  # fmt: skip
    return Settings(
        device=device,
        load_dtype=fields["load_dtype"][0] or chosen.load,
        param_dtype=param,
        frozen_dtype=frozen,
        compute_dtype=chosen.compute,
        grad_dtype=grad,
        reduce_dtype=fields["reduce_dtype"][0] or str(fields["reduce_dtype"][1]),
        master_dtype=chosen.master,
        state_dtype=state,
        adapter_dtype=adapter,
        autocast=chosen.autocast and trained != chosen.compute,
        optimizer=optimizer.name,
        optimizer_impl=optimizer.impl,
        knobs=knobs.values,
        versions=versions,
        origins={**origins, **knobs.origins},
        notes=(*optimizer.notes, *knobs.notes, *_notes(stack, model, workload, strategy, state)),
    )


def _kbit_prepare(stack: Stack, workload: Workload, strategy: Strategy) -> bool:
    """Whether peft.prepare_model_for_kbit_training lifts what is not quantised to fp32 (undone by DeepSpeed's cast)."""
    if workload.method != "qlora" or strategy.engine == "deepspeed":
        return False
    if workload.kbit_prepare is not None:
        return workload.kbit_prepare
    return stack.kbit_prepare and strategy.engine in ("torch", "ddp")


def _states_stay_fp32(workload: Workload, strategy: Strategy, have: str) -> bool:
    """Pure 16 bit with the optimizer on the host: older versions kept bf16 master weights but fp32 states there."""
    offloaded = strategy.engine == "deepspeed" and strategy.optimizer is not None and workload.precision in legal.PURE
    return offloaded and not at_least(have, legal.STATES_16BIT_OFFLOADED)


def _notes(stack: Stack, model: ModelSpec, workload: Workload, strategy: Strategy, state: str) -> tuple[str, ...]:
    """What differs from what a reader may expect, with its bytes."""
    notes: list[str] = []
    mixed = workload.precision.endswith("-mixed")
    plain = strategy.engine in ("torch", "ddp") and workload.method == "full" and not workload.param_dtype
    if stack.trainer or stack.accelerate:
        if mixed and plain and workload.stack != "llamafactory" and state in DTYPE_BYTES:
            trained = model.num_trainable
            other = workload.precision.removesuffix("-mixed")
            both = [trained * (2 * DTYPE_BYTES[d] + 2 * DTYPE_BYTES[d]) for d in ("fp32", other)]
            notes.append(
                f"the script loads the model in fp32; transformers 5 alone would load the checkpoint's dtype, and "
                f"autocast would then train {other} parameters and states: {gib(both[1])} GiB of parameters, gradients "
                f"and AdamW states instead of {gib(both[0])} GiB"
            )
    if mixed and not stack.mixed:
        notes.append(
            f"{workload.stack} has no mixed precision (its dtype is bf16 or fp32 throughout): this is fp32 shards "
            f"computed in {workload.precision.removesuffix('-mixed')}; for its own default give precision bf16"
        )
    if strategy.engine == "deepspeed" and workload.stack == "torch":
        notes.append("stack torch leaves ZeRO to DeepSpeed's own defaults, as stack deepspeed does")
    return tuple(notes)
