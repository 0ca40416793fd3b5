# SPDX-License-Identifier: GPL-2.0-only
"""Hashes of many names and checksums of many sectors at once; of one: ``ondisk.hashes``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from btrfs_model.native.door import ffi, lib, raw
from btrfs_model.ondisk.hashes import CSUM_SIZES


def name_hashes(
    text: npt.NDArray[np.uint8], sizes: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint64]:
    """Return the hashes of names that follow each other."""
    hashes = np.empty(len(sizes), np.uint64)
    flat = np.ascontiguousarray(text)
    lib.bm_name_hashes(raw(flat), raw(sizes), len(sizes), raw(hashes))
    return hashes


def sector_sums(csum_type: int, data: Any, sectorsize: int) -> npt.NDArray[np.uint8]:
    """Checksums of all whole sectors of `data`.

    `csum_type`: ``enum btrfs_csum_type``.
    `data`: a multiple of the sector size.
    `sectorsize`: bytes.
    Returns uint8, shape (sectors, bytes of a checksum).
    """
    count = len(data) // sectorsize
    sums = np.empty((count, CSUM_SIZES[csum_type]), np.uint8)
    lib.bm_csum_sectors(csum_type, ffi.from_buffer(data), sectorsize, count, raw(sums))
    return sums
