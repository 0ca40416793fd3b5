# SPDX-License-Identifier: GPL-2.0-only
"""Data that are told as one byte again and again are data like any other."""

from __future__ import annotations

from typing import Any

import numpy as np
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
def test_the_same_bytes_come_to_disk(calls: list[tuple[Any, ...]], compress: str | None) -> None:
    """What a file reads as before each commit, and the whole filesystem after the last one."""
    sides = [bm.create("128M", seed=1, compress=compress) for _ in range(2)]
    for fs in sides:
        fs.create("f")
    for call in calls:
        for fs, told in zip(sides, (True, False), strict=True):
            _do(fs, call, told=told)
        one, other = (fs.read("f") for fs in sides)
        assert one == other
    for fs in sides:
        fs.sync()
    assert np.array_equal(*(np.frombuffer(fs.image.view, np.uint8) for fs in sides))
