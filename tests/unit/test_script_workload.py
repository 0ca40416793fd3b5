# SPDX-License-Identifier: GPL-2.0-only
"""A script as a workload: its numbers are knobs of replays and sweeps."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import btrfs_model as bm
from btrfs_model.base.errors import BtrfsModelError, UnknownNameError
from btrfs_model.cli import cli
from btrfs_model.experiments.results import COLUMNS
from btrfs_model.experiments.sweep.target import FLIPPED, RENAMED, target_of
from btrfs_model.experiments.workloads.from_script import TAKEN
from btrfs_model.limits import NAMES as LIMITS
from btrfs_model.scripts.host import why_not
from btrfs_model.scripts.variables import numbers, with_numbers

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

SCRIPT = """\
#!/bin/bash
NUM_FILES=1000
FORCE=1
mkfs.btrfs -q -f /dev/sdb
mount /dev/sdb /mnt/sdb
mkdir /mnt/sdb/dir
for ((i = 0; i < NUM_FILES; i++)); do echo -n > /mnt/sdb/dir/file_$i; done
start=$(date +%s%N)
xfs_io -c fsync /mnt/sdb/dir
end=$(date +%s%N)
((FORCE)) && for i in 1 2; do time rm /mnt/sdb/dir/file_$i; done
"""
COMMIT = "339d03542484"
FILES = [100, 400, 1600]


def test_numbers_of_a_script() -> None:
    text = """\
