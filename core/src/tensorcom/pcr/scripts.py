"""Scan scripts: which part of the coefficients each scan sends, and the scan group it falls in.

Owns the built-in scripts, their forms for gray and other images, reading scripts from files, and
the split of a progressive JPEG into scan groups; runs no transcoder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorcom.errors import PcrFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorcom.pcr.jpeg import JpegInfo

MAX_GROUPS = 64
_MAX_AL = 10  # libjpeg's own limit for 8-bit samples
_MAX_FILE_BYTES = 65536
# As jpegtran reads it: whatever stands between two numbers separates them.
_ENTRY = re.compile(
    r"(\d(?:[^\d;:]+\d)*)\s*:\s*(\d+)[^\d;:]+(\d+)[^\d;:]+(\d+)[^\d;:]+(\d+)", re.ASCII
)


class ScanSpec(NamedTuple):
    """What one scan sends: components, and a band of coefficients at a precision.

    Attributes:
        components: positions in the frame, ascending.
        ss: first coefficient, in zigzag order.
        se: last coefficient.
        ah: bits that came before, 0 in a first pass.
        al: bits that are still to come.
    """

    components: tuple[int, ...]
    ss: int
    se: int
    ah: int
    al: int

    def __str__(self) -> str:
        """Return the scan as jpegtran's `-scans` takes it, without the semicolon."""
        names = ",".join(map(str, self.components))
        return f"{names}: {self.ss}-{self.se}, {self.ah}, {self.al}"


@dataclass(frozen=True)
class ScanScript:
    """A scan script: each of its scans of a colour image is one scan group.

    Attributes:
        name: `standard`, `fast`, `balanced`, or the name of the file that it came from.
        color: the scans of a YCbCr image, one for each group.
    """

    name: str
    color: tuple[ScanSpec, ...]

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def groups(self) -> int:
        """Number of scan groups."""
        return len(self.color)

    def scans_of(self, components: int, *, ycc: bool = True) -> tuple[ScanSpec, ...]:
        """Return the scans of an image.

        Args:
            components: how many components the image has.
            ycc: whether three components are YCbCr. The components of any other image are equals:
                each gets the scans of Y. That includes the one of a gray image.
        """
        return _form(self, components, ycc)[0]

    def group_of(self, components: int, *, ycc: bool = True) -> tuple[int, ...]:
        """Return the group, from 0, of each of the scans of an image.

        Scans of Y's band fall in the group of Y's band, so that k groups mean the same fidelity
        for every image.
        """
        return _form(self, components, ycc)[1]

    def text_of(self, components: int, *, ycc: bool = True) -> str:
        """Return the scans of an image as a file for jpegtran's `-scans`."""
        return "".join(f"{spec};\n" for spec in self.scans_of(components, ycc=ycc))

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {"name": self.name, "scans": [str(spec) for spec in self.color]}

    @staticmethod
    def from_json(value: object, *, path: str | None = None) -> ScanScript:
        """Read a script from a manifest.

        Raises:
            PcrFormatError: the value is none, or its scans lose coefficients.
        """
        if not isinstance(value, Mapping):
            raise PcrFormatError(f"scan script is {value!r}, expected an object", path=path)
        name, scans = value.get("name"), value.get("scans")
        texts = isinstance(scans, list) and all(isinstance(scan, str) for scan in scans)
        if not isinstance(name, str) or not isinstance(scans, list) or not texts:
            raise PcrFormatError("scan script without a name and a list of scans", path=path)
        return _make(name, scans, path)


@lru_cache(maxsize=256)
def _form(
    script: ScanScript,
    components: int,
    ycc: bool,  # noqa: FBT001 - a key of the cache
) -> tuple[tuple[ScanSpec, ...], tuple[int, ...]]:
    """Return the scans of an image, and their groups."""
    if components == 3 and ycc:
        return script.color, tuple(range(script.groups))
    specs, groups = [], []
    every = tuple(range(components))
    for group, spec in enumerate(script.color):
        if 0 not in spec.components:
            continue
        together = len(spec.components) > 1 or components == 1
        for members in [every] if together else [(index,) for index in every]:
            specs.append(spec._replace(components=members))
            groups.append(group)
    return tuple(specs), tuple(groups)


