"""WebDataset shards: tars whose members, grouped by key, are images and their labels.

Owns what a sample of a shard is, read as a stream or found by its place in a plain tar; knows
nothing of batches or records.
"""

from __future__ import annotations

import contextlib
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from tensorcom.errors import MissingDependencyError, SourceError
from tensorcom.images.folder import printable
from tensorcom.zmq_url import expand_urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
IMAGE_KEYS = ("jpg", "jpeg", "png", "ppm", "webp")
LABEL_KEY = "cls"
MAX_LABEL = 2**31 - 1  # labels are int32
_LABEL_DIGITS = 20
_META = re.compile(r"__[^/]*__($|/)")  # names that WebDataset keeps for itself


class Span(NamedTuple):
    """Where bytes lie in a file."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ShardSample(Generic[T]):
    """A sample of a shard.

    Attributes:
        image: the image file, or where it lies.
        label: its class, from 0.
        name: its key and what the image's name ends in.
        place: shard and key, for errors.
    """

    image: T
    label: int
    name: str
    place: str


def expand_shards(shards: str | Iterable[str]) -> list[str]:
    """Expand the braces of shard names, and check that local ones exist.

    Raises:
        SourceError: a local shard is missing.
    """
    found = expand_urls(shards)
    for shard in found:
        local = local_path(shard)
        if local is not None and not local.is_file():
            raise SourceError("no such shard", path=printable(str(local)))
    return found


def local_path(shard: str) -> Path | None:
    """Return the path of a shard; None if it is a URL or a pipe."""
    if "://" in shard or shard.startswith("pipe:"):
        return None
    return Path(shard.removeprefix("file:"))


def read_shard(
    shard: str, *, on_bad: Callable[[SourceError], T] | None = None
) -> Iterator[ShardSample[bytes] | T]:
    """Yield the samples of a shard, compressed or not.

    Args:
        shard: a name or URL, whatever WebDataset opens.
        on_bad: turns a sample that lacks image or label into what is yielded in its place; None
            raises the error.

    Raises:
        SourceError: the shard cannot be read or is cut, or a sample is bad.
        MissingDependencyError: webdataset is not installed.
    """
    tars = _import_webdataset()
    with _shard_errors(shard), contextlib.closing(tars.gopen(shard)) as stream:
        files = ({**file, "__url__": shard} for file in tars.tar_file_iterator(stream))
        for fields in tars.group_by_keys(files):
            try:
                sample = _sample(fields, shard, bytes)
            except SourceError as exc:
                if on_bad is None:
                    raise
                yield on_bad(exc)
            else:
                yield sample


def index_shard(
    shard: str, *, on_bad: Callable[[SourceError], T]
) -> Iterator[ShardSample[Span] | T]:
    """Yield the samples of a plain tar on this machine by their places; no image is read.

    Args:
        shard: its name.
        on_bad: turns a sample that lacks image or label into what is yielded in its place.

    Raises:
        SourceError: the shard is no plain tar, cannot be read, or is cut.
        MissingDependencyError: webdataset is not installed.
    """
    path = local_path(shard)
    if path is None or not is_plain_tar(path):
        raise SourceError("is no plain tar on this machine", path=printable(shard))
    tars = _import_webdataset()
    with (
        _shard_errors(shard),
        path.open("rb") as file,
        tarfile.open(fileobj=file, mode="r:") as tar,
    ):

        def read(span: Span) -> bytes:
            file.seek(span.offset)
            return file.read(min(span.size, _LABEL_DIGITS + 1))

        for fields in tars.group_by_keys(_members(tar, shard)):
            try:
                sample: ShardSample[Span] | T = _sample(fields, shard, read)
            except SourceError as exc:
                sample = on_bad(exc)
            yield sample


def is_plain_tar(path: Path) -> bool:
    """Tell whether a file is a tar that is not compressed."""
    try:
        with tarfile.open(path, "r:"):
            return True
    except (tarfile.TarError, OSError):
        return False


def _members(tar: tarfile.TarFile, shard: str) -> Iterator[dict[str, Any]]:
    for member in tar:
        tar.members = []  # type: ignore[attr-defined]  # else all of them stay in memory
        if not member.isreg() or _META.match(member.name):
            continue
        if member.issparse():
            raise SourceError(f"member {member.name!r} is sparse", path=printable(shard))
        span = Span(member.offset_data, member.size)
        yield {"fname": member.name, "data": span, "__url__": shard}


def _sample(fields: dict[str, Any], shard: str, read: Callable[[Any], bytes]) -> ShardSample[Any]:
    key = str(fields.get("__key__"))
    place = f"{shard}:{key}"
    found = next((name for name in IMAGE_KEYS if name in fields), None)
    if found is None:
        raise SourceError(
            f"sample has no image, expected one of {', '.join(IMAGE_KEYS)}", path=printable(place)
        )
    label = read(fields[LABEL_KEY]).strip() if LABEL_KEY in fields else b""
    if not label.isdigit() or len(label) > _LABEL_DIGITS or int(label) > MAX_LABEL:
        raise SourceError(
            f"sample's {LABEL_KEY} is {label[:20]!r}, expected a number up to {MAX_LABEL}",
            path=printable(place),
        )
    return ShardSample(fields[found], int(label), f"{key}.{found}", place)


@contextlib.contextmanager
def _shard_errors(shard: str) -> Iterator[None]:
    try:
        yield
    except SourceError:
        raise
    except Exception as exc:  # noqa: BLE001 - readers of tars and URLs raise anything
        raise SourceError(f"cannot be read: {exc}", path=printable(shard)) from exc


class _WebDataset(NamedTuple):
    """What is used of webdataset."""

    gopen: Callable[[str], Any]
    tar_file_iterator: Callable[[Any], Iterator[dict[str, Any]]]
    group_by_keys: Callable[[Iterable[dict[str, Any]]], Iterator[dict[str, Any]]]


def _import_webdataset() -> _WebDataset:
    try:
        from webdataset.gopen import gopen
        from webdataset.tariterators import group_by_keys, tar_file_iterator
    except ImportError as exc:
        raise MissingDependencyError.for_package(
            "webdataset", "reading shards", "pip install 'tensorcom[shards]'"
        ) from exc
    return _WebDataset(gopen, tar_file_iterator, group_by_keys)