# é
N=1000; readonly M=20 K="5"; export J='-7' # é
f() { local q=3; }
for ((i = 0; i < N; i++)); do x=5; ((y = 3)); done
A=3 true; for D in 1 2; do :; done; D=1; E=5; E=6; F=$((3)); G=64K; H=0x10 L=010
((++O)); O=7; if true; then P=4; fi; Q=1; Q+=1; a[3]=4; T=; U=1; : $((U += 1)); V=2; ((V <= 2))
"""
    found = {name: one.value for name, one in numbers(text).items()}
    assert found == {"N": 1000, "M": 20, "K": 5, "J": -7, "V": 2}
    other = with_numbers(text, {"N": 5, "K": 12345, "J": 0})
    assert {name: one.value for name, one in numbers(other).items()} == {
        "N": 5, "M": 20, "K": 12345, "J": 0, "V": 2
    }  # fmt: skip
    assert other.splitlines()[1] == "N=5; readonly M=20 K=12345; export J=0 # é"
    assert other.splitlines()[2:] == text.splitlines()[2:]


@pytest.mark.parametrize("sets", [
    "read N", "read -r x N", "builtin read N", "mapfile N", "getopts ab N", "printf -v N %d 3",
    "wait -p N", "unset N", "eval 'N=3'", 'eval "N+=$x"', "exec {N}> /tmp/x", "let N=3",
])  # fmt: skip
def test_what_a_builtin_sets_is_no_number(sets: str) -> None:
    """A replay would turn it, and nothing would change."""
    assert list(numbers(f"M=4\nN=5\n{sets}")) == ["M"]


def test_what_only_names_a_variable_does_not_set_it() -> None:
    text = 'N=5\nprintf "%d N" 3 N\necho N; read x <<< "$N"; eval "echo $N"; wait'
    assert list(numbers(text)) == ["N"]
    assert list(numbers("M=4 &\nN=5")) == ["N"]


@pytest.mark.claim(
    "A script is a workload by one line: a sweep turns its numbers, before and after a commit, and "
    "has the times that the script has alone.",
    judge="unit",
)
def test_a_sweep_of_a_script(tmp_path: Path) -> None:
    mine = bm.workload("dir-fsync", script=SCRIPT, commit=COMMIT)
    store = tmp_path / "store"
    table = bm.sweep(mine, {"NUM_FILES": FILES, "device": "samsung-850-evo"}, store=store, jobs=1)
    times = table[table.quantity == "time"]
    assert times[times.lines == "8 to 10"][["NUM_FILES", "side"]].to_numpy().tolist() == [
        [files, side] for files in FILES for side in ("before", "after")
    ]
    for (files, side), rows in times.groupby(["NUM_FILES", "side"]):
        kernel = {"before": f"{COMMIT}^", "after": COMMIT}[str(side)]
        text = SCRIPT.replace("=1000", f"={files}")
        alone = bm.script(text, behaviour=kernel, device="samsung-850-evo").regions
        pd.testing.assert_frame_equal(
            rows[["value", "low", "high"]].reset_index(drop=True),
            alone[["seconds", "low", "high"]].set_axis(["value", "low", "high"], axis=1),
        )
        assert rows.lines.tolist() == ["8 to 10", "11", "11"]
        assert rows.turn.tolist() == [pd.NA, 1, 2]
    copied = table[(table.quantity == "log_items_copied") & (table.lines == "8 to 10")]
    assert copied[copied.side == "after"].value.is_monotonic_increasing
    # what is remembered is of this script and this commit
    one = {"NUM_FILES": [100]}
    known = target_of(mine).identity("workload", "dir-fsync")
    for other in (
        bm.workload("dir-fsync", script=SCRIPT + "true\n", commit=COMMIT),
        bm.workload("dir-fsync", script=SCRIPT, toggles="log-dir-index-only"),
    ):
        assert target_of(other).identity("workload", "dir-fsync") != known
    assert len(bm.sweep(mine, one, store=store, jobs=1, quantities=["time"])) == 6


def test_a_sweep_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "the.mail").write_text("A message\n\n" + re.sub("(?m)^", "    ", SCRIPT))
    spec = 'script = "the.mail"\n{}\nquantities = ["time"]\n[knobs]\nFORCE = [0, 1]\n{}'
    (tmp_path / "s.toml").write_text(spec.format(f'commit = "{COMMIT}"', "NUM_FILES = 60"))
    out = tmp_path / "s.csv"
    arguments = ["sweep", str(tmp_path / "s.toml"), "--store", str(tmp_path / "store"), "--out",
                 str(out), "--jobs", "1"]  # fmt: skip
    assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 0
    table = pd.read_csv(out)
    assert table.groupby(["FORCE", "side"]).size().tolist() == [1, 1, 3, 3]
    (tmp_path / "t.toml").write_text(spec.format('toggles = ["log-dir-index-only"]', ""))
    assert len(bm.sweep(tmp_path / "t.toml", jobs=1)) == 8
    wrong = spec.replace('script = "the.mail"', 'workload = "log-dir"')
    (tmp_path / "u.toml").write_text(wrong.format(f'commit = "{COMMIT}"', ""))
    with pytest.raises(BtrfsModelError, match=r"u.toml: commit: of a script alone"):
        bm.sweep(tmp_path / "u.toml")


def test_a_replay_of_a_script(tmp_path: Path) -> None:
    mine = bm.workload("dir-fsync", script=SCRIPT, toggles="log-dir-index-only")
    table = bm.replay(mine, 0.4, out=tmp_path)
    times = table[(table.quantity == "time") & (table.lines == "8 to 10")]
    assert times.NUM_FILES.tolist() == [400, 400]
    assert times.side.tolist() == ["before", "after"]
    assert times.modelled.is_monotonic_decreasing
    assert "NUM_FILES=400 FORCE=1 lines=8 to 10," in (tmp_path / "speedups.csv").read_text()
    assert "log_leaves_entered, lines 8 to 10" in (tmp_path / "report.html").read_text()


def test_a_script_that_reads_no_clock() -> None:
    """All of it is one region."""
    text = "N=3; mkfs.btrfs -q -f /dev/sdb; mount /dev/sdb /mnt/x\nfor ((i=0;i<N;i++)); do mkdir "
    mine = bm.workload("mkdirs", script=text + "/mnt/x/$i; done; mkfs.btrfs -q -f /dev/sdc\n",
                       toggles="log-dir-index-only")  # fmt: skip
    table = bm.replay(mine)
    assert table.lines.unique().tolist() == ["2"]
    assert (table[table.quantity == "time"].modelled > 0).all()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"script": "true\n"}, "m: there is no variable that the script sets once, to a number"),
        ({"script": "runs=10\n"}, "those that it sets so: none"),
        ({"script": "N=10\n", "size": "M"}, "m: M is no variable that .* those that it sets so: N"),
        ({"script": "N=0\n"}, "there is no variable"),
        ({"script": "if true; then\n"}, "m: line 1: `then` must be followed by"),
        ({"script": "N=1\n", "build": print}, "m: a script comes without build and measure"),
        ({"script": "N=1\n", "commit": COMMIT}, "m: a commit stands in the place of toggles"),
        ({"script": "N=1\n", "toggles": ()}, "m: toggles are wanted"),
        ({"build": print}, "m: a workload is build and measure, or a script"),
        ({"build": print, "measure": print, "size": "N"}, "m: commit and size are of a script"),
    ],
)
def test_what_is_no_workload(arguments: dict[str, object], told: str) -> None:
    with pytest.raises(BtrfsModelError, match=told):
        bm.workload("m", **{"toggles": "log-dir-index-only", **arguments})  # type: ignore[arg-type]


def test_what_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="no commit 'deadbeef'"):
        bm.workload("m", script="N=1\n", commit="deadbeef")
    (tmp_path / "two").write_text(
        "Text\n\n  $ mkfs.btrfs /dev/sdb\n\nand\n\n  $ mkfs.btrfs /dev/sdc\n"
    )
    with pytest.raises(BtrfsModelError, match=r"two has 2 scripts, at lines 3, 7: give the text"):
        bm.workload("m", script=tmp_path / "two", commit=COMMIT)
    with pytest.raises(BtrfsModelError, match=r"m: a file is given as a path: Path\('.*two'\)"):
        bm.workload("m", script=str(tmp_path / "two"), commit=COMMIT)
    fails = bm.workload("m", script="N=1\necho no $N\n", commit=COMMIT)
    with pytest.raises(BtrfsModelError, match="m: the script leaves no filesystem; it says: no 1"):
        bm.replay(fails)
    unknown = bm.workload("m", script="N=1\nmount -z\n", commit=COMMIT)
    with pytest.raises(BtrfsModelError, match="m: line 2: mount: -z: this option is not known"):
        bm.replay(unknown)
    mine = bm.workload("m", script=SCRIPT, commit=COMMIT)
    with pytest.raises(BtrfsModelError, match=r"no knob 'FILES'; there is NUM_FILES, FORCE, "):
        bm.sweep(mine, {"FILES": [1]})
    with pytest.raises(BtrfsModelError, match="m: FORCE = 'yes': not a whole number"):
        bm.sweep(mine, {"FORCE": ["yes"]}, jobs=1)


def test_names_that_are_no_knobs() -> None:
    """Those of columns and of other knobs; what counts files and jobs may be a script's too."""
    counts = {"files", "deletes", "file_bytes", "jobs", "extents", "rewritten"}
    others = {"machine", "value", FLIPPED, *RENAMED, *RENAMED.values(), *LIMITS} - {
        "before",
        "after",
    }
    assert sorted(TAKEN) == sorted({*COLUMNS, *others} - counts)
