# SPDX-License-Identifier: GPL-2.0-only
"""Filesystems with the files of a folder, beside those of mkfs.btrfs 7.3."""

import contextlib
import errno
import io
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpus import content
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from progs import btrfs_check
from rootdirs import CASES, ENVIRONMENT, FSID, ON_BTRFS, RECORDS, arguments, digest, told

import btrfs_model as bm
from btrfs_model.cli import run as command
from btrfs_model.mount.mkfs.layout import Format
from btrfs_model.mount.mkfs.make import fresh
from btrfs_model.mount.mkfs.writer.balance import Root
from btrfs_model.mount.mkfs.writer.transaction import Transactions
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.questions.rootdir.copy import Copy
from btrfs_model.questions.rootdir.make import make
from btrfs_model.questions.rootdir.source import Rootdir, smallest_for
from btrfs_model.volume.device.memory import Memory

MKFS = shutil.which("mkfs.btrfs")
IS_OLD = MKFS and "v6.2" in subprocess.check_output([MKFS, "--version"], text=True).split()
IS_NEW = MKFS and "v7.3" in subprocess.check_output([MKFS, "--version"], text=True).split()
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="owners and devices are root's to make")


def run(*words: str | Path) -> str:
    """What the command says; an empty text where it is content."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = command(["mkfs", *map(str, words)])
    return "" if status == 0 else said.getvalue()


def with_chance_of(recorded: dict[str, Any], top: Path, options: dict[str, Any]) -> Memory:
    """A filesystem with the uuids and times that subvolumes had in mkfs.btrfs by chance."""

    def fill(trees: Transactions, _: int) -> list[Root]:
        copy = Copy(trees, Rootdir(str(top), **options), recorded["when"],
                    lambda number: bytes.fromhex(recorded["uuids"][str(number)]))  # fmt: skip
        copy.run()
        return copy.subvolumes

    chosen = Format(0, progs="7.3", uuid=FSID)
    return fresh(replace(chosen, size=smallest_for(str(top), chosen)), 0, fill)


@pytest.mark.claim(
    "A filesystem with the files of a folder is the image of mkfs.btrfs 7.3 --rootdir, byte by "
    "byte, where both have the same uuids and times.",
    judge="progs",
)
@as_root
@pytest.mark.parametrize("name", CASES)
def test_images_are_those_of_mkfs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    build, options = CASES[name]
    top, image = tmp_path / "top", tmp_path / "image"
    top.mkdir()
    build(top)
    recorded = json.loads(RECORDS.read_text())[name]
    if "when" in recorded:
        with_chance_of(recorded, top, options).save(image)
    else:
        assert run(image, "-U", FSID, "--rootdir", top, *arguments(options)) == ""
    assert told(image) == recorded
    with bm.open(image) as fs:
        assert bm.check(fs) == []
    assert btrfs_check(image) == ""


@pytest.mark.claim(
    "Of a folder on a btrfs that does not tell checksums, and with --reflink, the image is that of "
    "mkfs.btrfs 7.3, too.",
    judge="progs",
)
@as_root
@pytest.mark.parametrize("name", ON_BTRFS)
def test_images_of_btrfs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr("btrfs_model.questions.rootdir.data.csum_of", lambda _: (0, 4096))
    monkeypatch.setattr("btrfs_model.questions.rootdir.data.tells_csums", lambda _: False)
    shared: list[tuple[int, int, int]] = []

    def share(_: int, at: int, length: int, image: int, place: int) -> None:
        assert os.pread(image, length, place)
        shared.append((at, length, place))

    monkeypatch.setattr("btrfs_model.questions.rootdir.data.share_range", share)
    build, options = ON_BTRFS[name]
    (tmp_path / "top").mkdir()
    build(tmp_path / "top")
    image = tmp_path / "image"
    assert run(image, "-U", FSID, "-r", tmp_path / "top", *arguments(options)) == ""
    assert told(image) == json.loads(RECORDS.read_text())[name]
    assert bool(shared) == ("--reflink" in options.get("words", []))


@pytest.mark.skipif(not IS_NEW, reason="mkfs.btrfs of btrfs-progs 7.3 is not here")
@as_root
@pytest.mark.parametrize("name", [name for name in CASES if "subvolumes" not in CASES[name][1]])
def test_images_are_those_of_mkfs_here(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a program in place of its records; subvolumes have uuids by chance."""
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    build, options = CASES[name]
    (tmp_path / "top").mkdir()
    build(tmp_path / "top")
    words = ["-U", FSID, "-r", str(tmp_path / "top"), *arguments(options)]
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.touch()
    subprocess.run([str(MKFS), "-q", "-f", *words, str(theirs)], check=True, capture_output=True)
    assert run(ours, *words) == ""
    assert digest(ours) == digest(theirs)


def undated(key: Key, data: bytes) -> bytes:
    """Data of an item, without the times of the top, access times and the transactions of names.

    6.2 takes the times of the top from the clock, reads the files, which may change when they were
    read last, and leaves in a name what lay there.
    """
    if key.type == ItemType.INODE_ITEM:
        return data[:112] + (b"" if key.objectid == 256 else data[124:])
    is_name = key.type in (ItemType.DIR_ITEM, ItemType.DIR_INDEX, ItemType.XATTR_ITEM)
    return data[:17] + data[25:] if is_name else data


