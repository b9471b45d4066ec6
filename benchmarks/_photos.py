"""Images that the benchmarks of records work on: a folder of yours, or drawn ones."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg
from _harness import CACHE

if TYPE_CHECKING:
    import argparse

DRAWN = 96
CLASSES = 4
PER_RECORD = 64


def add_images_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--images`."""
    parser.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="folder of class folders of JPEG photographs; drawn images by default",
    )


def photographs(given: Path | None) -> Path:
    """Return a folder of class folders of baseline JPEG files: the given one, or a drawn one.

    Drawn images have the spectrum of photographs, 1/f, at the size and quality of ImageNet's.
    """
    if given is not None:
        return given
    root = CACHE / "drawn"
    if root.exists():
        return root
    rng = np.random.default_rng(0)
    height, width = 375, 500
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    spectrum = 1 / np.maximum(np.hypot(fy, fx), 1 / width) ** 1.2
    for number in range(DRAWN):
        phases = rng.uniform(0, 2 * np.pi, (3, height, width // 2 + 1))
        planes = np.fft.irfft2(spectrum * np.exp(1j * phases), (height, width))
        planes[1:] = 0.7 * planes[:1] + 0.3 * planes[1:]
        image = 127 + 45 * planes / planes.std(axis=(1, 2), keepdims=True)
        pixels = np.ascontiguousarray(image.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))
        path = root / f"class{number % CLASSES}" / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(pixels, 95, colorsubsampling="444"))
    return root


def files_of(root: Path) -> list[tuple[Path, int]]:
    """Return the image files below class folders, and their labels."""
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    return [
        (path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())
    ]


def write_tars(root: Path, out: Path) -> list[Path]:
    """Write the files as WebDataset tars of PER_RECORD samples each, in a random order."""
    files = files_of(root)
    order = np.random.default_rng(0).permutation(len(files))
    out.mkdir(parents=True, exist_ok=True)
    tars = []
    for start in range(0, len(files), PER_RECORD):
        tars.append(out / f"{start // PER_RECORD:04}.tar")
        with tarfile.open(tars[-1], "w") as tar:
            for number in order[start : start + PER_RECORD].tolist():
                path, label = files[number]
                for suffix, data in (("jpg", path.read_bytes()), ("cls", str(label).encode())):
                    entry = tarfile.TarInfo(f"{number:06}.{suffix}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    return tars
