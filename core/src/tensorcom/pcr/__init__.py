"""Progressive Compressed Records: JPEG sets of which a prefix is the whole at lower fidelity."""

from tensorcom.pcr.conversion import ConversionReport, convert
from tensorcom.pcr.guard import guarded
from tensorcom.pcr.layout import RecordInfo
from tensorcom.pcr.reader import PcrReader
from tensorcom.pcr.scripts import ScanScript, load_script
from tensorcom.pcr.source import PcrSource
from tensorcom.pcr.state import merge_states
from tensorcom.pcr.storage import clear_cache
from tensorcom.pcr.transcode import Transcoder
from tensorcom.pcr.writer import PcrWriter

__all__ = [
    "ConversionReport",
    "PcrReader",
    "PcrSource",
    "PcrWriter",
    "RecordInfo",
    "ScanScript",
    "Transcoder",
    "clear_cache",
    "convert",
    "guarded",
    "load_script",
    "merge_states",
]
