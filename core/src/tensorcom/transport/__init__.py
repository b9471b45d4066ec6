"""Sockets: the only package that uses ZeroMQ.

Owns contexts, sockets, high-water marks, time limits and the flush at the end. Moves frames, lists
of byte buffers, and knows nothing of what they mean.
"""

from tensorcom.transport.transport import Transport

__all__ = ["Transport"]
