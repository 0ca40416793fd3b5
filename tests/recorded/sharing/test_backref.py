# SPDX-License-Identifier: GPL-2.0-only
"""Backref walks: judged by kernels' answers, order and counts, and the C walk by its twin."""

import errno
import json
import math
import mmap
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import corpus
import logical_ino as live
import mounts
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from btrfs_model.backref import api as br
from btrfs_model.backref.walk import BackrefWalk
from btrfs_model.base.counters import counting
from btrfs_model.base.errors import CorruptImageError
from btrfs_model.kernels.inside import ioctls
from btrfs_model.kernels.native import why_not
from btrfs_model.native.choice import Choice, select
from btrfs_model.native.door import ffi, lib, new_fault, raise_fault
from btrfs_model.ondisk.hashes import csum
from btrfs_model.ondisk.items import InlineExtent, file_extent
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import RawExtentItem, RawFileExtent
from btrfs_model.reference.backref import iterate_extent_inodes as walk_up
from btrfs_model.reference.backref_prelim import InodeElem, PrefTree, PrelimRef, Ulist
from btrfs_model.volume.ctree import block_key, item_data
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.forest import Forest
from btrfs_model.volume.image import Image

RANDOM = live.CASES
BOTH: tuple[Choice, ...] = ("c", "python")
ENOENT = -errno.ENOENT

U64 = st.integers(0, 2**64 - 1)


@pytest.fixture
def fs(request: pytest.FixtureRequest) -> Iterator[Filesystem]:
    """The filesystem of the case that the test is parametrized with."""
    with Filesystem.open(corpus.image(request.param)) as filesystem:
        yield filesystem


def rows(forest: Forest, logical: int, ignore_offset: bool) -> list[list[int]]:
    table = br.logical_ino(forest, logical, ignore_offset=ignore_offset)
    assert list(table.columns) == ["inum", "offset", "root"]
    return [[int(value) for value in row] for row in table.to_numpy()]


def by_root(refs: list[list[int]]) -> list[list[int]]:
    return sorted(refs, key=lambda ref: (ref[2], ref[0], ref[1]))


# ---------------------------------------------------------------------- kernels as judges -----


@pytest.mark.claim("LOGICAL_INO answers what kernels answered, also in the middle of a balance.")
@pytest.mark.parametrize("name", RANDOM)
def test_logical_ino_of_the_corpus(name: str) -> None:
    """All answers of five kernels about random images with snapshots and reflinks."""
    with Filesystem.open(corpus.image(name)) as fs:
        forest = fs.forest()
        asked = 0
        for kernel in ("5.10", "6.1", "6.12", "6.18", "7.2"):
            if not corpus.has(name, f"fiemap.{kernel}.json.zst"):
                continue
            for logical, ignore_offset, refs in live.questions(name, kernel):
                assert by_root(rows(forest, logical, ignore_offset)) == refs, (kernel, logical)
                asked += 1
        assert asked


@pytest.mark.claim("Back references are found in the kernel's order.")
@pytest.mark.parametrize("kernels", BOTH)
def test_order_of_a_kernel(kernels: Choice) -> None:
    """The corpus sorted its answers; these are in the order in which a kernel gave them."""
    recorded = json.loads(zstandard.decompress(live.ANSWERS.read_bytes()))
    unsorted = 0
    with select(kernels):
        for name, answers in recorded["answers"].items():
            with Filesystem.open(corpus.image(name)) as fs:
                forest = fs.forest()
                for logical, ignore_offset, refs in answers:
                    assert rows(forest, logical, ignore_offset) == refs, (name, logical)
                    unsorted += refs != by_root(refs)
    assert unsorted > 100


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("name", [*RANDOM[:3], RANDOM[-1]])
def test_order_of_the_running_kernel(name: str) -> None:
    with (
        Filesystem.open(corpus.image(name)) as fs,
        mounts.mounted(corpus.image(name), "ro") as folder,
    ):
        forest = fs.forest()
        for logical, ignore_offset, _ in live.questions(name, "6.18"):
            refs = ioctls.logical_ino(folder, logical, ignore_offset)
            assert rows(forest, logical, ignore_offset) == refs


COUNTED = [
    "add_prelim_ref",
    "btrfs_find_all_leafs",
    "btrfs_find_all_roots_safe",
    "btrfs_next_old_item",
    "btrfs_previous_extent_item",
    "btrfs_search_old_slot",
    "check_extent_in_eb",
    "extent_from_logical",
    "find_parent_nodes",
    "is_shared_data_backref",
    "iterate_extent_inodes",
    "prelim_ref_compare",
    "prelim_ref_insert",
    "ulist_add",
    "ulist_add_merge",
]


