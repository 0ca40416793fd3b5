# SPDX-License-Identifier: GPL-2.0-only
"""Items of the extent and csum trees beside those that the running kernel makes.

A filesystem is mounted, changed one step at a time and synced. What changed in its trees is told to
a writer that has nothing but an extent and a csum tree: which extents came and went, which
references. The items for it (which references are inline and in which order, where csum items begin
and end) are then the kernel's, byte for byte.
"""

import fcntl
import os
import random
import struct
import subprocess
from collections import Counter
from pathlib import Path

import live
import pytest
from space_image import (
    CSUM,
    DATA_REF,
    EXTENT,
    EXTENT_ITEM,
    SECTOR,
    SHARED_DATA,
    TRANSID,
    commit,
    image,
    inline_refs,
)

from btrfs_model.mount.tree_writer import TreeWriter
from btrfs_model.native.door import lib
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.tree import Tree

pytestmark = live.BESIDE_THE_KERNEL

SIZE = 512 << 20
DATA_START = 13 << 20
STEPS = 600 if os.environ.get("BTRFS_MODEL_TESTS") == "long" else 60
_CLONE_RANGE = struct.Struct("<qQQQ")
_CLONE_RANGE_NUMBER = 1 << 30 | _CLONE_RANGE.size << 16 | 0x94 << 8 | 13
_DATA = 1

Items = list[tuple[tuple[int, int, int], bytes]]


def extent_items(tree: Tree) -> Items:
    """Items of data extents, without generations."""
    found: Items = []
    for item in tree.items():
        key, data = tuple(item.key), bytes(item.data)
        if key[1] == EXTENT_ITEM and data[16] & _DATA:
            found.append((key, data[:8] + bytes(8) + data[16:]))
        elif key[1] in (DATA_REF, SHARED_DATA):
            found.append((key, data))
    return found


def csum_items(tree: Tree) -> Items:
    return [(tuple(item.key), bytes(item.data)) for item in tree.items()]


def references(items: Items) -> Counter[tuple[int, ...]]:
    """References of data: (bytenr, parent, root, inode, offset) and their counts."""
    found: Counter[tuple[int, ...]] = Counter()
    for (bytenr, kind, offset), data in items:
        if kind == EXTENT_ITEM:
            refs = inline_refs(data, 24)
        elif kind == DATA_REF:
            *fields, count = struct.unpack("<QQQI", data)
            refs = [((kind, *fields), count)]
        else:
            refs = [((kind, offset), struct.unpack("<I", data)[0])]
        for ref, count in refs:
            named = (ref[1], 0, 0, 0) if ref[0] == SHARED_DATA else (0, *ref[1:])
            found[bytenr, *named] += count
    return found


class Twin:
    """A writer that is told what changed between two states of the kernel's image."""

    def __init__(self, nodesize: int) -> None:
        groups = [(DATA_START, SIZE, _DATA), (1 << 30, 64 << 20, 4)]
        made = image(groups, nodesize)
        features = lib.BM_WRITER_SKINNY_METADATA
        self.writer = TreeWriter(made, made.buffer, transid=TRANSID, features=features)
        for group in groups:
            self.writer.add_group(*group)
        self.writer.new_tree(EXTENT)
        self.writer.new_tree(CSUM)
        commit(self.writer)
        self.extents: Items = []

    def follow(self, extents: Items, csums: Items) -> None:
        sizes = {key[0]: key[2] for key, _ in extents if key[1] == EXTENT_ITEM}
        old = {key[0]: key[2] for key, _ in self.extents if key[1] == EXTENT_ITEM}
        before, after = references(self.extents), references(extents)
        self.extents = extents
        new = sizes.keys() - old.keys()
        self.writer.occupy([(bytenr, sizes[bytenr]) for bytenr in sorted(new)], used=False)
        for ref, count in sorted((after - before).items()):
            row = (ref[0], sizes[ref[0]], *ref[1:])
            for _ in range(count):
                call = self.writer.alloc_data_ref if ref[0] in new else self.writer.inc_data_ref
                new.discard(ref[0])
                call([row])
        for bytenr in sorted(sizes.keys() - old.keys()):
            self.writer.insert_csums(bytenr, *sums_of(csums, bytenr, sizes[bytenr]))
        for ref, count in sorted((before - after).items()):
            self.writer.drop_data_ref([(ref[0], old[ref[0]], *ref[1:])] * count)
        commit(self.writer)


