# SPDX-License-Identifier: GPL-2.0-only
"""What a replay shows and writes: the sizes that were replayed, tidy tables, nothing stale."""

import csv
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import corpus
import pandas as pd
import pytest
from figures import VALUES, chosen, is_tidy, value
from pyarrow import parquet

import btrfs_model as bm
from btrfs_model.cli import run as run_cli
from btrfs_model.experiments import report
from btrfs_model.experiments.replay import run
from btrfs_model.experiments.results import COLUMNS, column, frame
from btrfs_model.experiments.workloads import NAMES, load

SMALL = {
    "send-truncate": 0.004, "send-utimes": 0.004, "send-readahead": 0.004, "fiemap-shared": 0.003,
    "log-dir": 0.0015,
}  # fmt: skip
"""A scale of each workload that is neither quick nor full."""


@pytest.fixture(scope="module", autouse=True)
def _only_laid_out() -> Iterator[None]:
    """Charts are made and not rendered: test_report.py looks at pictures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "to_svg", lambda _, name: f"<svg>{name}</svg>")
        patch.setattr(report, "to_png", lambda _: b"a picture")
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All workloads at sizes of no message, each in a folder of its own, with what is printed."""
    folder = tmp_path_factory.mktemp("small")
    for name, scale in SMALL.items():
        with (folder / f"{name}.txt").open("w") as printed, redirect_stdout(printed):
            command = ["replay", name, "--scale", str(scale), "--out", str(folder / name)]
            assert run_cli(command) == 0
    return folder


# ------------------------------------------------------------------------------- the terminal --


@pytest.mark.claim("The terminal shows the sizes that were replayed.")
@pytest.mark.parametrize("name", NAMES)
def test_the_terminal_shows_the_sizes_that_were_replayed(name: str, small: Path) -> None:
    printed = (small / f"{name}.txt").read_text()
    table = pd.read_parquet(small / name / "results.parquet")
    sides = [side.name for side in load(name).sides(None, None)]
    shown = table[table.quantity.isin(load(name).headline) & table.side.isin(sides)]
    # a row for each figure, each with its numbers
    rows = re.findall(rf"^.*\s(?:{'|'.join(map(re.escape, sides))})\s\s.*\d.*$", printed, re.M)
    assert len(rows) == len(shown) > 5
    if "files" in shown and shown.files.nunique() > 1:
        assert all(f", {files:,} files" in printed for files in shown.files.unique())
    else:
        (size,) = set(shown["files" if "files" in shown else "extents"])
        assert f"{size:,}" in printed


# --------------------------------------------------------------------------------- the columns --


@pytest.mark.claim("The results of a replay are tidy.")
@pytest.mark.parametrize("name", NAMES)
def test_each_row_is_one_figure(name: str, small: Path) -> None:
    table = pd.read_parquet(small / name / "results.parquet")
    assert is_tidy(table)
    assert table.quantity.str.contains(r"\d (?:files|extents)|,\s*cold|deskstar|fsync").sum() == 0
    assert [one for one in table.columns if one in COLUMNS] == list(table.columns)
    assert set(table.columns) - set(COLUMNS) == set()
    # what a column holds is known of some row, but for the values
    assert all(table[one].notna().any() for one in table.columns if one not in VALUES)
    assert table.nodesize.eq(16384).all()
    for behaviour in table.behaviour.unique():
        bm.Behaviour.parse(behaviour)


@pytest.mark.parametrize("name", NAMES)
def test_csv_and_parquet_hold_the_same(name: str, small: Path) -> None:
    table = pd.read_parquet(small / name / "results.parquet")
    read = pd.read_csv(small / name / "results.csv", dtype=table.dtypes.to_dict())
    pd.testing.assert_frame_equal(read, table, check_exact=True)


