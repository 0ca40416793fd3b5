# SPDX-License-Identifier: GPL-2.0-only
"""The workload `fiemap-shared`: kernels count and build the same."""

import json
from pathlib import Path

import corpus
import live
import numpy as np
import pandas as pd
import pytest
from figures import chosen, is_tidy, value
from progs import btrfs_check

import btrfs_model as bm
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.device import load as load_device
from btrfs_model.cost.reading import Reading
from btrfs_model.experiments import report
from btrfs_model.experiments.replay import run
from btrfs_model.experiments.workloads import load
from btrfs_model.experiments.workloads.fiemap_shared import (
    AFTER,
    BEFORE,
    COMPARED,
    DEVICES,
    KERNELS,
    build,
    rewrite,
    walks_along,
    walks_of_a_call,
)
from btrfs_model.kernels.inside.ioctls import fiemap
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.questions.fiemap.api import FILEFRAG_EXTENTS, Fiemap
from btrfs_model.questions.reads.cold import blocks_after_mount

SNAP200 = "counts/W3/snap200"
F100 = 3200 / 327_680
SHARED = 0x2000


@pytest.fixture(scope="module")
def quick() -> pd.DataFrame:
    return bm.replay("fiemap-shared", "quick")


@pytest.fixture(scope="module")
def built() -> pd.DataFrame:
    return bm.replay("fiemap-shared", 0.003)


def small(extents: int = 1600) -> WritableFilesystem:
    return build(load("fiemap-shared").scaled(extents / 327_680))


# --------------------------------------------------------------------------------- the figures --


@pytest.mark.claim("`fiemap-shared` makes the calls that two kernels made.")
def test_measured_figures_agree(quick: pd.DataFrame) -> None:
    """Calls of both kernels, cold and cached, and the number of reads: all are the model's."""
    both = quick.dropna(subset=["modelled", "measured"])
    assert set(both.side) == {side.name for side in KERNELS}
    assert len(both) >= 50
    assert (both.error == 0).all(), both[both.error != 0]


@pytest.mark.claim("`fiemap-shared` reads the blocks that two kernels read.")
def test_block_reads_of_the_trace_agree() -> None:
    table = bm.replay("fiemap-shared", F100)
    reads = table[(table.quantity == "blocks read") & table.measured.notna()]
    assert reads.measured.tolist() == [31, 30]
    assert (reads.error == 0).all()


def test_waiting_is_that_of_a_thread_that_only_reads(quick: pd.DataFrame) -> None:
    with bm.open(corpus.image(SNAP200)) as fs:
        kernel = Behaviour.parse(AFTER.behaviour)
        fs.image.start_cold(blocks_after_mount(fs, [fs.subvolume("")], kernel))
        Fiemap(fs, "", "foobar", behaviour=kernel).run()
        reads = fs.image.stop_cold()
        physical = np.array([fs.image.map(int(logical))[0] for logical in reads["logical"]])
        for device in DEVICES:
            _, totals = Reading(load_device(device), reads, physical, fs.image.nodesize).run(0)
            assert totals.end == totals.waited
            waits = value(quick, AFTER.name, "waiting for reads", device=device)
            assert waits == totals.end / 1e9


def test_figures_of_the_sides(quick: pd.DataFrame) -> None:
    for cache in ("cold", "cached"):
        before, after = (
            value(quick, side, "find_parent_nodes", cache=cache) for side in ("before", "after")
        )
        assert before > 1600 > 10 * after
        assert value(quick, "after", "saved: walks", cache=cache) == before - after
        # an extent is asked for as often, and each answer is the same
        asked = [value(quick, side, "btrfs_is_data_extent_shared", cache=cache)
                 for side in ("before", "after")]  # fmt: skip
        assert asked[0] == asked[1]
    for side in ("before", "after"):
        assert value(quick, side, "extents found") == 1600
        files = value(quick, side, "blocks read: trees of files")
        extents = value(quick, side, "blocks read: extent tree")
        assert files + extents == value(quick, side, "blocks read")
    assert is_tidy(quick)
    assert quick.reported.isna().all()


def test_the_message_is_set_beside_the_full_scale() -> None:
    from btrfs_model.experiments.workloads import Figure, Outcome, counterparts
    from btrfs_model.experiments.workloads.fiemap_shared import (
        _add_measured,
        _add_reported,
    )

    outcome = Outcome([Figure(side.name, "extents found", "extents", case, modelled=1.0)
                       for side in COMPARED
                       for case in ({"rewritten": 0, "cache": "cold"},
                                    {"rewritten": 0, "cache": "cached"})])  # fmt: skip
    pairs = counterparts(COMPARED, COMPARED)
    _add_reported(outcome, pairs)
    _add_measured(outcome, pairs, load("fiemap-shared").input("full"))
    found = outcome.find("before", "extents found")
    assert found and found.reported == 327_680
    (record,) = (one for one in outcome.timings
                 if (one["side"], one["cache"]) == ("Linux 6.12", "cached"))  # fmt: skip
    assert (record["value"], record["runs"]) == (pytest.approx(0.489489), 10)
    assert (record["kind"], record["kernel"]) == ("uml", "v6.12.101")
    assert "times, Linux 6.12" in outcome.measured_on


