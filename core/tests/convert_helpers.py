"""Small folders and shards of images to convert, and what tells that a set is sound."""

from __future__ import annotations

import io
import json
import tarfile
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from jpeg_helpers import picture, saved

from tensorcom.pcr import PcrReader
from tensorcom.pcr.conversion import ConversionReport, convert
from tensorcom.pcr.target import Target, done_name
from tensorcom.pcr.transcode import Transcoder


class Killed(Exception):
    """Stands for a kill, where a test needs an exact moment."""


CLASSES = ("ant", "bee", "cat")


@lru_cache(maxsize=256)
def jpeg(number: int) -> bytes:
    """Return an image, no two alike."""
    return saved(picture("RGB", 30 + number % 7, 40 + number % 11, seed=number))


@lru_cache(maxsize=256)
def converted(data: bytes) -> bytes:
    """Return what all scan groups of an image are together."""
    return b"".join(Transcoder().transcode(data).groups) + b"\xff\xd9"


def make_folder(root: Path, count: int = 12) -> Path:
    """Make an image folder of that many images in three classes."""
    for number in range(count):
        path = root / CLASSES[number * len(CLASSES) // count] / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    return root


def make_shard(path: Path, members: dict[str, bytes]) -> str:
    """Write a tar, compressed if its name says so."""
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return str(path)


def shard_members(numbers: range) -> dict[str, bytes]:
    """Return the members of a shard whose samples are images, labelled by number % 3."""
    members = {}
    for number in numbers:
        members[f"{number:03}.jpg"] = jpeg(number)
        members[f"{number:03}.json"] = b"{}"
        members[f"{number:03}.cls"] = b"%d\n" % (number % 3)
    return members


def contents(root: Path) -> dict[str, bytes]:
    """Return every file of a directory, hidden ones too."""
    return {path.name: path.read_bytes() for path in Path(root).iterdir()}


def samples_of(root: Path) -> list[tuple[str | None, int, bytes]]:
    """Return name, label and image of each sample of a set, after checking all checksums."""
    with PcrReader(root) as reader:
        table = reader._samples
        assert reader.manifest is not None
        assert zlib.crc32((Path(root) / "PCR_samples.ten").read_bytes()) == (
            reader.manifest.samples_crc32
        )
        found = []
        for record, info in enumerate(reader.records):
            data = (Path(root) / info.name).read_bytes()
            ends = np.cumsum(info.parts)
            assert len(data) == ends[-1]
            pieces = np.split(np.frombuffer(data, np.uint8), ends[:-1])
            assert [zlib.crc32(piece) for piece in pieces] == table.crc32[record].tolist()
            images, labels = reader.read_record(record)
            first = int(reader.starts[record])
            found += [
                (reader.name(first + place), int(label), image)
                for place, (image, label) in enumerate(zip(images, labels, strict=True))
            ]
        return found


def lines_of(report: ConversionReport) -> list[dict]:
    return [json.loads(line) for line in Path(report.report).read_text("ascii").splitlines()]


def done_in(root: Path) -> int:
    return len(list(root.glob(".PCR_*.done"))) if root.is_dir() else 0


def killed_before(record: int, *arguments, **options) -> None:
    """Convert until that record is to be written."""
    write = Target.write

    def write_or_die(self, name, pieces):
        if name in (f"PCR_{record}.pcr", done_name(record)):
            raise Killed
        write(self, name, pieces)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "write", write_or_die)
        with pytest.raises(Killed):
            convert(*arguments, **options)
