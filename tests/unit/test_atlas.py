# SPDX-License-Identifier: GPL-2.0-only
"""The atlas: every row loads, exact ones come out, predictions stay as they were written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from btrfs_model.base.errors import BtrfsModelError, UnknownNameError
from btrfs_model.cli import run as command
from btrfs_model.cost.device import load as load_device
from btrfs_model.experiments.atlas.history import changes, history
from btrfs_model.experiments.atlas.intervals import fitted, widening
from btrfs_model.experiments.atlas.predictions import Predicted, Value, add, read
from btrfs_model.experiments.atlas.rows import AREAS, KEPT_BACK, all_rows, chosen, load
from btrfs_model.experiments.atlas.runs import run
from btrfs_model.experiments.atlas.scores import EQUAL, judge, scores
from btrfs_model.scripts.answer import regions, whole
from btrfs_model.scripts.run import script

ROW = """
title = "a title"
commit = "cab0d8623fb4"
release = "6.11"
date = 2024-05-22
area = "trees"
mail = "a@b"
machine = "not named"
quick = { FILES = 2 }
script = '''
FILES=10
mkfs.btrfs -q -f /dev/sdj
mount /dev/sdj /mnt
for ((i = 0; i < FILES; i++)); do echo -n > /mnt/f_$i; done
time xfs_io -c fsync /mnt
echo "files: $(ls /mnt | wc -l)"
umount /mnt
'''

[[figure]]
name = "files"
kind = "exact"
line = "files"

