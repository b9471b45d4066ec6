"""Images: folders of them, their pixels, and the usual augmentation.

Owns what turns image files into uint8 RGB arrays of one size; knows nothing of batches or streams.
"""

from __future__ import annotations

from tensorcom.images.augment import (
    center_crop,
    evaluation_view,
    normalize,
    random_flip,
    random_resized_crop,
    random_resized_crop_box,
    resize_crop,
    sample_rng,
    training_view,
)
from tensorcom.images.decode import MAX_PIXELS, decode_image, detect_format
from tensorcom.images.folder import IMAGE_SUFFIXES, ImageFolder, PathTable, training_folder
from tensorcom.images.pool import WorkerThreads, keep_freed_memory, map_ordered, usable_cores

__all__ = [
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "ImageFolder",
    "PathTable",
    "WorkerThreads",
    "center_crop",
    "decode_image",
    "detect_format",
    "evaluation_view",
    "keep_freed_memory",
    "map_ordered",
    "normalize",
    "random_flip",
    "random_resized_crop",
    "random_resized_crop_box",
    "resize_crop",
    "sample_rng",
    "training_folder",
    "training_view",
    "usable_cores",
]
