# mypy: ignore-errors
"""When units are gathered before their use."""

from selector.configs.templates.settings import FORWARD_PREFETCH


def prefetch(model, units):
    for at, unit in enumerate(units):
        ahead = units[at + 1 : at + 1 + FORWARD_PREFETCH]
        if ahead:
            unit.set_modules_to_forward_prefetch(ahead)
        unit.set_modules_to_backward_prefetch([unit])  # when: no_backward_prefetch
    model.set_modules_to_backward_prefetch([model])  # when: no_backward_prefetch
