# SPDX-License-Identifier: GPL-2.0-only
"""Which items share a leaf: the writer beside a kernel that was given the same changes.

Extended attributes go into the tree of a subvolume and out of it at once, one item at a time; new
files put three items there at once and their DIR_INDEX items, as one batch, when they are synced; a
file that is unlinked is evicted with its attributes. So the kernel's searches, splits and pushes
follow from the order of calls. The layouts in ``data/leaf_layouts.json.zst`` are what Linux 6.18
made; where there is a kernel to ask, it is asked about further ones.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import bare
import corpus
import pytest
import zstandard
from live import beside_the_kernel, mounted

import btrfs_model as bm
from btrfs_model.mount.tree_writer import TreeWriter
from btrfs_model.ondisk.hashes import name_hash
from btrfs_model.volume.tree import Tree

RECORDED = corpus.TEST_DATA / "leaf_layouts.json.zst"
INO = 257
INODE_ITEM, INODE_REF, XATTR_ITEM, DIR_ITEM, DIR_INDEX = 1, 12, 24, 84, 96
ORPHAN_ITEM, ORPHAN = 48, 2**64 - 5
BATCH = 100
FILES = ("file", "second", "third")


class Case(NamedTuple):
    """What the changes follow from."""

    seed: int
    nodesize: int
    count: int
    what: str = "attributes"


CASES = [
    Case(1, 4096, 9000),
    Case(2, 16384, 16000),
    Case(3, 4096, 16000),
    Case(4, 16384, 4000, "files"),
    Case(5, 4096, 9000, "eviction"),
]


LIVE_CASES = [
    Case(11, 4096, 3000),
    Case(12, 8192, 5000),
    Case(13, 16384, 1500, "files"),
    Case(14, 4096, 4000, "eviction"),
]


def dice(seed: int) -> Callable[[int], int]:
    """Return a source of numbers below a limit that is the same everywhere and for ever."""
    state = seed

    def below(limit: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % limit

    return below


def file_names(case: Case) -> list[list[bytes]]:
    """Names of files to make, those of a batch (less than an asynchronous flush takes) together."""
    below = dice(case.seed)
    names = [b"%d" % index + b"x" * below(60) for index in range(case.count)]
    return [names[at : at + BATCH] for at in range(0, case.count, BATCH)]


def changes(case: Case) -> Iterator[tuple[int, bytes, int]]:
    """File, name and size of attributes to set, -1: to remove. They grow, shrink, grow again."""
    below = dice(case.seed)
    names: list[tuple[int, bytes]] = []
    for step in range(case.count):
        growing = step * 6 // case.count % 3 != 2
        if not names or below(100) < (96 if growing else 12):
            name = b"user.%d" % (below(10**6) * case.count + step)
            file = step % 3 if case.what == "eviction" else 0
            names.append((file, name))
            yield file, name, (10, 50, 100, 200, below(case.nodesize // 8))[below(5)]
        else:
            index = below(len(names))
            names[index], names[-1] = names[-1], names[index]
            yield *names.pop(), -1


def layout(tree: Tree) -> list[list[int]]:
    """Level, number of items, first key and bytes used of each block, in order."""
    return [[block.level, block.nritems, *block.first, block.used] for block in tree.blocks()]


def change_live(case: Case, root: Path) -> None:
    """Make the changes in a mounted filesystem."""
    if case.what == "files":
        for names in file_names(case):
            for name in names:
                os.close(os.open(os.fsencode(root) + b"/" + name, os.O_CREAT | os.O_WRONLY))
            subprocess.run(["btrfs", "filesystem", "sync", str(root)], check=True)
        return
    for file, name, size in changes(case):
        if size < 0:
            os.removexattr(root / FILES[file], name)
        else:
            os.setxattr(root / FILES[file], name, bytes(size))
    if case.what == "eviction":
        (root / FILES[1]).unlink()


def change_model(case: Case, writer: TreeWriter) -> None:
    """Make the changes with a writer, in the order in which the kernel makes them."""
    if case.what == "files":
        make_files(case, writer)
        return
    for file, name, size in changes(case):
        key = (INO + file, XATTR_ITEM, name_hash(name))
        if size < 0:
            writer.delete(5, key)
        else:
            writer.insert(5, key, bytes(30 + len(name) + size))
    if case.what == "eviction":
        ino = INO + 1
        writer.delete(5, (256, DIR_ITEM, name_hash(FILES[1].encode())))
        writer.insert(5, (ORPHAN, ORPHAN_ITEM, ino), b"")
        writer.delete_range(5, (ino, 0, 0), (ino, 255, ORPHAN), backward=True)
        writer.delete(5, (ORPHAN, ORPHAN_ITEM, ino))
        writer.delete(5, (256, DIR_INDEX, 3))


def make_files(case: Case, writer: TreeWriter) -> None:
    """Make files in batches: a DIR_INDEX item waits for the sync, the others do not."""
    ino, index = INO + len(FILES), 2 + len(FILES)
    for names in file_names(case):
        batch = []
        for name in names:
            reference = ((ino, INODE_REF, 256), bytes(10 + len(name)))
            writer.insert_many(5, [((ino, INODE_ITEM, 0), bytes(160)), reference])
            writer.insert(5, (256, DIR_ITEM, name_hash(name)), bytes(30 + len(name)))
            batch.append(((256, DIR_INDEX, index), bytes(30 + len(name))))
            ino, index = ino + 1, index + 1
        writer.insert_many(5, batch)


def kernel_layout(case: Case) -> tuple[list[list[int]], list[list[int]]]:
    """Items (key, size) of a tree with a few files, and its layout after the changes."""
    with TemporaryDirectory() as folder:
        image = Path(folder) / "image"
        with image.open("wb") as file:
            file.truncate(512 << 20)
        subprocess.run(
            ["mkfs.btrfs", "-q", "-n", str(case.nodesize), "-m", "single", str(image)],
            check=True,
            capture_output=True,
        )
        with mounted(image, "noatime") as root:
            for name in FILES:
                (root / name).touch()
        with bm.open(image) as fs:
            items = [[*item.key, len(item.data)] for item in fs.subvolume(5).tree.items()]
        with mounted(image, "noatime,commit=300") as root:
            change_live(case, root)
        with bm.open(image) as fs:
            return items, layout(fs.subvolume(5).tree)


def model_layout(case: Case, items: list[list[int]]) -> list[list[int]]:
    """Make the same changes with the writer."""
    writer = bare.writer(128 << 20, case.nodesize)
    writer.new_tree(5, shareable=True)
    writer.insert_each(5, [((ino, kind, at), bytes(size)) for ino, kind, at, size in items])
    change_model(case, writer)
    return layout(writer.tree(5))


@pytest.mark.claim(
    "Trees grow and shrink as the kernel's do: the same changes give the same leaves, block "
    "by block."
)
@pytest.mark.parametrize("index", range(len(CASES)))
def test_layout_is_the_recorded_one(index: int) -> None:
    """The same leaves and nodes as Linux 6.18 made."""
    recorded = json.loads(zstandard.decompress(RECORDED.read_bytes()))[index]
    case = Case(*recorded["case"])
    assert case == CASES[index]
    assert model_layout(case, recorded["items"]) == recorded["layout"]


@pytest.mark.claim("The running kernel lays leaves out as the model does.", judge="live")
@beside_the_kernel
@pytest.mark.parametrize("case", LIVE_CASES)
def test_layout_is_the_running_kernels(case: Case) -> None:
    """The same as the kernel of this machine."""
    items, wanted = kernel_layout(case)
    assert model_layout(case, items) == wanted


def record() -> None:
    """Write the recorded layouts: ``PYTHONPATH=tests/support:tests/support/kernels``, as root."""
    rows = []
    for case in CASES:
        items, wanted = kernel_layout(case)
        rows.append({"case": case, "items": items, "layout": wanted})
    text = json.dumps(rows, separators=(",", ":"))
    RECORDED.write_bytes(zstandard.compress(text.encode(), 19))


if __name__ == "__main__":
    record()