[[figure]]
name = "fsync"
kind = "ratio"
region = 1
unit = "ms"
"""


def test_all_rows_load() -> None:
    rows = all_rows()
    counted = {row.name for row in rows for one in row.figures if one.kernel and one.counter}
    assert len(counted) == 30
    assert {row.name for row in rows if row.script} - counted >= {
        "log-delayed-items", "fiemap-prev-extents",
    }  # fmt: skip
    assert len({row.name for row in rows}) == len(rows) >= 5
    assert {row.area for row in rows} <= set(AREAS)
    assert not {row.commit for row in rows} & set(KEPT_BACK)
    for row in rows:
        assert row.commit == row.toggles[0].commit, row.name


LONG = {"log-prealloc-full"}  # seconds each


@pytest.mark.claim(
    "Exact figures of the atlas come out as the messages report them, or the row says why not; "
    "calls of functions come out as a kernel's are counted."
)
@pytest.mark.parametrize(
    "name",
    [row.name for row in all_rows() if row.script and not row.quick and row.name not in LONG],
)
def test_exact_rows_come_out(name: str) -> None:
    (row,) = chosen([name])
    made = run(row)
    for one in row.figures:
        if one.kind in ("exact", "count") and one.entered:
            now = made.values[one.name]
            equal = one.before in (None, now.before) and one.after in (None, now.after)
            assert equal != bool(one.why), one.name


@pytest.mark.parametrize(
    "name", ["fiemap-path-cache", "log-dir-batches", "send-check-dirs-unique", "send-refs-rbtree"]
)
def test_counts_at_quick_scale(name: str) -> None:
    (row,) = chosen([name])
    made = run(row, "quick")
    counted = [one for one in row.figures if one.kernel]
    assert counted and all(one.quick for one in counted)
    assert {one.name: one.after for one in counted} == {
        one.name: made.values[one.name].after for one in counted
    }


def test_a_compressed_extent_is_no_call_of_send_cmd() -> None:
    (row,) = chosen(["send-clone-src-eof"])
    result = script(row.script, behaviour="v7.2")
    result.close()
    # as counted in Linux 7.2.13, with 19 commands of which 2 are encoded writes
    assert whole(result).work["send_cmd"] == 17


@pytest.mark.parametrize("name", ["fiemap-path-cache", "log-delayed-items"])
def test_ratios_at_quick_scale(name: str) -> None:
    (row,) = chosen([name])
    made = run(row, "quick")
    for one in row.figures:
        value = made.values[one.name]
        if one.kind == "ratio":
            assert value.low and value.ratio and value.high
            assert 1 < value.low < value.ratio < value.high
    assert made.hangs


COLD = """
mkfs.btrfs -q -f /dev/sdi
mount /dev/sdi /mnt
for ((i = 0; i < 1500; i++)); do xfs_io -f -c "pwrite $((i * 8192)) 4K" /mnt/f > /dev/null; done
time filefrag /mnt/f
umount /mnt
mount /dev/sdi /mnt
time filefrag /mnt/f
time filefrag /mnt/f
echo 3 > /proc/sys/vm/drop_caches
time filefrag /mnt/f
"""


@pytest.mark.claim("A script waits for the tree blocks that a send or FIEMAP reads after a mount.")
def test_what_is_not_in_memory_is_read() -> None:
    result = script(COLD, device="samsung-850-evo")
    made, mounted, again, dropped = regions(result)
    assert made.waits == again.waits == 0
    assert mounted.waits == dropped.waits > 0
    assert mounted.work["blocks_read"] == dropped.work["blocks_read"] > 1
    disk, other = (regions(result, device) for device in (load_device("deskstar-7k500"), None))
    assert disk[1].waits > mounted.waits == other[1].waits
    result.close()


def test_a_function_is_counted_apart() -> None:
    result = script("mkfs.btrfs -q /dev/sdi; mount /dev/sdi /mnt; touch /mnt/f; sync /mnt/f")
    (fsync,) = (one for one in result.calls if one.what.startswith("fsync"))
    apart = fsync.functions["btrfs_log_inode"]
    assert apart["btrfs_log_inode"] == fsync.work["btrfs_log_inode"]
    assert "btrfs_sync_log" in fsync.work and "btrfs_sync_log" not in apart
    result.close()


def test_fitted_intervals_know_the_others() -> None:
    rows = [row for row in all_rows() if row.predicted and not row.known]
    more = widening(rows)
    assert more is not None and more > 0
    assert widening(rows[:1]) is None
    (row,) = (one for one in rows if one.name == "log-delayed-items")
    assert row.predicted is not None
    value = row.predicted.figures["fsyncs"]
    ends = fitted(row, value)
    assert ends is not None and value.low and value.high
    assert ends[0] < value.low < value.high < ends[1]
    # the worst one takes no part in its own
    others = widening(one for one in rows if one is not row)
    assert others is not None and others <= more


def test_quick_turns_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(ROW)
    quick = run(load(path), "quick")
    assert (quick.values["files"].after, quick.is_full) == (2, False)
    assert run(load(path)).values["files"] == Value(10, 10)
    assert quick.untold["fsync"]
    assert any("processor" in one for one in quick.hangs)


@pytest.mark.claim(
    "A figure of the atlas counts as predicted only if the prediction was written down first."
)
def test_figures_come_after_predictions(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        ROW.replace('line = "files"', 'line = "files"\nafter = 10\nentered = 2026-01-02')
    )
    with pytest.raises(
        BtrfsModelError, match=r"a\.toml: figure 1: entered before it was predicted"
    ):
        load(path)
    late = run(load(_written(tmp_path / "b.toml", ROW))).predicted
    with pytest.raises(BtrfsModelError, match="entered on 2026-01-02, predicted on"):
        load(path, late)
    early = Predicted(late.date.replace(year=2025), "1", "abc", "native-6.18", late.figures)
    (one, other) = judge([run(load(path, early))])
    assert (one.verdict, one.error, one.is_blind) == (EQUAL, 0.0, True)
    assert other.verdict == "not looked up"
    table = scores([one, other])
    assert table.query("by == 'all'")[["exact", "equal"]].to_numpy().tolist() == [[1, 1]]
    assert scores([one, other], known=True).empty


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_prediction_stays(tmp_path: Path) -> None:
    path = tmp_path / "predicted.toml"
    one = run(load(_written(tmp_path / "a.toml", ROW))).predicted
    add(path, {"a": one})
    add(path, {"b": one})
    assert read(path)["a"].figures["files"] == Value(10, 10)
    assert re.fullmatch("[0-9a-f]{12}", read(path)["b"].model)
    with pytest.raises(BtrfsModelError, match=r"predicted\.toml: a: it was predicted on"):
        add(path, {"a": one})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('area = "trees"', 'area = "tree"', "area is 'tree', not one of send"),
        ("cab0d8623fb4", "19358b154fce", "commit 19358b154fce is kept back"),
        ("cab0d8623fb4", "0123456789ab", "commit 0123456789ab has no toggle"),
        ('kind = "exact"', 'kind = "exactly"', "figure 1: kind is 'exactly'"),
        ("region = 1", 'line = "x"\nregion = 1', "figure 2: region, call, line or counter"),
        ('mail = "a@b"', "mail = 3", "mail is 3"),
        ('mail = "a@b"', "", "mail is missing"),
        ('mail = "a@b"', 'mail = "a@b"\nletter = "b"', "letter is no key of a row"),
        ('name = "fsync"', 'name = "files"', "two figures have one name"),
        ("title =", "title", r"a\.toml: .* \(at line 2, column 7\)"),
    ],
)
def test_what_is_no_row(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = _written(tmp_path / "a.toml", ROW.replace(old, new))
    with pytest.raises(BtrfsModelError, match=says) as found:
        load(path)
    assert str(path) in str(found.value)
    assert "\n" not in str(found.value)


def test_the_script_says_what_a_figure_is(tmp_path: Path) -> None:
    path = _written(tmp_path / "a.toml", ROW.replace('line = "files"', 'line = "dirs"'))
    with pytest.raises(BtrfsModelError, match="atlas: a: figure files: the script prints no line"):
        run(load(path))
    path.write_text(ROW.replace("umount /mnt", "false"))
    with pytest.raises(BtrfsModelError, match="atlas: a: the script ends with status 1"):
        run(load(path))
    with pytest.raises(UnknownNameError):
        chosen(["nothing"])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["atlas", "cab0d8623fb4", "--jobs", "1", "--out", str(tmp_path)]) == 0
    assert "umount-no-empty-commit" in capsys.readouterr().out
    page = (tmp_path / "atlas.html").read_text()
    assert "btrfs-model atlas umount-no-empty-commit" in page
    assert "\n".join(re.findall(r"<th role=.rowheader[^>]*>\s*(.{9})", page)).count("<a href=") == 6
    table = pd.read_parquet(tmp_path / "atlas.parquet")
    assert table.row.tolist() == pd.read_csv(tmp_path / "atlas.csv").row.tolist()
    known = next(row.name for row in all_rows() if row.known)
    assert command(["atlas", known, "--predict-only", str(tmp_path / "p.toml")]) == 1
    assert "nothing is predicted any more" in capsys.readouterr().err


def test_what_no_kernel_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "linux"
    assert command(["atlas", "umount-no-empty-commit", "--kernel", str(binary)]) == 1
    assert f"{binary}: it does not count what it runs" in capsys.readouterr().err
    (tmp_path / "gcov").mkdir()
    assert command(["atlas", "send-utimes-cache", "--kernel", str(binary)]) == 1
    assert "atlas: send-utimes-cache: it has no script for a kernel" in capsys.readouterr().err
    assert command(["atlas", "--kernel", str(binary), "--history"]) == 2
    assert "--kernel does not go with --history" in capsys.readouterr().err


def test_the_history_of_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    (row,) = chosen(["log-delayed-items"])
    row = replace(row, script=row.script.replace("FILES=10000", "FILES=20"), quick={})
    found = history(replace(row, script=row.script.replace("EVERY=100", "EVERY=10")), "full", None,
                    told.append)  # fmt: skip
    assert len(found) == len(set(found.release)) > 30
    # releases that differ in nothing run once
    assert len({one for one in told if " - " not in one}) < len(found)
    shown = changes(found)
    assert 1 < len(shown) < len(found)
    assert "log-delayed-items" in " ".join(shown.because)
    assert command(["atlas", "umount-no-empty-commit", "--history", "--out", str(tmp_path)]) == 1
    assert "a history wants a script, and a time" in capsys.readouterr().err
