# SPDX-License-Identifier: GPL-2.0-only
"""A file as an object; what makes a file returns its inode number; what waits, looked at now."""

import os
import stat
from pathlib import Path

import corpus
import numpy as np
import pandas as pd
import pytest

import btrfs_model as bm


@pytest.mark.claim("A file is an object, as the last commit or the running transaction has it.")
def test_a_file_of_an_image_and_of_a_mount(tmp_path: Path) -> None:
    with bm.create("256M") as fs:
        assert fs.mkdir("d") == 257 and fs.create("d/f") == 258
        fs.write("d/f", 0, b"hello world")
        fs.setxattr("d/f", "user.a", b"1")
        fs.symlink("f", "d/link")
        fs.create_subvolume("sub")
        fs.create("sub/g")
        live = fs.file("d/f")
        assert live.read(6) == b"world" and live.stat().size == 11 and live.stat().ino == 258
        assert live.xattrs() == {b"user.a": b"1"} and fs.file("d/link").read() == b"f"
        assert fs.file("d").names() == [b"f", b"link"] and fs.file("sub").names() == [b"g"]
        assert fs.file("").names() == [b"d", b"sub"]
        assert live.fiemap()["flags"].tolist() == [0x7]  # last, unknown, delalloc
        assert live.fiemap(sync=True)["flags"].tolist() == [0x201 | 0x100]
        fs.unlink("d/link")
        assert fs.file("d").names() == [b"f"] and not fs.file("d/link").exists()
        with pytest.raises(NotADirectoryError):
            live.names()
        fs.save(tmp_path / "disk.img")
        names = fs.file("").names()
    with bm.open(tmp_path / "disk.img") as fs:
        file = fs.file("d/f")
        assert file.read() == b"hello world" and file.open().read() == b"hello world"
        with file.open() as opened:
            opened.seek(-5, os.SEEK_END)
            assert opened.read(3) == b"wor"
        assert fs.file("").names() == names and fs.file("sub/g").stat().ino == 257
        assert file.xattrs() == {b"user.a": b"1"} and stat.S_ISREG(file.stat().mode)
        assert file.extents().type.tolist() == ["inline"]
        pd.testing.assert_frame_equal(file.fiemap().table, bm.fiemap(fs, "", "d/f").table)
        assert "\n" not in repr(file) and os.fspath(file) == "d/f"
        with pytest.raises(bm.errors.NoSuchFileError, match="there is no file 'd/x'"):
            fs.file("d/x").read()


def test_a_file_through_subvolumes_of_a_kernel() -> None:
    with bm.open(corpus.image("send/send-utimes/n200")) as fs:
        sub = fs.subvolume("snap1")
        names = [entry.name for entry in sub.readdir("")]
        assert fs.file("snap1").names() == names
        for name in names[:5]:
            assert fs.file(b"snap1/" + name).stat() == sub.inode(name)


def test_what_makes_a_file_returns_its_inode_number() -> None:
    with bm.create("256M") as fs:
        made = [fs.create("f"), fs.mkdir("d"), fs.mknod("p", stat.S_IFIFO | 0o600),
                fs.symlink("f", "l")]  # fmt: skip
        assert made == [257, 258, 259, 260] and all(isinstance(one, int) for one in made)
        assert fs.create_files("d", ["a", "b"]).tolist() == [261, 262]
        assert fs.create_subvolume("s") == 256 and fs.snapshot("s", "t") == 257
        with pytest.deprecated_call(match="returns the inode number") as seen:
            assert made[0].ino == 257  # type: ignore[attr-defined]
        assert seen[0].filename == __file__
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = made[0].nothing  # type: ignore[attr-defined]


def test_batches_of_delayed_items_are_those_that_are_inserted() -> None:
    """Each batch is one insertion: a call of ``setup_items_for_insert()``."""
    with bm.create("1G") as fs:
        fs.mkdir("d")
        fs.sync()
        fs.create_files("d", [f"file_{i}" * 3 for i in range(2000)])
        found = fs.delayed_batches()
        assert int(found["items"].sum()) == 2000
        assert found.inode.unique().tolist() == [257] and found.subvolume.unique().tolist() == [5]
        assert (found.bytes <= 16384 - 101).all()
        assert (found.bytes[:-1] > 16384 - 101 - 300).all()
        fs.sync()
        assert not len(fs.delayed_batches())
    with bm.create("256M", behaviour="v5.10") as fs:
        fs.create("f")
        with pytest.raises(bm.errors.UnsupportedError, match="has not batch-delayed-items"):
            fs.delayed_batches()


def test_names_now_are_those_after_a_commit() -> None:
    chance = np.random.default_rng(1)
    with bm.create("256M") as fs:
        fs.mkdir("d")
        here: list[str] = []
        for step in range(300):
            if here and chance.random() < 0.4:
                fs.unlink(f"d/{here.pop(int(chance.integers(len(here))))}")
            elif chance.random() < 0.1:
                fs.sync()
            else:
                here.append(f"n{step}")
                fs.create(f"d/n{step}")
        assert fs.file("d").names() == [name.encode() for name in here]
        fs.sync()
        assert [one.name for one in fs.subvolume("").readdir("d")] == fs.file("d").names()
