# SPDX-License-Identifier: GPL-2.0-only
"""Microbenchmarks on the kernel that runs."""

from __future__ import annotations

import pytest

from btrfs_model.experiments.calibration import micro
from btrfs_model.experiments.calibration.measure import measure
from btrfs_model.experiments.calibration.operations import (
    ColdFiemap,
    ColdSend,
    Fiemap,
    Fsync,
    ListXattrs,
    LookUp,
    Micro,
    Send,
)
from btrfs_model.kernels import native
from btrfs_model.kernels.choice import start

pytestmark = pytest.mark.skipif(bool(native.why_not()), reason=native.why_not())


def test_each_is_counted_and_timed():
    micros = [
        Micro("send", Send(lambda: micro._empty(50))),
        Micro("map", Fiemap(lambda: micro._extents(60))),
        Micro("log", Fsync(("mkdir", "d"), ("create_files", "d", ["a", "b"]), ("fsync", "d"))),
        Micro("list", ListXattrs(lambda: micro._one_with_xattrs(20), 3)),
        Micro("look up", LookUp(lambda: micro._nested(30), 30, 10)),
        Micro("send, cold", ColdSend(lambda: micro._empty(500))),
        Micro("map, cold", ColdFiemap(lambda: micro._extents(600))),
    ]
    with start("native") as kernel:
        measured = measure(kernel, micros, 0, 2, lambda _: None)
    rows = {row.name: row for row in measured.rows}
    assert set(rows) == {one.name for one in (*micros, micro.REFERENCE)}
    assert all(min(row.seconds) > 0 for row in rows.values())
    assert [len(rows[one.name].seconds) for one in micros] == [2] * len(micros)
    assert rows["send"].work["leaves_copied"] == rows["send"].work["btrfs_search_slot"] > 50
    assert rows["map"].work["emit_fiemap_extent"] >= 60
    assert rows["log"].work["btrfs_sync_log"] == 1
    assert rows["list"].work["btrfs_get_next_valid_item"] == 87
    assert rows["look up"].work == {"btrfs_search_slot": 300, "read_block_for_search": 0}
    # a full send reads the leaves of a small tree ahead; FIEMAP reads on demand
    assert rows["send, cold"].work["blocks_awaited"] < rows["send, cold"].work["blocks_read"]
    assert 0 < rows["map, cold"].work["blocks_awaited"] <= rows["map, cold"].work["blocks_read"]
    assert measured.passes == 2
    assert measured.reference > 0
