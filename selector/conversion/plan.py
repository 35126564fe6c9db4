"""What a configuration says in words that every engine knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from estimators.readers.reading import AUTO, Reading
from estimators.strategy import Strategy
from estimators.values import dataclass, field

PURE = ("bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """None means that the source does not say."""

    strategy: Strategy
    precision: str | None = None  # of the contract: bf16-mixed, ...
    reduce_dtype: str | None = None
    accumulate_dtype: str | None = None
    micro_batch: int | str | None = None
    grad_accum: int | str | None = None
    clipping: float | str | None = None
    whole_on_save: bool | None = None  # the 16-bit model is gathered at save
    sharded_load: bool | None = None  # rank 0 loads, or zero.Init
    wrap_classes: tuple[str, ...] = ()
    checkpointing: bool | None = None
    processes: int | None = None
    machines: int | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)  # of the source's engine, for the way back and the list


def plan_of(reading: Reading) -> Plan:
    """The plan of a reading. Values that nobody gave and that are an engine's defaults stay out."""
    facts, work, options = reading.facts, reading.workload, dict(reading.strategy.options)
    state_dict = facts["state_dict_type"].value if "state_dict_type" in facts else None
    loading = facts["cpu_ram_efficient_loading"].value if "cpu_ram_efficient_loading" in facts else None
    gather = options.pop("gather_16bit_on_save", None)
    init = options.pop("zero_init", None)
    whole = state_dict == "FULL_STATE_DICT" if state_dict else None
    classes = facts["wrap_classes"].value if "wrap_classes" in facts else ()
    checkpoints = work.get("checkpointing")
    return Plan(
        strategy=Strategy(reading.strategy.base, options, reading.strategy.optimizer, reading.strategy.params),
        precision=work.get("precision"),
        reduce_dtype=work.get("reduce_dtype"),
        accumulate_dtype=_text(options.get("grad_accum_dtype")),
        micro_batch=_given(reading, "micro_batch"),
        grad_accum=_given(reading, "grad_accum"),
        clipping=facts["gradient_clipping"].value if "gradient_clipping" in facts else None,
        whole_on_save=gather if isinstance(gather, bool) else whole,
        sharded_load=init if isinstance(init, bool) else loading,
        wrap_classes=tuple(classes),
        checkpointing=None if checkpoints is None else checkpoints != "none",
        processes=reading.num_processes,
        machines=reading.num_machines,
        knobs=options,
    )


def _given(reading: Reading, name: str) -> int | str | None:
    value = reading.values.get(name)
    return value.value if value is not None and (value.given or value.value == AUTO) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
