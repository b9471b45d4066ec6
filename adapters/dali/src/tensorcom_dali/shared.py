"""The two functions that every adapter has, with the same arguments and the same batches.

Pixels are decoded and augmented by core, or come as they were sent, and a pipeline hands them on:
so that frameworks can be compared. Pipelines that do something themselves are those of `pipelines`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorcom.converters import check_layout
from tensorcom_dali.loader import Loader
from tensorcom_dali.pipelines import plain_pipeline
from tensorcom_dali.records import PcrSource
from tensorcom_dali.stream import StreamSource

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable


def from_stream(
    urls: str | Iterable[str],
    *,
    length: int | None = None,
    layout: tuple[str, str] | None = None,
    timeout_s: float | None = 60.0,
    on_bad_message: str = "raise",
) -> Loader:
    """Return a loader of a stream; every adapter has this function with these arguments.

    It yields numpy arrays; `.to("torch")` and `.to("jax")` change that.

    Args:
        urls: a ZMQ URL or several, braces expanded.
        length: batches in one iteration; None iterates to the end of the stream.
        layout: (sent, wanted) layout of the first array; None leaves it.
        timeout_s: seconds to wait for a message; None waits for ever.
        on_bad_message: "raise" or "skip".
    """
    source = StreamSource(
        urls, length=length, layout=layout, timeout_s=timeout_s, on_bad_message=on_bad_message
    )
    # No batch is asked for before it is needed: messages come when they come.
    return Loader(source, plain_pipeline, prefetch_queue_depth=1)


def from_records(
    root: str | os.PathLike[str],
    *,
    batch_size: int,
    scan_groups: int | None = None,
    size: int | None = 224,
    augment: str | None = "train",
    layout: str = "NHWC",
    shuffle: bool = True,
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    end: str = "wrap",
    on_error: str = "raise",
) -> Loader:
    """Return a loader of records; every adapter has this function with these arguments.

    It yields numpy arrays; `.to("torch")` and `.to("jax")` change that.

    Args:
        root: directory of the set, or an fsspec URL of it.
        batch_size: samples in a batch.
        scan_groups: groups to read, 1 to the set's; None reads all.
        size: side of the images in pixels; None keeps each image's own.
        augment: "train", "eval" or None.
        layout: "NHWC" or "NCHW".
        shuffle: a new order each epoch.
        seed: of order and augmentation.
        shard: (rank, ranks); None asks torch.distributed or jax.distributed, or the variables RANK
            and WORLD_SIZE.
        end: "wrap", "pad", "drop" or "uneven".
        on_error: "raise" or "skip".
    """
    check_layout(("NHWC", layout))
    source = PcrSource(
        root,
        batch_size=batch_size,
        scan_groups=scan_groups,
        decode=True,
        size=size,
        augment=augment,
        shuffle=shuffle,
        seed=seed,
        shard=shard,
        end=end,
        on_error=on_error,
    )
    return Loader(source, plain_pipeline, layout=layout, prefetch_queue_depth=1)
