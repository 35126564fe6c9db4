# mypy: ignore-errors
"""Modules that do not train."""

import re

from selector.configs.templates.settings import FROZEN


def freeze(model):
    """A name of FROZEN reaches everything below the module path that it starts or ends a part of."""
    still = re.compile("|".join(rf"(^|\.){re.escape(name)}(?![0-9])" for name in FROZEN))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not still.search(name)