def _read(entry: str, path: str | None) -> ScanSpec:
    found = _ENTRY.fullmatch(entry.strip())
    if found is None:
        reason = f"scan {entry.strip()!r}, expected 'COMPONENTS: SS-SE, AH, AL'"
        raise PcrFormatError(reason, path=path)
    components = tuple(map(int, re.findall(r"\d", found[1])))
    numbers = [int(text) if len(text) < 4 else 999 for text in found.groups()[1:]]
    return ScanSpec(components, *numbers)


def _fault_of(spec: ScanSpec, left: list[list[int | None]]) -> str | None:
    """Say what is wrong with the next scan; `left` are the bits to come of each coefficient."""
    components, ss, se, ah, al = spec
    if not components or list(components) != sorted(set(components) & {0, 1, 2}):
        return "components are not of 0,1,2 in order"
    if not (se == 0 if ss == 0 else ss <= se <= 63 and len(components) == 1):
        return "neither DC (0-0) nor AC (in 1-63) of one component"
    if al > _MAX_AL or (ah and al != ah - 1):
        return f"precision, expected at most {_MAX_AL}, refined one bit at a time"
    for component in components:
        bits = left[component]
        if ss and bits[0] is None:
            return f"AC of component {component} comes before its DC"
        if any(bits[index] != (ah or None) for index in range(ss, se + 1)):
            return "coefficients in another state, expected each sent once and then refined"
        bits[ss : se + 1] = [al] * (se + 1 - ss)
    return None


def _make(name: str, entries: Iterable[str], path: str | None) -> ScanScript:
    """Build a script from its scans, after checking that it loses nothing."""
    specs = tuple(_read(entry, path) for entry in entries)
    if not 1 <= len(specs) <= MAX_GROUPS:
        raise PcrFormatError(f"{len(specs)} scans, expected 1 to {MAX_GROUPS}", path=path)
    if 0 not in specs[0].components:
        raise PcrFormatError("the first scan leaves out component 0", path=path)
    left: list[list[int | None]] = [[None] * 64 for _ in range(3)]
    for spec in specs:
        fault = _fault_of(spec, left)
        if fault is not None:
            raise PcrFormatError(f"scan '{spec}': {fault}", path=path)
    missing = sorted({index for bits in left for index in range(64) if bits[index] != 0})
    if missing:
        reason = (
            f"coefficient {missing[0]} and {len(missing) - 1} more are not sent to the last bit"
        )
        raise PcrFormatError(f"{reason}: the script would lose data", path=path)
    built_in = next((script for script in _BUILT_IN if script.color == specs), None)
    if built_in is not None:
        return built_in
    if any(script.name == name for script in _BUILT_IN):
        raise PcrFormatError(f"scan script {name!r} differs from the built-in one", path=path)
    return ScanScript(name, specs)


def load_script(name: str | Path) -> ScanScript:
    """Return a built-in script, or read one from a file as jpegtran's `-scans` takes it.

    A file holds the scans of a YCbCr image: `COMPONENTS: SS-SE, AH, AL;` each, and comments from
    `#` to the end of the line.

    Raises:
        PcrFormatError: the name is neither built in nor a file, the file is not understood, or its
            scans lose coefficients.
    """
    for script in _BUILT_IN:
        if script.name == name:
            return script
    path = str(name)
    try:
        with Path(name).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as exc:
        names = ", ".join(script.name for script in _BUILT_IN)
        reason = f"is neither a scan script ({names}) nor a file of one: {exc}"
        raise PcrFormatError(reason, path=path) from exc
    if len(data) > _MAX_FILE_BYTES:
        raise PcrFormatError(f"more than {_MAX_FILE_BYTES} bytes of scan script", path=path)
    text = re.sub(r"#[^\n]*", "", data.decode("utf-8", "replace"))
    entries = [entry for entry in text.split(";") if entry.strip()]
    return _make(Path(name).name, entries, path)


