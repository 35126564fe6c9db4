"""What optimizers allocate for the length of a step, beside states and gradients."""

from __future__ import annotations

from estimators.result import Term
from estimators.run import Run


def step_temporaries(run: Run) -> tuple[Term, ...]:
    """Temporaries of the largest moment of ``optimizer.step``."""
    return ()
