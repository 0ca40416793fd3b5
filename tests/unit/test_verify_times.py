# SPDX-License-Identifier: GPL-2.0-only
"""``verify time`` where no kernel is needed: who stands for a side, and reports of its file."""

import json
from pathlib import Path
from typing import Any

import pytest

import btrfs_model as bm
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.experiments.replay import run
from btrfs_model.experiments.times import read_measured
from btrfs_model.experiments.verify import times
from btrfs_model.experiments.verify.times import taken
from btrfs_model.experiments.workloads import NAMES, load
from btrfs_model.kernels.native import Native


class Guest:
    """A kernel that is not asked anything."""

    def __init__(self, preset: str) -> None:
        self.preset = preset


class Own(Native):
    """The same, as the machine's own."""

    preset = ""

    def __init__(self, preset: str) -> None:
        self.preset = preset


def test_kernels_nearest_to_the_commit_and_of_one_world_stand_for_its_sides() -> None:
    kernels: list[Any] = [Guest("v6.12"), Own("v6.18.44"), Guest("v6.1.176"), Guest("v5.10")]
    found = {name: {side: kernel.preset for side, kernel in
                    times._sides(load(name), kernels).items()} for name in NAMES}  # fmt: skip
    both = {"before": "v6.1.176", "after": "v6.12"}
    assert found["send-utimes"] == found["fiemap-shared"] == both
    assert found["log-dir"] == found["send-readahead"] == {"before": "v5.10", "after": "v6.1.176"}
    alone = times._sides(load("send-utimes"), kernels[1:2])
    assert {side: kernel.preset for side, kernel in alone.items()} == {"after": "v6.18.44"}


def test_sizes_are_those_of_the_messages() -> None:
    def sizes(name: str, scale: float) -> list[int]:
        return [source.parameters[{"fiemap-shared": "extents"}.get(name, "files")]
                for source in times._sizes(load(name), scale)]  # fmt: skip

    assert sizes("send-utimes", 1) == [20_000, 40_000, 60_000]
    assert sizes("send-utimes", 0.5) == [20_000]
    assert sizes("log-dir", 0.1) == [1000, 10_000, 100_000]
    assert sizes("fiemap-shared", 1) == [327_680]
    assert sizes("send-truncate", 0.01) == [200]


def measured(**changed: Any) -> dict[str, Any]:
    """What ``verify time`` writes of an fsync, ten times as fast after the commit."""
    rows = [
        {"workload": "log-dir", "side": side, "files": 1000, "deletes": 100, "fsync": 1,
         "quantity": "time", **taken("uml", "v6.1", "ms", values), **changed}
        for side, values in {"before": [60.0, 50.0, 40.0], "after": [5.0, 4.0, 9.0]}.items()
    ]  # fmt: skip
    return {"sources": {"log-dir": {"before": "Linux A", "after": "Linux B"}}, "rows": rows}


def test_a_report_has_the_times_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text(json.dumps(measured()))
    one = run("log-dir", 0.001, measured=read_measured(path))
    ((case, ratio),) = ((pair.case, pair.measured) for pair in one.speedups if pair.measured)
    assert case == "files=1000 deletes=100 fsync=1"
    # the runs are 40 to 60 ms before and 4 to 9 ms after
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((10, 40 / 9, 60 / 4))
    found = one.outcome.find("before", "time", files=1000, fsync=1)
    assert found is not None
    assert (found.measured, found.measured_min, found.runs) == (50.0, 40.0, 3)
    assert {text for kind, text in one.outcome.measured_on.items() if "time" in kind} == {
        "Linux A", "Linux B",
    }  # fmt: skip
    table = bm.replay("log-dir", 0.001, measured=path)
    assert sorted(table[table["quantity"] == "time"]["measured"].dropna()) == [5.0, 50.0]


def test_times_of_another_size_are_of_another_filesystem() -> None:
    rows = [{"workload": "fiemap-shared", "side": side, "extents": extents, "cache": "cached",
             "quantity": "time", **taken("uml", "v6.1", "ms", [value])}
            for side, extents, value in (("before", 3277, 4.0), ("before", 32768, 40.0))
    ]  # fmt: skip
    one = run("fiemap-shared", 0.01, measured={"sources": {}, "rows": rows})
    found = one.outcome.find("before", "time", cache="cached")
    assert found is not None
    assert found.measured == pytest.approx(0.004)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", json.dumps({"rows": [], "sources": [1]}),
     *(json.dumps(measured(**{name: value})) for name, value in
       [("unit", "h"), ("value", 0), ("min", "1"), ("runs", 0), ("side", 1), ("workload", None)])],
)  # fmt: skip
def test_what_is_no_file_of_times_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "times.json"
    path.write_text(text)
    with pytest.raises(
        BtrfsModelError, match=r"times\.json: not written by btrfs-model verify time"
    ):
        read_measured(path)
