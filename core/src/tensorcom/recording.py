"""Recordings: messages of a stream in a tenbin file, to be served again.

Owns how messages lie in the file; the bytes of arrays are tenbin's. Any tenbin reader opens a
recording: before the arrays of each message stands one uint8 array of info "~message" that holds a
JSON object with their number, the topic and the meta.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorcom import tenbin
from tensorcom.errors import MessageError, SourceError, TenbinError
from tensorcom.message import Message
from tensorcom.meta import META_MAGIC, decode_meta, encode_meta
from tensorcom.tenbin.files import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD_INFO = "~message"
_MAX_HEAD_BYTES = 1 << 20


class RecordingWriter:
    """Writes messages to a file, which appears under its name when the recording is closed.

    Use it as a context manager; leaving it by an exception removes what was written.

    Args:
        path: name of the recording, ending in `.ten`.

    Raises:
        SourceError: the name does not end in `.ten`, or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        if self._path.suffix != SUFFIX:
            raise SourceError(f"a recording's name ends in {SUFFIX}", path=str(path))
        self._part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        try:
            self._file = self._part.open("wb")
        except OSError as exc:
            raise SourceError(f"cannot be written: {exc.strerror}", path=str(path)) from exc

    def write(self, message: Message) -> None:
        """Append a message."""
        head = {
            "arrays": len(message.arrays),
            "topic": message.topic.decode("latin-1"),
            "meta": json.loads(encode_meta(message.meta)[len(META_MAGIC) :]),
        }
        text = np.frombuffer(json.dumps(head).encode(), np.uint8)
        infos = message.infos or [""] * len(message.arrays)
        tenbin.write(self._file, [text, *message.arrays], [HEAD_INFO, *infos])

    def close(self) -> None:
        """Give the recording its name."""
        self._file.close()
        self._part.replace(self._path)

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
            self._part.unlink(missing_ok=True)


def read_recording(
    path: str | os.PathLike[str], *, arrays_per_message: int = 2
) -> Iterator[Message]:
    """Yield the messages of a recording, one at a time in memory.

    Args:
        path: a recording, or any tenbin file.
        arrays_per_message: how many arrays make a message where the file does not say.

    Raises:
        SourceError: the file cannot be read, or ends within a message.
        TenbinError: its bytes are no tenbin.
    """
    try:
        with Path(path).open("rb") as file:
            while (message := _read_message(file, path, arrays_per_message)) is not None:
                yield message
    except OSError as exc:
        raise SourceError(f"cannot be read: {exc.strerror}", path=str(path)) from exc
    except TenbinError as exc:
        raise TenbinError(exc.reason, offset=exc.offset, index=exc.index, path=str(path)) from exc


def _read_message(file: Any, path: str | os.PathLike[str], plain: int) -> Message | None:
    offset = file.tell()
    arrays, infos = tenbin.read_with_infos(file, 1)
    if not arrays:
        return None
    if infos[0] != HEAD_INFO:
        more, more_infos = tenbin.read_with_infos(file, plain - 1) if plain > 1 else ([], [])
        _check_count(len(more) + 1, plain, offset, path)
        return Message([*arrays, *more], [*infos, *more_infos])
    count, message = _parse_head(arrays[0], offset, path)
    arrays, infos = tenbin.read_with_infos(file, count) if count else ([], [])
    _check_count(len(arrays), count, offset, path)
    return replace(message, arrays=arrays, infos=infos)


def _check_count(found: int, expected: int, offset: int, path: str | os.PathLike[str]) -> None:
    if found != expected:
        raise SourceError(
            f"message at byte {offset} has {found} arrays before the end, expected {expected}",
            path=str(path),
        )


def _parse_head(
    text: np.ndarray[Any, Any], offset: int, path: str | os.PathLike[str]
) -> tuple[int, Message]:
    try:
        if text.nbytes > _MAX_HEAD_BYTES:
            raise ValueError(f"its head of {text.nbytes} bytes exceeds {_MAX_HEAD_BYTES}")  # noqa: TRY301
        head = json.loads(text.tobytes())
        count, topic = int(head["arrays"]), str(head["topic"]).encode("latin-1")
        if count < 0:
            raise ValueError(f"it has {count} arrays")  # noqa: TRY301
        meta = decode_meta(META_MAGIC + json.dumps(head["meta"]).encode())
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, MessageError) as exc:
        raise SourceError(f"message at byte {offset} is damaged: {exc}", path=str(path)) from exc
    return count, Message((), (), topic, meta)
