"""The marker structure of a JPEG file.

Owns where segments, scans and their bytes lie, what a lossless transcode drops, and the limits that
hold before anything is decoded; knows nothing of Huffman codes, pixels or scan groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tensorcom.errors import JpegError
from tensorcom.images.decode import MAX_PIXELS, detect_format
from tensorcom.pcr.exif import read_orientation
from tensorcom.pcr.segments import Marker, segments

if TYPE_CHECKING:
    from tensorcom.pcr.segments import Segment

EOI = b"\xff\xd9"
MAX_SIDE = 65500  # libjpeg's own limit
MAX_SCANS = 500
# A scan can pass over all blocks in a few bytes: this bounds the work that a small file asks for.
MAX_SCAN_PIXELS = 100 * MAX_PIXELS

_SOFS = frozenset(range(0xC0, 0xD0)) - {Marker.DHT, 0xC8, 0xCC}
_SEQUENTIAL = (0xC0, 0xC1, 0xC9)
_ARITHMETIC = (0xC9, 0xCA)
_ALL = (1 << 64) - 1
_NAMES = (
    (0xE0, b"JFXX\0", "JFXX"),
    (0xE1, b"Exif\0", "EXIF"),
    (0xE1, b"http://ns.adobe.com/x", "XMP"),
    (0xE2, b"ICC_PROFILE\0", "ICC"),
    (0xE2, b"MPF\0", "MPF"),
    (0xED, b"Photoshop", "IPTC"),
)


class Component(NamedTuple):
    """A colour component: its id in the file and its sampling factors."""

    id: int
    h: int
    v: int


@dataclass(frozen=True, slots=True)
class Frame:
    """What a frame header says: `kind` is the second byte of its SOF marker."""

    kind: int
    precision: int
    height: int
    width: int
    components: tuple[Component, ...]

    def blocks(self, index: int) -> int:
        """Return how many blocks a scan of component `index` alone has."""
        _, h, v = self.components[index]
        across = -(-self.width * h // (8 * max(c.h for c in self.components)))
        down = -(-self.height * v // (8 * max(c.v for c in self.components)))
        return across * down

    @property
    def progressive(self) -> bool:
        """Whether coefficients come in parts, by spectral selection and approximation."""
        return self.kind not in _SEQUENTIAL

    @property
    def arithmetic(self) -> bool:
        """Whether coefficients are coded arithmetically."""
        return self.kind in _ARITHMETIC


class Scan(NamedTuple):
    """A scan and where it lies.

    Attributes:
        start: offset of its slice, which holds the tables before its SOS too; the slice of the
            first scan starts with the file.
        data: offset of its entropy-coded data.
        stop: offset past its entropy-coded data.
        components: positions of its components in the frame.
        ss: first coefficient, in zigzag order.
        se: last coefficient.
        ah: bits that came before, 0 in a first pass.
        al: bits that are still to come.
    """

    start: int
    data: int
    stop: int
    components: tuple[int, ...]
    ss: int
    se: int
    ah: int
    al: int


@dataclass(frozen=True, slots=True)
class JpegInfo:
    """The structure of a JPEG file.

    Attributes:
        frame: the frame header.
        scans: its scans, in order.
        end: offset past the data of the last scan.
        has_eoi: whether an EOI marker follows.
        tail_bytes: bytes after EOI.
        orientation: EXIF orientation 1 to 8, or 0 if absent.
        dropped: what a lossless transcode drops, each once, in order.
        notes: what is odd but harms nothing, in words.
        ycc: whether libjpeg takes three components as YCbCr, or one as gray.
        complete: whether the scans send every bit of every coefficient.
    """

    frame: Frame
    scans: tuple[Scan, ...]
    end: int
    has_eoi: bool
    tail_bytes: int
    orientation: int
    dropped: tuple[str, ...]
    notes: tuple[str, ...]
    ycc: bool
    complete: bool


def parse_jpeg(
    data: bytes | memoryview, *, path: str | None = None, max_pixels: int = MAX_PIXELS
) -> JpegInfo:
    """Find the scans of a JPEG file without decoding it, in time linear in its length.

    Args:
        data: the whole file, or scans of it joined.
        path: its name, for errors.
        max_pixels: most pixels that the header may claim.

    Returns:
        The structure. Offsets count from the start of `data`.

    Raises:
        JpegError: the data are no JPEG, or one without scans, or not of 8-bit DCT coefficients,
            or too large, or their segments are damaged.
    """
    if not isinstance(data, bytes):
        data = bytes(data)
    if data[:2] != b"\xff\xd8":
        raise JpegError(_what_it_is(data), path=path)
    parser = _Parser(data, path, max_pixels)
    for segment in segments(data, path=path):
        parser.take(segment)
    return parser.result()


def _what_it_is(data: bytes) -> str:
    """Say what data that do not start with SOI are."""
    if not data:
        return "file is empty, expected a JPEG"
    kind = detect_format(data[:16])
    if kind is not None:
        return f"is {kind}, expected JPEG"
    at = data.find(b"\xff\xd8\xff", 0, 1024)
    if at >= 0:
        return f"starts with {data[: min(at, 8)]!r}, expected SOI, which comes at byte {at}"
    return f"starts with {data[:8]!r}, expected JPEG"


class _Parser:
    """Takes the segments of a file one by one."""

    def __init__(self, data: bytes, path: str | None, max_pixels: int) -> None:
        self._data = data
        self._path = path
        self._max_pixels = max_pixels
        self._frame: Frame | None = None
        self._scans: list[Scan] = []
        self._start = 0  # of the slice of the next scan
        self._end = 2  # of the last segment
        self._tail: int | None = None
        self._between = 0
        self._exact: list[int] = []  # a bit for each coefficient that is complete, by component
        self._dropped: dict[str, None] = {}
        self._notes: list[str] = []
        self._tables = False
        self._jfif = False
        self._adobe: int | None = None
        self._orientation = 0

    def take(self, segment: Segment) -> None:
        """Take the next segment."""
        marker, at, start, stop, end = segment
        if at > self._end:
            between = self._data[self._end : at]
            self._between += len(between) - between.count(0xFF)
        self._end = end
        if marker == Marker.SOS:
            self._take_scan(segment)
        elif marker >= 0xE0:
            self._take_application(marker, self._data[start:stop])
        elif marker in _SOFS:
            self._take_frame(marker, self._data[start:stop], at)
        elif marker == Marker.DHT:
            self._tables = True
        elif marker == Marker.EOI:
            self._tail = len(self._data) - end
            if self._data[end : end + 3] == b"\xff\xd8\xff":
                self._dropped["MPO frames"] = None

    def result(self) -> JpegInfo:
        """Return what was found, once the segments are through."""
        frame, scans = self._frame, self._scans
        if frame is None or not scans:
            what = "EOI comes before" if self._tail is not None else "data end before"
            raise self._error(f"holds no image: {what} any scan")
        work = len(scans) * frame.height * frame.width
        if work > MAX_SCAN_PIXELS:
            raise self._error(
                f"{len(scans)} scans of {frame.width} x {frame.height} pixels exceed "
                f"{MAX_SCAN_PIXELS} pixels in all scans"
            )
        complete = all(bits == _ALL for bits in self._exact)
        if self._between:
            self._notes.append(f"{self._between} bytes between segments")
        if not self._tables and not frame.arithmetic:
            self._notes.append("no Huffman tables: the standard ones are implied")
        if frame.arithmetic:
            self._notes.append("coded arithmetically")
        if not complete:
            self._notes.append("the scans leave out bits of the coefficients")
        return JpegInfo(
            frame=frame,
            scans=tuple(scans),
            end=scans[-1].stop,
            has_eoi=self._tail is not None,
            tail_bytes=self._tail or 0,
            orientation=self._orientation,
            dropped=tuple(self._dropped),
            notes=tuple(self._notes),
            ycc=self._is_ycc(frame),
            complete=complete,
        )

    def _error(self, reason: str, offset: int | None = None) -> JpegError:
        return JpegError(reason, path=self._path, offset=offset)

    def _take_application(self, marker: int, payload: bytes) -> None:
        if marker == 0xE0 and payload[:5] == b"JFIF\0" and len(payload) >= 14:
            self._jfif = True
        elif marker == 0xEE and payload[:5] == b"Adobe" and len(payload) >= 12:
            self._adobe = payload[11]
        elif marker == Marker.COM:
            self._dropped["COM"] = None
        else:
            known = (
                name
                for code, head, name in _NAMES
                if code == marker and payload[: len(head)] == head
            )
            name = next(known, f"APP{marker - 0xE0}")
            if name == "EXIF" and name not in self._dropped:
                self._take_exif(payload[6:])
            self._dropped[name] = None

    def _take_exif(self, tiff: bytes) -> None:
        self._orientation, intact = read_orientation(tiff)
        if not intact:
            self._notes.append("EXIF is damaged")

    def _take_frame(self, kind: int, payload: bytes, at: int) -> None:
        if self._frame is not None:
            raise self._error("second frame header", at)
        if len(payload) < 6 or len(payload) != 6 + 3 * payload[5]:
            raise self._error(f"frame header of {len(payload)} bytes, expected 6 + 3 each", at)
        precision, height = payload[0], int.from_bytes(payload[1:3], "big")
        width = int.from_bytes(payload[3:5], "big")
        ids, factors = payload[6::3], payload[7::3]
        self._check_kind(kind, precision, at)
        self._check_size(height, width, at)
        components = tuple(Component(i, f >> 4, f & 15) for i, f in zip(ids, factors, strict=True))
        if not 1 <= len(components) <= 4:
            raise self._error(f"{len(components)} components, expected 1 to 4", at)
        if any(not (1 <= c.h <= 4 and 1 <= c.v <= 4) for c in components):
            raise self._error("sampling factors are not in 1 to 4", at)
        self._frame = Frame(kind, precision, height, width, components)
        self._exact = [0] * len(components)

    def _check_kind(self, kind: int, precision: int, at: int) -> None:
        if kind in (0xC3, 0xC7, 0xCB, 0xCF):
            reason = f"SOF{kind - 0xC0} is lossless JPEG, which has no DCT coefficients"
            raise self._error(reason, at)
        if kind in (0xC5, 0xC6, 0xCD, 0xCE):
            raise self._error(f"SOF{kind - 0xC0} is hierarchical JPEG, which is not supported", at)
        if precision != 8:
            raise self._error(f"precision {precision} is not supported, expected 8 bits", at)

    def _check_size(self, height: int, width: int, at: int) -> None:
        if height == 0:
            raise self._error("height 0, to come from DNL, is not supported", at)
        if width == 0:
            raise self._error("width 0", at)
        if max(height, width) > MAX_SIDE:
            raise self._error(f"{width} x {height} pixels, at most {MAX_SIDE} a side", at)
        if height * width > self._max_pixels:
            limit = self._max_pixels
            raise self._error(f"{width} x {height} pixels exceed the limit of {limit}", at)

    def _take_scan(self, segment: Segment) -> None:
        frame, at = self._frame, segment.at
        if frame is None:
            raise self._error("scan before the frame header", at)
        if len(self._scans) == MAX_SCANS:
            raise self._error(f"more than {MAX_SCANS} scans", at)
        payload = self._data[segment.start : segment.stop]
        count = payload[0] if payload else 0
        if not 1 <= count <= 4 or len(payload) != 4 + 2 * count:
            raise self._error(f"scan header of {len(payload)} bytes for {count} components", at)
        chosen: list[int] = []
        for name in payload[1 : 1 + 2 * count : 2]:
            # Ids need not be unique: libjpeg takes the first that this scan has not taken.
            for index, component in enumerate(frame.components):
                if component.id == name and index not in chosen:
                    chosen.append(index)
                    break
            else:
                raise self._error(f"scan of component {name}, which the frame lacks", at)
        ss, se, bits = payload[-3:]
        ah, al = bits >> 4, bits & 15
        self._count(frame, chosen, ss, se, al)
        place = (self._start, segment.stop, segment.end)
        self._scans.append(Scan(*place, tuple(chosen), ss, se, ah, al))
        self._start = segment.end

    def _count(self, frame: Frame, chosen: list[int], ss: int, se: int, al: int) -> None:
        """Note the coefficients that a scan completes."""
        if not frame.progressive:
            done = _ALL
        elif al or ss > se or se > 63:
            done = 0
        else:
            done = (2 << se) - (1 << ss)
        for index in chosen:
            self._exact[index] |= done

    def _is_ycc(self, frame: Frame) -> bool:
        """Guess the colour space as libjpeg does."""
        if len(frame.components) != 3 or self._jfif:
            return len(frame.components) in (1, 3)
        if self._adobe is not None:
            return self._adobe != 0
        return bytes(component.id for component in frame.components) != b"RGB"
