# SPDX-License-Identifier: GPL-2.0-only
"""What users are told when something is not there, is not btrfs, or is misspelt."""

import errno
import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

import btrfs_model as bm
from btrfs_model.errors import (
    CorruptImageError,
    NoSuchFileError,
    NotBtrfsError,
    NotCommittedError,
    SubvolumeNotFoundError,
)

SIZE = 256 << 20

# ------------------------------------------------------------------------------- not committed --


@pytest.fixture
def fs():
    """The file `a` and the subvolume `v` are of the running transaction."""
    with bm.create(SIZE) as fs:
        fs.create("old", 0o644)
        fs.create_subvolume("there")
        fs.sync()
        fs.create("a", 0o644)
        fs.write("a", 0, b"x" * 9000)
        fs.create("there/b", 0o644)
        fs.create_subvolume("v")
        yield fs


READERS: dict[str, Callable[[bm.WritableFilesystem, str | int], object]] = {
    "fiemap": lambda fs, file: bm.fiemap(fs, 5, file),
    "extents": lambda fs, file: bm.extents(fs, 5, file),
    "extent_references": lambda fs, file: bm.extent_references(fs, 5, file),
    "read_file": lambda fs, file: fs.read_file(5, file),
    "inode": lambda fs, file: fs.subvolume(5).inode(file),
    "readdir": lambda fs, file: list(fs.subvolume(5).readdir(file)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("file", "shown"), [("a", "file 'a'"), (258, "inode 258")])
def test_a_file_that_is_not_committed(
    fs: bm.WritableFilesystem, reader: str, file: str | int, shown: str
) -> None:
    with pytest.raises(NotCommittedError) as caught:
        READERS[reader](fs, file)
    assert str(caught.value) == (
        f"<memory>: subvolume 5: {shown} is not committed yet; call sync()"
    )
    assert caught.value.errno == errno.ENOENT
    fs.sync()
    if reader != "readdir":
        READERS[reader](fs, file)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("file", "shown"),
    [("b", "file 'b'"), ("a/b", "file 'a/b'"), ("v", "file 'v'"), ("v/b", "file 'v/b'"),
     (999, "inode 999")],
)  # fmt: skip
def test_a_file_that_is_not_there(
    fs: bm.WritableFilesystem, reader: str, file: str | int, shown: str
) -> None:
    with pytest.raises(NoSuchFileError) as caught:
        READERS[reader](fs, file)
    assert str(caught.value) == f"<memory>: subvolume 5: there is no {shown}"
    assert caught.value.errno == errno.ENOENT
    assert not isinstance(caught.value, SubvolumeNotFoundError)


@pytest.mark.parametrize("which", ["v", b"v", 258 - 1])
def test_a_subvolume_that_is_not_committed(
    fs: bm.WritableFilesystem, which: str | bytes | int
) -> None:
    for read in (fs.subvolume, fs.listing, lambda which: bm.send(fs, which)):
        with pytest.raises(NotCommittedError, match="is not committed yet; call sync"):
            read(which)
    fs.sync()
    assert fs.subvolume(which).id == 257


def test_a_tree_that_is_not_committed(fs: bm.WritableFilesystem) -> None:
    with pytest.raises(NotCommittedError):
        fs.tree(257)
    with pytest.raises(SubvolumeNotFoundError, match="no tree 300"):
        fs.tree(300)


def test_a_file_in_another_subvolume_that_is_not_committed(fs: bm.WritableFilesystem) -> None:
    with pytest.raises(NotCommittedError, match="subvolume 256: file 'b'"):
        fs.read_file("there", "b")


@pytest.mark.parametrize("which", ["a", "w", 300, "there/b"])
def test_a_subvolume_that_is_not_there(fs: bm.WritableFilesystem, which: str | int) -> None:
    with pytest.raises(SubvolumeNotFoundError) as caught:
        fs.subvolume(which)
    assert caught.value.errno == errno.ENOENT


