# SPDX-License-Identifier: GPL-2.0-only
"""What the kernel takes for data that can be compressed, before it tries."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from btrfs_model.mount.files.compress_heuristic import _sorted, may_compress

PAGE = 4096
NOISE = random.Random(1).randbytes(4 * PAGE).replace(b"\0", b"\1")
TEXT = b"The quick brown fox jumps over the lazy dog. " * 400
STEPS = bytes((at + 2) % 256 for at in range(PAGE))


@pytest.mark.parametrize(
    ("data", "may"),
    [
        (bytes(4 * PAGE), True),
        (TEXT, True),
        (NOISE, False),
        (NOISE[: 2 * PAGE] * 2, True),  # the second half is the first one again
        (bytes(PAGE) + NOISE[:PAGE] + STEPS + NOISE[PAGE : 2 * PAGE], False),
        (bytes(PAGE + 256) + NOISE[:PAGE] + STEPS + NOISE[PAGE : 2 * PAGE - 256], True),
        (bytes(PAGE - 256) + NOISE[:PAGE] + STEPS + NOISE[PAGE : 2 * PAGE + 256], True),
    ],
    ids=["zeros", "text", "noise", "twice", "256 zeros", "272 zeros", "240 zeros"],
)
def test_what_may_be_compressed(data: bytes, may: bool) -> None:
    """Of 256 to 511 equal bytes in the sample the kernel's sort sees the lower eight bits alone."""
    assert may_compress(data) == may


@given(st.lists(st.integers(0, 8192), min_size=256, max_size=256))
def test_counts_are_sorted_but_for_some(counts: list[int]) -> None:
    seen = _sorted(counts)
    assert sorted(seen) == sorted(counts)
    if max(counts) in range(256, 512):
        counts, seen = ([count % 256 for count in some] for some in (counts, seen))
    if max(counts) > 1:
        assert seen == sorted(counts, reverse=True)
