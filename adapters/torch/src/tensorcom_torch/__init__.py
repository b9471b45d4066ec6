"""tensorcom streams and records as PyTorch data sets."""

from tensorcom_torch._version import __version__
from tensorcom_torch.records import PcrDataset, from_records
from tensorcom_torch.stream import TensorcomDataset, from_stream

__all__ = ["PcrDataset", "TensorcomDataset", "__version__", "from_records", "from_stream"]