def test_other_kernels() -> None:
    table = bm.replay("fiemap-shared", "quick", behaviour_before="v5.16", behaviour_after="v6.18")
    assert set(table.side) == {"before", "after"}
    assert table.measured.isna().all()
    assert value(table, "before", "btrfs_get_extent", cache="cached") > 1600
    assert value(table, "after", "find_parent_nodes", cache="cached") < 200


def test_scales() -> None:
    workload = load("fiemap-shared")
    assert workload.input("quick").sample == f"kernel/{SNAP200}"
    assert workload.input("full").parameters == {"extents": 327_680}
    assert workload.input(F100).sample == "kernel/fiemap/f100"
    assert workload.input(0.5).sample is None
    with pytest.raises(bm.BtrfsModelError, match="a scale is greater than 0"):
        workload.input(-1.0)


# ------------------------------------------------------------------------------ what is built --


@pytest.mark.claim(
    "The filesystem that `fiemap-shared` builds has trees of the same shape as a kernel's and "
    "gives the same work."
)
def test_what_is_built_is_what_a_kernel_wrote() -> None:
    """Trees of the same shape, and the same work as in the image that Linux 6.1 made."""
    with small() as fs, bm.open(corpus.image(SNAP200)) as kernel:
        shapes = [
            bm.tree_stats(one).set_index("tree").loc[[2, 5, 256], ["levels", "nodes", "leaves"]]
            for one in (fs, kernel)
        ]
        pd.testing.assert_frame_equal(*shapes)
        spaces = [bm.du(one)[["total", "exclusive", "tree_bytes"]] for one in (fs, kernel)]
        pd.testing.assert_frame_equal(*spaces)
        for side in (BEFORE, AFTER, *KERNELS):
            counts = []
            for one in (fs, kernel):
                with bm.counting() as work:
                    bm.fiemap(one, "", "foobar", behaviour=side.behaviour)
                counts.append(work["find_parent_nodes"])
            # where leaves and calls begin may differ by one
            assert abs(counts[0] - counts[1]) <= 2


def test_sharing_before_and_after_a_snapshot_and_writing_again() -> None:
    with small(700) as fs:
        assert bm.check(fs) == []
        table = bm.fiemap(fs, "", "foobar")
        assert len(table) == 700
        assert (table["flags"] & SHARED != 0).all()
        rewrite(fs, 700)
        assert bm.check(fs) == []
        table = bm.fiemap(fs, "", "foobar")
        extents = bm.extents(fs, "", "foobar")
        assert (table["flags"] & SHARED == 0).sum() == (~extents["shared"]).sum() == 7
        assert (bm.fiemap(fs, "snap1", "foobar")["flags"] & SHARED == 0).sum() == 7
        # no leaf is shared now but perhaps the last: there is nothing for the commit to save
        counts = []
        for side in (BEFORE, AFTER):
            with bm.counting() as work:
                bm.fiemap(fs, "", "foobar", behaviour=side.behaviour)
            counts.append(work["find_parent_nodes"])
        assert counts[0] >= 693
        assert counts[0] - counts[1] <= 210


def test_figures_of_a_built_filesystem(built: pd.DataFrame) -> None:
    for side in ("before", "after", *(side.name for side in KERNELS)):
        for rewritten in (0, 10):
            assert value(built, side, "extents found", rewritten=rewritten) == 983
        assert value(built, side, "extents shared", rewritten=10) == 973
    again = chosen(built, "find_parent_nodes", rewritten=10).set_index("side").modelled
    assert 973 <= again["before"] <= again["after"] + 210


@pytest.mark.claim(
    "FIEMAP of the running kernel maps the filesystem that `fiemap-shared` builds to the "
    "extents of the model.",
    judge="live",
)
@live.beside_the_kernel
def test_the_kernel_finds_the_same(tmp_path: Path) -> None:
    """`btrfs check` is content; filefrag of the running kernel sees the model's extents."""
    image = tmp_path / "built.img"
    with small(900) as fs:
        rewrite(fs, 900)
        fs.save(image)
        wanted = [
            tuple(map(int, row)) for row in Fiemap(fs, "", "foobar").run().itertuples(index=False)
        ]
    assert btrfs_check(image) == ""
    with live.mounted(image, "ro") as top:
        assert fiemap(top / "foobar") == wanted
        assert len(fiemap(top / "snap1" / "foobar")) == 900


@pytest.mark.claim(
    "A cold FIEMAP of that filesystem reads as many blocks in the running kernel as in the model.",
    judge="live",
)
@live.beside_the_kernel
@pytest.mark.parametrize("extents", [700, 3277, *([32_768, 327_680] if corpus.LONG else [])])
def test_the_kernel_reads_as_many_blocks(tmp_path: Path, extents: int) -> None:
    """As many as the model says for a cold call, by the counters of the block device."""
    from live_sharing import sectors_read

    image = tmp_path / "built.img"
    with small(extents) as fs:
        fs.save(image)
    behaviour = Behaviour.parse(live.PRESET)
    with bm.open(image) as fs:
        top_level = fs.subvolume("")
        fs.image.start_cold(blocks_after_mount(fs, [top_level], behaviour, writable=False))
        Fiemap(fs, "", "foobar", behaviour=behaviour).run()
        modelled = len(fs.image.stop_cold())
    with live.mounted(image, "ro") as top, (top / "foobar").open("rb"):
        before = sectors_read(top)
        fiemap(top / "foobar")
        assert (sectors_read(top) - before) * 512 == modelled * 16384


