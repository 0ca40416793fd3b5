# SPDX-License-Identifier: GPL-2.0-only
"""The workload send-utimes: its filesystem, the kernels' counts for it, the ablation."""

import re
from fractions import Fraction

import corpus
import pytest
from figures import value
from test_send import INLINED, KERNELS

import btrfs_model as bm
from btrfs_model.experiments import commits
from btrfs_model.experiments.replay import run
from btrfs_model.experiments.workloads import load
from btrfs_model.experiments.workloads.send_utimes import AFTER, BEFORE, SERIES, build
from btrfs_model.volume.filesystem import Filesystem

FORMULAS = corpus.PROJECT / "data" / "kernel" / "counts" / "FORMULAS.md"


def formulas() -> dict[tuple[str, str], str]:
    """What kernels call for N files, by kernel and function: the cells that are exact formulas."""
    text = FORMULAS.read_text().partition("## W0")[2].partition("\n## ")[0]
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 1 + 3 and cells[0].isidentifier():
            for kernel, cell in zip(("5.10", "6.1", "6.12"), cells[1:], strict=True):
                if "N" in cell:
                    found[kernel, cells[0]] = cell
    return found


def evaluated(formula: str, files: int) -> int:
    """The value of a formula such as ``1/4*N^2+3/2*N+1``."""
    total = Fraction(0)
    for sign, factor, power in re.findall(r"([+-]?)(?:(\d+(?:/\d+)?)\*?)?(N(?:\^2)?)?", formula):
        if factor or power:
            value = Fraction(factor or 1) * {"": 1, "N": files, "N^2": files**2}[power]
            total += -value if sign == "-" else value
    assert total.denominator == 1, formula
    return int(total)


def test_formulas_are_read() -> None:
    assert evaluated("1/4*N^2+3/2*N+1", 200) == 10301
    assert evaluated("67/2*N+47", 2) == 114
    assert evaluated("N-1", 7) == 6
    assert len(formulas()) > 100


@pytest.mark.claim(
    "The counted work of the workload `send-utimes` follows the formulas that kernels' counts gave."
)
@pytest.mark.parametrize("files", [250, 702, 3000])
@pytest.mark.parametrize("kernel", ["5.10", "6.1", "6.12"])
def test_counts_follow_the_formulas_of_the_kernels(files: int, kernel: str) -> None:
    """At numbers of files that no kernel was probed at."""
    with build(files) as fs:
        work = bm.send(fs, "snap2", "snap1", ["snap1"], behaviour=KERNELS[kernel]).work
    wanted = {
        function: evaluated(formula, files)
        for (name, function), formula in formulas().items()
        if name == kernel and function in work and (kernel, function) not in INLINED
    }
    assert len(wanted) > 15
    assert {function: work[function] for function in wanted} == wanted


def test_the_filesystem_is_the_kernels() -> None:
    name = "send/send-utimes/n200"
    with Filesystem.open(corpus.image(name)) as kernels, build(200) as ours:
        for snapshot in ("snap1", "snap2"):
            listings = [
                fs.listing(snapshot)[["path", "ino", "size", "nlink", "generation"]]
                for fs in (kernels, ours)
            ]
            assert listings[0].to_dict("records") == listings[1].to_dict("records")


def test_what_the_replay_says() -> None:
    one = bm.replay("send-utimes", "quick")
    for files in (200, 400):
        for function in ("send_cmd", "btrfs_get_next_valid_item"):
            for side in (BEFORE.name, AFTER.name):
                assert value(one, side, f"sender: {function}", "error", files=files) == 0
    saved = {
        slug: value(one, f"{slug} alone {which}", f"saved: {name}")
        for slug, which, name in (
            ("send-dir-created-cache", "off", "btrfs_get_next_valid_item"),
            ("send-utimes-cache", "off", "stream size"),
            ("send-waiting-once", "on", "stream size"),
        )
    }
    assert saved["send-dir-created-cache"] > 80_000
    assert saved["send-utimes-cache"] > 30_000
    assert saved["send-waiting-once"] == 0
    assert set(SERIES) <= {side.partition(" ")[0] for side in one.side}


def test_the_chart_says_what_is_measured() -> None:
    """Circles stand where a kernel was measured, and only there are they named."""
    one = run("send-utimes", "quick")
    chart = one.workload.draw(one.outcome)
    times, steps = chart.axes[:2]
    for axes, name in ((times, "time"), (steps, "sender: btrfs_get_next_valid_item")):
        measured = [figure for figure in one.outcome.figures if figure.measured is not None
                    and figure.quantity == name and figure.side in ("before", "after")]  # fmt: skip
        circles = [line for line in axes.lines if line.get_marker() == "o"]
        assert sum(len(line.get_xdata()) for line in circles) == len(measured)
        legend = axes.get_legend()
        words = [text.get_text() for text in legend.get_texts()] if legend else []
        assert ("measured" in f"{axes.get_xlabel()} {words}") == bool(measured)
    assert measured


def test_reported_times_stand_at_the_full_scale() -> None:
    workload = load("send-utimes")
    largest = max(one.case["files"] for one in commits.load("send-utimes").figures)
    assert workload.input("full").parameters["files"] == largest == 60_000
    assert workload.input(0.5).parameters["files"] == 30_000
