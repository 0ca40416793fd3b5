# SPDX-License-Identifier: GPL-2.0-only
"""Data that are told as one byte again and again are data like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import corpus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.mount.files.elided import Repeated

_PLACES = st.integers(0, 300).map(lambda block: block * 4096) | st.integers(0, 1_200_000)
_LENGTHS = st.sampled_from([1, 100, 4096, 5000, 131_072, 524_288, 2_000_000]) | st.integers(
    1, 70_000
)
_CALLS = st.one_of(
    st.tuples(st.just("write"), _PLACES, _LENGTHS, st.sampled_from([0, 0xAB, 0xCD])),
    st.tuples(st.just("bytes"), _PLACES, _LENGTHS, st.sampled_from([0, 1])),
    st.tuples(st.just("truncate"), _PLACES),
    st.tuples(st.just("punch"), _PLACES, _LENGTHS),
    st.tuples(st.just("fsync")),
    st.tuples(st.just("sync")),
)


def _do(fs: bm.WritableFilesystem, call: tuple[Any, ...], *, told: bool) -> None:
    name, *numbers = call
    match name:
        case "write":
            at, length, byte = numbers
            fs.write("f", at, Repeated(length, bytes([byte])) if told else bytes([byte]) * length)
        case "bytes":
            at, length, seed = numbers
            fs.write("f", at, bytes((seed + k * k) % 251 for k in range(length % 9000 + 1)))
        case "truncate":
            fs.truncate("f", numbers[0])
        case "punch":
            fs.vfs_fallocate("f", 3, *numbers)
        case "fsync":
            fs.fsync("f")
        case "sync":
            fs.sync()


@settings(max_examples=30, deadline=None)
@given(st.lists(_CALLS, min_size=1, max_size=12), st.sampled_from([None, "lzo", "zlib", "zstd"]))
def test_the_same_bytes_come_to_disk(
    tmp_path: Path, calls: list[tuple[Any, ...]], compress: str | None
) -> None:
    """What a file reads as before each commit, and the whole filesystem after the last one."""
    sides = [bm.create("128M", seed=1, compress=compress) for _ in range(2)]
    for fs in sides:
        fs.create("f")
    for call in calls:
        for fs, told in zip(sides, (True, False), strict=True):
            _do(fs, call, told=told)
        one, other = (fs.read("f") for fs in sides)
        assert one == other
    saved = []
    for number, fs in enumerate(sides):
        fs.save(tmp_path / str(number))
        saved.append(corpus.content(tmp_path / str(number)))
    assert saved[0] == saved[1]


def test_compressed_pieces_have_block_groups_of_their_size() -> None:
    """Extents of 4 KiB do not go beside one of 600 KiB, also where many are written at once."""
    sides = [bm.create("1G", seed=1, compress="zstd") for _ in range(2)]
    for fs, told in zip(sides, (True, False), strict=True):
        fs.create("large")
        fs.chattr("large", 0x800000, 0)
        fs.write("large", 0, bytes(600_000))
        fs.sync()
        fs.create("f")
        _do(fs, ("write", 4096, 1 << 20, 0), told=told)
        fs.sync()
    places = [[one.disk_bytenr for one in fs.subvolume(5).extents(258)] for fs in sides]
    assert places[0] == places[1]


@pytest.mark.parametrize("at", [4096, 4097, 8191])
def test_as_much_fits_into_a_quota(at: int) -> None:
    """What waits for writeback has one extent to a kernel, however it was told."""
    sides = [bm.create("1G", seed=1) for _ in range(2)]
    for fs, told in zip(sides, (True, False), strict=True):
        fs.create_subvolume("s")
        fs.quota_enable()
        fs.create("s/f")
        fs.qgroup_limit("0/256", 1 << 20)
        fs.write("s/f", at, Repeated(1 << 20, b"a") if told else b"a" * (1 << 20))
        fs.sync()
    found = [[(one.start, one.length) for one in fs.subvolume(256).extents(257)] for fs in sides]
    assert found[0] == found[1]


@given(st.lists(_CALLS, min_size=1, max_size=12))
def test_ranges_that_wait_are_counted_together(calls: list[tuple[Any, ...]]) -> None:
    """As many as there are places where the one before does not end, and none in the end."""
    fs = bm.create("128M", seed=1)
    fs.create("f")
    for call in calls:
        _do(fs, call, told=True)
        inode = next(iter(fs.dirty_files.values()), None)
        ranges = inode.pages.ranges(0, 2**63) if inode is not None else []
        apart = [one for one, before in zip(ranges, [None, *ranges], strict=False)
                 if before is None or before.end != one.start]  # fmt: skip
        assert fs.dirty_bytes.of_root.get(5, (0, 0)) == (
            sum(one.end - one.start for one in ranges), len(apart))  # fmt: skip
