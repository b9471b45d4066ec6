"""Errors: texts, fields, ancestors, and the ways they travel."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from tensorcom import errors
from tensorcom.errors import (
    BindError,
    ClosedError,
    ConnectError,
    ImageError,
    JpegError,
    MessageError,
    MissingDependencyError,
    PcrError,
    PcrFormatError,
    PcrIndexError,
    PcrReadError,
    PcrWriteError,
    ReceiveTimeoutError,
    SendTimeoutError,
    ServingError,
    SourceError,
    TenbinError,
    TensorcomError,
    TransportError,
    ZmqUrlError,
)

EXAMPLES = [
    (TensorcomError("why"), "why", Exception),
    (TenbinError("why"), "why", ValueError),
    (TenbinError("why", offset=128), "at byte 128: why", ValueError),
    (
        TenbinError("why", offset=128, index=2, path="a.ten"),
        "a.ten array 2 at byte 128: why",
        ValueError,
    ),
    (ZmqUrlError("why", url="zsub://x"), "url 'zsub://x': why", ValueError),
    (TransportError("why"), "why", OSError),
    (BindError("why", url="zpull://x"), "url 'zpull://x': why", OSError),
    (ConnectError("why", url="u"), "url 'u': why", OSError),
    (ClosedError("why", url="u"), "url 'u': why", OSError),
    (SendTimeoutError("why", url="u", timeout_s=2.0), "url 'u': why", TimeoutError),
    (
        ReceiveTimeoutError("why", urls=["a", "b"], timeout_s=1.5, last_seen={"s": 3.0}),
        "a, b: why",
        TimeoutError,
    ),
    (MessageError("why"), "message: why", ValueError),
    (MessageError("why", part=3), "message part 3: why", ValueError),
    (ImageError("why", path="a.jpg"), "a.jpg: why", ValueError),
    (SourceError("why", path="dir"), "dir: why", ValueError),
    (PcrError("why"), "why", Exception),
    (PcrFormatError("why"), "why", ValueError),
    (PcrFormatError("why", path="a.pcr", offset=3), "a.pcr at byte 3: why", ValueError),
    (JpegError("why", path="a.pcr image 2"), "a.pcr image 2: why", ValueError),
    (PcrIndexError("why", path="set"), "set: why", FileNotFoundError),
    (PcrReadError("why", path="a.pcr", offset=7), "a.pcr at byte 7: why", OSError),
    (PcrWriteError("why", path="set"), "set: why", OSError),
    (ServingError("why", worker=1, exitcode=-9), "sender 1: why", RuntimeError),
    (
        MissingDependencyError.for_package("torch", "that", "pip install torch"),
        "that needs the package 'torch', which is not installed: pip install torch",
        ImportError,
    ),
]
IDS = [f"{type(error).__name__}-{i}" for i, (error, _, _) in enumerate(EXAMPLES)]


def public_errors() -> list[type[TensorcomError]]:
    found = [value for _, value in inspect.getmembers(errors, inspect.isclass)]
    return [value for value in found if issubclass(value, TensorcomError)]


def test_every_error_has_an_example() -> None:
    assert {type(error) for error, _, _ in EXAMPLES} >= set(public_errors())


@pytest.mark.parametrize(("error", "text", "base"), EXAMPLES, ids=IDS)
def test_text_and_ancestor(error, text, base) -> None:
    assert str(error) == text
    assert isinstance(error, TensorcomError)
    assert isinstance(error, base)


@pytest.mark.parametrize("travel", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
@pytest.mark.parametrize(("error", "text", "base"), EXAMPLES, ids=IDS)
def test_errors_survive_a_trip_between_processes(error, text, base, travel) -> None:
    back = travel(error)
    assert type(back) is type(error)
    assert str(back) == text
    assert vars(back) == vars(error)


@pytest.mark.parametrize("kind", public_errors(), ids=lambda kind: kind.__name__)
def test_errors_can_be_rebuilt_from_one_text(kind) -> None:
    # torch's loader workers make a new exception of the same class from a message alone.
    error = kind("worker 0: text")
    assert "worker 0: text" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_fields_are_attributes() -> None:
    error = ReceiveTimeoutError("why", urls=["a"], timeout_s=1.5, last_seen={"s": 3.0})
    assert (error.reason, error.urls, error.timeout_s) == ("why", ("a",), 1.5)
    assert error.last_seen == {"s": 3.0}
    missing = MissingDependencyError.for_package("torch", "that", "pip install torch")
    assert (missing.package, missing.install_command) == ("torch", "pip install torch")


def test_fields_of_an_error_do_not_follow_what_was_passed() -> None:
    urls, seen = ["a"], {"s": 1.0}
    error = ReceiveTimeoutError("why", urls=urls, last_seen=seen)
    urls.append("b")
    seen.clear()
    assert (error.urls, error.last_seen) == (("a",), {"s": 1.0})
