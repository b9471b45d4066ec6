"""Streams of tensors over ZeroMQ, for training in any framework."""

from tensorcom._version import __version__

__all__ = ["__version__"]