def test_numbers_are_numbers(small: Path) -> None:
    """Whole ones have no digits behind the point; a row says its own number of files."""
    with (small / "send-utimes" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    sizes = {row["files"] for row in rows}
    assert sizes == {"80", "160", "240"}
    for row in rows:
        if row["quantity"] != "time":
            assert re.fullmatch(r"-?\d+|", row["modelled"]), row
        assert row["nodesize"] == "16384"
    stream = {int(row["files"]): int(row["modelled"]) for row in rows
              if row["side"] == "after" and row["quantity"] == "stream size"}  # fmt: skip
    assert stream[80] < stream[160] < stream[240]


def test_each_side_has_its_behaviour() -> None:
    table = bm.replay("send-utimes", "quick")
    behaviours = table.drop_duplicates("side").set_index("side").behaviour
    assert behaviours["before"] == "v6.2"
    assert behaviours["send-utimes-cache alone on"] == "v6.2 + send-utimes-cache"
    assert behaviours["send-utimes-cache alone off"].endswith(" - send-utimes-cache")
    assert table.behaviour.notna().all()


def test_what_was_measured_says_of_how_many_runs() -> None:
    table = bm.replay("log-dir", 0.001)
    time = chosen(table, "time", side="after", files=1000, fsync=1)
    assert time.measured.item() == pytest.approx(3.974)
    assert (time.measured_min.item(), time.measured_max.item()) == (3.568, 6.476)
    assert time.runs.item() == 10
    assert time.reported.item() == 7
    assert time.deletes.item() == 100
    counts = chosen(table, "items", side="after", files=1000, fsync=1)
    assert counts.runs.item() == 1
    assert counts.measured.item() == counts.measured_min.item() == counts.measured_max.item()
    assert table[table.measured.isna()].runs.isna().all()


def test_parquet_says_what_its_columns_hold(small: Path) -> None:
    for name in NAMES:
        schema = parquet.read_schema(small / name / "results.parquet")
        for field in schema:
            about = column(field.name)
            assert field.metadata[b"description"].decode() == about.meaning
            assert field.metadata[b"unit"].decode() == about.unit


@pytest.mark.claim("The page on results and the Parquet file say what the columns hold.")
def test_the_page_of_the_results_is_the_schema() -> None:
    """``docs/results.md`` has a row for each column, in their order."""
    page = (corpus.PROJECT / "docs" / "results.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*?) *\| (.*) \|$", page, re.MULTILINE)
    kinds = {"string": "text", "Int64": "integer", "float64": "number"}
    assert rows == [
        (name, kinds[about.dtype], about.unit, about.meaning) for name, about in COLUMNS.items()
    ]


# ------------------------------------------------------------------------------- other kernels --


OTHER = "v5.17"
"""A kernel that is no side of any message."""


@pytest.mark.claim("Figures that were reported or measured stand beside their own behaviour alone.")
@pytest.mark.parametrize("name", NAMES)
def test_a_reported_figure_stands_beside_its_own_behaviour(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One side is another kernel: the message's figures are left on the other side alone."""
    whole = reported(as_of_the_message(name, monkeypatch))
    assert set(whole.side) == {"before", "after"}
    saved = whole.quantity.str.startswith("saved")
    for changed, kept in (("before", "after"), ("after", "before")):
        table = as_of_the_message(name, monkeypatch, **{f"behaviour_{changed}": OTHER})
        other = reported(table)
        assert set(other.side) == {kept}
        assert other.reported.tolist() == whole[(whole.side == kept) & ~saved].reported.tolist()
        assert set(table[table.side == changed].behaviour) == {OTHER}
        assert changed not in set(table[table.measured.notna()].side)


def reported(table: pd.DataFrame) -> pd.DataFrame:
    """Figures of the two sides that the message has, too."""
    return table[table.reported.notna() & table.side.isin(["before", "after"])]


def as_of_the_message(name: str, monkeypatch: pytest.MonkeyPatch, **kernels: str) -> pd.DataFrame:
    """Replay and draw a small filesystem as if it had the size of the message's."""
    workload = load(name)
    # of two workloads the message has several sizes, and these have the least
    scale = {"log-dir": 0.001, "send-utimes": 1 / 3}.get(name, "quick")
    small = replace(workload.input(scale), scale=1.0)
    if small.sample is None and name == "send-utimes":
        monkeypatch.setattr(f"{workload.run.__module__}._ablation", lambda *_: {})
        monkeypatch.setattr(f"{workload.run.__module__}.ALONE", ())
    here = import_module("btrfs_model.experiments.replay")
    monkeypatch.setattr(here, "load", lambda _: replace(workload, inputs=(small,)))
    one = run(name, "full", **kernels)
    # charts show what is reported where it is
    assert one.workload.draw(one.outcome).axes
    return frame([one])


def test_the_behaviour_counts_and_not_its_name() -> None:
    """The message's kernel under another name is the message's kernel."""
    table = bm.replay("send-utimes", "quick", behaviour_before="v6.3 - send-utimes-cache")
    assert table.measured.notna().sum() > 0
    assert set(table[table.measured.notna()].side) == {"after"}
    plain = bm.Behaviour.parse("v5.16 + log-dir-index-only")
    swapped = bm.replay("log-dir", 0.001, behaviour_before=plain.text)
    assert value(swapped, "before", "time", "reported", files=1000, fsync=1) == 7
    assert value(swapped, "after", "time", "reported", files=1000, fsync=1) == 7


@pytest.mark.parametrize("name", NAMES)
def test_notes_name_the_kernels_that_were_chosen(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With two kernels of their own no note speaks of those of the message, or of the records."""
    command = ["replay", name, "--scale", str(SMALL[name]), "--out", str(tmp_path)]
    assert run_cli([*command, "--kernel-before", "v5.10", "--kernel-after", "v6.3"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    report = (tmp_path / "report.html").read_text()
    notes = " ".join(re.findall(r"<h3>Notes</h3>\n<ul>(.*?)</ul>", report, re.DOTALL))
    assert "Measured on" not in report
    for text in (printed, notes):
        for words in ("6.1.176", "6.12.101", "5.10.46", "5.10.223", "Both sides are", "ablation",
                      "Linux 6.18 is replayed", "(log-bulk-insert). The"):  # fmt: skip
            assert words not in text, words
    assert "before: kernel v5.10" in printed and "after: kernel v6.3" in printed


# ------------------------------------------------------------------------------ nothing stale --


@pytest.mark.claim("Nothing stale is left in the folder of a replay.")
def test_pictures_of_an_earlier_replay_go(tmp_path: Path) -> None:
    """What an earlier replay wrote alone; files of the user stay, and those that were changed."""
    out = tmp_path / "out"
    command = ["replay", "--scale", "quick", "--device", "memory", "--out", str(out)]
    assert run_cli([*command, "send-readahead", "fiemap-shared"]) == 0
    first = {file.name for file in out.iterdir()}
    assert {"send-readahead.png", "fiemap-shared.png", "fiemap-shared.svg"} < first
    (out / "mine.png").write_bytes(b"a picture of my own")
    (out / "fiemap-shared.svg").write_text("a picture that I have changed")
    assert run_cli([*command[:1], "send-readahead", *command[1:]]) == 0
    gone = {"fiemap-shared.png", "fiemap-shared-time.png", "fiemap-shared-time.svg"}
    assert {file.name for file in out.iterdir()} == first - gone | {"mine.png"}
    record = json.loads((out / "provenance.json").read_text())
    assert set(record["files"]) == first - gone - {"fiemap-shared.svg", "provenance.json"}


@pytest.mark.parametrize(
    "record",
    ["not JSON", "[]", "{}", '{"files": ["notes.txt"]}',
     '{"files": {"../outside.txt": "DIGEST", "link.txt": "DIGEST", "folder": "DIGEST"}}'],
)  # fmt: skip
def test_nothing_else_is_removed(record: str, tmp_path: Path) -> None:
    """A record that was not written by a replay, or that names what lies elsewhere."""
    out = tmp_path / "out"
    (out / "folder").mkdir(parents=True)
    outside = tmp_path / "outside.txt"
    outside.write_text("text")
    (out / "notes.txt").write_text("text")
    (out / "link.txt").symlink_to(outside)
    (out / "provenance.json").write_text(record.replace("DIGEST", sha256(b"text").hexdigest()))
    bm.replay("send-truncate", "quick", behaviour_after="v6.12", out=out)
    assert outside.read_text() == (out / "link.txt").read_text() == "text"
    assert {"folder", "link.txt", "notes.txt", "report.html"} < {one.name for one in out.iterdir()}
