# ruff: noqa: TID253
# mypy: ignore-errors
"""What accelerate passes to DistributedDataParallel."""

from accelerate.utils import DistributedDataParallelKwargs

from selector.configs.templates.settings import (
    BUCKET_CAP_MB,
    FIND_UNUSED_PARAMETERS,
    GRADIENT_AS_BUCKET_VIEW,
    STATIC_GRAPH,
)


def ddp():
    return DistributedDataParallelKwargs(
        gradient_as_bucket_view=GRADIENT_AS_BUCKET_VIEW,
        bucket_cap_mb=BUCKET_CAP_MB,
        static_graph=STATIC_GRAPH,
        find_unused_parameters=FIND_UNUSED_PARAMETERS,
    )
