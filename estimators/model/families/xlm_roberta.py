"""XLM-RoBERTa: RoBERTa's parameters with the head built first, so that the head owns the shared table."""

from __future__ import annotations

from estimators.model.families import encoder, roberta
from estimators.model.families.common import Config, linear
from estimators.model.families.pieces import root
from estimators.model.spec import ModelSpec
from estimators.values import replace

# transformers XLMRobertaConfig
DEFAULTS = encoder.DEFAULTS | {"vocab_size": 30522}


def build(config: Config) -> ModelSpec:
    spec = roberta.assemble(config, "XLMRoberta")
    *body, head = spec.parts
    if not spec.tied:
        return replace(spec, parts=(head, *body))
    table = linear(spec.head, config.integer("vocab_size"), config.integer("hidden_size"))
    words, first = f"{spec.embedding}.weight", body[0]
    body[0] = replace(first, parameters=tuple(p for p in first.parameters if p.name != words))
    tied = {f"{spec.head}.bias": spec.tied[f"{spec.head}.bias"], words: f"{spec.head}.weight"}
    return replace(spec, parts=(root(head.parameters, table, role="encoder"), *body), tied=tied)
