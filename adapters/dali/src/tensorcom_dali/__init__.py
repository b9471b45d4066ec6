"""tensorcom streams and records as sources of NVIDIA DALI pipelines."""

from tensorcom_dali._version import __version__
from tensorcom_dali.dynamic import make_rng, transform_batch
from tensorcom_dali.feed import external_source
from tensorcom_dali.loader import Loader
from tensorcom_dali.pipelines import (
    finish_images,
    plain_pipeline,
    train_images,
    train_pipeline,
    val_images,
    val_pipeline,
)
from tensorcom_dali.records import PcrSource
from tensorcom_dali.shared import from_records, from_stream
from tensorcom_dali.stream import StreamSource

__all__ = [
    "Loader",
    "PcrSource",
    "StreamSource",
    "__version__",
    "external_source",
    "finish_images",
    "from_records",
    "from_stream",
    "make_rng",
    "plain_pipeline",
    "train_images",
    "train_pipeline",
    "transform_batch",
    "val_images",
    "val_pipeline",
]
