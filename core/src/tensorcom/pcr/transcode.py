"""Lossless transcode of JPEG files to a scan script, and its split into scan groups.

Owns the choice of tool and what may happen to an image: coefficients stay as they are, or the image
is refused; no pixel is ever encoded again. Knows nothing of files and records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tensorcom.errors import ImageError, JpegError, MissingDependencyError
from tensorcom.images.decode import decode_image
from tensorcom.pcr import libjpeg
from tensorcom.pcr.jpeg import EOI, parse_jpeg
from tensorcom.pcr.libjpeg import INSTALL_COMMAND, ToolError
from tensorcom.pcr.scripts import STANDARD, groups_of, split_groups
from tensorcom.pcr.strip import strip_metadata
from tensorcom.pcr.surplus import find_surplus

if TYPE_CHECKING:
    from tensorcom.pcr.jpeg import Frame, JpegInfo
    from tensorcom.pcr.libjpeg import Output
    from tensorcom.pcr.scripts import ScanScript

Policy = Literal["strict", "lenient"]
Tool = Literal["libturbojpeg", "jpegtran"]

_SEQUENTIAL = bytes([0, 63, 0])  # ss, se, ah and al of a sequential scan
_BEFORE_EOI = re.compile(r"\d+ extraneous bytes before marker 0xd9")
# Those of which libjpeg-turbo's strict decoder gives RGB; others go to Pillow, which is lenient.
_COMMON_SAMPLINGS = (
    ((1, 1),),
    *((luma, (1, 1), (1, 1)) for luma in ((1, 1), (2, 1), (1, 2), (2, 2))),
)


@dataclass(frozen=True, slots=True)
class Transcoded:
    """An image in scan groups.

    Attributes:
        groups: bytes of each group, empty where the image has none of it. All of them joined, with
            EOI after them, are the image.
        notes: what was dropped, mended or odd, in words.
        orientation: EXIF orientation of the source, 1 to 8, or 0 if absent. It is not applied.
        frame: the frame header of the source.
    """

    groups: list[bytes]
    notes: tuple[str, ...]
    orientation: int
    frame: Frame


def available() -> tuple[Tool, ...]:
    """Name the transcoders that are installed, the preferred one first."""
    found: list[Tool] = []
    if libjpeg.load_library() is not None:
        found.append("libturbojpeg")
    if libjpeg.find_program() is not None:
        found.append("jpegtran")
    return tuple(found)


def find_transcoder(script: ScanScript = STANDARD) -> Tool:
    """Name the transcoder that is used for a script.

    Raises:
        MissingDependencyError: none is installed that can.
    """
    for tool in available():
        if tool == "jpegtran" or script == STANDARD:
            return tool
    raise _missing(script)


def _missing(script: ScanScript) -> MissingDependencyError:
    package = "libturbojpeg" if script == STANDARD else "jpegtran"
    reason = f"scan script {script.name} needs {package}, which is not installed: {INSTALL_COMMAND}"
    return MissingDependencyError(reason, package=package, install_command=INSTALL_COMMAND)


class Transcoder:
    """Turns JPEG files into scan groups without changing a coefficient.

    Any number of threads may share one; it holds no state of theirs, pickles and survives a fork.
    The standard script goes through libturbojpeg, which lets other threads run, or through the
    program jpegtran if the library is not installed; other scripts go through jpegtran. Where
    neither is installed, an image that has the script's scans already is taken as it is, once a
    decode has shown that it is sound.

    Args:
        script: the scans to write.
        policy: `strict` refuses an image if libjpeg would warn of lost data. `lenient` takes what
            libjpeg decodes of it and notes the warning.
        tool: use only this transcoder.
    """

    def __init__(
        self,
        script: ScanScript = STANDARD,
        *,
        policy: Policy = "strict",
        tool: Tool | None = None,
    ) -> None:
        if policy not in ("strict", "lenient"):
            raise ValueError(f"policy {policy!r}, expected 'strict' or 'lenient'")
        self.script = script
        self.policy = policy
        self.tool = tool

    def transcode(self, data: bytes | memoryview, *, path: str | None = None) -> Transcoded:
        """Transcode one image.

        Args:
            data: the whole file.
            path: its name, for errors.

        Returns:
            Its scan groups, with notes of everything that they do not hold.

        Raises:
            JpegError: the data are no JPEG that can be transcoded, are cut, or damaged.
            MissingDependencyError: the transcoder that this takes is not installed.
        """
        if not isinstance(data, bytes):
            data = bytes(data)
        info = parse_jpeg(data, path=path)
        if not info.has_eoi and not info.complete and self.policy == "strict":
            raise JpegError(f"truncated: no EOI, and only {len(info.scans)} scans", path=path)
        notes = [f"dropped {', '.join(info.dropped)}"] if info.dropped else []
        if info.tail_bytes:
            notes.append(f"dropped {info.tail_bytes} bytes after EOI")
        notes += info.notes
        source = _mend(data, info, notes)
        try:
            image = self._convert(source, info, path, notes)
        except ToolError as exc:
            raise JpegError(f"cannot be transcoded: {exc}", path=path) from exc
        made = parse_jpeg(image, path=path)
        if groups_of(made, self.script) is None:
            reason = f"transcoded to {len(made.scans)} scans that are not those of the script"
            raise JpegError(f"{reason} {self.script.name}", path=path)
        groups = split_groups(image, made, self.script)
        return Transcoded(groups, tuple(notes), info.orientation, info.frame)

    def _convert(self, source: bytes, info: JpegInfo, path: str | None, notes: list[str]) -> bytes:
        """Return the image with the script's scans, or refuse it for what libjpeg warns of."""
        if not self._tools():
            return self._convert_without_tool(source, path)
        output = self._run(source, info, keep_going=False)
        if output.warning is not None and _BEFORE_EOI.search(output.warning):
            end = find_surplus(source, parse_jpeg(source))
            again = self._run(source[:end] + EOI, info, keep_going=False) if end else output
            if again.warning is None:
                notes.append(f"dropped {len(source) - 2 - (end or 0)} bytes before EOI")
                output = again
        if output.warning is None:
            return output.data or b""
        what = "damaged"
        if not info.has_eoi or "premature end" in output.warning.lower():
            what = "truncated"
        if self.policy == "strict":
            raise JpegError(f"{what}: {output.warning}", path=path)
        notes.append(f"{what}, kept what can be decoded: {output.warning}")
        if output.data is None:
            output = self._run(source, info, keep_going=True)
        return output.data or b""

    def _tools(self) -> list[Tool]:
        """Return the tools that may be used for the script."""
        return [
            tool
            for tool in available()
            if self.tool in (None, tool) and (tool == "jpegtran" or self.script == STANDARD)
        ]

    def _run(self, source: bytes, info: JpegInfo, *, keep_going: bool) -> Output:
        tools = self._tools()
        library, program = libjpeg.load_library(), libjpeg.find_program()
        if "libturbojpeg" in tools and library is not None:
            try:
                return libjpeg.run_library(library, source, keep_going=keep_going)
            except ToolError as exc:
                if "subsampling" not in str(exc):
                    raise
                # Before version 3 the library knows the usual samplings only; jpegtran knows all.
                if "jpegtran" not in tools:
                    reason = f"sampling that takes jpegtran: {INSTALL_COMMAND}"
                    raise ToolError(reason) from exc
        script = None
        if self.script != STANDARD:
            script = self.script.text_of(len(info.frame.components), ycc=info.ycc)
        return libjpeg.run_program(program or "jpegtran", source, script)

    def _convert_without_tool(self, source: bytes, path: str | None) -> bytes:
        """Take an image as it is, if it has the script's scans and can be decoded."""
        info = parse_jpeg(source, path=path)
        image = strip_metadata(source, info, self.script)
        sampling = tuple(component[1:] for component in info.frame.components)
        if image is None or sampling not in _COMMON_SAMPLINGS:
            raise _missing(self.script)
        try:
            decode_image(image)
        except ImageError as exc:
            raise JpegError(f"damaged: {exc.reason}", path=path) from exc
        return image


def _mend(data: bytes, info: JpegInfo, notes: list[str]) -> bytes:
    """Return the file without what libjpeg would warn of though no coefficient is lost."""
    source = data[: len(data) - info.tail_bytes] if info.tail_bytes else data
    if not info.has_eoi:
        source += EOI
        notes.append("no EOI")
    odd = [scan for scan in info.scans if source[scan.data - 3 : scan.data] != _SEQUENTIAL]
    if odd and not info.frame.progressive:
        patched = bytearray(source)
        for scan in odd:
            patched[scan.data - 3 : scan.data] = _SEQUENTIAL
        source = bytes(patched)
        notes.append("scan header that does not say coefficients 0 to 63, as they are")
    return source
