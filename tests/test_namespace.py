# SPDX-License-Identifier: GPL-2.0-only
"""Names, attributes and subvolumes: beside the running kernel, and in detail."""

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import calls
import live
import pytest
from corpus import LONG

from btrfs_model.filesystem import Filesystem
from btrfs_model.filesystem.writable import WritableFilesystem
from btrfs_model.ondisk.items import decode
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import Timespec

why_not = live.why_not_live()
beside_the_kernel = pytest.mark.skipif(bool(why_not), reason=why_not)

_TIMES = ("atime", "ctime", "mtime", "otime", "stime", "rtime")
_UTIMES = {0, 7, 10**18 + 1, 2 * 10**18 + 3}


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The model's umask is that of the calls on the kernel."""
    old = os.umask(0o022)
    yield
    os.umask(old)


def masked(record: Any) -> Any:
    """Times that a clock made are 0; those that a call set stay."""
    changes: dict[str, Any] = {}
    for name in _TIMES:
        time = getattr(record, name, None)
        if isinstance(time, Timespec) and time.sec * 10**9 + time.nsec not in _UTIMES:
            changes[name] = Timespec(0, 0)
    return record._replace(**changes)


def tree_items(fs: Filesystem, tree: int, since: int) -> list[tuple[Any, Any]]:
    """Items of a subvolume: what must be equal.

    An inode that a kernel makes starts with the version that its memory held before, of another
    inode; versions of those that a mount found, of transactions up to `since`, are comparable.
    """
    found = []
    for item in fs.tree(tree).items():
        value = decode(item.key, item.data)
        if item.key.type == ItemType.INODE_ITEM:
            value = masked(value)
            if value.generation > since:
                value = value._replace(sequence=0)
        found.append((item.key, value))
    return found


def leaves(fs: Filesystem, tree: int) -> list[int]:
    """How many items the leaves of a tree have."""
    return [block.nritems for block in fs.tree(tree).blocks() if block.level == 0]


def root_items(fs: Filesystem) -> dict[int, Any]:
    """Root items of subvolumes without addresses, times and uuids, by id."""
    found = {}
    for tree in fs.subvolume_ids:
        root = fs.roots[tree]
        item = masked(root.item)
        has = tuple(any(uuid) for uuid in (item.uuid, item.parent_uuid))
        found[tree] = (root.key.offset, has, item._replace(bytenr=0, uuid=b"", parent_uuid=b""))
    return found


def names_of_subvolumes(fs: Filesystem) -> list[tuple[Any, Any]]:
    """Items of the root tree that name live subvolumes."""
    kinds = (ItemType.ROOT_REF, ItemType.ROOT_BACKREF)
    return [(item.key, bytes(item.data)) for item in fs.root_tree.items() if item.key.type in kinds]


def uuid_entries(fs: Filesystem) -> list[tuple[int, int]]:
    """Kind and subvolume of what the uuid tree says."""
    if ObjectId.UUID_TREE not in fs.trees:
        return []
    return sorted(
        (item.key.type, subvolume)
        for item in fs.tree(ObjectId.UUID_TREE).items()
        for subvolume in decode(item.key, item.data)
    )


def assert_same(kernel: Filesystem, model: Filesystem, since: int) -> None:
    assert model.subvolume_ids == kernel.subvolume_ids
    for tree in kernel.subvolume_ids:
        assert tree_items(model, tree, since) == tree_items(kernel, tree, since)
        assert leaves(model, tree) == leaves(kernel, tree)
    assert root_items(model) == root_items(kernel)
    assert names_of_subvolumes(model) == names_of_subvolumes(kernel)
    assert uuid_entries(model) == uuid_entries(kernel)


def fresh(image: Path, nodesize: int, first: list[calls.Call]) -> None:
    """Make a filesystem with the first calls of a sequence, which the model then goes on with."""
    with image.open("wb") as file:
        file.truncate(128 << 20)
    subprocess.run(["mkfs.btrfs", "-q", "-f", "-n", str(nodesize), str(image)], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    with live.mounted(image, "noatime") as top:
        assert not any(calls.run(calls.KernelCalls(top), call) for call in first)


def beside(
    tmp_path: Path,
    first: list[calls.Call],
    sequence: list[calls.Call],
    nodesize: int = 4096,
) -> None:
    """Make calls on a mounted filesystem and on the model, and compare."""
    image = tmp_path / "kernel.img"
    fresh(image, nodesize, first)
    model = WritableFilesystem.load(image)
    since = model.transid - 1
    theirs = []
    with live.mounted(image, "noatime,commit=9999") as top:
        kernel = calls.KernelCalls(top)
        try:
            for call in sequence:
                theirs.append(calls.run(kernel, call))
        finally:
            kernel.release_all()
    mine = calls.ModelCalls(model)
    ours = [calls.run(mine, call) for call in sequence]
    different = [(at, call, k, m) for at, (call, k, m) in
                 enumerate(zip(sequence, theirs, ours, strict=True)) if k != m]  # fmt: skip
    assert not different
    mine.release_all()
    model.save(tmp_path / "model.img")
    with Filesystem.open(image) as kernel_fs, Filesystem.open(tmp_path / "model.img") as model_fs:
        assert_same(kernel_fs, model_fs, since)
    check(tmp_path / "model.img")


def check(image: Path) -> None:
    """``btrfs check`` finds nothing wrong."""
    result = subprocess.run(["btrfs", "check", "--readonly", str(image)], capture_output=True,
                            text=True, check=False)  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


@beside_the_kernel
@pytest.mark.parametrize("seed", range(200 if LONG else 6))
@pytest.mark.parametrize("subvolumes", [False, True])
def test_random_calls(seed: int, subvolumes: bool, tmp_path: Path) -> None:
    choice = random.Random(f"namespace-{seed}")
    first: list[calls.Call] = [("mkdir", "a"), ("mkdir", "b"), ("mkdir", "a/c"), ("create", "a/a"),
                               ("create", "c"), ("link", "c", "a/d"), ("mkdir", "b/e")]  # fmt: skip
    if subvolumes:
        first += [("create_subvolume", "sub"), ("mkdir", "sub/a"), ("create", "sub/a/b"),
                     ("snapshot", "sub", "snap", False)]  # fmt: skip
    sequence = [calls.random_call(choice, subvolumes=subvolumes) for _ in range(150)]
    beside(tmp_path, first, sequence, choice.choice([4096, 16384]))
