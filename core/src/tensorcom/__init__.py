"""Streams of tensors over ZeroMQ, for training in any framework."""

from tensorcom._version import __version__
from tensorcom.connection import Connection
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
from tensorcom.message import Message
from tensorcom.meta import Meta
from tensorcom.pipeline import Stream

__all__ = [
    "BindError",
    "ClosedError",
    "ConnectError",
    "Connection",
    "ImageError",
    "JpegError",
    "Message",
    "MessageError",
    "Meta",
    "MissingDependencyError",
    "PcrError",
    "PcrFormatError",
    "PcrIndexError",
    "PcrReadError",
    "PcrWriteError",
    "ReceiveTimeoutError",
    "SendTimeoutError",
    "ServingError",
    "SourceError",
    "Stream",
    "TenbinError",
    "TensorcomError",
    "TransportError",
    "ZmqUrlError",
    "__version__",
]