def test_what_was_deleted_is_not_there(fs: bm.WritableFilesystem) -> None:
    before = fs.subvolume("there")
    for path in ("v", "there"):
        fs.delete_subvolume(path)
    fs.commit()
    fs.clean_subvolumes()
    with pytest.raises(SubvolumeNotFoundError):
        fs.subvolume("v")
    with pytest.raises(SubvolumeNotFoundError):
        fs.subvolume(257)
    with pytest.raises(NoSuchFileError):
        before.inode("b")


def test_looking_for_it_changes_and_counts_nothing(fs: bm.WritableFilesystem) -> None:
    def work(file: str) -> dict[str, int]:
        with bm.counting() as counted, pytest.raises(FileNotFoundError):
            bm.fiemap(fs, 5, file)
        return dict(counted)

    work("b")
    before = fs.crash()
    assert work("a") == work("b")
    assert fs.crash() == before


# ------------------------------------------------------------------------------------ no btrfs --


def whole() -> bytes:
    with bm.create(SIZE) as fs:
        return fs.crash()


def ext4() -> bytes:
    head = bytearray(1 << 20)
    head[1080:1082] = b"\x53\xef"
    return bytes(head)


def stream() -> bytes:
    return bytes(bm.StreamWriter(version=1).header())


OTHERS = {
    "empty": (lambda: b"", "no btrfs filesystem: the file is empty"),
    "text": (lambda: b"hello\n", "no btrfs filesystem: it has 6 bytes, its superblock would end at "
             "69632"),
    "zeros": (lambda: bytes(1 << 20), "no btrfs filesystem: there is no superblock at byte 65536"),
    "ext4": (ext4, "no btrfs filesystem: it looks like an ext2, ext3 or ext4 filesystem"),
    "xfs": (lambda: b"XFSB" + bytes(1 << 20),
            "no btrfs filesystem: it looks like an XFS filesystem"),
    "zstd": (lambda: zstandard.compress(whole()[: 1 << 20]),
             "no btrfs filesystem: it looks like data compressed by zstd"),
    "gzip": (lambda: gzip.compress(b"x"),
             "no btrfs filesystem: it looks like data compressed by gzip"),
    "stream": (stream, "no btrfs filesystem: it looks like a send stream"),
    "cut-short": (lambda: whole()[:69631],
                  "no btrfs filesystem: it has 69631 bytes, its superblock would end at 69632"),
    "cut": (lambda: whole()[: 1 << 20],
            f"the image is cut off: it has {1 << 20} of {SIZE} bytes"),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_filesystem(tmp_path: Path, kind: str) -> None:
    make, wanted = OTHERS[kind]
    path = tmp_path / kind
    path.write_bytes(make())
    for read in (bm.open, bm.WritableFilesystem.load, bm.check):
        with pytest.raises(CorruptImageError) as caught:
            read(path)
        assert str(caught.value) == f"{path}: {wanted}"
        assert isinstance(caught.value, NotBtrfsError) == wanted.startswith("no btrfs")


def test_a_superblock_of_which_the_first_copy_is_gone_is_still_one(tmp_path: Path) -> None:
    image = bytearray(whole())
    image[65536:69632] = bytes(4096)
    path = tmp_path / "second"
    path.write_bytes(image)
    with bm.open(path) as fs:
        assert fs.image.superblock.offset == 64 << 20


@pytest.mark.parametrize("kind", ["fifo", "null", "directory"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path, wanted = tmp_path / kind, {"fifo": "it is a FIFO", "null": "it is a character device",
                                     "directory": "Is a directory"}[kind]  # fmt: skip
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "null":
        path = Path(os.devnull)
    else:
        path.mkdir()
    # a process of its own, so that one that waits for the other end can be ended
    ran = subprocess.run(
        [sys.executable, "-m", "btrfs_model.cli", "subvolumes", path],
        capture_output=True,
        timeout=60,
        text=True,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.startswith(f"btrfs-model: {path}: ")
    assert wanted in ran.stderr
