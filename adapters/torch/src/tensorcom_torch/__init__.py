"""tensorcom streams as PyTorch data sets."""

from tensorcom_torch._version import __version__

__all__ = ["__version__"]
