# SPDX-License-Identifier: GPL-2.0-only
"""Names, attributes and subvolumes: beside the running kernel, and in detail."""

import errno
import os
import random
import stat
import struct
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import calls
import live
import pytest
from collisions import names_of_hash
from corpus import LONG
from hypothesis import given, settings
from hypothesis import strategies as st
from progs import btrfs_check

import btrfs_model as bm
from btrfs_model.experiments.verify.random.calls import Call, acl, random_call
from btrfs_model.kernels.inside.calls import KernelCalls
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.items import decode
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import Timespec
from btrfs_model.volume.filesystem import Filesystem

beside_the_kernel = live.beside_the_kernel

_TIMES = ("atime", "ctime", "mtime", "otime", "stime", "rtime")
_CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 5, 0, 0, 0)
_UTIMES = {0, 7, 10**18 + 1, 2 * 10**18 + 3}


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


def fresh(image: Path, first: list[Call], *options: str) -> None:
    """Make a filesystem with the first calls of a sequence, which the model then goes on with."""
    with image.open("wb") as file:
        file.truncate(128 << 20)
    subprocess.run(["mkfs.btrfs", "-q", "-f", *options, str(image)], check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    with live.mounted(image, "noatime") as top:
        assert not any(calls.run(KernelCalls(top), call) for call in first)


def beside(
    tmp_path: Path,
    first: list[Call],
    sequence: list[Call],
    nodesize: int = 4096,
    features: str = "extref",
) -> None:
    """Make calls on a mounted filesystem and on the model, and compare."""
    image = tmp_path / "kernel.img"
    fresh(image, first, "-n", str(nodesize), "-O", features)
    model = WritableFilesystem.load(image)
    since = model.transid - 1
    theirs = []
    with live.mounted(image, "noatime,commit=9999") as top:
        kernel = KernelCalls(top)
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
    assert btrfs_check(tmp_path / "model.img") == ""


@pytest.mark.claim(
    "Random calls on names, attributes, subvolumes and snapshots give the errno, the items, "
    "the leaves and the root items of the running kernel."
)
@beside_the_kernel
@pytest.mark.parametrize("seed", range(200 if LONG else 6))
@pytest.mark.parametrize("subvolumes", [False, True])
def test_random_calls(seed: int, subvolumes: bool, tmp_path: Path) -> None:
    choice = random.Random(f"namespace-{seed}")
    first: list[Call] = [("mkdir", "a"), ("mkdir", "b"), ("mkdir", "a/c"), ("create", "a/a"),
                               ("create", "c"), ("link", "c", "a/d"), ("mkdir", "b/e")]  # fmt: skip
    if subvolumes:
        first += [("create_subvolume", "sub"), ("mkdir", "sub/a"), ("create", "sub/a/b"),
                     ("snapshot", "sub", "snap", False)]  # fmt: skip
    sequence = [random_call(choice, subvolumes=subvolumes) for _ in range(150)]
    beside(tmp_path, first, sequence, choice.choice([4096, 16384]))


# ------------------------------------------------------------------------- beside, in detail --

LONG_NAME = "n" * 195


@beside_the_kernel
def test_names_of_one_hash(tmp_path: Path) -> None:
    names = names_of_hash(12345, 8)
    sequence: list[Call] = [("create", f"d/{name}") for name in names[:6]]
    sequence += [
        ("create", f"d/{names[3]}"), ("unlink", f"d/{names[2]}"), ("unlink", f"d/{names[5]}"),
        ("sync",), ("rename", f"d/{names[0]}", f"d/{names[2]}"), ("mkdir", f"d/{names[6]}"),
        ("rename", f"d/{names[1]}", f"d/{names[4]}"), ("link", f"d/{names[3]}", f"d/{names[7]}"),
        ("rename", f"d/{names[6]}", f"d/{names[3]}", 2), ("unlink", f"d/{names[0]}"),
    ]  # fmt: skip
    beside(tmp_path, [("mkdir", "d")], sequence)


@beside_the_kernel
def test_attributes_of_one_hash(tmp_path: Path) -> None:
    names = names_of_hash(777, 4, b"user.")
    sequence: list[Call] = [("setxattr", "f", name, b"value" * 9) for name in names]
    sequence += [
        ("removexattr", "f", names[1]), ("setxattr", "f", names[1], b"back", 1),
        ("setxattr", "f", names[1], b"again", 1), ("setxattr", "f", names[0], b"", 0),
        ("removexattr", "f", names[3]), ("removexattr", "f", names[3]),
    ]  # fmt: skip
    beside(tmp_path, [("create", "f")], sequence)


@beside_the_kernel
@pytest.mark.parametrize("seed", range(4))
def test_more_names_than_a_leaf_has_room_for(seed: int, tmp_path: Path) -> None:
    choice = random.Random(seed)
    names = [f"d/{LONG_NAME}{number}" for number in range(40)]
    sequence: list[Call] = [("link", "f", name) for name in names]
    choice.shuffle(names)
    sequence += [("unlink", name) for name in names[:15]] + [("sync",)]
    sequence += [("link", names[20], name) for name in names[:5]]
    sequence += [("rename", names[17], names[6]), ("rename", names[18], "d/g", 1)]
    sequence += [("unlink", name) for name in names[7:]]
    beside(tmp_path, [("mkdir", "d"), ("create", "f")], sequence)


@beside_the_kernel
def test_extended_names_of_one_hash(tmp_path: Path) -> None:
    # inode 257 is the directory, 258 the file; the hash of an extended name starts with the former
    names = [f"d/{name}" for name in names_of_hash(4711, 6, b"h" * 180, seed=257)]
    filling = [f"d/{LONG_NAME}{number}" for number in range(19)]
    sequence: list[Call] = [("link", "f", name) for name in filling + names]
    sequence += [("unlink", names[2]), ("link", "f", names[2]), ("unlink", filling[3]),
                 ("rename", names[0], "d/short"), ("unlink", names[5])]  # fmt: skip
    beside(tmp_path, [("mkdir", "d"), ("create", "f")], sequence)


@beside_the_kernel
def test_a_leaf_full_of_names_without_extended_ones(tmp_path: Path) -> None:
    f, g = ([f"{top}/{LONG_NAME}{number}" for number in range(25)] for top in "de")
    sequence: list[Call] = [("link", "f", name) for name in f]
    sequence += [("link", "g", name) for name in g[:18]]
    sequence += [
        ("rename", "e/x", f[3], 2), ("rename", f[3], "e/x", 2), ("rename", f[3], g[3], 2),
        ("rename", "f", "d/first"), ("rename", f[4], "d/second"), ("rename", f[5], f[6]),
        ("sync",), ("unlink", f[7]), ("rename", "f", "d/first"), ("rename", f[4], "d/second"),
    ]  # fmt: skip
    first: list[Call] = [("mkdir", "d"), ("mkdir", "e"), ("create", "f"), ("create", "g"),
                               ("create", "e/x")]  # fmt: skip
    beside(tmp_path, first, sequence, features="^extref")


@beside_the_kernel
def test_whiteouts(tmp_path: Path) -> None:
    sequence: list[Call] = [("setxattr", "d", "system.posix_acl_default", acl(7, 5, 1, 6))]
    for flags in (4, 5, 6, 7, 8):
        sequence += [("rename", "f", "d/g", flags), ("rename", "d/g", "d/h", flags),
                     ("rename", "d/h", "f", flags), ("sync",), ("rename", "f", "f", flags),
                     ("rename", "d/e", "e", flags), ("rename", "e", "d/e", flags),
                     ("rename", "sub", "d/sub", flags), ("rename", "d/sub", "sub", flags),
                     ("rename", "c", "none/c", flags), ("rename", "c", "sub/c", flags)]  # fmt: skip
    first: list[Call] = [("mkdir", "d"), ("create", "f"), ("create", "c"), ("mkdir", "d/e"),
                               ("create_subvolume", "sub")]  # fmt: skip
    beside(tmp_path, first, sequence)


@beside_the_kernel
def test_what_stands_for_a_subvolume_has_no_attributes(tmp_path: Path) -> None:
    sequence: list[Call] = []
    for path in ("rw/sub", "ro/sub"):
        sequence += [
            ("chmod", path, 0o700), ("chown", path, 1, 2), ("utimes", path, 7, 7), ("sync",),
            ("setxattr", path, "user.x", b"1"), ("removexattr", path, "user.x"),
            ("setxattr", path, "btrfs.compression", b"zlib"), ("chattr", path, 8, 0),
            ("setxattr", path, "system.posix_acl_access", acl(7, 5, 5)),
        ]  # fmt: skip
    first: list[Call] = [("create_subvolume", "sub"), ("snapshot", "", "rw", False),
                               ("snapshot", "", "ro", True)]  # fmt: skip
    beside(tmp_path, first, sequence)


@beside_the_kernel
def test_files_without_names(tmp_path: Path) -> None:
    sequence: list[Call] = [
        ("hold", "f"), ("unlink", "f"), ("sync",), ("create", "f"), ("hold", "d"), ("rmdir", "d"),
        ("create", "d/x"), ("sync",), ("release", "f"), ("release", "d"), ("hold", "f"),
        ("rename", "g", "f"), ("setxattr", "f", "user.x", b"1"), ("sync",), ("release", "f"),
    ]  # fmt: skip
    first: list[Call] = [("create", "f"), ("setxattr", "f", "user.y", b"2" * 900),
                               ("mkdir", "d"), ("create", "g")]  # fmt: skip
    beside(tmp_path, first, sequence)


@beside_the_kernel
def test_large_attributes(tmp_path: Path) -> None:
    most = 4096 - 101 - 25 - 30 - len("user.a")
    sequence: list[Call] = [
        ("setxattr", "f", "user.a", b"x" * (most + 1)), ("setxattr", "f", "user.a", b"x" * most),
        ("setxattr", "f", "user.a", b"y" * most), ("setxattr", "f", "user.a", b"z" * (most - 9)),
        ("setxattr", "f", "user.a", b"w" * most), ("setxattr", "f", "user.b", b"1" * 2500),
        ("setxattr", "f", "user.b", b"2" * 2600), ("setxattr", "f", "user.b", b"3" * 3000),
        ("setxattr", "f", "user.b", b"4" * 1000), ("setxattr", "f", "user.b", b"5" * 1000, 1),
        ("setxattr", "f", "user." + "n" * 251, b""), ("setxattr", "f", "user.", b""),
        ("setxattr", "f", "", b""), ("setxattr", "f", "user.a", b"", 3),
        ("removexattr", "f", "user.a"), ("removexattr", "f", "user.a"),
    ]  # fmt: skip
    beside(tmp_path, [("create", "f"), ("create", "g")], sequence)


@beside_the_kernel
def test_which_attributes_there_are(tmp_path: Path) -> None:
    names = ["user", "user.", "user.a", "trusted", "trusted.", "trusted.a", "security",
             "security.", "security.a", "security.capability", "system", "system.", "system.a",
             "system.posix_acl_access", "system.posix_acl_default", "btrfs", "btrfs.", "btrfs.a",
             "btrfs.compression", "nothing.a"]  # fmt: skip
    values = [b"", b"v", bytes(20), b"zstd", b"zlib:9", b"nonesuch", acl(7, 5, 5, 7),
              b"\3" + acl(7, 5, 5)[1:], acl(7, 5, 5)[:-1]]  # fmt: skip
    sequence: list[Call] = []
    for path in ("f", "d", "p", "ro/f", "ro/d", "ro/p", "none"):
        for name in names:
            sequence += [("setxattr", path, name, value) for value in values]
            sequence += [("removexattr", path, name)] * 2
    for capability in (_CAPABILITY, b"\0" + _CAPABILITY[1:], b"\2" + _CAPABILITY[1:],
                       _CAPABILITY + bytes(4), b"\1\0\0\3" + _CAPABILITY[4:] + b"\5\0\0\0",
                       b"\1\0\0\3" + bytes(16) + b"\xff" * 4):  # fmt: skip
        sequence.append(("setxattr", "f", "security.capability", capability))
    for flags in (3, 4, 5, 8):
        sequence += [("setxattr", path, "user.z", b"", flags) for path in ("f", "none")]
    first: list[Call] = [
        ("create_subvolume", "sub"), ("create", "sub/f"), ("mkdir", "sub/d"),
        ("mknod", "sub/p", stat.S_IFIFO | 0o600), ("create", "f"), ("mkdir", "d"),
        ("mknod", "p", stat.S_IFIFO | 0o600), ("snapshot", "sub", "ro", True),
    ]  # fmt: skip
    beside(tmp_path, first, sequence)


@beside_the_kernel
def test_what_is_protected(tmp_path: Path) -> None:
    sequence: list[Call] = [("chattr", "d/i", 0x10, 0), ("chattr", "d/a", 0x20, 0)]
    for path in ("d/i", "d/a", "ro/f"):
        sequence += [("chown", path, -1, -1), ("chown", path, -1, 5), ("delete_subvolume", path)]
    sequence += [("delete_subvolume", "d/."), ("delete_subvolume", "d/.."),
                 ("mknod", "n", stat.S_IFCHR, 2**32), ("mknod", "n", stat.S_IFCHR, 2**32 - 1),
                 ("chown", "d", 2**32 - 2, 2**32 - 2), ("chown", "d", 2**32 - 1, 0)]  # fmt: skip
    first: list[Call] = [("create_subvolume", "sub"), ("create", "sub/f"), ("mkdir", "d"),
                               ("create", "d/i"), ("create", "d/a"),
                               ("snapshot", "sub", "ro", True)]  # fmt: skip
    beside(tmp_path, first, sequence)


@beside_the_kernel
def test_paths(tmp_path: Path) -> None:
    sequence: list[Call] = []
    odd = ["d", "d/", "d/.", "d/sub/..", "f", "f/", "new/", "l", "l/", "broken",
           "loop", "loop/x", "l/x", "f/x", "none/x", "x" * 255, "x" * 256, "d/" + "x" * 256,
           "y/" * 2040 + "z" * 16]  # fmt: skip
    for path in odd:
        sequence += [(call, path) for call in ("create", "mkdir", "rmdir", "unlink")]
        sequence += [("symlink", "t", path), ("mknod", path, stat.S_IFIFO | 0o600)]
        sequence += [("link", path, "new"), ("link", "f", path), ("chmod", path, 0o700)]
        sequence += [("rename", path, "new"), ("rename", "new", path), ("rename", "d", path, 1),
                     ("rename", path, "d/sub", 2), ("rename", path, "e")]  # fmt: skip
    sequence += [("symlink", "", "s"), ("symlink", "s" * 4095, "s"), ("symlink", "s" * 4096, "s"),
                 ("symlink", "s" * 3900, "s")]  # fmt: skip
    first: list[Call] = [
        ("mkdir", "d"), ("create", "f"), ("mkdir", "e"), ("create", "e/x"), ("symlink", "d", "l"),
        ("symlink", "nowhere", "broken"), ("symlink", "loop", "loop"), ("mkdir", "d/sub"),
    ]  # fmt: skip
    beside(tmp_path, first, sequence)


@beside_the_kernel
def test_deleted_subvolumes_are_freed(tmp_path: Path) -> None:
    first: list[Call] = [("create_subvolume", "sub"), ("mkdir", "sub/d")]
    first += [("create", f"sub/d/{LONG_NAME}{number}") for number in range(60)]
    sequence: list[Call] = [
        ("snapshot", "sub", "one"), ("create", "sub/new"), ("snapshot", "sub", "two", False),
        ("unlink", f"two/d/{LONG_NAME}7"), ("unlink", f"sub/d/{LONG_NAME}50"),
        ("delete_subvolume", "one"), ("delete_subvolume", "sub"),
        ("create", "two/last"), ("create_subvolume", "sub"),
    ]  # fmt: skip
    beside(tmp_path, first, sequence)


# ----------------------------------------------------------------------------- the model alone --


def test_a_file_has_no_more_than_65535_names() -> None:
    with WritableFilesystem.mkfs(128 << 20) as fs:
        inode = fs.inode(5, fs.create("f"))
        inode.item.nlink = 65534
        fs.link("f", "g")
        with pytest.raises(OSError, match="Too many links"):
            fs.link("f", "h")
        assert inode.item.nlink == 65535


def test_an_exchange_without_room_for_one_of_the_names_is_undone() -> None:
    # a kernel aborts the transaction
    with WritableFilesystem.mkfs(128 << 20, nodesize=4096, extref=False) as fs:
        names = [f"{LONG_NAME}{number}" for number in range(25)]
        fs.create("x" * 255)
        fs.create(names[0])
        with pytest.raises(OSError, match=os.strerror(errno.EMLINK)):
            for name in names[1:]:
                fs.link(names[0], name)
        before = {name: fs.resolve(name) for name in (names[3], "x" * 255)}
        with pytest.raises(OSError, match=os.strerror(errno.EMLINK)):
            fs.rename("x" * 255, names[3], 2)
        assert {name: fs.resolve(name) for name in before} == before
        fs.commit()
        assert not bm.check(fs)
        fs.rename("x" * 255, names[3])
        fs.commit()
        assert not bm.check(fs)


def test_a_directory_with_too_many_names_of_one_hash_is_left_as_it_is() -> None:
    with WritableFilesystem.mkfs(128 << 20, nodesize=4096) as fs:
        names = names_of_hash(99, 40, b"p" * 200)
        made = 0
        with pytest.raises(OSError, match=os.strerror(errno.EOVERFLOW)):
            for name in names:
                fs.create(name)
                made += 1
        assert made == (4096 - 101 - 25) // (30 + 212)
        fs.commit()
        assert [entry.name.decode() for entry in fs.subvolume("").readdir(256)] == names[:made]
        assert not fs.subvolume("").tree.get((256 + made + 1, ItemType.INODE_ITEM, 0))


def test_attributes_of_what_stands_for_a_subvolume_change_nothing() -> None:
    with WritableFilesystem.mkfs(128 << 20) as fs:
        fs.create_subvolume("sub")
        fs.snapshot("", "snap", read_only=False)
        fs.commit()
        fs.chmod("snap/sub", 0o700)
        fs.chown("snap/sub", 1, 2)
        fs.utimes("snap/sub", 7, 7)
        assert not fs.commit()
        with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
            fs.setxattr("snap/sub", "user.x", b"1")


@pytest.mark.parametrize(
    ("value", "feature"),
    [(b"zlib:9", ""), (b"lzo", "COMPRESS_LZO"), (b"zstd:3", "COMPRESS_ZSTD"), (b"none", "")],
)
def test_a_property_is_read_again(value: bytes, feature: str) -> None:
    """An attribute that a mount finds has the same effect as when it was set."""
    features = {"COMPRESS_LZO", "COMPRESS_ZSTD"}
    with WritableFilesystem.mkfs(128 << 20) as fs:
        for path, mounts in (("before", 0), ("after", 1)):
            fs.create(path)
            fs.setxattr(path, "btrfs.compression", value)
            for _ in range(mounts):
                fs.remount()
            fs.write(path, 0, b"text" * 50_000)
            fs.sync()
        before, after = (
            ([extent.compression for extent in fs.subvolume("").extents(path)],
             fs.subvolume("").inode(path).flags)
            for path in ("before", "after")
        )  # fmt: skip
        assert before == after
        found = {name for name in features if fs.image.superblock.has_incompat(name)}
        assert found == {feature} - {""}


def test_orphans_are_deleted_when_the_subvolume_is_next_used(tmp_path: Path) -> None:
    image = tmp_path / "crashed.img"
    with WritableFilesystem.mkfs(128 << 20) as fs:
        fs.create("f")
        fs.write("f", 0, b"data" * 5000)
        fs.mkdir("d")
        fs.commit()
        fs.hold("f")
        fs.hold("d")
        fs.unlink("f")
        fs.rmdir("d")
        fs.save(image)
        orphans = (ObjectId.ORPHAN, ItemType.ORPHAN_ITEM, 257), (ObjectId.ORPHAN, 48, 258)
        assert all(fs.subvolume("").tree.get(key) for key in orphans)
    with WritableFilesystem.load(image) as fs:
        fs.create("g")
        fs.save(image)
        assert not any(fs.subvolume("").tree.get(key) for key in orphans)
        assert [item.key.objectid for item in fs.subvolume("").tree.items()
                if item.key.type == ItemType.INODE_ITEM] == [256, 259]  # fmt: skip
    assert btrfs_check(image) == ""


def test_a_commit_may_be_of_a_root_item_alone() -> None:
    with WritableFilesystem.mkfs(128 << 20) as fs:
        fs.create_subvolume("sub")
        fs.commit()
        fs.set_read_only("sub")
        assert fs.subvolume("sub").is_read_only
        assert not bm.check(fs)
        with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
            fs.create("sub/f")


def test_what_no_call_can_ask_for_changes_nothing() -> None:
    with WritableFilesystem.mkfs(128 << 20) as fs:
        fs.symlink("f", "l")
        fs.create("f")
        fs.commit()
        for call, *arguments in [("chown", "f", -2, 0), ("chown", "f", 0, 2**32),
                                 ("utimes", "f", 0, 2**63 * 10**9), ("mknod", "n", 0o20600, -1),
                                 ("truncate", "f", 2**63), ("truncate", "f", -1),
                                 ("write", "f", -1, b""), ("write", "f", 2**63 - 1, b"x"),
                                 ("read", "f", -1), ("read", "f", 0, -1)]:  # fmt: skip
            with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
                getattr(fs, call)(*arguments)
        with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
            fs.chmod("l", 0o600, follow=False)
        assert not fs.commit()


def test_the_place_of_a_subvolume_that_is_not_in_a_snapshot() -> None:
    with WritableFilesystem.mkfs(128 << 20) as fs:
        fs.create_subvolume("sub")
        fs.create_subvolume("sub/inner")
        fs.snapshot("sub", "snap")
        assert fs.hold("snap/inner").item.mode == stat.S_IFDIR | 0o755
        with pytest.raises(OSError, match=os.strerror(errno.EACCES)):
            fs.create("snap/inner/f")


def test_data_change_as_names_do() -> None:
    with WritableFilesystem.mkfs(128 << 20) as fs:
        fs.create_subvolume("sub")
        fs.create("sub/f")
        fs.write("sub/f", 0, b"data")
        fs.setxattr("sub/f", "security.capability", _CAPABILITY)
        fs.snapshot("sub", "snap")
        for call, *arguments in [("write", 0, b"x"), ("truncate", 2), ("fallocate", 0, 9)]:
            with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
                getattr(fs, call)("snap/f", *arguments)
        fs.write("sub/f", 1, b"x")
        fs.sync()
        assert fs.subvolume("snap").xattrs("f") == {b"security.capability": _CAPABILITY}
        assert fs.subvolume("sub").xattrs("f") == {}
        fs.chattr("sub/f", 0x20)
        with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
            fs.write("sub/f", 0, b"y")


def test_delayed_items_run_when_many_wait() -> None:
    with WritableFilesystem.mkfs(128 << 20) as fs:
        fs.machine.asynchronous = True
        fs.mkdir("d")
        for number in range(300):
            fs.create(f"d/{number}")
            assert len(fs.delayed) <= 128
        low, high = ((257, ItemType.DIR_INDEX, offset) for offset in (0, 2**64 - 1))
        assert len(list(fs.writer.tree(5).items(low, high))) > 128
        fs.commit()
        assert [e.index for e in fs.subvolume("").readdir("d")] == list(range(2, 302))


def test_numbers_are_not_used_again_before_a_remount(tmp_path: Path) -> None:
    with WritableFilesystem.mkfs(128 << 20) as fs:
        assert [fs.create(name) for name in "abc"] == [257, 258, 259]
        fs.commit()
        fs.unlink("c")
        fs.commit()
        assert fs.create("d") == 260
        fs.unlink("d")
        fs.commit()
        fs.live_subvolumes.clear()
        assert fs.create("e") == 259


@pytest.mark.claim(
    "Whatever is called leaves a filesystem that `btrfs check` finds clean.",
    judge="progs",
)
@given(st.lists(st.integers(0, 2**32), min_size=1, max_size=60))
@settings(max_examples=500 if LONG else 15)
def test_whatever_is_called_leaves_a_sound_filesystem(seeds: list[int]) -> None:
    with TemporaryDirectory() as folder, WritableFilesystem.mkfs(128 << 20, nodesize=4096) as fs:
        mine = calls.ModelCalls(fs)
        for call in [("mkdir", "a"), ("mkdir", "b"), ("create_subvolume", "sub")]:
            calls.run(mine, call)
        for seed in seeds:
            choice = random.Random(seed)
            calls.run(mine, random_call(choice, subvolumes=bool(seed % 3)))
        image = Path(folder) / "image"
        fs.save(image)
        with Filesystem.open(image) as saved:
            assert not bm.check(saved)
        assert btrfs_check(image) == ""
