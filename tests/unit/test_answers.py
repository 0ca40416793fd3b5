# SPDX-License-Identifier: GPL-2.0-only
"""Answers of one shape: rows, work, time on a machine and a device, and the ratio of two."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import corpus
import pandas as pd
import pytest

import btrfs_model as bm
from btrfs_model.base.counters import counting
from btrfs_model.base.errors import BtrfsModelError, UnsupportedError
from btrfs_model.cost.answer import Answer
from btrfs_model.cost.prediction import Prediction

DISK, SSD = "deskstar-7k500", "samsung-850-evo"
IMAGE = "send/send-utimes/n200"


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, Any]]:
    """One of each kind; the filesystems that were asked are closed again."""
    image = corpus.image(IMAGE)
    sent = bm.send(image, "snap2", "snap1")
    full = bm.send(image, "snap1")
    with bm.create("256M") as fs:
        received = bm.receive(fs, full.data or b"")
        fs.create("f")
        fs.write("f", 0, b"x" * 5000)
        synced = bm.fsync(fs, "f")
        committed = bm.commit(fs)
        mounted = bm.fiemap_mounted(fs, "f")
    file = bm.fiemap(corpus.image("send/send-truncate/n500"), "snap", 257)
    yield {
        "send": sent, "receive": received, "fsync": synced, "commit": committed,
        "fiemap": file, "fiemap_mounted": mounted, "reads": bm.reads(image, "snap2"),
    }  # fmt: skip


KINDS = ("send", "receive", "fsync", "commit", "fiemap", "fiemap_mounted", "reads")


@pytest.mark.claim("What takes time answers in one shape: rows, work, time, and ratios of times.")
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_has_rows_work_and_time(kind: str, answers: dict[str, Any]) -> None:
    answer = answers[kind]
    assert isinstance(answer, Answer)
    assert type(answer.table) is pd.DataFrame and len(answer.table)
    assert sum(answer.work.values())
    time = answer.time()
    assert isinstance(time, Prediction) and 0 < time.low <= time.seconds <= time.high
    assert bm.ratio(answer, answer).untold
    assert "\n" not in repr(time) and "<table" in time._repr_html_()
    if kind not in ("receive", "fiemap_mounted"):
        on = answer.time(device=[DISK, SSD])
        assert set(on.devices) == {DISK, SSD}
        assert on.seconds == answer.time(device=DISK).seconds >= answer.time(device=SSD).seconds
        assert on.low <= on.devices[SSD].low < on.devices[DISK].high <= on.high
    else:
        with pytest.raises(UnsupportedError):
            answer.time(device=DISK)


def test_a_device_costs_more_than_memory_and_a_pipe_more_than_a_file(
    answers: dict[str, Any],
) -> None:
    sent = answers["send"]
    assert sent.time(device=DISK).seconds > sent.time(device=SSD).seconds > sent.time().seconds
    assert sent.time(pipe=True).seconds > sent.time().seconds
    # the same blocks on the same device as bm.reads() of what a mount leaves
    assert answers["reads"].time().seconds == pytest.approx(
        bm.send(corpus.image(IMAGE), "snap2").time().seconds
    )


def test_ratios_of_answers() -> None:
    image = corpus.image(IMAGE)
    before, after = (bm.send(image, "snap2", "snap1", behaviour=b) for b in ("v6.2", "v6.3"))
    found = bm.ratio(before, after)
    assert found == bm.ratio(before.time(), after.time())
    assert found.low < found.value < found.high and not found.devices
    assert repr(found).startswith("Ratio(") and "\n" not in repr(found)
    on = bm.ratio(before, after, device=[SSD, DISK])
    assert on.value == on.devices[SSD] == bm.ratio(before, after, device=SSD).value
    assert on.devices[DISK] == bm.ratio(before, after, device=DISK).value
    assert on.low <= min(on.devices.values()) <= max(on.devices.values()) <= on.high
    assert on.alone == bm.ratio(before, after, device=SSD)
    assert DISK in on._repr_html_()
    with pytest.raises(TypeError, match="before is an Answer or Prediction"):
        bm.ratio(3.0, after)  # type: ignore[arg-type]


def test_a_table_is_a_data_frame() -> None:
    with bm.open(corpus.image("send/send-truncate/n500")) as fs:
        rows = bm.fiemap(fs, "snap", 257)
        with counting() as work:
            bm.fiemap(fs, "snap", 257)
    assert rows.work == work
    assert type(rows[rows.length > 0]) is type(rows.copy()) is pd.DataFrame
    again = pickle.loads(pickle.dumps(rows))
    pd.testing.assert_frame_equal(again, rows.table)


def test_what_is_written_is_what_is_counted() -> None:
    with bm.create("1G") as fs:
        fs.mkdir("d")
        fs.create_files("d", [f"file_{i}" for i in range(3000)])
        log = bm.fsync(fs, "d")
        counts = log.work["log_leaves_written"], log.work["log_nodes_written"]
        assert (str(log), tuple(log.table[["leaves", "nodes"]].sum())) == ("log", counts)
        assert str(bm.fsync(fs, "d")) == "none"
        fs.unlink("d/file_7")
        again = bm.fsync(fs, "d")
        counts = again.work["log_leaves_written"], again.work["log_nodes_written"]
        assert tuple(again.table[["leaves", "nodes"]].sum()) == counts
        done = bm.commit(fs)
        trees = {tree: sum(1 for block in fs.tree(tree).blocks()
                           if block.generation == fs.image.superblock.generation)
                 for tree in fs.trees}  # fmt: skip
        assert dict(zip(done.table.tree, done.table.leaves + done.table.nodes, strict=True)) == {
            tree: count for tree, count in trees.items() if count
        }
        assert done and not bm.commit(fs)


def test_a_closed_filesystem_in_memory_cannot_be_asked_again() -> None:
    with bm.create("256M") as fs:
        fs.create("f")
        fs.sync()
        rows = bm.fiemap(fs, "", "f")
    with pytest.raises(ValueError, match="closed"):
        rows.time(device=DISK)


def test_several_devices_of_a_filesystem_have_no_time(tmp_path: Path) -> None:
    sent = bm.send(corpus.image(IMAGE), "snap1")
    with pytest.raises(BtrfsModelError, match="no device 'dsk'"):
        sent.time(device="dsk")