# -------------------------------------------------------------------------------- the evidence --


def test_walks_of_a_call_are_those_of_fiemap() -> None:
    with bm.open(corpus.image(SNAP200)) as fs:
        start = 1600 // FILEFRAG_EXTENTS // 2 * FILEFRAG_EXTENTS * 131072
        for side in (BEFORE, AFTER):
            found = walks_of_a_call(fs, side.behaviour)
            assert len(found) == FILEFRAG_EXTENTS
            with bm.counting() as work:
                Fiemap(fs, "", "foobar", behaviour=side.behaviour).run(
                    start, FILEFRAG_EXTENTS * 131072, extents_per_call=FILEFRAG_EXTENTS + 1
                )
            assert sum(count for _, count in found) == work["find_parent_nodes"]


def test_walks_along_the_file_are_those_of_the_whole() -> None:
    with bm.open(corpus.image(SNAP200)) as fs:
        for side in (BEFORE, AFTER):
            with bm.counting() as work:
                bm.fiemap(fs, "", "foobar", behaviour=side.behaviour)
            along = walks_along(fs, side.behaviour)
            assert len(along) == work["btrfs_fiemap"] == 6
            # a call that starts anew behind the last one looks at one extent more
            assert 0 <= work["find_parent_nodes"] - sum(along) <= 4 * 6


# ---------------------------------------------------------------------------------- full scale --


def test_full_scale() -> None:
    """All extents of the message, built and mapped; block reads are nearly those of kernels."""
    table = bm.replay("fiemap-shared")
    for side in ("before", "after"):
        assert value(table, side, "extents found", rewritten=0) == 327_680
        assert value(table, side, "extents found", "reported", rewritten=0) == 327_680
    reads = table[(table.quantity == "blocks read") & table.measured.notna()]
    assert len(reads) == 2
    # where a commit or a round of writeback comes is not the same in two runs of a kernel
    assert reads.error.abs().max() < 0.02
    # cached, and cold from each device: the message's stands for one, kernels had theirs in memory
    times = table[table.quantity == "time"]
    assert times.groupby("side").size().tolist() == [1 + len(DEVICES)] * 4
    assert times[times.reported.notna()].groupby("side").size().to_dict() == {
        "before": 2, "after": 2,
    }  # fmt: skip
    assert times.reported.max() == 1.821
    assert times.groupby("side").measured.count().to_dict() == {
        "before": 0, "after": 0, "Linux 6.1": 2, "Linux 6.12": 2,
    }  # fmt: skip
    # 6.1 reads each leaf of the file on demand, later kernels a part of them ahead
    ahead = table[table.quantity == "blocks read: ahead"].set_index("side").modelled
    assert ahead["before"] == ahead["after"] > 0
    for device in DEVICES:
        waits = {side: value(table, side, "waiting for reads", device=device)
                 for side in ("before", "after", "Linux 6.1")}  # fmt: skip
        # the same blocks in another order, so a disk now and then waits for another rotation
        assert waits["before"] == pytest.approx(
            waits["after"], rel=0.06 if device == "deskstar-7k500" else 0.01
        )
        # memory has nothing to gain from reads ahead
        assert waits["Linux 6.1"] > (0.9 if device == "memory" else 1.2) * waits["before"] > 0


def test_files(tmp_path: Path, quick: pd.DataFrame) -> None:
    for folder in ("one", "other"):
        report.write([run("fiemap-shared", "quick")], tmp_path / folder)
    names = ("results.csv", "results.parquet", "report.html", "fiemap-shared.png",
             "fiemap-shared.svg")  # fmt: skip
    for name in names:
        one, other = ((tmp_path / folder / name).read_bytes() for folder in ("one", "other"))
        assert one == other, name
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "one" / "results.parquet"), quick)
    text = (tmp_path / "one" / "report.html").read_text()
    for words in ("skip backref walking", "1,618", "exact", "metadata cached"):
        assert words in text
    record = json.loads((tmp_path / "one" / "provenance.json").read_text())
    workload = record["workloads"]["fiemap-shared"]
    assert workload["image"]["sha256"]
    assert "fiemap-shared-leaf" not in workload["sides"]["before"]["toggles"]


def test_files_of_a_built_filesystem(tmp_path: Path) -> None:
    """No image has a name."""
    one = run("fiemap-shared", 0.001)
    assert one.provenance["sample"] is None
    files = {file.name for file in report.write([one], tmp_path)}
    assert "fiemap-shared.png" in files
    assert "one extent in a hundred" in (tmp_path / "report.html").read_text()
