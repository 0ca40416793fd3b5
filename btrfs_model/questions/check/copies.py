# SPDX-License-Identifier: GPL-2.0-only
"""Copies: superblocks, data and parity, each on each device, as ``btrfs scrub`` reads them.

Of RAID5 and RAID6 the data are read once, where they lie. The parity of a row of stripes is
compared sector by sector, where a sector of the data is known to have been written: one that has a
checksum, or is of a tree block. What was only preallocated has no parity yet.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID
from warnings import warn

import numpy as np
import numpy.typing as npt

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CheckWarning, CorruptImageError
from btrfs_model.native.data import sector_sums
from btrfs_model.ondisk.constants import BTRFS_STRIPE_LEN
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import DEV_ITEM, SUPER_BLOCK
from btrfs_model.ondisk.superblock import MAGIC, SUPER_OFFSETS, SUPER_SIZE
from btrfs_model.questions.check.extents import Extents
from btrfs_model.questions.check.report import Report
from btrfs_model.volume.checksums import DataChecksums

if TYPE_CHECKING:
    from btrfs_model.ondisk.chunks import Chunk
    from btrfs_model.volume.filesystem import Filesystem
    from btrfs_model.volume.image import Image

_SECTOR: Final = 4096
_SUMS_AT_ONCE: Final = 4096
_ROWS_AT_ONCE: Final = 64
_ALONE: Final = 1 << 20
"""Bytes for which no thread is started."""
Bytes = npt.NDArray[np.uint8]
_Begin = Callable[..., Callable[[], Bytes]]


def check_superblocks(fs: Filesystem, report: Report) -> None:
    """Check that every device is there, and every copy of its superblock good and new."""
    newest = fs.image.superblock.generation
    _check_totals(fs, report)
    for device in fs.image.devices:
        sb = device.superblock
        if sb is None:
            report.add("device {devid} (uuid {uuid}) is missing", devid=device.devid,
                       uuid=UUID(bytes=device.uuid))  # fmt: skip
            continue
        of = f" of device {device.devid}" if fs.image.has_several else ""
        for offset in SUPER_OFFSETS:
            if offset + SUPER_SIZE > sb.dev_item.total_bytes or offset in sb.copies:
                continue
            at = device.start + offset
            magic = SUPER_BLOCK.unpack(bytes(fs.image.view[at : at + SUPER_SIZE])).magic
            if magic == MAGIC or offset == SUPER_OFFSETS[0]:
                report.add(f"superblock{of} at {{offset}} is not good", offset=offset)
            else:  # what btrfs-image restores has the first one alone, and kernels mount it
                warn(f"{fs.path}: there is no superblock{of} at {offset}", CheckWarning, 2)
        if sb.generation != newest:
            report.add(f"superblock{of} is of generation {{generation}}, the newest of {{newest}}",
                       generation=sb.generation, newest=newest)  # fmt: skip


def _check_totals(fs: Filesystem, report: Report) -> None:
    """Check what the superblock says of all devices together, as a mount does."""
    sb, devices = fs.image.superblock, fs.image.devices
    if sb.stripesize not in {sb.sectorsize, _SECTOR}:
        report.add("superblock says stripes of {says} bytes", says=sb.stripesize)
    if sb.num_devices != len(devices):
        report.add("superblock says {says} devices, there are {there}",
                   says=sb.num_devices, there=len(devices))  # fmt: skip
    rows = [
        DEV_ITEM.unpack(item.data)
        for item in fs.chunk_tree.items()
        if item.key.type == ItemType.DEV_ITEM and len(item.data) == DEV_ITEM.size
    ]
    total = sum(row.total_bytes for row in rows)
    if sb.total_bytes < total:
        report.add("superblock says the devices have {says} bytes, device items {there}",
                   says=sb.total_bytes, there=total)  # fmt: skip


def check_data(fs: Filesystem, extents: Extents, report: Report) -> None:
    """Read every sector of data that has a checksum, each copy of it, and compare; then parity.

    Of much data checksums are computed by some threads; what there is to report is reported in
    order.
    """
    sums, threads = fs.checksums, os.cpu_count() or 1
    waiting: deque[Callable[[], None]] = deque()
    with _computing(int((sums.ends - sums.starts).sum()), threads) as begin:
        for start, end, copy in _data_parts(fs, _SUMS_AT_ONCE * fs.image.sectorsize):
            waiting += _check_sectors(fs, start, end, copy, report, begin)
            while len(waiting) > 2 * threads:
                waiting.popleft()()
        for finish in waiting:
            finish()
    there = {device.devid for device in fs.image.devices if device.path}
    for chunk in fs.image.chunks:
        if chunk.profile.parity and there.issuperset(chunk.devids):
            written = _written(chunk, fs.image.sectorsize, sums, extents)
            _check_parity(fs.image, chunk, written, report)


@contextmanager
def _computing(size: int, threads: int) -> Iterator[_Begin]:
    """Give a way to begin with the checksums of data, which returns what waits for them."""
    if size < _ALONE:
        yield lambda *args: partial(sector_sums, *args)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        yield lambda *args: pool.submit(sector_sums, *args).result


def _data_parts(fs: Filesystem, at_once: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and copy of runs of sectors that have checksums."""
    sums = fs.checksums
    for first, last in zip(sums.starts.tolist(), sums.ends.tolist(), strict=True):
        for start, end, copies in parts_in_chunks(fs.image, first, last):
            for copy in range(copies):
                for at in range(start, end, at_once):
                    yield at, min(end, at + at_once), copy


