"""Which rank of a distributed job this process is.

Owns where that is looked up; imports no framework.
"""

from __future__ import annotations

import os
import sys

from tensorcom.arguments import environment_share


def current_shard() -> tuple[int, int]:
    """Return (rank, ranks): of torch.distributed or jax.distributed, else of RANK and WORLD_SIZE.

    A job that was not set up is not one: starts no backend of JAX.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    jax = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized():
        return jax.process_index(), jax.process_count()
    return environment_share() or (0, 1)


def current_gpu() -> int:
    """Return the GPU of this process: LOCAL_RANK, as torchrun sets it, or 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))