def sums_of(csums: Items, bytenr: int, size: int) -> tuple[bytes, int]:
    """Checksums of an extent and their number."""
    sums = b""
    for (_, _, start), data in csums:
        low, high = max(start, bytenr), min(start + len(data) // 4 * SECTOR, bytenr + size)
        if low < high:
            sums += data[(low - start) // SECTOR * 4 : (high - start) // SECTOR * 4]
    assert len(sums) == size // SECTOR * 4
    return sums, size // SECTOR


class Steps:
    """Changes of files on a mounted filesystem, one of which is one step."""

    def __init__(self, top: Path, choice: random.Random) -> None:
        self.top = top
        self.choice = choice
        self.count = 0
        self.work = top / "work"
        subprocess.run(["btrfs", "-q", "subvolume", "create", str(self.work)], check=True)

    def file(self) -> Path | None:
        files = sorted(self.work.glob("f*"))
        return self.choice.choice(files) if files else None

    def oldest(self) -> Path | None:
        return min(self.work.glob("f*"), default=None, key=lambda path: int(path.name[1:]))

    def snapshot(self) -> None:
        self.count += 1
        target = str(self.top / f"s{self.count}")
        subprocess.run(["btrfs", "-q", "subvolume", "snapshot", str(self.work), target], check=True)

    def write(self) -> None:
        self.count += 1
        size = self.choice.choice([1, 2, 7, 30, 64, 200]) * SECTOR
        (self.work / f"f{self.count}").write_bytes(self.choice.randbytes(size))

    def overwrite(self) -> None:
        path = self.file()
        if path:
            with path.open("r+b") as file:
                file.seek(self.choice.randrange(20) * SECTOR)
                file.write(self.choice.randbytes(self.choice.choice([1, 3, 9]) * SECTOR))

    def clone(self) -> None:
        # mostly of the oldest file, whose extents get many references
        source, target = self.choice.choice([self.file(), self.oldest()]), self.file()
        if not source or not target:
            return
        with source.open("rb") as origin, target.open("r+b") as file:
            at = (40 + self.choice.randrange(60)) * SECTOR
            length = min(source.stat().st_size, self.choice.choice([1, 5]) * SECTOR)
            argument = _CLONE_RANGE.pack(origin.fileno(), 0, length, at)
            fcntl.ioctl(file.fileno(), _CLONE_RANGE_NUMBER, argument)

    def delete(self) -> None:
        path = self.file()
        if path:
            path.unlink()


def run(
    folder: Path, nodesize: int, seed: int, kinds: list[str], files: int = 0
) -> tuple[int, int]:
    """Make files, then take steps; after each the items must be equal.

    Returns how many references were keyed at most, and how many by the address of a leaf.
    """
    path = folder / "live.img"
    with path.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run(["mkfs.btrfs", "-q", "-n", str(nodesize), str(path)], check=True)
    choice = random.Random(seed)
    twin, keyed, shared = Twin(nodesize), 0, 0
    with live.mounted(path, "max_inline=0,noatime,commit=300") as top:
        steps = Steps(top, choice)
        for _ in range(files):
            steps.write()
        for number in range(STEPS):
            getattr(steps, choice.choice(kinds))()
            subprocess.run(["btrfs", "filesystem", "sync", str(top)], check=True,
                           stdout=subprocess.DEVNULL)  # fmt: skip
            with Filesystem.open(path) as fs:
                extents, csums = extent_items(fs.tree(EXTENT)), csum_items(fs.tree(CSUM))
            twin.follow(extents, csums)
            where = f"seed {seed}, step {number}"
            assert extent_items(twin.writer.tree(EXTENT)) == extents, where
            # of files that are written together the kernel sums up one or the other first
            if not files:
                assert csum_items(twin.writer.tree(CSUM)) == csums, where
            keyed = max(keyed, sum(key[1] == DATA_REF for key, _ in extents))
            shared = max(shared, sum(ref[1] > 0 for ref in references(extents)))
    return keyed, shared


@pytest.mark.claim("Checksum items are the running kernel's.")
@pytest.mark.parametrize("nodesize", [4096, 16384])
def test_csum_items_of_the_running_kernel(nodesize: int, tmp_path: Path) -> None:
    run(tmp_path, nodesize, nodesize, ["write", "write", "write", "overwrite", "delete"])


@pytest.mark.claim("Extent items are the running kernel's.")
@pytest.mark.parametrize("nodesize", [4096, 16384])
def test_references_of_the_running_kernel(nodesize: int, tmp_path: Path) -> None:
    kinds = ["write", "overwrite", "delete", *["clone"] * 20]
    keyed, _ = run(tmp_path, nodesize, nodesize + 1, kinds)
    assert keyed or nodesize > SECTOR


def test_references_of_snapshots(tmp_path: Path) -> None:
    kinds = ["write", "write", "overwrite", "delete", "snapshot", "clone", "clone"]
    # enough files for several leaves: a tree of one leaf shares nothing
    assert run(tmp_path, 16384, 5, kinds, files=150)[1]


def data_extents(path: Path) -> dict[int, int]:
    """Address and length of each data extent of an image."""
    with Filesystem.open(path) as fs:
        return {key[0]: key[2] for key, _ in extent_items(fs.tree(EXTENT)) if key[1] == EXTENT_ITEM}


@pytest.mark.claim("Data extents lie where the running kernel puts them.")
def test_data_is_put_where_the_running_kernel_puts_it(tmp_path: Path) -> None:
    """New files, one a transaction: in the largest free range, the first of those."""
    path = tmp_path / "live.img"
    with path.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run(["mkfs.btrfs", "-q", str(path)], check=True)
    with Filesystem.open(path) as fs:
        items = [(item.key, bytes(item.data)) for item in fs.tree(EXTENT).items()]
    kind = lib.BTRFS_BLOCK_GROUP_ITEM_KEY
    start, length = next((k[0], k[2]) for k, data in items if k[1] == kind and data[16] & _DATA)
    made = image([(start, length, _DATA)], 16384)
    writer = TreeWriter(made, made.buffer, transid=TRANSID, features=0)
    writer.add_group(start, length, _DATA)
    choice, known = random.Random(3), dict[int, int]()
    with live.mounted(path, "max_inline=0,noatime,commit=300") as top:
        for number in range(STEPS):
            files = sorted(top.iterdir())
            if files and choice.random() < 0.4:
                choice.choice(files).unlink()
            else:
                # up to 128 KiB: kernels keep larger extents in block groups of their own
                data = choice.randbytes(choice.choice([1, 2, 5, 16, 32]) * SECTOR)
                (top / f"f{number}").write_bytes(data)
            subprocess.run(["btrfs", "filesystem", "sync", str(top)], check=True,
                           stdout=subprocess.DEVNULL)  # fmt: skip
            found = data_extents(path)
            for bytenr in found.keys() - known.keys():
                size = found[bytenr]
                assert writer.reserve_data(size, size) == (bytenr, size), f"step {number}"
            for bytenr in known.keys() - found.keys():
                writer.release_data(bytenr, known[bytenr])
            known = found
