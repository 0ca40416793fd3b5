# SPDX-License-Identifier: GPL-2.0-only
"""FIEMAP against what kernels answered, counted and read."""

import csv
import errno
import io
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import corpus
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logical_ino import CASES

import btrfs_model as bm
from btrfs_model.base.counters import Work
from btrfs_model.behaviour import Behaviour
from btrfs_model.cli import run
from btrfs_model.patches import Patch
from btrfs_model.questions.fiemap.api import Fiemap
from btrfs_model.questions.reads.cold import blocks_after_mount

KERNELS = {
    "5.10": "v5.10.46",
    "6.1": "v6.1.176",
    "6.12": "v6.12.101",
    "6.18": "v6.18.44",
    "7.2": "v7.2.7",
}
_here = {name for name in CASES if (corpus.KERNEL_DATA / name).is_dir()}
RANDOM = [name for name in CASES if corpus.LONG or name in _here]
WHOLE = [name for name in ("fiemap/f100", "fiemap/f10") if name in corpus.images("fiemap")]
COUNTED = [name for name in corpus.images("counts") if name.startswith("counts/W3/")]
F100 = "fiemap/f100"

Row = tuple[int, ...]


@lru_cache(maxsize=2)
def opened(name: str) -> bm.Filesystem:
    return bm.open(corpus.image(name))


def rows(file: Fiemap, *args: int, **named: int) -> list[Row]:
    table = file.run(*args, **named)
    return list(zip(*(table[name].tolist() for name in table.columns), strict=True))


def answers(name: str, kernel: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(corpus.data(name, f"fiemap.{kernel}.json.zst"))
    return answer


# --------------------------------------------------------------------------------- extents ------


@pytest.mark.one_of(2)
@pytest.mark.claim(
    "FIEMAP reports the extents and flags of five kernels, also in the middle of a balance."
)
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        (n, kernel)
        for n in RANDOM
        for kernel in KERNELS
        if corpus.has(n, f"fiemap.{kernel}.json.zst")
    ],
)
def test_every_extent_of_every_file(name: str, kernel: str) -> None:
    fs = opened(name)
    files = answers(name, kernel)["files"]
    assert files
    for path, file in files.items():
        found = rows(Fiemap(fs, file["root"], file["inode"], behaviour=KERNELS[kernel]))
        assert found == [tuple(row) for row in file["extents"]], path


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        (n, kernel)
        for n in WHOLE
        for kernel in KERNELS
        if corpus.has(n, f"fiemap.{kernel}.json.zst")
    ],
)
def test_a_file_in_a_snapshot(name: str, kernel: str) -> None:
    file = Fiemap(opened(name), 5, "foobar", behaviour=KERNELS[kernel])
    wanted = [tuple(row) for row in answers(name, kernel)["extents"]]
    assert rows(file) == wanted
    # again, with all that the kernel remembers
    assert rows(file) == wanted


# ------------------------------------------------------------------------------------ work ------


# Functions whose symbols a kernel has, and what the model calls them.
_SAME = [
    "find_parent_nodes", "btrfs_search_slot", "btrfs_search_old_slot", "btrfs_next_old_leaf",
    "btrfs_next_old_item", "add_prelim_ref", "prelim_ref_insert", "prelim_ref_compare",
    "is_shared_data_backref", "ulist_add_merge", "lookup_backref_shared_cache",
    "store_backref_shared_cache", "btrfs_fiemap", "emit_fiemap_extent",
    "fiemap_fill_next_extent", "btrfs_get_extent",
]  # fmt: skip
_READS = ("read_block_for_search", "read_tree_block", "btrfs_readahead_node_child", "submit_bio")


def recorded(counts: dict[str, int]) -> dict[str, int]:
    """Counts without the suffixes that the compiler gave the functions."""
    return {name.split(".")[0]: count for name, count in counts.items()}


