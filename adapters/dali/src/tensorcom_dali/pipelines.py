"""Ready pipelines, and the steps that they are made of.

Owns what becomes of images between a source and a training loop; knows nothing of where they come
from or who takes them.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom.arguments import check_integers
from tensorcom.images import usable_cores
from tensorcom_dali.feed import as_feed, external_source
from tensorcom_dali.imports import check_gpu, import_dali
from tensorcom_dali.ranks import current_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorcom_dali.feed import Feed, Source

IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
_DTYPES = {"float32": "FLOAT", "float16": "FLOAT16", "uint8": "UINT8"}


def train_images(
    jpegs: Any,
    *,
    size: int = 224,
    device: str = "cpu",
    decode_device: str | None = None,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    mirror: float = 0.5,
    antialias: bool = True,
    layout: str = "NCHW",
    dtype: str = "float32",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Any:
    """Decode JPEG files with a random crop, resize, mirror and normalise them.

    A step of a pipeline's definition: for pipelines of your own, whatever their reader.

    Args:
        jpegs: DataNode of encoded images.
        size: side of the result in pixels.
        device: "cpu" or "gpu", for all that comes after decoding.
        decode_device: "cpu", or "mixed" for DALI's decoder that uses CPU and GPU; None is "mixed"
            on a GPU. What that cannot decode on the GPU, it decodes on the CPU.
        scale: least and largest share of the image's area that a crop has.
        ratio: least and largest width / height of a crop.
        mirror: probability of a mirror image.
        antialias: filter when making images smaller, as other loaders do; half the cost without.
        layout: "NCHW" or "NHWC".
        dtype: "float32", "float16" or "uint8".
        mean: of each channel, from 0 to 255, subtracted; None is ImageNet's, or 0 for uint8.
        std: of each channel, divided by; None is ImageNet's, or 1 for uint8.

    Returns:
        DataNode of images.

    Raises:
        ValueError: an argument is out of range, which DALI takes for something else.
    """
    check_size(size)
    _check_range("scale", scale, most=1)
    _check_range("ratio", ratio)
    if not 0 <= mirror <= 1:
        raise ValueError(f"mirror={mirror}, expected a probability from 0 to 1")
    fn, types = import_dali("nvidia.dali.fn"), import_dali("nvidia.dali.types")
    images = fn.decoders.image_random_crop(
        jpegs,
        device=_decoder(device, decode_device),
        output_type=types.RGB,
        random_area=list(scale),
        random_aspect_ratio=list(ratio),
        adjust_orientation=False,  # as in core and the usual loaders
    )
    images = _to_device(images, device, decode_device)
    images = fn.resize(
        images, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=antialias
    )
    flips = fn.random.coin_flip(probability=mirror)
    return finish_images(images, layout=layout, dtype=dtype, mean=mean, std=std, mirror=flips)


def val_images(
    jpegs: Any,
    *,
    size: int = 224,
    device: str = "cpu",
    decode_device: str | None = None,
    antialias: bool = True,
    layout: str = "NCHW",
    dtype: str = "float32",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Any:
    """Decode JPEG files, cut out the centre in the usual way for evaluation, and normalise it.

    For 224 the shorter side becomes 256 pixels long. Arguments are those of `train_images`.
    """
    check_size(size)
    fn, types = import_dali("nvidia.dali.fn"), import_dali("nvidia.dali.types")
    images = fn.decoders.image(
        jpegs,
        device=_decoder(device, decode_device),
        output_type=types.RGB,
        adjust_orientation=False,
    )
    images = _to_device(images, device, decode_device)
    images = fn.resize(
        images,
        resize_shorter=round(size * 256 / 224),
        interp_type=types.INTERP_LINEAR,
        antialias=antialias,
    )
    return finish_images(images, layout=layout, dtype=dtype, mean=mean, std=std, crop=(size, size))


def finish_images(
    images: Any,
    *,
    layout: str = "NCHW",
    dtype: str = "float32",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **options: Any,
) -> Any:
    """Normalise images and move their axes; arguments are those of `train_images`.

    Args:
        images: DataNode of uint8 HWC images.
        layout: as there.
        dtype: as there.
        mean: as there.
        std: as there.
        **options: further arguments of `fn.crop_mirror_normalize`: crop, mirror.

    Raises:
        ValueError: `layout` or `dtype` is none of theirs, or `std` is no divisor.
    """
    fn, types = import_dali("nvidia.dali.fn"), import_dali("nvidia.dali.types")
    if layout not in ("NCHW", "NHWC"):
        raise ValueError(f"layout={layout!r}, expected 'NCHW' or 'NHWC'")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype={dtype!r}, expected one of {', '.join(_DTYPES)}")
    is_raw = dtype == "uint8"
    mean = mean if mean is not None else (0.0,) * 3 if is_raw else IMAGENET_MEAN
    std = std if std is not None else (1.0,) * 3 if is_raw else IMAGENET_STD
    check_std(std)
    return fn.crop_mirror_normalize(
        images,
        dtype=getattr(types, _DTYPES[dtype]),
        output_layout=layout[1:],
        mean=list(mean),
        std=list(std),
        **options,
    )


def check_size(size: int) -> None:
    """Check the side of images: DALI leaves them as they are for 0, and mirrors them below."""
    check_integers(1, size=size)


def check_std(std: Sequence[float]) -> None:
    """Check what images are divided by: DALI divides by 0 too."""
    if not all(value > 0 for value in std):
        raise ValueError(f"std={std}, expected numbers above 0")


def _check_range(name: str, value: Sequence[float], *, most: float = float("inf")) -> None:
    if len(value) != 2 or not 0 < value[0] <= value[1] <= most:
        limit = "" if most == float("inf") else f" and at most {most:g}"
        raise ValueError(f"{name}={value}, expected (least, largest), above 0{limit}")


def _decoder(device: str, decode_device: str | None) -> str:
    if device not in ("cpu", "gpu"):
        raise ValueError(f"device={device!r}, expected 'cpu' or 'gpu'")
    if decode_device is None:
        return "cpu" if device == "cpu" else "mixed"
    if decode_device not in ("cpu", "mixed"):
        raise ValueError(f"decode_device={decode_device!r}, expected 'cpu' or 'mixed'")
    if decode_device == "mixed" and device == "cpu":
        raise ValueError("decode_device='mixed' needs device='gpu': it leaves the images there")
    return decode_device


def _to_device(images: Any, device: str, decode_device: str | None) -> Any:
    on_cpu = _decoder(device, decode_device) == "cpu"
    return images.gpu() if on_cpu and device == "gpu" else images


def train_pipeline(source: Source | Feed, **options: Any) -> Any:
    """Return a pipeline that trains: random crops, mirrored half of the time, normalised.

    Pixels that a source gives (a stream's, or those of `PcrSource(decode=True)`) are taken as
    augmented, and only normalised: of the options below they have `device`, `layout`, `dtype`,
    `mean` and `std`.

    Args:
        source: a PcrSource or StreamSource.
        **options: `device`, `size`, `layout`, `dtype` and the others of `train_images`; `workers`,
            how many processes of DALI make batches instead of the source's thread (0); and the
            arguments of a pipeline: `num_threads` (the cores of this process), `device_id`
            (LOCAL_RANK, or 0, on a GPU), `seed` (made of the source's seed, its rank and the epoch
            that comes first), `prefetch_queue_depth`, `checkpoint` and others.

    Returns:
        A `nvidia.dali.Pipeline` of images and labels, on the device. The same seed gives the same
        images, whatever the number of threads.

    Raises:
        SourceError: `source` is none.
        MissingDependencyError: DALI is not installed, or there is no GPU for `device="gpu"` or
            `device_id`.
        TypeError: there is no such option.
        ValueError: an option is out of range, or about decoding where the source gives pixels.
    """
    return _make_pipeline(source, train_images, options)


def val_pipeline(source: Source | Feed, **options: Any) -> Any:
    """Return a pipeline that evaluates: the usual crop of the centre, normalised.

    Arguments are those of `train_pipeline`, without what is random.
    """
    return _make_pipeline(source, val_images, options)


def plain_pipeline(source: Source | Feed, *, layout: str | None = None, **options: Any) -> Any:
    """Return a pipeline that hands its source's arrays on as they are.

    Args:
        source: a PcrSource or StreamSource.
        layout: "NCHW" moves the axes of the first output, HWC images; None leaves them.
        **options: arguments of a pipeline.
    """

    def define() -> tuple[Any, ...]:
        first, *rest = external_source(source)
        if layout == "NCHW":
            first = import_dali("nvidia.dali.fn").transpose(first, perm=[2, 0, 1])
        return (first, *rest)

    return _define(source, define, {"num_threads": 1, **options}, takes=("layout",))


_STEPS = ("size", "decode_device", "antialias")
_TRAINING = ("scale", "ratio", "mirror")
_FINISH = ("layout", "dtype", "mean", "std")


def _make_pipeline(source: Source | Feed, step: Any, options: dict[str, Any]) -> Any:
    feed = as_feed(source)
    device = options.pop("device", "cpu")
    _decoder(device, options.get("decode_device"))
    workers = options.pop("workers", 0)
    check_integers(0, workers=workers)
    known = (*_STEPS, *(_TRAINING if step is train_images else ()), *_FINISH)
    given = {name: options.pop(name) for name in known if name in options}
    idle = sorted(given.keys() - set(_FINISH))
    if idle and not feed.source.is_encoded:
        raise ValueError(
            f"{', '.join(idle)}: about decoding and cropping, but {feed.source!r} gives pixels, "
            "which are only normalised: leave it out, or say it where they are made"
        )

    def define() -> tuple[Any, ...]:
        first, *rest = external_source(feed, parallel=bool(workers))
        if feed.source.is_encoded:
            images = step(first, device=device, **given)
        else:
            images = finish_images(first.gpu() if device == "gpu" else first, **given)
        return (images, *(node.gpu() if device == "gpu" else node for node in rest))

    if device == "gpu" and options.get("device_id") is None:
        options["device_id"] = current_gpu()
    if workers:
        options = {"py_num_workers": workers, "py_start_method": "spawn", **options}
    return _define(source, define, options, takes=("device", *known, "workers"))


def _define(
    source: Source | Feed, define: Any, options: dict[str, Any], *, takes: Sequence[str]
) -> Any:
    feed, dali = as_feed(source), import_dali()
    known = inspect.signature(dali.Pipeline.__init__).parameters
    strange = [name for name in options if name not in known]
    if strange:
        raise TypeError(
            f"{', '.join(strange)}: no option of this pipeline, which has {', '.join(takes)}, and "
            "those of nvidia.dali.Pipeline"
        )
    if options.get("device_id") is not None:
        check_gpu(options["device_id"])
    arguments = {
        "batch_size": feed.source.batch_size,
        "num_threads": usable_cores(),
        "device_id": None,
        **options,
        "seed": _seed_of(feed, options.get("seed")),
    }
    return dali.pipeline_def(define)(**arguments)


def _seed_of(feed: Feed, given: int | None) -> int:
    """Return the seed of a pipeline.

    It differs between ranks, after a new start in a later epoch, and for each batch that is made
    again; unless one was given, which only the last is.
    """
    parts: tuple[int, ...] = (0, 0, 0)
    if given is not None:
        if not feed.variant:
            return given
        parts = (given,)
    elif not feed.source.is_stream:
        records: Any = feed.source
        epoch = feed.variant[0] if feed.variant else records.next_state()["epoch"]
        parts = (records.seed, records.shard[0], epoch)
    return int(np.random.SeedSequence((*parts, *feed.variant)).generate_state(1)[0] >> 1)
