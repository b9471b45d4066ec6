"""JPEG files for tests, and what proves that two of them hold the same coefficients."""

from __future__ import annotations

import hashlib
import io
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

from tensorcom.pcr.jpeg import EOI, parse_jpeg

GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
HARDCASES = GOLDEN / "hardcases"
TRAIN = sorted((GOLDEN / "pcr" / "train").rglob("*.jpg"))
LIMIT_S = 60


def hard(name: str) -> bytes:
    return (HARDCASES / name).read_bytes()


def picture(mode: str = "RGB", height: int = 70, width: int = 90, seed: int = 1) -> Image.Image:
    """Return a picture with smooth parts, edges and noise, so that every band has coefficients."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(seed).normal(0, 12, (height, width, 3))
    rgb = np.stack([x * 2, y * 3, 60 + (x // 9 + y // 7) % 2 * 120], axis=2) + noise
    return Image.fromarray(np.clip(rgb, 0, 255).astype(np.uint8)).convert(mode)


def saved(image: Image.Image, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "JPEG", **{"quality": 90, **options})
    return stream.getvalue()


def run_jpegtran(data: bytes, *options: str) -> bytes:
    """Run the program as the tests' own witness; warnings are allowed."""
    found = subprocess.run(
        ["jpegtran", "-copy", "none", *options], input=data, capture_output=True, timeout=LIMIT_S
    )
    assert found.returncode in (0, 2), found.stderr
    return found.stdout


def coef_digest(data: bytes, tmp_path: Path) -> str:
    """Hash jpegtran's normal form: sequential, one scan per component, optimal tables."""
    script = tmp_path / "normal.txt"
    count = len(parse_jpeg(data).frame.components)
    script.write_text("".join(f"{index};" for index in range(count)))
    normal = run_jpegtran(data, "-optimize", "-scans", str(script))
    return hashlib.sha256(normal).hexdigest()[:24]


def joined(groups: list[bytes], count: int | None = None) -> bytes:
    return b"".join(groups[:count]) + EOI


def segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(payload) + 2).to_bytes(2, "big") + payload


def after_soi(data: bytes, *inserted: bytes) -> bytes:
    return data[:2] + b"".join(inserted) + data[2:]