@pytest.mark.claim("The counted work of FIEMAP equals probes in three kernels.")
@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("kernel", ["5.10", "6.1", "6.12"])
def test_counts(name: str, kernel: str) -> None:
    fs = opened(name)
    file = Fiemap(fs, 5, "foobar", behaviour=KERNELS[kernel])
    phases = corpus.case(name)["kernels"][kernel]
    for phase in ("cold", "cached"):
        wanted = recorded(phases[phase]["counts"])
        if phase == "cold":
            fs.image.start_cold(
                blocks_after_mount(fs, [fs.subvolume(5)], Behaviour.parse(KERNELS[kernel]))
            )
        with bm.counting() as work:
            file.run()
        if phase == "cold":
            fs.image.stop_cold()
        found = dict(work) | {
            "btrfs_check_shared": work["btrfs_is_data_extent_shared"],
            "alloc_extent_buffer": work["read_tree_block"] + work["btrfs_readahead_node_child"],
        }
        functions = [
            *_SAME, *_READS, "btrfs_check_shared", "btrfs_is_data_extent_shared",
            "alloc_extent_buffer",
        ]  # fmt: skip
        compared = [function for function in functions if function in wanted]
        assert len(compared) > 8
        if kernel == "5.10":
            # A check finds no transaction where one was just committed, and searches commit roots:
            # then up to three searches of old slots are searches as well.
            compared.remove("btrfs_search_slot")
            alone = wanted["btrfs_check_shared"] - wanted["btrfs_end_transaction"]
            more = wanted["btrfs_search_slot"] - found["btrfs_search_slot"]
            assert 0 <= more <= 3 * alone
        assert {function: found.get(function, 0) for function in compared} == {
            function: wanted[function] for function in compared
        }


@pytest.mark.claim("FIEMAP reads the blocks of a cold call in the order of four kernels.")
@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize(
    "kernel", [one for one in KERNELS if corpus.has(F100, f"reads.{one}.csv.zst")]
)
def test_blocks_read_by_a_cold_call(name: str, kernel: str) -> None:
    fs = opened(name)
    trees = json.loads(corpus.data(name, "treemap.json.zst"))["trees"].values()
    logical = {block[1]: block[0] for tree in trees for block in tree["blocks"]}
    trace = list(csv.DictReader(io.StringIO(corpus.text(name, f"reads.{kernel}.csv.zst"))))
    before = {logical.get(int(row["offset"]), 0) for row in trace if row["phase"] in "01"}
    wanted = [logical[int(row["offset"])] for row in trace if row["phase"] == "2"]
    file = Fiemap(fs, 5, "foobar", behaviour=KERNELS[kernel])
    fs.image.start_cold(before | {tree.bytenr for tree in fs.trees.values()})
    file.run()
    assert fs.image.stop_cold()["logical"].tolist() == wanted
    assert before >= blocks_after_mount(fs, [fs.subvolume(5)], Behaviour.parse(KERNELS[kernel])) - {
        tree.bytenr for tree in fs.trees.values()
    }


# --------------------------------------------------------------------------------- toggles ------


def work_of(behaviour: str) -> tuple[list[Row], Work]:
    file = Fiemap(opened(F100), 5, "foobar", behaviour=behaviour)
    with bm.counting() as work:
        found = rows(file)
    return found, work


@pytest.mark.parametrize(
    "toggle",
    [patch for patch in Patch if patch.startswith("fiemap-")],
)
def test_a_toggle_changes_no_answer(toggle: str) -> None:
    after, _ = work_of("v6.12")
    before, _ = work_of(f"v6.12 - {toggle}")
    assert after == before


def test_what_a_shared_leaf_saves() -> None:
    """One walk for each leaf in each call, instead of one for each extent."""
    _, before = work_of("v6.12 - fiemap-shared-leaf")
    _, after = work_of("v6.12")
    extents = before["btrfs_is_data_extent_shared"]
    # a check of each extent, and for each call and leaf a walk of the leaf itself
    assert before["find_parent_nodes"] > extents > 3200
    assert after["find_parent_nodes"] < 200
    assert after["btrfs_is_data_extent_shared"] == extents


def test_behaviours_differ_where_kernels_do() -> None:
    maps, items = Behaviour.parse("v5.16"), Behaviour.parse("v6.1")
    assert "fiemap-file-extents" in items
    assert "fiemap-file-extents" not in maps
    _, work = work_of("v5.16")
    assert work["btrfs_get_extent"] > 3200
    _, work = work_of("v6.1")
    assert work["btrfs_get_extent"] == 0


# ------------------------------------------------------------------------------------ twins ------

BEHAVIOURS = [
    *KERNELS.values(),
    "v5.16",
    "v6.1",
    "v6.2",
    *(
        f"v6.12 - {row['slug']}"
        for row in bm.toggles().to_dict("records")
        if row["slug"].startswith("fiemap-")
    ),
]


