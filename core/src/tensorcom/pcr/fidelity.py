"""What each scan group adds to the images of a set: measured on some of them.

Owns which images are measured and how their numbers are summed up; the measures are
`images.similarity`'s.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tensorcom.errors import ImageError, SourceError
from tensorcom.images import decode_image, keep_freed_memory, map_ordered, usable_cores
from tensorcom.images.similarity import Reference, psnr_db
from tensorcom.pcr.guard import guarded
from tensorcom.pcr.record import join_scans

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorcom.pcr.reader import PcrReader

SAMPLES = 50
_LOW_PERCENT = 10


@dataclass(frozen=True, slots=True)
class GroupFidelity:
    """What images are with some number of scan groups, compared with all of them.

    Attributes:
        scan_groups: groups that were read.
        image_bytes: mean size of a measured image.
        share: of the bytes of the whole set that reading these groups takes, 0 to 1.
        ms_ssim: mean over the measured images; None if none is large enough.
        ms_ssim_low: below it are a tenth of the images; None if none is large enough.
        psnr_db: peak signal-to-noise ratio of the mean squared error over all images, infinite if
            all are equal to the whole ones.
    """

    scan_groups: int
    image_bytes: float
    share: float
    ms_ssim: float | None
    ms_ssim_low: float | None
    psnr_db: float


@dataclass(frozen=True, slots=True)
class FidelityReport:
    """What was measured.

    Attributes:
        images: how many images.
        levels: how many of them had how many levels of MS-SSIM, the most levels first. Numbers of
            fewer than five levels are not those of five: images with a side below 161 pixels.
        groups: a row for each number of scan groups.
    """

    images: int
    levels: dict[int, int]
    groups: tuple[GroupFidelity, ...]


def measure_fidelity(
    reader: PcrReader,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    guard: bool = True,
    threads: int | None = None,
    on_progress: Callable[[int, int], object] | None = None,
) -> FidelityReport:
    """Compare images at each number of scan groups with the same images at all of them.

    Args:
        reader: the set.
        samples: how many images, drawn at random; all if there are fewer.
        seed: of the draw.
        guard: decode as training does, with guard scans, so without a decoder's smoothing.
        threads: that decode and compare; None is one for each core that the process may use.
        on_progress: called with how many images are done, and how many there are.

    Raises:
        PcrError: a record cannot be read.
        ImageError: an image cannot be decoded; record and image are named.
        SourceError: the set has no images.
        MissingDependencyError: the decoder is not installed.
        ValueError: `samples` or `seed` is out of range.
    """
    if samples < 1 or seed < 0:
        raise ValueError(f"samples={samples}, seed={seed}, expected at least 1 and 0")
    if not len(reader):
        raise SourceError("holds no samples", path=reader.root)
    rng = np.random.default_rng(seed)
    count = min(samples, len(reader))
    numbers = np.sort(rng.choice(len(reader), count, replace=False)).tolist()
    measure = _Measure(reader, guard=guard)
    threads = threads or usable_cores()
    keep_freed_memory()
    rows = []
    with closing(map_ordered(measure, numbers, threads=threads, ahead=threads + 1)) as results:
        for row in results:
            rows.append(row)
            if on_progress is not None:
                on_progress(len(rows), count)
    return _summarize(reader, rows)


class _Row(NamedTuple):
    """One image: a number for each number of scan groups."""

    levels: int
    sizes: list[int]
    errors: list[float]
    likeness: list[float | None]


class _Measure:
    """Measures one sample; called in threads."""

    def __init__(self, reader: PcrReader, *, guard: bool) -> None:
        self._reader, self._guard = reader, guard

    def __call__(self, sample: int) -> _Row:
        reader = self._reader
        record, place = reader.record_of(sample)
        path = f"{reader.table.names[record]} image {place}"
        scans = reader.sample_scans(sample)
        whole = join_scans(scans)
        reference = Reference(decode_image(whole, path=path))
        row = _Row(reference.levels, [], [], [])
        for groups in range(1, len(scans) + 1):
            if groups > 1 and not scans[groups - 1]:
                found = row.sizes[-1], row.errors[-1], row.likeness[-1]
            else:
                found = self._compare(reference, scans, groups, path)
            size, error, likeness = found
            row.sizes.append(size)
            row.errors.append(error)
            row.likeness.append(likeness)
        return row

    def _compare(
        self, reference: Reference, scans: list[memoryview | bytes], groups: int, path: str
    ) -> tuple[int, float, float | None]:
        jpeg = join_scans(scans[:groups])
        size = len(jpeg)
        if not any(len(scan) for scan in scans[groups:]):
            return size, 0.0, 1.0 if reference.levels else None
        if self._guard:
            script = self._reader.script
            jpeg = guarded(jpeg, script=script, scan_groups=None if script is None else groups)
        image = decode_image(jpeg, path=f"{path} with {groups} scan groups")
        try:
            return size, reference.mean_squared_error(image), reference.ms_ssim(image)
        except ValueError as exc:  # not of the same size
            raise ImageError("its scan groups are not of one image", path=path) from exc


def _summarize(reader: PcrReader, rows: list[_Row]) -> FidelityReport:
    levels = [row.levels for row in rows]
    shares = (reader.group_bytes / reader.group_bytes[-1]).tolist()
    groups = []
    for group, share in enumerate(shares):
        likeness = [row.likeness[group] for row in rows]
        known = np.array([value for value in likeness if value is not None])
        groups.append(
            GroupFidelity(
                scan_groups=group + 1,
                image_bytes=float(np.mean([row.sizes[group] for row in rows])),
                share=share,
                ms_ssim=float(known.mean()) if len(known) else None,
                ms_ssim_low=float(np.percentile(known, _LOW_PERCENT)) if len(known) else None,
                psnr_db=psnr_db(float(np.mean([row.errors[group] for row in rows]))),
            )
        )
    counts = {level: levels.count(level) for level in sorted(set(levels), reverse=True)}
    return FidelityReport(len(rows), counts, tuple(groups))
