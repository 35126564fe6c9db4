"""The callback for Hugging Face Trainer and what is built on it (TRL). transformers is imported when one is made."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from estimators.errors import MissingDependency

if TYPE_CHECKING:
    import os

    from estimators.memory import Estimate
    from validate.device import Device
    from validate.training.recording import Recording


def trainer_callback(
    predicted: str | os.PathLike[str] | Estimate | None = None, *, quiet: bool = False, device: Device | None = None
) -> Any:
    """A ``TrainerCallback`` that records the peak of every instant and prints the comparison when training ends.

    ``predicted``: a folder that ``recommend --emit`` wrote, or an ``Estimate``. ``quiet``: print nothing. Its
    ``recording`` and, after training, its ``report`` can be read.

    Raises ``InputError`` for a folder that cannot be read, ``MissingDependency`` without transformers.
    """
    from validate.training.comparison import estimate_of

    return _made()(estimate_of(predicted), quiet, device)


@lru_cache(maxsize=1)
def _made() -> type[Any]:
    try:
        from transformers import TrainerCallback
    except ModuleNotFoundError:
        raise MissingDependency("transformers is not installed; pip install 'dist-advisor[engines]'") from None

    class Recorded(TrainerCallback):  # type: ignore[misc,unused-ignore]
        """Hooks live from the beginning of training to its end, whatever ends it."""

        def __init__(self, predicted: Any, quiet: bool, device: Any) -> None:
            self._predicted, self._quiet, self._device = predicted, quiet, device
            self.recording: Recording | None = None
            self.report: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            from validate.training.recording import recording_of

            self.recording = recording_of(kwargs["model"], self._predicted, self._device)
            if kwargs.get("optimizer") is not None:
                self.recording.attach(kwargs["optimizer"])

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.recording is None:
                return
            self.recording.close()
            self.report = self.recording.report()
            if state.is_world_process_zero and not self._quiet:
                print(self.report)

    return Recorded
