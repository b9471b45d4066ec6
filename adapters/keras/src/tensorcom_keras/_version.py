"""Version of this package; all packages share it."""

__version__ = "0.2.0"
