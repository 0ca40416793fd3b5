# SPDX-License-Identifier: GPL-2.0-only
"""Limits of kernels: each changes the work that it is about, in C and in Python alike."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest

import btrfs_model as bm
from btrfs_model.base.counters import counting
from btrfs_model.limits import Limits
from btrfs_model.native.choice import select

SOURCES = ["old0", "old1", "old2"]
EXTENT = 4096


@pytest.fixture(scope="module")
def fs() -> Iterator[bm.Filesystem]:
    """A filesystem in which every cache of a send and of FIEMAP is of use."""
    with bm.create("512M", nodesize=4096) as made:
        for number in range(6):
            made.mkdir(f"d{number}")
        for number in range(24):
            made.create(f"d{number % 6}/f{number}")
        # directories with entries that were made before them
        for number in range(4):
            made.create(f"early{number}")
        for number in range(4):
            made.mkdir(f"late{number}")
            made.rename(f"early{number}", f"late{number}/early{number}")
        # extents that are shared with another file
        made.create("data")
        for number in range(40):
            made.write("data", 2 * number * EXTENT, b"x" * EXTENT)
            made.flush_delalloc()
        made.create("copy")
        made.clone_range("data", "copy", 0, 0, 0)
        for name in (*SOURCES, "snap1"):
            made.snapshot("", name)
        for number in range(24):
            made.rename(f"d{number % 6}/f{number}", f"d{(number + 1) % 6}/g{number}")
        made.snapshot("", "snap2")
        # a file that refers to four extents by turns
        made.create("turns")
        for number in range(40):
            if number < 4:
                made.write("turns", 2 * number * EXTENT, b"x" * EXTENT)
                made.flush_delalloc()
            made.clone_range("turns", "turns", 2 * (number % 4) * EXTENT,
                             (101 + 2 * number) * EXTENT, EXTENT)  # fmt: skip
        # trees with nodes above nodes
        made.create_subvolume("wide")
        made.create_files("wide", [f"file-{number:05}" for number in range(4000)])
        made.snapshot("wide", "wide1")
        made.rename("wide/file-00500", "wide/renamed")
        made.snapshot("wide", "wide2")
        made.commit()
        yield made


def whole(fs: bm.Filesystem, **how: Any) -> list[object]:
    sent = bm.send(fs, "snap2", clone_sources=SOURCES, **how)
    return [sent.data, dict(sent.work)]


def difference(fs: bm.Filesystem, **how: Any) -> list[object]:
    sent = bm.send(fs, "snap2", "snap1", ["snap1"], **how)
    return [sent.data, dict(sent.work)]


def mapped(fs: bm.Filesystem, **how: Any) -> list[object]:
    with counting() as work:
        table = bm.fiemap(fs, "", "turns", **how)
    return [table.to_numpy().tolist(), dict(work)]


def walked(fs: bm.Filesystem, **how: Any) -> list[object]:
    return [bm.reads(fs, "wide2", **how).to_numpy().tolist()]


def compared(fs: bm.Filesystem, **how: Any) -> list[object]:
    return [bm.reads(fs, "wide2", parent="wide1", **how).to_numpy().tolist()]


# What asks for each, a kernel that has it, and a value beside that kernel's.
TURNED: dict[str, tuple[Callable[..., list[object]], str, int]] = {
    "distance": (walked, "v5.13 - send-reada-always", 0),
    "near": (walked, "v5.13 - send-reada-always", 0),
    "always_leaves": (walked, "v6.18", 4096),
    "always_nodes": (walked, "v6.18", 1 << 20),
    "compare_leaves": (compared, "v6.18", 4096),
    "compare_nodes": (compared, "v6.18", 0),
    "siblings": (walked, "v6.18", 0),
    "name_cache": (difference, "v6.18", 1),
    "name_cache_kept": (difference, "v6.2", 1),
    "dir_created_cache": (whole, "v6.18", 1),
    "dir_utimes_cache": (difference, "v6.18", 1),
    "backref_cache": (whole, "v6.18", 1),
    "backref_cache_roots": (whole, "v6.18", 1),
    "clone_refs": (whole, "v6.18", 1),
    "fiemap_entries": (mapped, "v6.18", 2),
    "fiemap_prev_extents": (mapped, "v6.18", 1),
}
# too few names to fill the cache of kernels
BESIDE = {"name_cache_kept": {"name_cache": 8}}


@pytest.mark.claim(
    "Each limit of a kernel (sizes of caches, windows of readahead) changes the counted work, in C "
    "and in Python alike."
)
@pytest.mark.parametrize("name", TURNED)
def test_a_limit_changes_the_work(fs: bm.Filesystem, name: str) -> None:
    ask, behaviour, value = TURNED[name]
    beside, found = BESIDE.get(name, {}), []
    for kernels in ("c", "python"):
        with select(kernels):
            found.append(ask(fs, behaviour=behaviour, limits={**beside, name: value}))
    assert found[0] == found[1]
    assert found[0] != ask(fs, behaviour=behaviour, limits=beside)


def test_every_limit_is_turned() -> None:
    assert set(TURNED) == {one.name for one in fields(Limits)}


@pytest.mark.parametrize(
    ("behaviour", "refs", "roots"), [("v6.18", 1024, 17), ("v6.2", 1024, 12), ("v5.10", 64, 12)]
)
def test_the_kernels_own_limits_follow_from_its_toggles(
    fs: bm.Filesystem, behaviour: str, refs: int, roots: int
) -> None:
    chosen = Limits().of_kernel(bm.Behaviour.parse(behaviour))
    assert (chosen.clone_refs, chosen.backref_cache_roots) == (refs, roots)
    named = {"clone_refs": refs, "backref_cache_roots": roots}
    assert whole(fs, behaviour=behaviour, limits=named) == whole(fs, behaviour=behaviour)


@pytest.mark.parametrize("wrong", [{"name_cache": 0}, {"clone_refs": 1 << 24}, {"near": -1}])
def test_a_limit_has_a_range(fs: bm.Filesystem, wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"limits: {name} is -?\d+, which is not in "):
        bm.send(fs, "snap1", limits=wrong)
