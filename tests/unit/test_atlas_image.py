# SPDX-License-Identifier: GPL-2.0-only
"""Which commits matter for an image: each row beside the calls that it is about."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import btrfs_model as bm
from btrfs_model.behaviour import PRESETS
from btrfs_model.cli import cli
from btrfs_model.experiments.atlas import image
from btrfs_model.patches import Patch

NEWEST = PRESETS[-1]


def ranked(path: Path) -> tuple[pd.DataFrame, list[str]]:
    return image.ranking(path, None, lambda _: None)


@pytest.mark.claim("For an image, commits are ranked by what its sends, FIEMAPs and fsyncs lose.")
def test_each_row_is_that_of_the_calls(tmp_path: Path) -> None:
    path = bm.sample("kernel/send/send-utimes/n200")
    before = hashlib.sha256(path.read_bytes()).digest()
    found, notes = ranked(path)
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert notes[:2] == ["send: all of snap2", "send -p: snap2 from snap1"]
    assert {"send-utimes-cache", "send-cur-inode-path"} <= set(found.toggle)
    assert found.times.is_monotonic_decreasing
    with bm.open(path) as fs:
        for row in found[found.operation.isin(["send", "send -p"])].itertuples():
            parent = "snap1" if row.operation == "send -p" else None
            later = [str(one) for one in Patch(row.toggle).needed_by]
            after = " - ".join([NEWEST, *later])
            for behaviour, size, seconds in (
                (after, row.bytes, row.seconds),
                (f"{after} - {row.toggle}", row.bytes_without, row.without),
            ):
                sent = bm.send(fs, "snap2", parent, behaviour=behaviour, estimate=True)
                assert sent.size == size
                assert sent.time().seconds == pytest.approx(seconds)


def test_an_fsync_without_a_commit_logs_more(tmp_path: Path) -> None:
    path = tmp_path / "image"
    fs = bm.create("256M")
    for number in range(300):
        fs.create(f"file{number}")
    fs.save(path)
    found, notes = ranked(path)
    assert notes == ["fsync: 100 files and directories, each after a small change"]
    rows = found.set_index("toggle")
    assert rows.times["log-dir-index-only"] > 1
    assert set(found.operation) == {"fsync"}


def test_extents_of_a_file_are_asked_for(tmp_path: Path) -> None:
    path = bm.sample("kernel/counts/W3/snap200")
    found, _ = ranked(path)
    extents = found[found.operation == "fiemap"].set_index("toggle")
    assert extents.times["fiemap-file-extents"] > 1


def test_what_goes_together_and_what_not(tmp_path: Path) -> None:
    path = bm.sample("kernel/send/send-utimes/n200")
    for words, named in ((["send"], "a row"), (["--scale", "quick"], "--scale"),
                         (["--history"], "--history"), (["--out", "x"], "--out")):  # fmt: skip
        told = CliRunner().invoke(cli, ["atlas", *words, "--image", str(path)])
        assert told.exit_code == 2
        assert f"--image does not go with {named}" in told.output
    told = CliRunner().invoke(cli, ["atlas", "--image", str(tmp_path / "none")])
    assert told.exit_code == 2
    broken = tmp_path / "broken"
    broken.write_bytes(bytes(1 << 20))
    with pytest.raises(bm.BtrfsModelError, match="broken"):
        ranked(broken)
