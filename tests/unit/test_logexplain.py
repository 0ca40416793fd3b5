# SPDX-License-Identifier: GPL-2.0-only
"""What a log holds, what kernels make of it, and what is lost without it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from damage import Broken

import btrfs_model as bm
from btrfs_model.cli import cli
from btrfs_model.ondisk.keys import ItemType


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A file that was written, renamed and fsynced, with the new names of its directory."""
    path = tmp_path / "crashed.img"
    with bm.create(256 << 20, seed=3) as fs:
        fs.mkdir("d")
        for name in "ab":
            fs.create(f"d/{name}")
        fs.sync()
        fs.write("d/a", 0, bytes(8192))
        fs.setxattr("d/a", "user.x", b"1")
        fs.rename("d/a", "d/new")
        fs.create("d/second")
        fs.fsync("d/new")
        fs.save_crash(path)
    return path


@pytest.mark.claim(
    "A log is explained: its inodes by name, how the mount of each kernel ends, what it brings, "
    "path by path, and the toggle that is the reason for another end."
)
def test_a_log_is_explained(crashed: Path) -> None:
    told = bm.explain_log(crashed)
    assert told.problem == ""
    rows = {row["path"]: row for row in told.logged.to_dict("records")}
    new = rows["d/new"]
    assert (new["logged"], new["size"], new["extents"], new["bytes"], new["xattrs"]) == (
        "whole", 8192, 1, 8192, 1,
    )  # fmt: skip
    (brought,) = {tuple(table["path"]) for table in told.changes.values()}
    assert "d/new" in brought
    assert told.replays["outcome"].unique().tolist() == ["replayed"]
    with bm.open(crashed) as fs, bm.replay_log(fs) as replayed:
        assert replayed.file("d/new").read() == bytes(8192)


def test_kernels_that_end_otherwise_are_told_apart(crashed: Path) -> None:
    """An inode without an item: which errno it is, is a commit of 6.16."""
    broken = Broken(crashed)
    (leaf,) = broken.fs().log_trees[5].blocks()
    items = dict(broken.items(leaf.logical))
    file = max(key[0] for key in items if key[1] == ItemType.INODE_REF)
    del items[file, int(ItemType.INODE_ITEM), 0]
    broken.write_items(leaf.logical, items.items())
    told = bm.explain_log(broken.fs())
    assert len(told.replays) == 2
    older, newer = told.replays.to_dict("records")
    # it is in a stable kernel, too
    assert older["kernels"] == "v5.10 to v6.12, v6.13 to v6.15"
    assert newer["kernels"] == "v6.12.101, v6.16 to v7.3"
    assert newer["by"] == "log-replay-errno (5f61b961599a)"
    assert "errno 5" in older["outcome"] and "errno 2" in newer["outcome"]
    assert all(table.empty for table in told.changes.values())


def test_a_damaged_log_is_told_as_far_as_it_goes(crashed: Path) -> None:
    broken = Broken(crashed)
    (leaf,) = broken.fs().log_trees[5].blocks()
    items = dict(broken.items(leaf.logical))
    last = max(key for key in items if key[1] == ItemType.XATTR_ITEM)
    items[last] = items[last][:5]
    broken.write_items(leaf.logical, items.items())
    told = bm.explain_log(broken.fs())
    assert told.problem.endswith("item of 5 bytes, at least 30 wanted")
    assert len(told.logged) and "replayed" not in told.replays["outcome"].tolist()


def test_the_command(crashed: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke(cli, ["log", "explain", str(crashed), "--json"])
    assert run.exit_code == 0
    parts = [json.loads(line)["part"] for line in run.stdout.splitlines()]
    assert {*parts} == {"logged", "mounts", "brings"}
    one = CliRunner().invoke(cli, ["log", "explain", str(crashed), "--behaviour", "v6.1"])
    assert one.exit_code == 0 and "what the mount of v6.1 brings" in one.stdout
    with bm.create("256M") as fs:
        fs.save(tmp_path / "clean.img")
    none = CliRunner().invoke(cli, ["log", "explain", str(tmp_path / "clean.img")])
    assert "there is no log" in str(none.exception)
