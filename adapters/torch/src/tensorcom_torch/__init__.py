"""tensorcom streams as PyTorch data sets."""

from tensorcom_torch._version import __version__
from tensorcom_torch.stream import TensorcomDataset, from_stream

__all__ = ["TensorcomDataset", "__version__", "from_stream"]