@pytest.mark.claim(
    "Of a folder `mkfs --progs 6.2` makes the items that mkfs.btrfs 6.2 makes, each in its block, "
    "and the same data.",
    judge="progs",
)
@pytest.mark.skipif(not IS_OLD, reason="mkfs.btrfs of btrfs-progs 6.2 is not here")
@as_root
@pytest.mark.parametrize("nodesize", ["4096", "16384"])
def test_items_of_6_2(tmp_path: Path, nodesize: str) -> None:
    for name in ("small", "large", "sparse", "special", "linked", "attributes", "chunks"):
        (tmp_path / "top" / name).mkdir(parents=True)
        CASES[name][0](tmp_path / "top" / name)
    words = ["-U", FSID, "-n", nodesize, "-r", str(tmp_path / "top"), "-b", "1G"]
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    with theirs.open("wb") as file:
        file.truncate(1 << 30)
    subprocess.run([str(MKFS), "-q", "-f", *words, str(theirs)], check=True, capture_output=True)
    assert run(ours, "--progs", "6.2", *words) == ""
    found = []
    for image in (theirs, ours):
        with bm.open(image) as fs:
            assert bm.check(fs) == []
            blocks = [(one.logical, one.level) for tree in (2, 5, 7)
                      for one in fs.tree(tree).blocks()]  # fmt: skip
            items = [(item.key, undated(item.key, bytes(item.data)))
                     for tree in (2, 5, 7) for item in fs.tree(tree).items()]  # fmt: skip
            found.append((blocks, items, fs.file("large/noise").read()))
    assert found[0] == found[1]


@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(
    st.dictionaries(st.text("abc/", min_size=1, max_size=6), st.binary(max_size=9000), max_size=6),
    st.sampled_from(["no", "zlib", "lzo", "zstd"]),
)
def test_any_folder(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes],
                    compress: str) -> None:  # fmt: skip
    top = tmp_path_factory.mktemp("top")
    for name, data in files.items():
        path = top.joinpath(*(f"x{part}" for part in name.split("/")))
        if not path.exists() and not any(one.is_file() for one in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data * 7)
    image = top.parent / f"{top.name}.img"
    make(Rootdir(str(top), compress=compress), Format(0, progs="7.3")).save(image)
    with bm.open(image) as made:
        assert bm.check(made) == []
        for path in top.rglob("*"):
            file = made.file(str(path.relative_to(top)))
            assert file.read() == path.read_bytes() if path.is_file() else file.exists()
    image.unlink()


def test_refused(tmp_path: Path) -> None:
    (tmp_path / "top/d").mkdir(parents=True)
    (tmp_path / "top/file").touch()
    image, top = tmp_path / "image", ("--rootdir", tmp_path / "top")
    for words, said in [
        (("--rootdir", tmp_path / "none"), "No such file"),
        (("--rootdir", tmp_path / "top/file"), "Not a directory"),
        ((*top, "-u", "none"), "subvolume path does not exist: none"),
        ((*top, "-u", "file"), "subvolume is not a directory: file"),
        ((*top, "-u", "rx:d"), "unrecognized subvolume type: 'rx'"),
        ((*top, "-u", "default:d", "-u", "default:."), "can only be specified once"),
        ((*top, "--inode-flags", "nodata:file"), "unknown inode flag: nodata"),
        ((*top, "--compress", "lzop"), "compression 'lzop'"),
        ((*top, "--compress", "zstd:16"), "compression level 16 out of range [1..15]"),
        ((*top, "--compress", "lzo:3"), "compression level 3 out of range [1..1]"),
        ((), "how large?"),
        ((*top, "-u", "d", "--progs", "6.2"), "btrfs-progs 6.2 copies a folder as it is"),
        ((*top, "-O", "nosuch"), "unrecognized filesystem feature 'nosuch'"),
        (("--compress", "zstd"), "go with --rootdir"),
        (("--reflink", "-b", "1G"), "go with --rootdir"),
        (("-b", "1M"), "the smallest device has"),
        (("-b", "1G", "--progs", "6.3"), "none of 6.2, 6.14, 6.19, 7.3"),
    ]:
        assert said in run(image, *words), words
        assert not image.exists()


def test_what_cannot_be_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr("btrfs_model.questions.rootdir.data.share_range", refuse)
    (tmp_path / "top").mkdir()
    (tmp_path / "top/file").write_bytes(bytes(8192))
    image = tmp_path / "image"
    said = run(image, "--rootdir", tmp_path / "top", "--reflink")
    assert said.endswith(f"cannot clone range of {tmp_path}/top/file: Invalid cross-device link\n")
    assert [one.name for one in tmp_path.iterdir()] == ["top"]


def test_a_larger_file_stays_as_large(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(1 << 30)
    assert run(image, "--rootdir", tmp_path / "top", "--progs", "6.19", "-m", "single") == ""
    assert image.stat().st_size == 1 << 30
    made = content(image)
    assert "holds something; --force" in run(image, "--progs", "6.2", "-L", "again")
    assert content(image) == made
    assert run(image, "--progs", "6.2", "-L", "again", "--force") == ""
    with bm.open(image) as fs:
        assert fs.image.superblock.label == "again"