def kernel_counts(name: str, kernel: str) -> dict[str, int]:
    """Calls by function; the compiler's parts and clones of a function count as that function."""
    total: dict[str, int] = {}
    for symbol, count in corpus.case(name)["kernels"][kernel]["counts"].items():
        function = symbol.partition(".")[0]
        total[function] = total.get(function, 0) + count
    return total


def data_extents(fs: Filesystem, subvolume: int) -> list[RawFileExtent]:
    first, last = (0, 0, 0), (2**64 - 1, 255, 2**64 - 1)
    items = [
        file_extent(item.data)
        for item in fs.tree(subvolume).items(first, last)
        if item.key.type == ItemType.EXTENT_DATA
    ]
    return [item for item in items if not isinstance(item, InlineExtent) and item.disk_bytenr]


@pytest.mark.claim("The counted backref walks of a full send equal probes in three kernels.")
@pytest.mark.parametrize(
    ("name", "kernels"),
    [(name, "c") for name in corpus.cases("counts/W2")] + [("counts/W2/N500", "python")],
)
def test_calls_of_a_full_send(name: str, kernels: Choice) -> None:
    """Each function is called as often as in the send of a snapshot, where clones are sought.

    5.10 and 6.1 look each extent up and walk to the end; 6.12 stops at the extent item, which has
    one reference.
    """
    with Filesystem.open(corpus.image(name)) as fs, select(kernels):
        (sent,) = (subvolume for subvolume in fs.subvolume_ids if subvolume != 5)
        forest = fs.forest(opened=[sent])
        extents = data_extents(fs, sent)
        with counting() as before:
            for item in extents:
                extent = br.extent_from_logical(forest, item.disk_bytenr, restart=True)
                assert extent is not None
                br.iterate_extent_inodes(
                    forest, extent.key.objectid, extent_item_pos=item.offset, restart=True
                )
        with counting() as after:
            for item in extents:
                ask = BackrefWalk(
                    forest=forest,
                    bytenr=item.disk_bytenr,
                    check_extent_item=lambda _, item: ENOENT if item.refs == 1 else 0,
                )
                run(ask, kernels)
    for kernel in ("5.10", "6.1"):
        wanted = kernel_counts(name, kernel)
        assert {name: before[name] for name in COUNTED} == {name: wanted[name] for name in COUNTED}
    wanted = kernel_counts(name, "6.12")
    # send itself steps from item to item too
    ours = [name for name in COUNTED if name != "btrfs_next_old_item"]
    assert {name: after[name] for name in ours} == {name: wanted.get(name, 0) for name in ours}


# ----------------------------------------------------------------------- the C and the twin ---


class Outcome(NamedTuple):
    """What a walk reported, in order, and how it ended."""

    refs: list[tuple[int, ...]]
    stored: list[tuple[int, list[int]]]
    error: tuple[Any, ...]
    work: dict[str, int]


def run(ask: BackrefWalk, kernels: Choice) -> Outcome:
    """Walk, with the callbacks of `ask`; a callback ``iterate`` is told of and then asked."""
    refs: list[tuple[int, ...]] = []
    stored: list[tuple[int, list[int]]] = []

    def iterate(*ref: int) -> int:
        refs.append(ref)
        return ask.iterate(*ref) if ask.iterate else 0

    def store(leaf: int, roots: list[int]) -> None:
        stored.append((leaf, roots))
        if ask.cache_store:
            ask.cache_store(leaf, roots)

    logged = replace(ask, iterate=iterate, cache_store=store)
    error: tuple[Any, ...] = ()
    with counting() as work:
        try:
            if kernels == "c":
                with ask.forest.image.lease:
                    run_c(logged)
            else:
                with select("python"):
                    walk_up(logged)
        except CorruptImageError as corrupt:
            error = (corrupt.errno, corrupt.fault)
        except OSError as other:
            error = (other.errno,)
    return Outcome(refs, stored, error, dict(work))


