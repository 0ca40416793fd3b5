# SPDX-License-Identifier: GPL-2.0-only
"""Output is there as a whole or not at all, and no file takes the place of a device."""

import os
import socket
import stat
from pathlib import Path

import pandas as pd
import pytest

import btrfs_model as bm
from btrfs_model.base.whole_file import check_folder, whole_file
from btrfs_model.experiments import report
from btrfs_model.experiments.replay import run


def write(path: Path, content: bytes, **options: bool) -> None:
    with whole_file(path, **options) as file:
        file.write(content)


@pytest.mark.claim("A file that is written again keeps its old content until the new is complete.")
def test_what_was_there_stays_until_the_new_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")

    def fails() -> None:
        with whole_file(target) as file:
            file.write(b"new" * 10_000)
            assert target.read_bytes() == b"old"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert target.read_bytes() == b"old"
    write(target, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert target.read_bytes() == b"new"


def test_permissions_and_links_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "file", tmp_path / "link"
    link.symlink_to("folder/file")
    set_mask = os.umask
    mask = set_mask(0o027)
    # it is the process's: to change it for a moment changes what other threads make
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask is changed"))
    try:
        write(link, b"one")
    finally:
        set_mask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    target.chmod(0o600)
    write(link, b"two")
    assert link.is_symlink()
    assert target.read_bytes() == b"two"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_errors_name_the_file(tmp_path: Path) -> None:
    for path, error in (
        (tmp_path, IsADirectoryError),
        (tmp_path / "no" / "folder", FileNotFoundError),
        (Path("/proc/file"), OSError),
    ):
        with pytest.raises(error) as caught:
            write(path, b"")
        assert caught.value.filename == str(path)
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "folder"):
        with pytest.raises(OSError, match="file"):
            check_folder(folder)
    check_folder(tmp_path / "several" / "more")
    assert (tmp_path / "several" / "more").is_dir()


def test_no_file_takes_the_place_of_a_device(tmp_path: Path) -> None:
    """A socket stands for a device here: to make it needs no root."""
    place = tmp_path / "device"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
        with bm.create(256 << 20) as fs, pytest.raises(OSError, match="is not a file") as caught:
            fs.save(place)
        assert caught.value.filename == str(place)
        assert stat.S_ISSOCK(place.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["device"]


def test_a_pipe_can_be_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe, b"through", special=True)
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


full = pytest.mark.skipif(
    not Path("/dev/full").is_char_device(), reason="there is no device that is always full"
)


@full
def test_a_full_device_is_named() -> None:
    for size in (1, 1 << 20):
        with pytest.raises(OSError, match="No space left") as caught:
            write(Path("/dev/full"), bytes(size), special=True)
        assert caught.value.filename == "/dev/full"
    assert Path("/dev/full").is_char_device()


def test_a_dump_that_fails_leaves_the_table_before(tmp_path: Path, small_image: Path) -> None:
    from btrfs_model.questions.dumptree.table import dump_tree_parquet

    table = tmp_path / "items.parquet"
    with bm.open(small_image) as fs:
        dump_tree_parquet(fs.image, table, 5)
        before = table.read_bytes()
        with pytest.raises(bm.BtrfsModelError):
            dump_tree_parquet(fs.image, table, 12345)
    assert table.read_bytes() == before
    assert len(pd.read_parquet(table)) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["items.parquet"]


def test_results_take_their_places_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the device is full at the last of the files, none of them is new."""
    replays = [run("send-truncate", "quick", behaviour_after="v6.12")]
    report.write(replays, tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full(path: Path) -> object:
        if path.suffix == ".svg":
            raise OSError(28, "No space left on device", str(path))
        return whole_file(path)

    monkeypatch.setattr(report, "whole_file", full)
    changed = run("send-truncate", "quick", behaviour_after="v5.10")
    with pytest.raises(OSError, match=r"No space left on device: .*send-truncate\.svg"):
        report.write([changed], tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
