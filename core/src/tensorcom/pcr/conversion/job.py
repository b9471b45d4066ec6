"""`convert`: from a source of images to a set of records.

Owns the flow: images in threads, one record being gathered and one being written, the set's own
files at the end. What each step does is in the modules beside this one.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorcom.arguments import check_integers
from tensorcom.errors import ImageError, JpegError, PcrError, PcrWriteError, SourceError
from tensorcom.images import keep_freed_memory, map_ordered, usable_cores
from tensorcom.images.folder import printable
from tensorcom.pcr.assemble import RecordBuilder, merge_tables, write_set
from tensorcom.pcr.conversion.plan import Plan
from tensorcom.pcr.conversion.report import (
    CONVERTED,
    NOTED,
    REENCODED,
    SKIPPED,
    ConversionReport,
    Tally,
    passed_over_lines,
    report_line,
)
from tensorcom.pcr.conversion.sources import open_source
from tensorcom.pcr.conversion.state import Done, differences, load_all, load_done
from tensorcom.pcr.conversion.workers import Outcome, Worker
from tensorcom.pcr.layout import record_name
from tensorcom.pcr.scripts import ScanScript, load_script
from tensorcom.pcr.target import (
    REPORT_NAME,
    Held,
    Target,
    done_name,
    write_whole,
)
from tensorcom.pcr.transcode import Transcoder
from tensorcom.pcr.writer import IMAGES_PER_RECORD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from tensorcom.pcr.conversion.sources import ImageSource
    from tensorcom.pcr.conversion.workers import OnError

    OnProgress = Callable[[int, int | None], None]

_AHEAD = 4  # images for each thread that are worked on or wait to be gathered
_GO_ON = "finished records stay, and the same conversion, run again, goes on"


def convert(
    source: Any,
    root: str | os.PathLike[str],
    *,
    images_per_record: int = IMAGES_PER_RECORD,
    shuffle: bool | None = None,
    seed: int = 0,
    workers: int | None = None,
    script: str | ScanScript = "standard",
    on_error: OnError = "raise",
    lenient: bool = False,
    reencode: int | None = None,
    class_names: Sequence[str] | None = None,
    allow_empty_class: bool = False,
    sqlite_index: bool = False,
    force: bool = False,
    report: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
    stop: Callable[[], bool] | None = None,
) -> ConversionReport:
    """Convert images to a set of progressive compressed records, without loss.

    A conversion that was killed goes on when it is run again with the same source and options, and
    comes to the same bytes. Memory does not grow with the number of images.

    Args:
        source: an image folder, or one that holds a folder `train`; names or URLs of WebDataset
            shards, braces expanded; or an iterable of (jpeg, label) or (jpeg, label, name).
        root: a directory of this machine; it is made if it is missing.
        images_per_record: images of the source for each record.
        shuffle: permute the images; None permutes folders only. Shards must then be plain tars on
            this machine, and iterables cannot be permuted.
        seed: of the permutation.
        workers: threads that convert; None takes one for each core. The bytes do not depend on it.
        script: the scan script: `standard`, `fast`, `balanced`, a file of one, or a ScanScript.
        on_error: "raise" the error of a bad image, or "skip" it and report it.
        lenient: take what libjpeg decodes of a damaged image, instead of refusing it.
        reencode: encode what is no JPEG, such as PNG, as JPEG of this quality first, 1 to 100. That
            loses something, and is reported for each file. None refuses them.
        class_names: name of each label of shards and iterables; None names them by their numbers.
        allow_empty_class: keep the labels of folders without images, instead of raising.
        sqlite_index: write a `PCR.db` too, for old readers.
        force: remove the set that is in the directory, finished or not; other files stay.
        report: where the report goes; None is `PCR_report.jsonl` in `root`.
        on_progress: called with how many images are done, and of how many, if that is known.
        stop: asked between images; True ends the conversion as a kill would.

    Returns:
        What came of it; not finished only if `stop` said so.

    Raises:
        SourceError: the source is none, or cannot be read; or a file or label in it is bad.
        JpegError: an image is bad and `on_error` is "raise".
        ImageError: an image to be encoded cannot be decoded and `on_error` is "raise".
        PcrWriteError: the directory is taken, is in the source, holds a set, or one that was begun
            in another way; or the disk is full.
        PcrFormatError: there is no such script.
        PcrError: a part of a record would exceed 2 GiB, or no image is left.
        MissingDependencyError: what converts or reads the images is not installed.
    """
    options = _Options(
        images_per_record=images_per_record,
        script=script if isinstance(script, ScanScript) else load_script(script),
        workers=workers or usable_cores(),
        on_error=on_error,
        lenient=lenient,
        reencode=reencode,
        sqlite_index=sqlite_index,
    )
    found = open_source(
        source,
        shuffle=shuffle,
        seed=seed,
        class_names=class_names,
        allow_empty_class=allow_empty_class,
    )
    if found.directory is not None:
        _check_apart(root, found.directory)
    state = options.state(found)
    if report is not None and not Path(report).parent.is_dir():
        raise PcrWriteError("no such directory", path=printable(str(Path(report).parent)))
    with Target(root) as target:
        job = _Job(found, target, options, Path(report) if report is not None else None)
        job.begin(state, force=force)
        try:
            return job.run(on_progress or (lambda _done, _total: None), stop or (lambda: False))
        except PcrWriteError as exc:
            raise PcrWriteError(f"{exc.reason}; {_GO_ON}", path=exc.path) from exc


def _check_apart(root: str | os.PathLike[str], source: str) -> None:
    target, source = (os.path.realpath(os.fspath(path)) for path in (root, source))
    if os.path.commonpath([target, source]) == source:
        raise PcrWriteError(
            "is in the folder of the images, which nothing is written to; choose another",
            path=printable(target),
        )


@dataclass(frozen=True, slots=True)
class _Options:
    """What the user asked for; see `convert`."""

    images_per_record: int
    script: ScanScript
    workers: int
    on_error: OnError
    lenient: bool
    reencode: int | None
    sqlite_index: bool

    def __post_init__(self) -> None:
        check_integers(1, images_per_record=self.images_per_record, workers=self.workers)
        if self.on_error not in ("raise", "skip"):
            raise ValueError(f"on_error={self.on_error!r}, expected 'raise' or 'skip'")
        if self.reencode is not None and not 1 <= self.reencode <= 100:
            raise ValueError(f"reencode={self.reencode}, expected a quality of 1 to 100")

    def state(self, source: ImageSource) -> dict[str, Any]:
        """Return what decides the bytes of the set, as JSON."""
        names = None if source.class_names is None else list(source.class_names)
        return {
            "by": "convert",
            "source": source.fingerprint(),
            "options": {
                "shuffle": source.seed is not None,
                "seed": source.seed,
                "images_per_record": self.images_per_record,
                "script": self.script.to_json(),
                "class_names": names,
                "sqlite_index": self.sqlite_index,
            },
            "policy": {"lenient": self.lenient, "reencode": self.reencode},
        }


@dataclass
class _Gathered:
    """A record that is being gathered."""

    number: int
    builder: RecordBuilder
    tally: Tally = field(default_factory=Tally)
    lines: list[bytes] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Add an image, or what is to be said of one that was skipped."""
        entry, image, status = outcome.task.entry, outcome.image, outcome.status
        if image is not None:
            self.builder.add(
                image.groups,
                label=outcome.label,
                name=entry.name,
                orientation=image.orientation,
            )
        self.tally += Tally(
            files=1,
            noted=status == NOTED,
            reencoded=status == REENCODED,
            skipped=status == SKIPPED,
            source_bytes=outcome.source_bytes,
        )
        if status != CONVERTED:
            self.lines.append(report_line(entry.path, status, outcome.notes))


