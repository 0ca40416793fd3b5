# SPDX-License-Identifier: GPL-2.0-only
"""Whether data look as if they could be compressed (``btrfs_compress_heuristic()``, Linux 6.18).

The kernel looks at 16 bytes of every 256 of the first 128 KiB and asks, cheapest question first:
is the second half of this sample the first one again, does it use few different bytes, do few of
them make up most of it, is its entropy low?
"""

from __future__ import annotations

from itertools import takewhile
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
_RADIX: Final = 8
_ENTROPY_MAX: Final = 8 * 4  # of log2(n^4), as _log is


def may_compress(data: Payload) -> bool:
    """Whether the kernel would try to compress this range, which starts at a page of the file."""
    sample = _sample(data)
    half = len(sample) // 2
    if sample[:half] == sample[half : 2 * half]:
        return True
    if len(set(sample)) < _BYTE_SET:
        return True
    counts = _sorted(np.bincount(np.frombuffer(sample, np.uint8), minlength=256).tolist())
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


def _sorted(counts: list[int]) -> list[int]:
    """Put what counts most first, as far as ``radix_sort()`` does.

    It sorts by as many bits as log2 of the largest count, rounded up to eight: of counts from 256
    to 511 it sees the lower eight bits, and where all are 1 none. What looks at them then stops at
    the first 0.
    """
    bits = -(-(max(counts).bit_length() - 1) // _RADIX) * _RADIX
    return sorted(counts, key=lambda count: -(count % (1 << bits)))


def _core_set_size(counts: list[int], size: int) -> int:
    """How many different bytes make up 90 % of the sample (``byte_core_set_size()``)."""
    threshold, total = size * _CORE_PERCENT // 100, sum(counts[:_CORE_SET_LOW])
    if total > threshold:
        return _CORE_SET_LOW
    for i in range(_CORE_SET_LOW, _CORE_SET_HIGH):
        total += counts[i]
        if not counts[i] or total > threshold:
            return i
    return _CORE_SET_HIGH


def _entropy(counts: list[int], size: int) -> int:
    """Percent of 8 bits a byte, in the integers of ``shannon_entropy()``."""
    base = _log(size)
    total = sum(count * (base - _log(count)) for count in takewhile(bool, counts)) // size
    return total * 100 // _ENTROPY_MAX


def _log(n: int) -> int:
    """Four times log2 (``ilog2_w()``)."""
    return (n**4).bit_length() - 1
