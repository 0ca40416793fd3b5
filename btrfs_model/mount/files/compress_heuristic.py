# SPDX-License-Identifier: GPL-2.0-only
"""Whether data look as if they could be compressed (``btrfs_compress_heuristic()``, Linux 6.18).

The kernel looks at 16 bytes of every 256 of the first 128 KiB and asks, cheapest question first:
is the second half of this sample the first one again, does it use few different bytes, do few of
them make up most of it, is its entropy low?
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Final

import numpy as np

from btrfs_model.mount.files.compress import MAX_UNCOMPRESSED
from btrfs_model.ondisk.layout import Payload

_READ: Final = 16
_INTERVAL: Final = 256
_BYTE_SET: Final = 64
_CORE_SET_LOW: Final = 64
_CORE_SET_HIGH: Final = 200
_CORE_PERCENT: Final = 90
_ENTROPY_HIGH: Final = 80
_ENTROPY_MAX: Final = 8 * 4  # of log2(n^4), as _log is


def may_compress(data: Payload) -> bool:
    """Whether the kernel would try to compress this range, which starts at a page of the file."""
    sample = _sample(data)
    half = len(sample) // 2
    if sample[:half] == sample[half : 2 * half]:
        return True
    counts = Counter(sample)
    if len(counts) < _BYTE_SET:
        return True
    core = _core_set_size(counts, len(sample))
    if core <= _CORE_SET_LOW or core >= _CORE_SET_HIGH:
        return core <= _CORE_SET_LOW
    return _entropy(counts, len(sample)) < _ENTROPY_HIGH


def _sample(data: Payload) -> bytes:
    """Gather pieces of each page (``heuristic_collect_sample()``)."""
    view = memoryview(data)[:MAX_UNCOMPRESSED]
    whole = len(view) - len(view) % _INTERVAL
    pieces = np.frombuffer(view[:whole], np.uint8).reshape(-1, _INTERVAL)[:, :_READ].tobytes()
    rest = bytes(view[whole : whole + _READ])
    return pieces + rest if len(rest) == _READ else pieces


def _core_set_size(counts: Counter[int], size: int) -> int:
    """How many different bytes make up 90 % of the sample (``byte_core_set_size()``)."""
    threshold = size * _CORE_PERCENT // 100
    sums = accumulate(count for _, count in counts.most_common())
    core = next((i for i, total in enumerate(sums) if total > threshold), len(counts))
    return min(core, _CORE_SET_HIGH)


def _entropy(counts: Counter[int], size: int) -> int:
    """Percent of 8 bits a byte, in the integers of ``shannon_entropy()``."""
    base = _log(size)
    total = sum(count * (base - _log(count)) for count in counts.values()) // size
    return total * 100 // _ENTROPY_MAX


def _log(n: int) -> int:
    """Four times log2 (``ilog2_w()``)."""
    return (n**4).bit_length() - 1
