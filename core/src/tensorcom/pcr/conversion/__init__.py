"""Conversion of image folders, shards and iterables to sets of records.

Owns where images come from, the threads, what happens to bad ones, and going on after a kill.
"""

from __future__ import annotations

from tensorcom.pcr.conversion.job import convert
from tensorcom.pcr.conversion.report import ConversionReport

__all__ = ["ConversionReport", "convert"]
