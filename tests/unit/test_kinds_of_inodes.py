# SPDX-License-Identifier: GPL-2.0-only
"""Calls on all kinds of inodes: what a FIFO, a socket or a whiteout answers is the VFS's affair.

The table is of Linux 6.18.44: for each kind the calls one after the other, by paths; files are
opened without waiting for who has the other end of a FIFO.
"""

import errno
import os
import struct
from collections.abc import Callable
from typing import Any

import corpus
import pytest

import btrfs_model as bm
from btrfs_model.questions.fiemap.mounted import fiemap_mounted

KINDS = {"fifo": 0o10644, "socket": 0o140644, "whiteout": 0o20000, "device": 0o60600}
LINKS = {"nothing": "nowhere", "itself": "to itself", "fifo": "fifo", "file": "file", "dir": "dir"}
ACL = struct.pack("<I6HIHHI", 2, 1, 7, 0xFFFF, 0xFFFF, 4, 5, 2**32 - 1, 32, 5, 2**32 - 1)
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 5, 0, 0, 0)

Call = Callable[[Any, str], object]

CALLS: dict[str, Call] = {
    "read": lambda fs, name: fs.read(name, 0, 10),
    "read-before-0": lambda fs, name: fs.read(name, -1, 10),
    "write": lambda fs, name: fs.write(name, 0, b"abc"),
    "truncate": lambda fs, name: fs.truncate(name, 5),
    "fallocate-0": lambda fs, name: fs.vfs_fallocate(name, 0, 0, 4096),
    "fallocate-1": lambda fs, name: fs.vfs_fallocate(name, 1, 0, 4096),
    "fallocate-2": lambda fs, name: fs.vfs_fallocate(name, 2, 0, 4096),
    "fallocate-3": lambda fs, name: fs.vfs_fallocate(name, 3, 0, 4096),
    "fallocate-16": lambda fs, name: fs.vfs_fallocate(name, 16, 0, 4096),
    "fallocate-17": lambda fs, name: fs.vfs_fallocate(name, 17, 0, 4096),
    "fallocate-8": lambda fs, name: fs.vfs_fallocate(name, 8, 0, 4096),
    "fallocate-32": lambda fs, name: fs.vfs_fallocate(name, 32, 0, 4096),
    "fallocate-64": lambda fs, name: fs.vfs_fallocate(name, 64, 0, 4096),
    "fallocate-128": lambda fs, name: fs.vfs_fallocate(name, 128, 0, 4096),
    "fallocate-nothing": lambda fs, name: fs.vfs_fallocate(name, 0, 0, 0),
    "punch-nothing": lambda fs, name: fs.vfs_fallocate(name, 3, 0, 0),
    "clone-from": lambda fs, name: fs.clone_range(name, "other", 0, 0, 0),
    "clone-to": lambda fs, name: fs.clone_range("other", name, 0, 0, 0),
    "clone-self": lambda fs, name: fs.clone_range(name, name, 0, 0, 0),
    "dedupe-from": lambda fs, name: fs.dedupe_range(name, "other", 0, 0, 4096),
    "dedupe-to": lambda fs, name: fs.dedupe_range("other", name, 0, 0, 4096),
    "dedupe-nothing-from": lambda fs, name: fs.dedupe_range(name, "other", 0, 0, 0),
    "dedupe-nothing-to": lambda fs, name: fs.dedupe_range("other", name, 0, 0, 0),
    "setxattr-user": lambda fs, name: fs.setxattr(name, "user.a", b"1"),
    "setxattr-trusted": lambda fs, name: fs.setxattr(name, "trusted.a", b"1"),
    "setxattr-security": lambda fs, name: fs.setxattr(name, "security.a", b"1"),
    "setxattr-nothing": lambda fs, name: fs.setxattr(name, "nothing.a", b"1"),
    "setxattr-compression": lambda fs, name: fs.setxattr(name, "btrfs.compression", b"zstd"),
    "setxattr-acl": lambda fs, name: fs.setxattr(name, "system.posix_acl_access", ACL),
    "setxattr-default": lambda fs, name: fs.setxattr(name, "system.posix_acl_default", ACL),
    "setxattr-capability": lambda fs, name: fs.setxattr(name, "security.capability", CAPABILITY),
    "removexattr-user": lambda fs, name: fs.removexattr(name, "user.a"),
    "removexattr-trusted": lambda fs, name: fs.removexattr(name, "trusted.a"),
    "removexattr-again": lambda fs, name: fs.removexattr(name, "trusted.a"),
    "removexattr-compression": lambda fs, name: fs.removexattr(name, "btrfs.compression"),
    "removexattr-acl": lambda fs, name: fs.removexattr(name, "system.posix_acl_access"),
    "removexattr-default": lambda fs, name: fs.removexattr(name, "system.posix_acl_default"),
    "fsync": lambda fs, name: fs.fsync(name),
    "fdatasync": lambda fs, name: fs.fdatasync(name),
    "fsync-opened": lambda fs, name: fs.fsync_inode(fs.hold(name)),
    "fiemap": lambda fs, name: fiemap_mounted(fs, name),
    "chmod": lambda fs, name: fs.chmod(name, 0o640),
    "chown": lambda fs, name: fs.chown(name, 1, 1),
    "utimes": lambda fs, name: fs.utimes(name, 1, 2),
    "chattr-A": lambda fs, name: fs.chattr(name, 0x80, 0),
    "chattr-i": lambda fs, name: fs.chattr(name, 0x10, 0),
    "chattr-not-i": lambda fs, name: fs.chattr(name, 0, 0x10),
    "chattr-unknown": lambda fs, name: fs.chattr(name, 0x1000, 0),
    "create": lambda fs, name: fs.create(name),
    "mknod": lambda fs, name: fs.mknod(name, 0o10644),
    "create-within": lambda fs, name: fs.create(f"{name}/x"),
    "unlink-within": lambda fs, name: fs.unlink(f"{name}/x"),
    "link": lambda fs, name: fs.link(name, "linked"),
    "unlink-link": lambda fs, name: fs.unlink("linked"),
    "link-onto": lambda fs, name: fs.link("other", name),
    "rename": lambda fs, name: fs.rename(name, "moved"),
    "rename-back": lambda fs, name: fs.rename("moved", name),
    "exchange": lambda fs, name: fs.rename(name, "other", 2),
    "exchange-back": lambda fs, name: fs.rename("other", name, 2),
    "snapshot": lambda fs, name: fs.snapshot(name, "snapshot"),
    "set-read-only": lambda fs, name: fs.set_read_only(name, True),
    "set-writable": lambda fs, name: fs.set_read_only(name, False),
    "rename-onto": lambda fs, name: fs.rename("other dir", name),
    "delete-subvolume": lambda fs, name: fs.delete_subvolume(name),
    "rmdir": lambda fs, name: fs.rmdir(name),
    "unlink": lambda fs, name: fs.unlink(name),
}  # fmt: skip


