"""The peak of every instant of somebody's real training run, beside what was estimated for it.

    from validate.training import record, trainer_callback

    with record(model, optimizer, "run/") as recorded:      # a plain loop
        ...
    print(recorded.report())

    Trainer(..., callbacks=[trainer_callback("run/")])      # Hugging Face Trainer, TRL

Importing this imports no torch and no transformers.
"""

from __future__ import annotations

from validate.training.recording import Recording, record
from validate.training.trainer import trainer_callback

__all__ = ["Recording", "record", "trainer_callback"]