def both_kernels(
    fs: bm.Filesystem, root: int, file: str | int, behaviour: str, cold: bool = False, **named: int
) -> None:
    """Run C and Python, twice each: rows, work and reads are the same."""
    found = []
    for choice in ("c", "python"):
        with bm.use_code(choice):
            one = Fiemap(fs, root, file, behaviour=behaviour)
            for _ in range(2):
                if cold:
                    fs.image.start_cold(tree.bytenr for tree in fs.trees.values())
                with bm.counting() as work:
                    extents = rows(one, **named)
                found.append((extents, dict(work), fs.image.stop_cold().tolist() if cold else []))
    assert found[:2] == found[2:], (root, file, behaviour, named)


@pytest.mark.claim("FIEMAP of C and Python gives the same extents and counts.", judge="twins")
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_python_and_c_are_equal(behaviour: str) -> None:
    both_kernels(opened(F100), 5, "foobar", behaviour, cold=True, length=131072 * 700)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", RANDOM[:4])
def test_python_and_c_are_equal_for_random_files(name: str) -> None:
    files = list(answers(name, "6.12")["files"].values())
    for number, file in enumerate(files[:: max(1, len(files) // 60)]):
        behaviour = BEHAVIOURS[number % len(BEHAVIOURS)]
        extents_per_call = (1, 7, 292)[number % 3]
        both_kernels(
            opened(name), file["root"], file["inode"], behaviour,
            extents_per_call=extents_per_call,
        )  # fmt: skip


# ----------------------------------------------------------------------------------- ranges ------


@given(
    behaviour=st.sampled_from(list(KERNELS.values())),
    start=st.integers(0, 3200 * 131072 + 10000),
    length=st.one_of(st.integers(0, 10**6), st.integers(0, 2**64 - 1)),
    extents_per_call=st.integers(100, 5000),
)
def test_ranges(behaviour: str, start: int, length: int, extents_per_call: int) -> None:
    whole = answers(F100, "6.12")["extents"]
    end = min(start + length, 2**63 - 1)
    file = Fiemap(opened(F100), 5, "foobar", behaviour=behaviour)
    found = rows(file, start, length, extents_per_call=extents_per_call)
    first, last = start // 4096 * 4096, -(-end // 4096) * 4096 if "v5" not in behaviour else end
    wanted = [tuple(row) for row in whole if length and row[0] + row[2] > first and row[0] < last]
    assert found == wanted


def test_one_extent_a_call() -> None:
    file = Fiemap(opened(F100), 5, "foobar")
    with bm.counting() as work:
        found = rows(file, 0, 131072 * 50, extents_per_call=1)
    assert len(found) == 50
    assert work["btrfs_fiemap"] == 50


# ----------------------------------------------------------------------------------- errors ------


def test_what_cannot_be_asked() -> None:
    fs = opened(F100)
    with pytest.raises(FileNotFoundError):
        bm.fiemap(fs, 5, "no such file")
    with pytest.raises(OSError, match="not a file") as caught:
        bm.fiemap(fs, 5, "")
    assert caught.value.errno == errno.EOPNOTSUPP
    with pytest.raises(ValueError, match="extents_per_call"):
        bm.fiemap(fs, 5, "foobar", extents_per_call=0)
    with pytest.raises(ValueError, match="start"):
        bm.fiemap(fs, 5, "foobar", start=-1)
    with pytest.raises(bm.BtrfsModelError):
        bm.fiemap(fs, 5, "foobar", behaviour="v6.12 - nonsense")


# ---------------------------------------------------------------------------- command line ------


@pytest.fixture
def lines(capsysbinary: pytest.CaptureFixture[bytes]) -> Iterator[Any]:
    def call(*arguments: object) -> list[str]:
        assert run([str(argument) for argument in arguments]) == 0
        return capsysbinary.readouterr().out.decode().splitlines()

    yield call


def test_command(lines: Any, tmp_path: Path) -> None:
    image, counts = corpus.image(F100), tmp_path / "work.json"
    found = [json.loads(line) for line in lines("fiemap", image, 5, "foobar", "--json")]
    wanted = answers(F100, "6.18")["extents"]
    assert [[row["logical"], row["physical"], row["length"]] for row in found] == [
        row[:3] for row in wanted
    ]
    assert found[-1]["flags"] == ["last", "encoded", "shared"]
    header, first, *_ = lines("fiemap", image, 5, "foobar", "--behaviour", "v6.2", "--work", counts)
    assert header.split("\t") == ["logical", "physical", "length", "flags"]
    assert first.split("\t")[3] == "encoded,shared"
    assert json.loads(counts.read_text())["find_parent_nodes"] > 3200
