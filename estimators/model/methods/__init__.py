"""What a training method makes of a network: adapters inserted, weights quantised, parameters frozen.

``trained`` is the one door. It returns the same object for equal inputs, so that everything computed from a spec can
be cached by identity; and it works on parts, not on layers: its cost does not grow with depth unless a name given by
the user picks single layers.
"""

from __future__ import annotations

from functools import lru_cache

from estimators.errors import IllegalCombination
from estimators.model.methods.adapters import insert_adapters, target_names, wide_adapters
from estimators.model.methods.freezing import freeze
from estimators.model.methods.quantised import quantise
from estimators.model.spec import ModelSpec, Parameter, Part
from estimators.run import Settings
from estimators.values import dataclass, replace
from estimators.workload import Workload

__all__ = ["target_names", "trained", "wide_adapters"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The few values that decide how a method changes a spec."""

    method: str
    rank: int
    targets: str | tuple[str, ...]
    modules_to_save: tuple[str, ...]
    freeze: tuple[str, ...]
    quant: str
    quant_dtype: str | None  # dtype that packed weights are stored as, where not bytes (FSDP)
    adapter_dtype: str
    keeps: tuple[str, ...]  # marks of Parameter.keep_fp32 that hold under these settings
    subclasses_too: bool  # transformers before 5 quantised subclasses of nn.Linear as well
    built_in: str = "fp32"  # dtype of buffers that are made of a number


def trained(model: ModelSpec, workload: Workload, settings: Settings) -> ModelSpec:
    """``model`` as the method trains it: names, order, ``trainable``, ``dtype`` and stored bytes of every parameter.

    A ``dtype`` left None is the engine's (``Run.dtype_of``). Raises ``InputError`` for a name that matches nothing and
    ``IllegalCombination`` for a module that no adapter fits.
    """
    adapted = workload.has_adapters
    qlora = workload.method == "qlora"
    quant_dtype = settings.knobs.get("quant_storage")
    recipe = Recipe(
        method=workload.method,
        rank=workload.lora_rank if adapted else 0,
        targets=workload.lora_targets if adapted else (),
        modules_to_save=workload.modules_to_save if adapted else (),
        freeze=workload.freeze,
        quant=workload.quant if qlora else "",
        quant_dtype=str(quant_dtype) if qlora and quant_dtype else None,
        adapter_dtype=settings.adapter_dtype if adapted else "",
        keeps=_keeps(settings),
        built_in=settings.load_dtype if any(b.is_number for part in model.parts for b in part.buffers) else "fp32",
        subclasses_too=qlora and settings.versions.get("transformers", "5").startswith("4."),
    )
    made = _trained(model, recipe)
    if not made.num_trainable:
        raise IllegalCombination(
            f"method {workload.method}: nothing of {model.name or model.class_name} trains; freeze less"
        )
    return made


@lru_cache(maxsize=4096)
def _trained(model: ModelSpec, recipe: Recipe) -> ModelSpec:
    made = keep_fp32(model, recipe.keeps) if recipe.keeps else model
    if recipe.built_in != "fp32":
        made = replace(made, parts=tuple(_built(part, recipe.built_in) for part in made.parts))
    if recipe.method == "freeze":
        return freeze(made, recipe.freeze)
    if recipe.method == "full":
        return made
    if recipe.method == "qlora":
        made = quantise(made, recipe.quant, recipe.quant_dtype, recipe.subclasses_too)
    return insert_adapters(
        made, recipe.targets, recipe.rank, recipe.method == "dora", recipe.modules_to_save, recipe.adapter_dtype
    )


def _built(part: Part, dtype: str) -> Part:
    """``torch.tensor(number)`` has torch's default dtype, which transformers sets while it builds a model."""
    return replace(part, buffers=tuple(replace(b, dtype=dtype) if b.is_number else b for b in part.buffers))


def _keeps(settings: Settings) -> tuple[str, ...]:
    """Marks under which transformers leaves a tensor in fp32 although the rest is loaded in 16 bit.

    Not under DeepSpeed, whose engine casts the whole module, and not where everything is fp32 anyway.
    """
    if settings.load_dtype == "fp32" or "grad_accum_dtype" in settings.knobs:
        return ()
    return ("fp16", "16bit") if settings.load_dtype == "fp16" else ("16bit",)


def keep_fp32(model: ModelSpec, marks: tuple[str, ...]) -> ModelSpec:
    """The parameters with one of these marks in fp32; the model itself when there is none."""
    if not any(p.keep_fp32 in marks for part in model.parts for p in part.parameters):
        return model
    return replace(model, parts=tuple(_marked(part, marks) for part in model.parts))


def _marked(part: Part, marks: tuple[str, ...]) -> Part:
    def mark(p: Parameter) -> Parameter:
        return replace(p, dtype="fp32") if p.keep_fp32 in marks else p

    return replace(part, parameters=tuple(map(mark, part.parameters)))
