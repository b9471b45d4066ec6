"""Batches received ahead of use, as many as their bytes allow.

Owns the thread that receives, what waits, and when the thread and the socket go; knows nothing of
what is made of the batches.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from tensorcom import ClosedError, ReceiveTimeoutError, TransportError
from tensorcom.progress import Ends, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tensorcom import Connection

    Arrays = tuple[NDArray[Any], ...]

_TICK_S = 0.1
_pumps: weakref.WeakSet[Pump] = weakref.WeakSet()


class Pump:
    """Receives batches in a thread, while somebody reads.

    The thread begins with the first reader and ends when the last one is gone or at its end. The
    socket and what waits stay: the next reader goes on where the last one stopped. Thread-safe.

    Args:
        connect: returns a connection that opens at first use.
        prepare: called with the arrays of each message, in the thread; returns what readers get.
        count: most batches that wait.
        size_bytes: while what waits has that many bytes or more, nothing is received.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        prepare: Callable[[list[Any]], Arrays],
        *,
        count: int,
        size_bytes: int,
    ) -> None:
        self._connect, self._prepare = connect, prepare
        self._count, self._size_bytes = count, size_bytes
        # Reentrant: the garbage collector may call `disconnect` anywhere.
        self._changed = threading.Condition(threading.RLock())
        self._ready: deque[Arrays] = deque()
        self._waiting_bytes = 0
        self._connection: Connection | None = None
        self._ends = Ends()
        self._run: _Run | None = None
        _pumps.add(self)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the batches that wait."""
        return self._waiting_bytes

    # -- one batch, without a thread -----------------------------------------------------------

    def look(self) -> list[Any]:
        """Return the arrays of the first message, before anybody reads; readers get it as well.

        Raises:
            TransportError: the stream has ended.
            ReceiveTimeoutError, MessageError: as `Connection` does.
        """
        connection = self._open()
        try:
            arrays = next(connection.items(progress=Progress(None, ends=self._ends)), None)
        except BaseException:
            self.close()
            raise
        if arrays is None:
            self.close()
            raise TransportError(
                "the stream ended before its first message, so nobody knows what its batches are: "
                "give spec=",
                url=", ".join(connection.urls),
            )
        return arrays

    def put(self, arrays: Arrays) -> None:
        """Let a batch wait for a reader."""
        with self._changed:
            self._ready.append(arrays)
            self._waiting_bytes += _size(arrays)
            self._changed.notify_all()

    def _open(self) -> Connection:
        with self._changed:
            if self._connection is None:
                self._connection = self._connect()
                self._ends = Ends(self._connection.servers)
            return self._connection

    # -- what readers call ---------------------------------------------------------------------

    def take(self, reader: Reader) -> Arrays | None:
        """Return the next batch, or None if none has come for a tenth of a second.

        Raises:
            EndOfStream: the stream has ended.
            ClosedError: the pump was closed.
            Exception: what the thread met.
        """
        with self._changed:
            if reader.run is None:
                reader.run = self._join(reader)
            run = reader.run
            if not self._ready and run.outcome is None:
                reader.waits = True
                self._changed.wait(_TICK_S)
            if run.closed:
                raise ClosedError("closed while it was read", url=", ".join(run.connection.urls))
            if self._ready:
                reader.waits = False
                arrays = self._ready.popleft()
                self._waiting_bytes -= _size(arrays)
                self._changed.notify_all()
                return arrays
            if run.outcome is None:
                return None
            reader.run, reader.waits = None, False
            if isinstance(run.outcome, _Abandoned):
                return None
            run.told = True
            raise run.outcome.with_traceback(None)

    def _join(self, reader: Reader) -> _Run:
        """Return the run of the thread, after starting one if need be."""
        run = self._run
        # Who begins to read has not waited yet.
        is_over = run is not None and isinstance(run.outcome, (_Abandoned, ReceiveTimeoutError))
        if run is None or run.told or is_over:
            connection = self._open()
            self._ends = self._ends.current()
            run = self._run = _Run(connection, self._ends)
            run.add(reader)
            # A thread that is told what it is does not ask who started it: TensorFlow's threads
            # would be noted as Python's for ever.
            run.thread = threading.Thread(
                target=self._receive, args=(run,), name="tensorcom-pump", daemon=True
            )
            run.thread.start()
        else:
            run.add(reader)
        return run

    # -- the thread ----------------------------------------------------------------------------

    def _receive(self, run: _Run) -> None:
        outcome: Exception = _Abandoned()
        try:
            while not self._receive_all(run):
                pass
            if run.ended:
                outcome = EndOfStream()
        except Exception as exc:  # noqa: BLE001 - raised where it is due
            outcome = exc
        with self._changed:
            run.outcome = outcome
            closed = run.closed
            self._changed.notify_all()
        if closed:
            run.connection.close()

    def _receive_all(self, run: _Run) -> bool:
        """Receive to the end of the stream, or while somebody reads; return whether it is over."""
        try:
            for arrays in run.connection.items(progress=run):
                self.put(self._prepare(arrays))
                if not self._wait_for_room(run):
                    return True
        except ReceiveTimeoutError:
            if run.is_waited_for:
                raise
            return False  # nobody waited: it was the reader who paused
        return True

    def _wait_for_room(self, run: _Run) -> bool:
        """Wait until one batch more may wait; return whether somebody reads."""
        with self._changed:
            while run.is_wanted and (
                len(self._ready) >= self._count or self._waiting_bytes >= self._size_bytes
            ):
                self._changed.wait(_TICK_S)
            return run.is_wanted

    # -- the end -------------------------------------------------------------------------------

    def disconnect(self) -> threading.Thread | None:
        """Let go of the socket, now or when the thread ends, which is returned; waits for nothing.

        Readers that are left get a ClosedError. Later ones open a new socket.
        """
        with self._changed:
            connection, self._connection = self._connection, None
            run, self._run = self._run, None
            self._ready.clear()
            self._waiting_bytes = 0
            runs = run is not None and run.outcome is None
            if run is not None:
                run.closed = True
            self._changed.notify_all()
        if run is not None and runs:
            return run.thread
        if connection is not None:
            connection.close()
        return None

    def close(self) -> None:
        """Close the socket, and end the thread. Not for finalizers, which may run in it."""
        thread = self.disconnect()
        if thread is not None and thread.ident != threading.get_ident():
            thread.join()


class EndOfStream(Exception):  # noqa: N818 - a signal between two modules, no error
    """Raised by `Pump.take` after the last batch."""


class _Abandoned(Exception):  # noqa: N818
    """Nobody reads."""


class _Run(Progress):
    """One life of the thread; as progress, an iteration that goes on while somebody reads.

    Attributes:
        outcome: how it ended, None before.
        told: whether a reader knows of it.
        closed: nobody may read any more, and the connection is to be closed.
    """

    def __init__(self, connection: Connection, ends: Ends) -> None:
        super().__init__(None, ends=ends)
        self.connection = connection
        self._readers: list[weakref.ref[Reader]] = []
        self.thread: threading.Thread | None = None
        self.outcome: Exception | None = None
        self.told = self.closed = False

    def add(self, reader: Reader) -> None:
        """Take note of who reads; a reader is gone with its last reference."""
        self._readers = [*map(weakref.ref, self._present()), weakref.ref(reader)]

    def _present(self) -> list[Reader]:
        found = (reference() for reference in self._readers)
        return [reader for reader in found if reader is not None and not reader.is_over]

    @property
    def is_wanted(self) -> bool:
        return not self.closed and bool(self._present())

    @property
    def is_waited_for(self) -> bool:
        return any(reader.waits for reader in self._present())

    @property
    def complete(self) -> bool:
        return self.ended or not self.is_wanted


class Reader:
    """One iteration over what a pump receives.

    Args:
        pump: where batches come from.
        length: batches of the iteration; None goes on to the end of the stream.
        url: of the stream, for errors.

    Yields:
        The arrays of a batch, or None if there is none yet.

    Raises:
        TransportError: the stream ended before `length`.
        Exception: what the pump met; the iteration can be gone on with.

    Attributes:
        run: the life of the pump's thread that it reads from, None for none.
        waits: whether it waits for a batch.
        is_over: it will read no more.
    """

    def __init__(self, pump: Pump, length: int | None, *, url: str) -> None:
        self._pump, self._length, self._url = pump, length, url
        self._taken = 0
        self.run: _Run | None = None
        self.waits = self.is_over = False

    def __iter__(self) -> Iterator[Arrays | None]:
        return self

    def __next__(self) -> Arrays | None:
        if self.is_over or self._taken == self._length:
            self.is_over = True
            raise StopIteration
        try:
            arrays = self._pump.take(self)
        except EndOfStream:
            self.is_over = True
            if self._length is None:
                raise StopIteration from None
            raise TransportError(
                f"the stream ended after {self._taken} of {self._length} batches, its length",
                url=self._url,
            ) from None
        except ClosedError:
            self.is_over = True
            raise
        if arrays is not None:
            self._taken += 1
            self.is_over = self._taken == self._length
        return arrays


def _size(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays)


def _close_all() -> None:
    for pump in list(_pumps):
        pump.close()


# Before the interpreter takes itself apart: a thread that waits for it then would never wake.
atexit.register(_close_all)