def run_c(ask: BackrefWalk) -> None:
    """The C walk with the callbacks of Python."""
    roots = ffi.new("uint64_t[64]")

    def lookup(leaf: int, _: Any, out: Any, count: Any) -> int:
        known = ask.cache_lookup(leaf) if ask.cache_lookup else None
        if known is None:
            return 0
        roots[0 : len(known)] = known
        out[0], count[0] = roots, len(known)
        return 1

    def check(bytenr: int, item: Any, _: Any) -> int:
        assert ask.check_extent_item
        return ask.check_extent_item(bytenr, RawExtentItem(item.refs, item.generation, item.flags))

    def skip(root: int, ino: int, offset: int, _: Any) -> int:
        assert ask.skip_data_ref
        return ask.skip_data_ref(root, ino, offset)

    def store(leaf: int, found: Any, count: int, _: Any) -> int:
        assert ask.cache_store
        ask.cache_store(leaf, list(ffi.unpack(found, count)))
        return 0

    def iterate(ino: int, offset: int, num_bytes: int, root: int, _: Any) -> int:
        assert ask.iterate
        said = ask.iterate(ino, offset, num_bytes, root)
        if said >= 0:
            return said
        fault.code, fault.found = lib.BM_ERRNO, -said
        return int(lib.BM_ERRNO)

    fault = new_fault()
    no_restart = 0 if ask.restart else 1 << lib.BM_TOGGLE_SEARCH_NO_RESTART
    skip_iterations = 1 << lib.BM_TOGGLE_SEND_BACKREF_SKIP if ask.iterate_cached else 0
    fields: dict[str, Any] = {
        "forest": ask.forest.native.raw,
        "bytenr": ask.bytenr,
        "extent_item_pos": ask.extent_item_pos,
        "ignore_extent_item_pos": ask.ignore_extent_item_pos,
        "behaviour": no_restart | skip_iterations,
    }
    wanted = {
        "check_extent_item": (check, ask.check_extent_item),
        "skip_data_ref": (skip, ask.skip_data_ref),
        "cache_lookup": (lookup, ask.cache_lookup),
        "cache_store": (store, ask.cache_store),
        "iterate": (iterate, ask.iterate),
    }
    kinds = dict(ffi.typeof("struct bm_backref_walk").fields)
    for field, (function, given_) in wanted.items():
        if given_ is not None:
            fields[field] = ffi.callback(kinds[field].type, function)
    if lib.bm_iterate_extent_inodes(ffi.new("struct bm_backref_walk *", fields), fault) < 0:
        raise_fault(ask.forest.image.path, fault)


def all_data_extents(fs: Filesystem) -> list[int]:
    items = fs.tree(2).items()
    return [
        item.key.objectid
        for item in items
        if item.key.type == ItemType.EXTENT_ITEM and item.data[16] & lib.BTRFS_EXTENT_FLAG_DATA
    ]


@pytest.mark.claim(
    "Backref walks of C and Python find the same, in the same order, with the same counts.",
    judge="twins",
)
@pytest.mark.parametrize("name", RANDOM[:8])
def test_c_equals_python(name: str) -> None:
    """The same references, leaves and roots in the same order, with the same counts."""
    with Filesystem.open(corpus.image(name)) as fs:
        forest = fs.forest(opened=fs.subvolume_ids[::2])
        for bytenr in all_data_extents(fs)[:60]:
            seen = []
            for kernels in BOTH:
                with select(kernels), counting() as work:
                    leafs = br.find_all_leafs(forest, bytenr)
                    roots = [br.find_all_roots(forest, block) for block in (bytenr, *leafs)]
                    refs = br.iterate_extent_inodes(forest, bytenr, ignore_extent_item_pos=True)
                    extent = br.extent_from_logical(forest, bytenr + 4095)
                seen.append((leafs, roots, refs, extent, dict(work)))
            assert seen[0] == seen[1]
            # a leaf of relocation trees alone is in no subvolume
            assert seen[0][0] and seen[0][1][0]
            assert all(seen[0][1]) or name in corpus.cases("balance")


@pytest.mark.parametrize("name", RANDOM[:2])
def test_cold_cache(name: str) -> None:
    """Both read the same blocks in the same order; before 5.19 searches start again."""
    for restart in (False, True):
        seen = []
        for kernels in BOTH:
            with Filesystem.open(corpus.image(name)) as fs, select(kernels):
                forest = fs.forest()
                extents = all_data_extents(fs)[::20]
                fs.image.start_cold()
                with counting() as work:
                    for bytenr in extents:
                        br.extent_from_logical(forest, bytenr, restart=restart)
                        br.iterate_extent_inodes(forest, bytenr, restart=restart)
                seen.append((dict(work), fs.image.stop_cold().tolist()))
        assert seen[0] == seen[1]
        assert seen[0][1]


