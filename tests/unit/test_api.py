# SPDX-License-Identifier: GPL-2.0-only
"""What is asked alike is answered alike: subvolumes, limits, paths in place of filesystems."""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import btrfs_model as bm
from btrfs_model.base.errors import NotWrittenWarning
from btrfs_model.limits import Limits
from btrfs_model.questions.send.ioctl import SendResult

SNAP, FILE = "snap", "dir/file"

ASKED: dict[str, Callable[[Any, Any], object]] = {
    "send": lambda fs, snap: bm.send(fs, snap).data,
    "reads": lambda fs, snap: bm.reads(fs, snap),
    "fiemap": lambda fs, snap: bm.fiemap(fs, snap, FILE),
    "extents": lambda fs, snap: bm.extents(fs, snap, FILE),
    "extent_references": lambda fs, snap: bm.extent_references(fs, snap, FILE),
    "du": lambda fs, snap: bm.du(fs, snap),
}
OF_ALL: dict[str, Callable[[Any], object]] = {
    "check": bm.check,
    "tree_stats": bm.tree_stats,
    "du": bm.du,
    "draw": lambda fs: bm.draw(fs).svg,
    "logical_ino": lambda fs: bm.logical_ino(fs, ADDRESS[0]),
    "replay_log": lambda fs: bm.replay_log(fs).listing(5),
}
ADDRESS: list[int] = []


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("api") / "image"
    with bm.create("256M", seed=1) as fs:
        fs.mkdir("dir")
        fs.create(FILE)
        fs.write(FILE, 0, bytes(range(256)) * 400)
        fs.sync()
        fs.snapshot("", SNAP)
        fs.save(path)
        ADDRESS[:] = [int(bm.fiemap(fs, SNAP, FILE).physical[0])]
    return path


@pytest.fixture(scope="module")
def fs(image: Path) -> Iterator[bm.Filesystem]:
    with bm.open(image) as opened:
        yield opened


def assert_alike(found: object, expected: object) -> None:
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("name", ASKED)
def test_a_subvolume_is_named_in_any_way(name: str, fs: bm.Filesystem) -> None:
    subvolume = fs.subvolume(SNAP)
    expected = ASKED[name](fs, SNAP)
    for way in (SNAP.encode(), subvolume.id, np.int64(subvolume.id), subvolume):
        assert_alike(ASKED[name](fs, way), expected)


@pytest.mark.claim("Whatever is asked of a filesystem can be asked of its path, or of its paths.")
@pytest.mark.parametrize("name", [*ASKED, *OF_ALL])
def test_a_path_stands_for_a_filesystem(name: str, image: Path, fs: bm.Filesystem) -> None:
    ask = OF_ALL.get(name) or (lambda fs: ASKED[name](fs, SNAP))
    expected = ask(fs)
    for _ in range(2):
        for path in (image, str(image), [image]):
            if name != "draw" or not isinstance(path, list):
                assert_alike(ask(path), expected)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ask("nowhere")
    # nothing stays open
    assert not [link for link in map(read_link, Path("/proc/self/fd").iterdir())
                if link == str(image)][2:]  # fmt: skip


def read_link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def test_names_of_arguments_are_as_good(image: Path, fs: bm.Filesystem) -> None:
    for one in (fs, image, fs, image):
        assert bm.send(fs=one, snapshot=SNAP).data == bm.send(fs, SNAP).data  # type: ignore[call-arg, arg-type]


def test_limits_are_an_object_or_a_mapping(fs: bm.Filesystem) -> None:
    named = {"name_cache": 4}
    calls: list[Callable[[Any], SendResult | pd.DataFrame]] = [
        lambda limits: bm.send(fs, SNAP, limits=limits),
        lambda limits: bm.reads(fs, SNAP, limits=limits),
        lambda limits: bm.fiemap(fs, SNAP, FILE, limits=limits),
        lambda limits: bm.replay("send-utimes", "quick", limits=limits),
    ]
    for call in calls:
        mapping, given = call(named), call(Limits(**named))
        if isinstance(mapping, SendResult):
            assert isinstance(given, SendResult) and mapping.work == given.work
        else:
            pd.testing.assert_frame_equal(mapping, given)
    assert Limits().given() == {} and Limits(always_nodes=5).given() == {"always_nodes": 5}
    pd.testing.assert_frame_equal(
        bm.replay("send-utimes", "quick"), bm.replay("send-utimes", "quick", limits=Limits())
    )


@pytest.mark.claim("A commit that leaves data unwritten says so in one line.")
def test_a_commit_says_that_data_wait() -> None:
    with bm.create("256M") as fs:
        fs.create("f")
        fs.write("f", 0, b"hello")
        with pytest.warns(NotWrittenWarning, match="data of 1 file unwritten; sync") as seen:
            fs.commit()
        assert seen[0].filename == __file__
        assert fs.read_file("", "f") == b""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fs.sync()
            assert fs.read_file("", "f") == b"hello"
            fs.create("g")
            fs.commit()
            fs.remount()


def test_a_receive_without_a_sync() -> None:
    """Files lie where a FIEMAP puts them that comes right after ``btrfs receive``."""
    with bm.create("100G", behaviour="v6.10") as source:
        source.create("foo")
        source.write("foo", 0, os.urandom(1_048_581))
        source.create("bar")
        source.clone_range("foo", "bar", 0, 0, 0)
        source.snapshot("", "snap")
        source.sync()
        data = {
            kernel: bm.send(source, "snap", behaviour=kernel).data for kernel in ("v6.10", "v6.11")
        }
    found = {}
    for kernel, stream in data.items():
        with bm.create("100G", behaviour=kernel) as fs:
            assert bm.receive(fs, stream, sync=False).subvolumes == ["snap"]
            rows = bm.fiemap_mounted(fs, "snap/bar", sync=True)
            found[kernel] = [
                (row.physical // 512, (row.physical + row.length) // 512 - 1, hex(row.flags))
                for row in rows.itertuples()
            ]
    # e764923c5a0b: blocks of 512 bytes and flags as xfs_io shows them
    assert found == {"v6.10": [(26624, 28679, "0x1")], "v6.11": [(26624, 28679, "0x2001")]}
