# SPDX-License-Identifier: GPL-2.0-only
"""Sends of images with damage behind right checksums: an error or a stream, the same from both."""

from collections.abc import Iterator
from typing import Any

import corpus
import pytest
from damage import Broken
from hypothesis import given, settings
from hypothesis import strategies as st

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.native.choice import select
from btrfs_model.questions.send.ioctl import send
from btrfs_model.stream.reader import read_stream
from btrfs_model.volume.filesystem import Filesystem

# compressed extents, clones, holes, xattrs, hard links; small nodes
CASE = "send/random/seed-011"
ASKS = [ask for ask, kernel, _ in corpus.records(CASE) if kernel == "6.18" and ask["proto"] != 2]


@pytest.fixture(scope="module")
def sound() -> Iterator[Broken]:
    yield Broken(corpus.image(CASE))


def outcome(fs: Filesystem, ask: dict[str, Any], behaviour: str) -> Any:
    """The stream, or the error and what was sent before it."""
    try:
        return send(fs, ask["snap"], ask["parent"], ask["clones"], behaviour=behaviour).data
    except (BtrfsModelError, OSError) as error:
        return type(error), str(error), getattr(error, "partial", None)


def both(broken: Broken, ask: dict[str, Any], behaviour: str) -> Any:
    results = []
    for kernels in ("c", "python"):
        with select(kernels):  # type: ignore[arg-type]
            try:
                fs = broken.fs()
            except (BtrfsModelError, OSError) as error:
                results.append((type(error), str(error)))
                continue
            results.append(outcome(fs, ask, behaviour))
    assert results[0] == results[1]
    return results[0]


@pytest.mark.claim("A send of a damaged image is an error or a stream, the same in C and Python.")
@settings(deadline=None, max_examples=settings.default.max_examples // 2)
@given(data=st.data())
def test_damaged_blocks(sound: Broken, data: st.DataObject) -> None:
    ask = data.draw(st.sampled_from(ASKS))
    fs = sound.fs()
    names = {ask["snap"], ask["parent"] or ask["snap"], *ask["clones"]}
    trees = [2, 7, *sorted(fs.subvolume(name).id for name in names)]
    blocks = fs.tree(data.draw(st.sampled_from(trees))).blocks()
    block = data.draw(st.sampled_from(blocks))
    used = 101 + block.nritems * 25
    where = st.one_of(
        st.integers(101, min(used, sound.nodesize) - 1),
        st.integers(sound.nodesize - block.used, sound.nodesize - 1),
    )
    changes = data.draw(st.lists(st.tuples(where, st.integers(0, 255)), min_size=1, max_size=3))
    behaviour = data.draw(st.sampled_from(["v5.10.46", "v6.1.176", "v6.18.44"]))
    ranges = [(start, sound.nodesize) for start in sound.copies(block.logical)]
    with sound.restored(*ranges):
        for offset, value in changes:
            sound.write(block.logical, offset, bytes([value]))
        result = both(sound, ask, behaviour)
    if isinstance(result, bytes):
        list(read_stream(result))
    elif result[-1] and isinstance(result[-1], bytes):
        # what was sent before an error is whole commands
        list(read_stream(result[-1]))
