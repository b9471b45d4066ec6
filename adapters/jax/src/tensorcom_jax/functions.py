"""What makes iterators: `stream_iterator`, `pcr_iterator`, and the functions of every adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorcom_jax.records import DeviceRecords
from tensorcom_jax.stream import DeviceStream

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from tensorcom_jax.placement import Shardings


def stream_iterator(
    urls: str | Iterable[str], sharding: Shardings = None, prefetch: int = 2, **options: Any
) -> DeviceStream:
    """Return a stream as batches on devices.

    Args:
        urls: a ZMQ URL or several, braces expanded.
        sharding: where arrays go.
        prefetch: batches on devices before they are asked for.
        **options: further arguments of `DeviceStream`.
    """
    return DeviceStream(urls, sharding=sharding, prefetch=prefetch, **options)


def pcr_iterator(
    root: str | os.PathLike[str],
    *,
    batch_size: int,
    scan_groups: int | None = None,
    sharding: Shardings = None,
    prefetch: int = 2,
    **options: Any,
) -> DeviceRecords:
    """Return a set of records as batches on devices.

    Args:
        root: directory of the set, or an fsspec URL of it.
        batch_size: samples in a batch of this process.
        scan_groups: groups to read, 1 to the set's; None reads all.
        sharding: where images and labels go.
        prefetch: batches on devices before they are asked for.
        **options: further arguments of `DeviceRecords`.
    """
    return DeviceRecords(
        root,
        batch_size=batch_size,
        scan_groups=scan_groups,
        sharding=sharding,
        prefetch=prefetch,
        **options,
    )


def from_stream(
    urls: str | Iterable[str],
    *,
    length: int | None = None,
    layout: tuple[str, str] | None = None,
    timeout_s: float | None = 60.0,
    on_bad_message: str = "raise",
) -> DeviceStream:
    """Return a stream on the default device; every adapter has this function and these arguments.

    Args:
        urls: a ZMQ URL or several, braces expanded.
        length: batches in one iteration; None iterates to the end of the stream.
        layout: (sent, wanted) layout of the first array; None leaves it.
        timeout_s: seconds to wait for a message; None waits for ever.
        on_bad_message: "raise" or "skip".
    """
    return DeviceStream(
        urls, length=length, layout=layout, timeout_s=timeout_s, on_bad_message=on_bad_message
    )


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
) -> DeviceRecords:
    """Return records on the default device; every adapter has this function and these arguments.

    Args:
        root: directory of the set, or an fsspec URL of it.
        batch_size: samples in a batch.
        scan_groups: groups to read, 1 to the set's; None reads all.
        size: side of the images in pixels; None keeps each image's own.
        augment: "train", "eval" or None.
        layout: "NHWC" or "NCHW".
        shuffle: a new order each epoch.
        seed: of order and augmentation.
        shard: (rank, ranks); None asks the framework.
        end: "wrap", "pad", "drop" or "uneven".
        on_error: "raise" or "skip".
    """
    return DeviceRecords(
        root,
        batch_size=batch_size,
        scan_groups=scan_groups,
        size=size,
        augment=augment,
        layout=layout,
        shuffle=shuffle,
        seed=seed,
        shard=shard,
        end=end,
        on_error=on_error,
    )
