# SPDX-License-Identifier: GPL-2.0-only
"""The filesystem of `fiemap-shared`: files of many extents, and the kernel that writes them back.

What a run of Linux 6.18 leaves behind depends on what its threads do meanwhile. Workers finish
extents side by side. Commits come every 30 seconds. And, since 6.18 (``btree_writepages()`` asks no
more whether 32 MiB of them are dirty), each round of the device's writeback writes tree blocks as
well: what is changed again later in the same transaction is copied once more and leaves a hole
behind, so that the free space of metadata ends up in so many pieces that bitmaps hold it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from btrfs_model.experiments.workloads import Input, Step, silent
from btrfs_model.experiments.workloads.knobs import NODESIZE, NOT_TURNED, Knobs
from btrfs_model.mount.files.elided import Elided
from btrfs_model.mount.writable import WritableFilesystem

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILE: Final = "foobar"
EXTENT_BYTES: Final = 128 << 10
_FILES: Final = ((FILE, b"\xab"), ("file1", b"\xcd"), ("file2", b"\xef"), ("file3", b"\x73"))
_DEVICE_BYTES: Final = 128 << 30
"""As large as that of the kernel's image, which decides how large groups of metadata are."""
_ROUND: Final = 2048
"""Extents that a round of writeback writes. Measured, not fitted to trees: Linux 6.18 on two CPUs
made 415 rounds for 819,200 extents."""
_BACKGROUND: Final = 2 << 30
"""Bytes that wait before it starts: a tenth of memory (``vm.dirty_background_ratio``)."""
_COMMIT_INTERVAL: Final = 30_000_000
_EXTENT_TIME: Final = 381
"""Microseconds of simulated time: between two commits, as kernels have it, and for an extent. It
took 312 seconds to make the kernel's image of 819,200 extents."""
_LATE: Final = 0.043
_LATE_BY: Final = 16
"""The kernel's workers finish extents side by side: in Linux 6.18, on two CPUs, this share of the
32,000 of a file was overtaken by others, mostly by a few. That leaves the csum tree less full."""
_REWRITTEN: Final = 100


def build(source: Input, knobs: Knobs = NOT_TURNED, step: Step = silent) -> WritableFilesystem:
    """Do what the script does up to the snapshot; the data are not stored."""
    fs = WritableFilesystem.mkfs(_DEVICE_BYTES, knobs.nodesize or NODESIZE, compress="lzo")
    chance = np.random.default_rng(0)
    fs.machine.finish_order = lambda count: _finish_order(count, chance)
    extents = source.parameters["extents"]
    counts = [extents if name == FILE else max(1, extents // 2) for name, _ in _FILES]
    written, total = 0, sum(counts)
    for (name, byte), count in zip(_FILES, counts, strict=True):
        step(f"writing {count:,} extents of {name}")
        fs.create(name)
        for at in range(0, count, _ROUND):
            piece = min(_ROUND, count - at)
            fs.write(name, at * EXTENT_BYTES, Elided(piece * EXTENT_BYTES, byte))
            fs.flush_delalloc()
            written += piece
            if (total - written) * EXTENT_BYTES >= _BACKGROUND:
                _write_trees(fs)
            if _commits(written) != _commits(written - piece):
                fs.commit()
    fs.snapshot("", "snap1", read_only=True)
    fs.commit()
    return fs


def _write_trees(fs: WritableFilesystem) -> None:
    """Write tree blocks in the middle of a transaction; references were run meanwhile."""
    fs.writer.run_refs()
    fs.writer.write_blocks()


def _commits(extents: int) -> int:
    """Return how many commits have come by the time that so many extents are written."""
    return extents * _EXTENT_TIME // _COMMIT_INTERVAL


def _finish_order(count: int, chance: np.random.Generator) -> NDArray[np.uint32]:
    """Return in which order extents are finished that were begun one after the other."""
    late = chance.random(count) < _LATE
    due = np.arange(count) + late * (0.5 + _LATE_BY ** chance.random(count))
    return np.argsort(due, kind="stable").astype(np.uint32)


def rewrite(fs: WritableFilesystem, extents: int) -> int:
    """Write one extent in a hundred of the file again; return how many these are."""
    numbers = range(0, extents, _REWRITTEN)
    for number in numbers:
        fs.write(FILE, number * EXTENT_BYTES, Elided(EXTENT_BYTES, _FILES[0][1]))
    fs.sync()
    return len(numbers)
