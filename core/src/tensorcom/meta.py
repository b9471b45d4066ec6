"""The meta frame: what a sender says of a message beside its arrays.

Owns the fields, their JSON form and its limits; knows nothing of arrays or sockets.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from tensorcom.errors import MessageError

META_MAGIC = b"~TenMeta"
MAX_META_BYTES = 65536
END_WORDS = ("epoch", "stream")
MAX_SEQ = 2**63 - 1
MAX_TIME_S = 1e12


@dataclass(frozen=True, slots=True)
class Meta:
    """What a sender says of one message. Every field may be absent (None).

    Attributes:
        source: id of the sending connection, new for each process that sends.
        seq: number of the message among those of the same source and topic, from 0.
        epoch: pass over the data that the batch belongs to, from 0.
        index: position of the batch in the sender's epoch, from 0.
        samples: samples in the batch.
        scan_groups: fidelity at which records were read.
        end: "epoch" on the last batch of an epoch, "stream" on the last of all.
        sources: how many senders share the reader's address, if the sender knows; 1 if absent.
        times: Unix seconds by stage: "read", "decoded", "sent".
        extra: any further JSON-compatible values, kept as they came.
    """

    source: str | None = None
    seq: int | None = None
    epoch: int | None = None
    index: int | None = None
    samples: int | None = None
    scan_groups: int | None = None
    end: str | None = None
    sources: int | None = None
    times: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


_INTS = ("seq", "epoch", "index", "samples", "scan_groups", "sources")
_KNOWN = {*_INTS, "source", "end", "times"}


def encode_meta(meta: Meta) -> bytes:
    """Return the meta frame: the magic and a JSON object.

    Raises:
        MessageError: `extra` holds no JSON, or the frame would exceed 64 KiB.
    """
    values: dict[str, Any] = {k: v for k, v in meta.extra.items() if k not in _KNOWN}
    for name in ("source", *_INTS, "end"):
        value = getattr(meta, name)
        if value is not None:
            values[name] = value
    if meta.times:
        values["times"] = meta.times
    try:
        text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise MessageError(f"meta is not JSON: {exc}") from exc
    frame = META_MAGIC + text.encode()
    if len(frame) > MAX_META_BYTES:
        raise MessageError(f"meta frame of {len(frame)} bytes exceeds {MAX_META_BYTES}")
    return frame


def decode_meta(frame: bytes | memoryview) -> Meta:
    """Parse a meta frame.

    Raises:
        MessageError: it is too long, has no magic, or is no JSON object of the right fields.
    """
    if len(frame) > MAX_META_BYTES:
        raise MessageError(f"meta frame of {len(frame)} bytes exceeds {MAX_META_BYTES}")
    raw = bytes(frame)
    if not raw.startswith(META_MAGIC):
        raise MessageError(f"meta frame starts with {raw[:8]!r}, expected {META_MAGIC!r}")
    try:
        values = json.loads(
            raw[len(META_MAGIC) :].decode(), parse_constant=_finite, parse_float=_finite
        )
    except (ValueError, RecursionError) as exc:
        raise MessageError(f"meta frame is not JSON: {exc}") from exc
    if not isinstance(values, dict):
        raise MessageError(f"meta frame holds a JSON {type(values).__name__}, expected an object")
    return _check(values)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it holds {text}")
    return value


def _is_time(value: object) -> bool:
    # Within floats, and so are sums of them.
    return type(value) in (int, float) and -MAX_TIME_S <= value <= MAX_TIME_S  # type: ignore[operator]


def _check(values: dict[str, Any]) -> Meta:
    known: dict[str, Any] = {}
    for name in _INTS:
        value = values.pop(name, None)
        if value is not None and (type(value) is not int or not 0 <= value <= MAX_SEQ):
            raise MessageError(f"meta field {name!r} is {value!r:.80}, expected an integer from 0")
        known[name] = value
    source = values.pop("source", None)
    if source is not None and not (
        isinstance(source, str) and len(source) <= 200 and source.isprintable()
    ):
        raise MessageError("meta field 'source' is no printable string of at most 200 characters")
    end = values.pop("end", None)
    if end is not None and end not in END_WORDS:
        raise MessageError(f"meta field 'end' is {end!r:.80}, expected one of {END_WORDS}")
    times = values.pop("times", {})
    if not isinstance(times, dict) or not all(map(_is_time, times.values())):
        raise MessageError("meta field 'times' is no object of times")
    return Meta(**known, source=source, end=end, times=times, extra=values)
