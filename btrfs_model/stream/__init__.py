# SPDX-License-Identifier: GPL-2.0-only
"""Send streams: reading, writing and showing them. The format: :mod:`btrfs_model.ondisk.stream`."""

from btrfs_model.stream.dump import dump_json, dump_text
from btrfs_model.stream.index import Batch, index_stream, read_batches
from btrfs_model.stream.reader import Command, Value, read_stream
from btrfs_model.stream.source import Source
from btrfs_model.stream.writer import StreamWriter

__all__ = [
    "Batch",
    "Command",
    "Source",
    "StreamWriter",
    "Value",
    "dump_json",
    "dump_text",
    "index_stream",
    "read_batches",
    "read_stream",
]