def make_kinds(fs: Any) -> None:
    """Make an inode of each kind, and links."""
    for kind, mode in KINDS.items():
        fs.mknod(kind, mode, os.makedev(0, 0) if kind == "whiteout" else os.makedev(300, 5))
    fs.create_subvolume("sub")
    for name in ("dir", "other dir"):
        fs.mkdir(name)
    for name in ("file", "other"):
        fs.create(name)
        fs.write(name, 0, b"x" * 8192)
    for name, target in LINKS.items():
        fs.symlink(target, f"to {name}")


def ended(call: Call, fs: Any, name: str) -> str:
    """Return the name of the errno that a call fails with, or a dash."""
    try:
        call(fs, name)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "-"


def recorded() -> dict[str, dict[str, str]]:
    """Return how the calls ended in the kernel, by kind of inode."""
    lines = (corpus.PROJECT / "tests/data/kinds_of_inodes.txt").read_text().splitlines()
    kinds = lines[0].split("\t")[1:]
    rows = [line.split() for line in lines[1:]]
    return {kind: {row[0]: row[at] for row in rows} for at, kind in enumerate(kinds, 1)}


@pytest.mark.claim("Calls on what is no file end as a kernel's do: 66 calls on 12 kinds of inodes.")
@pytest.mark.parametrize("kind", recorded())
def test_calls_on_all_kinds_of_inodes(kind: str) -> None:
    with bm.create("128M") as fs:
        make_kinds(fs)
        assert {name: ended(call, fs, kind) for name, call in CALLS.items()} == recorded()[kind]
