"""Tenbin, the binary form of lists of arrays, in messages, buffers and `.ten` files."""

from tensorcom.tenbin.chunks import decode_chunks, encode_chunks, iter_chunks
from tensorcom.tenbin.codec import (
    decode_buffer,
    decode_buffer_with_infos,
    decode_list,
    decode_list_with_infos,
    encode_buffer,
    encode_list,
    encoded_size,
)
from tensorcom.tenbin.files import load, load_with_infos, read, read_with_infos, save, write
from tensorcom.tenbin.layout import (
    ALIGNED_MAGIC,
    MAGIC,
    MAX_RANK,
    Header,
    decode_header,
    encode_header,
    looks_like_header,
)

__all__ = [
    "ALIGNED_MAGIC",
    "MAGIC",
    "MAX_RANK",
    "Header",
    "decode_buffer",
    "decode_buffer_with_infos",
    "decode_chunks",
    "decode_header",
    "decode_list",
    "decode_list_with_infos",
    "encode_buffer",
    "encode_chunks",
    "encode_header",
    "encode_list",
    "encoded_size",
    "iter_chunks",
    "load",
    "load_with_infos",
    "looks_like_header",
    "read",
    "read_with_infos",
    "save",
    "write",
]