def groups_of(info: JpegInfo, script: ScanScript) -> tuple[int, ...] | None:
    """Return the group, from 0, of each scan of an image.

    Args:
        info: the structure of the image.
        script: the script.

    Returns:
        None if the scans are not those of the script, in its order.
    """
    count = len(info.frame.components)
    scans = tuple(scan[3:] for scan in info.scans)
    for ycc in (True, False):
        specs, groups = _form(script, count, ycc)
        if scans == specs:
            return groups
    return None


def split_groups(data: bytes, info: JpegInfo, script: ScanScript) -> list[bytes]:
    """Cut an image into its scan groups.

    Scans that are not the script's fall in groups by number, those beyond in the last group.

    Args:
        data: the image.
        info: its structure.
        script: which scans belong to which group.

    Returns:
        Byte strings, one for each group, empty where the image has no scan of it. Joined, with EOI
        after them, they are the image up to its last scan.
    """
    last = script.groups - 1
    groups = groups_of(info, script)
    if groups is None:
        groups = tuple(min(index, last) for index in range(len(info.scans)))
    parts = [b""] * script.groups
    first = 0
    for index, group in enumerate(groups):
        if index + 1 == len(groups) or groups[index + 1] != group:
            parts[group] = data[info.scans[first].start : info.scans[index].stop]
            first = index + 1
    return parts


_ALL, _Y, _CB, _CR = (0, 1, 2), (0,), (1,), (2,)
STANDARD = ScanScript(
    "standard",
    (
        ScanSpec(_ALL, 0, 0, 0, 1),
        ScanSpec(_Y, 1, 5, 0, 2),
        ScanSpec(_CR, 1, 63, 0, 1),
        ScanSpec(_CB, 1, 63, 0, 1),
        ScanSpec(_Y, 6, 63, 0, 2),
        ScanSpec(_Y, 1, 63, 2, 1),
        ScanSpec(_ALL, 0, 0, 1, 0),
        ScanSpec(_CR, 1, 63, 1, 0),
        ScanSpec(_CB, 1, 63, 1, 0),
        ScanSpec(_Y, 1, 63, 1, 0),
    ),
)
FAST = ScanScript(
    "fast",
    (
        ScanSpec(_ALL, 0, 0, 0, 0),
        ScanSpec(_Y, 1, 5, 0, 0),
        ScanSpec(_CR, 1, 5, 0, 0),
        ScanSpec(_CB, 1, 5, 0, 0),
        ScanSpec(_Y, 6, 11, 0, 0),
        ScanSpec(_Y, 12, 18, 0, 0),
        ScanSpec(_Y, 19, 30, 0, 0),
        ScanSpec(_Y, 31, 63, 0, 0),
        ScanSpec(_CR, 6, 63, 0, 0),
        ScanSpec(_CB, 6, 63, 0, 0),
    ),
)
BALANCED = ScanScript(
    "balanced",
    (
        ScanSpec(_ALL, 0, 0, 0, 0),
        ScanSpec(_Y, 1, 5, 0, 1),
        ScanSpec(_CR, 1, 5, 0, 0),
        ScanSpec(_CB, 1, 5, 0, 0),
        ScanSpec(_Y, 6, 20, 0, 1),
        ScanSpec(_CR, 6, 63, 0, 0),
        ScanSpec(_CB, 6, 63, 0, 0),
        ScanSpec(_Y, 1, 20, 1, 0),
        ScanSpec(_Y, 21, 63, 0, 0),
    ),
)
_BUILT_IN = (STANDARD, FAST, BALANCED)