def _until_stopped(outcomes: Iterator[Outcome], plan: Plan) -> Iterator[Outcome]:
    """Yield outcomes until the plan is stopped.

    What stops it, such as Ctrl-C, may have stopped programs too that convert or read images: that
    they failed then says nothing of an image.
    """
    try:
        for outcome in outcomes:
            if plan.is_stopped():
                return
            yield outcome
    except (JpegError, ImageError, SourceError):
        if not plan.is_stopped():
            raise


class _Job:
    """One conversion."""

    def __init__(
        self, source: ImageSource, target: Target, options: _Options, report: Path | None
    ) -> None:
        self._source, self._target, self._options = source, target, options
        self._report = report
        self._groups = options.script.groups
        self._done: dict[int, int] = {}  # images of the source in each finished record

    def begin(self, state: Mapping[str, Any], *, force: bool) -> None:
        """Begin the set, or go on with one that was begun in the same way."""
        target = self._target
        held = target.held()
        if force or held not in (Held.UNFINISHED, Held.UNCLEANED):
            target.begin(state, force=force)
            return
        before = target.state()
        skipped = 0
        for number in target.done():
            done = load_done(target, number, self._groups)
            if done is not None:
                self._done[number] = done.tally.files
                skipped += done.tally.skipped
        reasons = differences(before, state, skipped=skipped)
        if reasons:
            raise PcrWriteError(
                f"holds {held.value}, but {'; '.join(reasons)}: force=True (--force) starts over",
                path=printable(str(target.root)),
            )
        target.go_on(state, self._done)

    def run(self, on_progress: OnProgress, stop: Callable[[], bool]) -> ConversionReport:
        """Convert what is left, and finish the set unless it was stopped."""
        plan = Plan(self._source, size=self._options.images_per_record, done=self._done, stop=stop)
        writing: Future[None] | None = None
        with ThreadPoolExecutor(1, "tensorcom-write") as writer:
            for gathered in self._gather(plan, on_progress):
                if writing is not None:
                    writing.result()  # so that one record is being written, and no more waits
                writing = writer.submit(self._write, gathered)
            if writing is not None:
                writing.result()
        return self._finish(finished=not plan.stopped)

    def _gather(self, plan: Plan, on_progress: OnProgress) -> Iterator[_Gathered]:
        """Yield the records that are left to do, in order."""
        keep_freed_memory()
        options = self._options
        names = self._source.class_names
        worker = Worker(
            transcoder=Transcoder(
                options.script, policy="lenient" if options.lenient else "strict"
            ),
            classes=None if names is None else len(names),
            on_error=options.on_error,
            reencode=options.reencode,
        )
        threads, ahead = options.workers, _AHEAD * options.workers
        gathered: _Gathered | None = None
        images = 0
        with closing(map_ordered(worker, plan.tasks(), threads=threads, ahead=ahead)) as outcomes:
            for outcome in _until_stopped(outcomes, plan):
                if gathered is not None and gathered.number != outcome.task.record:
                    yield gathered
                    gathered = None
                if gathered is None:
                    gathered = _Gathered(outcome.task.record, RecordBuilder(self._groups))
                gathered.add(outcome)
                images += 1
                on_progress(plan.passed + images, self._source.count)
        if gathered is not None and not plan.stopped:
            yield gathered

    def _write(self, gathered: _Gathered) -> None:
        """Write a record, and after it that it is done."""
        pieces, table = gathered.builder.build(gathered.number)
        if len(table.labels):
            self._target.write(record_name(gathered.number), pieces)
        done = Done(gathered.number, table, gathered.tally, b"".join(gathered.lines))
        self._target.write(done_name(gathered.number), done.encode())

    def _finish(self, *, finished: bool) -> ConversionReport:
        """Write what describes the set, if it is finished, and return what came of it."""
        target, options = self._target, self._options
        numbers = target.done()
        tables, tally = [], Tally()
        for done in load_all(target, numbers, self._groups):
            tables.append(done.table)
            tally += done.tally
        images = sum(len(table.labels) for table in tables)
        report = self._report or target.root / REPORT_NAME
        if finished:
            self._write_report(report, numbers)
            if not images:
                raise self._nothing(tally, report)
            write_set(
                target,
                merge_tables(tables),
                script=options.script,
                class_names=self._source.class_names,
                images_per_record=options.images_per_record,
                sqlite_index=options.sqlite_index,
                source_bytes=tally.source_bytes,
            )
            target.finish()
        return ConversionReport(
            root=str(target.root),
            finished=finished,
            images=images,
            records=sum(len(table.numbers) for table in tables),
            resumed=len(self._done),
            tally=tally,
            set_bytes=sum(int(table.parts.sum()) for table in tables),
            report=str(report) if finished else None,
        )

    def _write_report(self, path: Path, numbers: Sequence[int]) -> None:
        passed_over = passed_over_lines(self._source.directory or "", self._source.passed_over)
        lines = (done.lines for done in load_all(self._target, numbers, self._groups))
        if self._report is None:
            self._target.write(path.name, chain(passed_over, lines))
        else:
            write_whole(path, chain(passed_over, lines))

    def _nothing(self, tally: Tally, report: Path) -> PcrError:
        if tally.files:
            return PcrError(
                f"none of the {tally.files} files could be converted; "
                f"{printable(str(report))} says why"
            )
        self._target.abandon()
        return PcrError("the source holds no images")