@pytest.mark.parametrize("fs", ["fiemap-random/s05"], indirect=True)
@settings(max_examples=60)
@given(data=st.data())
def test_callbacks(fs: Filesystem, data: st.DataObject) -> None:
    """Whatever the callbacks answer, both walks ask them the same and report the same."""
    forest = fs.forest(opened=fs.subvolume_ids)
    extents = all_data_extents(fs)
    limit = data.draw(st.sampled_from([0, 1, 3, 10**6]), "refs that are too many")
    skipped = data.draw(st.sampled_from([0, 257, 258]), "inode of which references are skipped")
    ends = data.draw(st.sampled_from([0, 0, 1, 2, 5]), "which reference ends the walk")
    answer = data.draw(st.sampled_from([1, 5, ENOENT, -errno.EIO]), "how it ends")
    known = data.draw(st.sampled_from([None, 0, 1, 2]), "leaves with known roots")
    walk = BackrefWalk(
        forest=forest,
        bytenr=data.draw(st.sampled_from(extents), "extent"),
        extent_item_pos=data.draw(st.sampled_from([0, 4096, 40960])),
        ignore_extent_item_pos=data.draw(st.booleans()),
        iterate_cached=data.draw(st.booleans()),
    )
    if limit:
        walk.check_extent_item = lambda _, item: ENOENT if item.refs > limit else 0
    if skipped:
        walk.skip_data_ref = lambda _root, ino, _offset: ino == skipped
    outcomes = []
    for kernels in BOTH:
        cache: dict[int, list[int]] = {}
        left = iter([0] * (ends - 1) + [answer] if ends else [])
        walk.iterate = lambda *_, left=left: next(left, 0)
        if known is not None:
            walk.cache_store = cache.__setitem__
            walk.cache_lookup = lambda leaf, cache=cache: (
                [5, 256][: leaf // 16384 % 3] if leaf // 16384 % 3 < known else cache.get(leaf)
            )
        outcomes.append([run(walk, kernels), run(walk, kernels)])
    assert outcomes[0] == outcomes[1]


Edit = tuple[int, int, int, bytes]
EXTREMES = [b"\0" * 8, b"\xff" * 8, b"\xb0", b"\xb2", b"\xb6", b"\xb8", b"\xac", b"\x10", b"\1"]


class Damaged:
    """A private copy of an image in memory whose tree blocks can be changed and restored."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        image = Image(self.buffer, str(path))
        fs = Filesystem(image)
        self.nodesize, self.csum_type = image.nodesize, image.superblock.csum_type
        # those of the extent tree several times, since there is most to break
        self.blocks = [block.logical for block in fs.tree(2).blocks()] * 3
        for subvolume in fs.subvolume_ids:
            self.blocks += [block.logical for block in fs.tree(subvolume).blocks()]
        self.places = {block: image.map(block)[0] for block in self.blocks}
        # data extents by what leads to them: their own address, and that of a leaf
        self.extents: dict[int, int] = {bytenr: bytenr for bytenr in all_data_extents(fs)}
        for subvolume in fs.subvolume_ids:
            for item in fs.tree(subvolume).items():
                if item.key.type == ItemType.EXTENT_DATA:
                    extent = file_extent(item.data)
                    if not isinstance(extent, InlineExtent) and extent.disk_bytenr:
                        self.extents.setdefault(item.block, extent.disk_bytenr)

    def block(self, index: int) -> memoryview:
        start = self.places[self.blocks[index % len(self.blocks)]]
        return memoryview(self.buffer)[start : start + self.nodesize]

    def concerned(self, index: int, item: int) -> int | None:
        """A data extent of which the walk comes to that item."""
        block = self.block(index)
        count = int.from_bytes(block[96:100], "little")
        if block[100] or not count:
            return None
        objectid, kind, _ = block_key(block, item % count)
        if kind == ItemType.EXTENT_DATA:
            extent = file_extent(item_data(block, item % count))
            return None if isinstance(extent, InlineExtent) else extent.disk_bytenr
        return self.extents.get(objectid)

    def apply(self, edit: Edit) -> None:
        """Change bytes of an item's payload, or move its end, and make the checksum right."""
        index, item, byte, value = edit
        block = self.block(index)
        count = int.from_bytes(block[96:100], "little")
        at = 101 + byte % 512
        if count and not block[100]:
            at = 101 + item % count * 25
            offset, size = struct.unpack_from("<II", block, at + 17)
            if not value and item % count + 1 < count:
                # the next item takes over the first bytes of this one
                given = byte % (size + 1)
                block[at + 17 : at + 25] = struct.pack("<II", offset + given, size - given)
                (following,) = struct.unpack_from("<I", block, at + 46)
                block[at + 46 : at + 50] = struct.pack("<I", following + given)
            at = 101 + offset + byte % max(size, 1)
        value = value[: self.nodesize - at]
        block[at : at + len(value)] = value
        digest = csum(self.csum_type, block[32:])
        block[: len(digest)] = digest

    def outcomes(self, extents: Iterable[int]) -> Iterator[list[Outcome]]:
        """What both walks say about extents."""
        images = [Image(self.buffer, "damaged") for _ in BOTH]
        try:
            forests = [Filesystem(image).forest() for image in images]
        except CorruptImageError:
            return
        for bytenr in extents:
            yield [
                run(BackrefWalk(forest=forest, bytenr=bytenr, restart=True), kernels)
                for forest, kernels in zip(forests, BOTH, strict=True)
            ]


@pytest.fixture(scope="module")
def damaged() -> Damaged:
    return Damaged(corpus.image("fiemap-random/s13"))


EDITS = st.lists(
    st.tuples(
        st.integers(0, 1000),
        st.integers(0, 300),
        st.integers(0, 80),
        st.sampled_from(EXTREMES) | st.binary(max_size=4),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=200)
@given(edits=EDITS)
def test_damage(damaged: Damaged, edits: list[Edit]) -> None:
    """On damaged images both walks end, with the same references and the same fault."""
    touched = {index: bytes(damaged.block(index)) for index, *_ in edits}
    extents = {damaged.concerned(index, item) for index, item, *_ in edits} - {None}
    try:
        for edit in edits:
            damaged.apply(edit)
        for in_c, in_python in damaged.outcomes(sorted(filter(None, extents))):
            assert in_c._replace(work={}) == in_python._replace(work={})
            if not in_c.error:
                assert in_c.work == in_python.work
    finally:
        for index, before in touched.items():
            damaged.block(index)[:] = before


# ------------------------------------------------------------------------------- containers ---

REFS = st.lists(
    st.builds(
        PrelimRef,
        level=st.integers(0, 3),
        wanted=st.just(1),
        count=st.integers(0, 3),
        root_id=st.integers(0, 3),
        key=st.tuples(st.integers(256, 258), st.just(108), st.sampled_from([0, 4096, 2**64 - 1])),
        parent=st.sampled_from([0, 16384, 32768]),
        elems=st.lists(st.builds(InodeElem, U64, U64, U64), max_size=2),
    ),
    max_size=200,
)


@given(REFS)
def test_prelim_refs_descend_and_merge(refs: list[PrelimRef]) -> None:
    merged: dict[tuple[int, ...], tuple[int, list[InodeElem]]] = {}
    for ref in refs:
        count, elems = merged.get(ref.order(), (0, []))
        merged[ref.order()] = count + ref.count, elems + ref.elems
    tree = PrefTree()
    with counting() as work:
        for ref in refs:
            tree.prelim_ref_insert(replace(ref, elems=list(ref.elems)))
    found = list(tree)
    assert [ref.order() for ref in found] == sorted(merged, reverse=True)
    assert [(ref.count, ref.elems) for ref in found] == [merged[ref.order()] for ref in found]
    assert work["prelim_ref_insert"] == len(refs)
    # a red-black tree of n nodes is at most 2 log2(n + 1) high
    assert work["prelim_ref_compare"] <= len(refs) * 2 * math.log2(len(merged) + 1)
    leaves = {ref.parent for ref in found if not any((ref.level, ref.root_id, *ref.key))}
    assert all(tree.is_shared_data_backref(leaf) == (leaf in leaves) for leaf in (16384, 32768))


@given(st.lists(st.integers(0, 40)))
def test_ulist_keeps_the_order_of_addition(values: list[int]) -> None:
    ulist = Ulist()
    with counting() as work:
        for value in values:
            known = value in ulist.values()
            node, new = ulist.add_merge(value)
            assert node.val == value and new != known
    assert ulist.values() == list(dict.fromkeys(values))
    assert work["ulist_add_merge"] == len(values)


# -------------------------------------------------------------------------------- refusals ----


@pytest.mark.parametrize("kernels", BOTH)
@pytest.mark.parametrize("fs", RANDOM[:1], indirect=True)
def test_no_data_extent_there(fs: Filesystem, kernels: Choice) -> None:
    forest = fs.forest()
    last = max(all_data_extents(fs))
    with select(kernels):
        for logical in (0, 1, 2**40, 2**64 - 1, fs.tree(5).bytenr):
            with pytest.raises(FileNotFoundError) as caught:
                br.logical_ino(forest, logical)
            assert caught.value.errno == errno.ENOENT
        assert br.iterate_extent_inodes(forest, last + 4096) == []
        assert br.find_all_leafs(forest, 4096) == []


def test_forest_needs_an_extent_tree(small_image: Path) -> None:
    with Filesystem.open(small_image) as fs, pytest.raises(CorruptImageError, match="missing"):
        Forest(fs.image, {5: fs.tree(5)})
