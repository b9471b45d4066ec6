"""PcrWriter: a set of records from images that come one by one.

Owns when a record is full and when the set is; `convert` does the same from files, in threads, and
goes on after a kill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorcom.arguments import check_integers
from tensorcom.errors import PcrError
from tensorcom.images.folder import printable
from tensorcom.pcr.assemble import RecordBuilder, check_label, merge_tables, write_set
from tensorcom.pcr.layout import record_name
from tensorcom.pcr.scripts import ScanScript, load_script
from tensorcom.pcr.target import Target
from tensorcom.pcr.transcode import Transcoder

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tensorcom.pcr.manifest import SampleTable

IMAGES_PER_RECORD = 1024


class PcrWriter:
    """Writes a set of progressive compressed records. Use it as a context manager.

    Leaving it closes the set, or removes it if an exception is on its way. Until it is closed,
    readers say that the set is unfinished. Images are transcoded without loss, one after the other.

    Args:
        root: a directory of this machine; it is made if it is missing.
        class_names: name of each label from 0; None names them by their numbers.
        images_per_record: most images in a record.
        script: the scan script: `standard`, `fast`, `balanced`, a file of one, or a ScanScript.
        lenient: take what libjpeg decodes of a damaged image, instead of refusing it.
        sqlite_index: write a `PCR.db` too, for old readers.
        force: remove the set that is in the directory; other files stay.

    Attributes:
        images: images in the set so far.

    Raises:
        PcrWriteError: a set is there, another process writes one, or the directory cannot be
            written.
        PcrFormatError: there is no such script.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        class_names: Sequence[str] | None = None,
        images_per_record: int = IMAGES_PER_RECORD,
        script: str | ScanScript = "standard",
        lenient: bool = False,
        sqlite_index: bool = False,
        force: bool = False,
    ) -> None:
        check_integers(1, images_per_record=images_per_record)
        if isinstance(class_names, str):
            raise ValueError(f"class_names={class_names!r}, expected a sequence of names")  # noqa: TRY004
        self._script = script if isinstance(script, ScanScript) else load_script(script)
        self._transcoder = Transcoder(self._script, policy="lenient" if lenient else "strict")
        self._class_names = None if class_names is None else tuple(class_names)
        self._images_per_record = images_per_record
        self._sqlite_index = sqlite_index
        self._tables: list[SampleTable] = []
        self._builder = RecordBuilder(self._script.groups)
        self.images = self._source_bytes = 0
        self._target: Target | None = Target(root)
        try:
            self._target.begin({"by": "PcrWriter"}, force=force)
        except BaseException:
            self._target.close()
            raise

    def add(self, jpeg: bytes | memoryview, label: int, *, name: str = "") -> tuple[str, ...]:
        """Add an image. If that fails, the set is as it was, and others can be added.

        Args:
            jpeg: a JPEG file of any kind.
            label: its class, from 0.
            name: kept with it, for people.

        Returns:
            Notes of what the set does not hold of it, such as metadata.

        Raises:
            JpegError: it is no JPEG, or damaged.
            SourceError: the label is none, or of no class.
            PcrError: a part of the record would exceed 2 GiB.
            PcrWriteError: the record before, which is full, cannot be written.
            MissingDependencyError: no transcoder is installed.
        """
        target = self._target
        if target is None:
            raise PcrError("writer is closed")
        if len(self._builder) == self._images_per_record:
            self._write_record(target)
        path = printable(name) if name else f"image {self.images}"
        classes = None if self._class_names is None else len(self._class_names)
        label = check_label(label, classes, path=path)
        image = self._transcoder.transcode(jpeg, path=path)
        self._builder.add(image.groups, label=label, name=name, orientation=image.orientation)
        self.images += 1
        self._source_bytes += memoryview(jpeg).nbytes
        return image.notes

    def _write_record(self, target: Target) -> None:
        number = len(self._tables)
        pieces, table = self._builder.build(number)
        target.write(record_name(number), pieces)
        self._tables.append(table)
        self._builder = RecordBuilder(self._script.groups)

    def close(self) -> None:
        """Finish the set. Closing again does nothing.

        Raises:
            PcrError: no image was added.
            PcrWriteError: a file cannot be written; the set stays unfinished.
        """
        target = self._target
        if target is None:
            return
        self._target = None
        with target:
            if not self.images:
                target.abandon()
                raise PcrError("no image was added: there is no set to write")
            if len(self._builder):
                self._write_record(target)
            write_set(
                target,
                merge_tables(self._tables),
                script=self._script,
                class_names=self._class_names,
                images_per_record=self._images_per_record,
                sqlite_index=self._sqlite_index,
                source_bytes=self._source_bytes,
            )
            target.finish()

    def abort(self) -> None:
        """Remove what was written. After `close`, it does nothing."""
        target, self._target = self._target, None
        if target is not None:
            with target:
                target.abandon()

    def __enter__(self) -> PcrWriter:
        return self

    def __exit__(self, kind: object, *_: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