def parts_in_chunks(image: Image, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Split a range of addresses where a chunk ends; yield (start, end, copies) of each part.

    A run of checksums goes on from one chunk into the next. What no chunk has is a part of its own.
    """
    while start < end:
        chunk = image.chunk_at(start)
        if chunk is not None:
            stop = chunk.logical + chunk.length
        else:
            stop = min((c.logical for c in image.mapped if c.logical > start), default=end)
        yield start, min(stop, end), chunk.placed if chunk else 1
        start = stop


def _check_sectors(
    fs: Filesystem, start: int, end: int, copy: int, report: Report, begin: _Begin
) -> Iterator[Callable[[], None]]:
    """Begin with a run of sectors; what is yielded waits for the checksums and reports."""
    tree, sector, sums = int(ObjectId.CSUM_TREE), fs.image.sectorsize, fs.checksums
    try:
        data = fs.image.data(start, end - start, copy)
    except CorruptImageError as error:
        if error.fault.code != Code.NO_DEVICE:
            what = error.strerror
            yield lambda: report.add("data at {start}: {what}", tree=tree, start=start, what=what)
        elif end - start > sector:
            # said once; the other devices have the rest
            middle = start + (end - start) // 2 // sector * sector
            yield from _check_sectors(fs, start, middle, copy, report, begin)
            yield from _check_sectors(fs, middle, end, copy, report, begin)
        return
    wanted, _ = sums.stored(start, end - start)
    found = begin(sums.type, data, sector)

    def finish() -> None:
        bad = (found() != wanted).any(axis=1)
        for row in np.flatnonzero(bad).tolist():
            report.add(
                "copy {copy} of the data at {logical} has another checksum",
                tree=tree,
                copy=copy,
                logical=start + row * sector,
            )

    yield finish


# ------------------------------------------------------------------------------------ parity --


def _written(
    chunk: Chunk, sectorsize: int, sums: DataChecksums, extents: Extents
) -> npt.NDArray[np.bool_]:
    """Return for which sectors of each row of a chunk there must be parity, (rows, sectors)."""
    blocks = ~extents.is_data
    starts = np.concatenate([sums.starts, extents.start[blocks]])
    ends = np.concatenate([sums.ends, extents.end[blocks]])
    inside = (starts < np.uint64(chunk.end)) & (ends > np.uint64(chunk.logical))
    sectors = np.zeros(chunk.length // sectorsize, np.bool_)
    for start, end in zip(starts[inside].tolist(), ends[inside].tolist(), strict=True):
        low, high = max(start - chunk.logical, 0), end - chunk.logical
        sectors[low // sectorsize : high // sectorsize] = True
    across = BTRFS_STRIPE_LEN // sectorsize
    rows = len(sectors) // (chunk.width * across)
    whole = sectors[: rows * chunk.width * across]
    return np.asarray(whole.reshape(rows, chunk.width, across).any(axis=1))


def _check_parity(
    image: Image, chunk: Chunk, written: npt.NDArray[np.bool_], report: Report
) -> None:
    """Compare the parity of the rows in which something was written."""
    row_size = chunk.width * BTRFS_STRIPE_LEN
    wanted = np.flatnonzero(written.any(axis=1))
    for first in range(0, len(wanted), _ROWS_AT_ONCE):
        rows = wanted[first : first + _ROWS_AT_ONCE]
        data = np.stack([
            np.frombuffer(image.data(chunk.logical + row * row_size, row_size), np.uint8)
            for row in rows.tolist()
        ]).reshape(len(rows), chunk.width, BTRFS_STRIPE_LEN)  # fmt: skip
        for number, computed in enumerate(_parity(data, chunk.profile.parity)):
            stored = np.stack([
                np.frombuffer(image.parity(chunk, row, number), np.uint8) for row in rows.tolist()
            ])  # fmt: skip
            shape = (len(rows), written.shape[1], -1)
            bad = (stored != computed).reshape(shape).any(axis=2) & written[rows]
            for row, sector in np.argwhere(bad).tolist():
                at = int(rows[row]) * row_size + sector * image.sectorsize
                report.add("{name} of the row with {logical} does not fit the data",
                           name="PQ"[number], logical=chunk.logical + at)  # fmt: skip


def _parity(data: Bytes, count: int) -> Iterator[Bytes]:
    """Yield P, and Q where there is one, of the rows of data, shape (rows, stripes, bytes)."""
    yield np.bitwise_xor.reduce(data, axis=1)
    if count > 1:
        q = np.zeros_like(data[:, 0])
        for column in reversed(range(data.shape[1])):
            # times x, modulo the polynomial
            carry = np.where(q & 0x80, np.uint8(0x1D), np.uint8(0))
            q = np.left_shift(q, 1, dtype=np.uint8) ^ carry ^ data[:, column]
        yield q
