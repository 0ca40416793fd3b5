# SPDX-License-Identifier: GPL-2.0-only
"""One figure, one value: what README, papers, the report, its charts and CSV show of a ratio."""

import json
import re
import tomllib
from html import unescape
from pathlib import Path

import corpus
import jupytext
import pandas as pd
import pytest

from btrfs_model.experiments import commits
from btrfs_model.experiments.numbers import times
from btrfs_model.experiments.replay import Replay, run
from btrfs_model.experiments.report.page import page
from btrfs_model.experiments.report.verdicts import (
    BOTH,
    CONTRARY,
    LARGER,
    SMALLER,
    commit_row,
    pair_rows,
)
from btrfs_model.experiments.times import speedup_table
from btrfs_model.experiments.workloads import NAMES
from btrfs_model.experiments.workloads.timed import SECONDS

ROOT = corpus.PROJECT
SMALL = {"send-utimes": 0.01, "log-dir": 0.01, "fiemap-shared": 0.01, "send-truncate": 0.025}
OTHER = {
    # other machines and caches: what the page says that they are
    "docs/validation.md": {"8.8", "11.9", "1.98", "2.08", "1.41", "1.60", "1.42", "1.6", "1.05",
                           "1.03", "2.1", "2.3"},
}  # fmt: skip
"""Numbers of times that pages show of other things."""


@pytest.fixture(scope="module")
def csv() -> pd.DataFrame:
    """The ratios of a replay at full scale, as `scripts/readme.py` wrote them."""
    return pd.read_csv(ROOT / "docs" / "speedups.csv")


@pytest.fixture(scope="module")
def replays() -> list[Replay]:
    return [run(name, scale) for name, scale in SMALL.items()]


def rows_of(paper: str, name: str) -> list[list[str]]:
    """The rows of a table that is made, without its head."""
    text = (ROOT / paper).read_text()
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end of {name} -->", text, re.DOTALL)
    assert found
    return [[cell.strip() for cell in line.strip("|").split("|")]
            for line in found[1].splitlines()[2:]]  # fmt: skip


def shown(value: float) -> str:
    return times(value) if pd.notna(value) else "-"


def first(cell: str) -> str:
    """The ratio at the head of a cell."""
    return cell.split(" ")[0]


@pytest.mark.claim(
    "README's tables, its CSV and docs/validation.md show one value for each ratio of a message."
)
def test_tables_and_csv_agree(csv: pd.DataFrame) -> None:
    pairs = rows_of("README.md", "pairs")
    ours = sorted((row[0], *map(first, row[2:5])) for row in pairs)
    told = csv[csv.predicted.notna()]
    theirs = sorted(
        (row.workload, shown(row.reported), shown(row.predicted), shown(row.measured))
        for row in told.itertuples()
    )
    assert ours == theirs
    for name, row in zip(NAMES, rows_of("README.md", "answer"), strict=True):
        assert f"`{name}`" in row[0]
        assert (first(row[1]), first(row[2])) in {
            (one[1], one[2]) for one in ours if one[0] == name
        }
        measured = {one[3] for one in ours if one[0] == name}
        assert first(row[3]) in measured


def test_the_validation_page_agrees(csv: pd.DataFrame) -> None:
    known = {(row.workload, row.case): row for row in csv.itertuples() if pd.notna(row.reported)}
    rows = {row[0]: row for row in rows_of("docs/validation.md", "ratios")}
    for (workload, case), row in known.items():
        _, reported, predicted, _ = rows[f"message: {workload} {case}"]
        assert (reported, first(predicted)) == (f"{row.reported:.2f}", f"{row.predicted:.2f}")
    measured = {f"{row.measured:.2f}" for row in csv.itertuples() if pd.notna(row.measured)}
    recorded = [row for name, row in rows.items()
                if re.search(r"6\.1 to 6\.12$|without and with$|with to without$", name)
                and "1/10" not in name]  # fmt: skip
    assert len(recorded) >= 12
    assert {row[1] for row in recorded} <= measured


@pytest.mark.claim("Recorded times of kernels are the medians of their runs, on every page.")
def test_recorded_times_are_medians(csv: pd.DataFrame) -> None:
    told: dict[str, list[float]] = {}
    for row in rows_of("docs/validation.md", "details"):
        if not row[0].startswith("fresh"):
            workload = re.split("[, ]", row[2])[0]
            told.setdefault(workload, []).append(float(row[3].removesuffix(" ms").replace(",", "")))
    ratios = []
    for file in sorted(ROOT.glob("data/workloads/*/measured.json")):
        times = [one for one in json.loads(file.read_text())["rows"] if "min" in one]
        for one in times:
            low, value, high = (one[name] * SECONDS[one["unit"]] * 1e3
                                for name in ("min", "value", "max"))  # fmt: skip
            assert low <= value <= high
            if one["runs"] <= 2:
                assert value == pytest.approx((low + high) / 2)
            # the largest logs are on no page but the report's
            if one.get("files") != 1_000_000:
                assert any(abs(value - ms) < 0.006 for ms in told[file.parent.name]), one
        ratios += [before["value"] / after["value"] for before in times for after in times]
    for measured in csv.measured.dropna():
        assert any(measured == pytest.approx(ratio, rel=1e-4) for ratio in ratios)


@pytest.mark.claim(
    "Each number of times that a page or a notebook shows of a commit is that value."
)
def test_prose_agrees(csv: pd.DataFrame) -> None:
    values = [value for name in ("reported", "predicted", "low", "high", "measured")
              for value in csv[name].dropna()]  # fmt: skip
    known = {f"{value:.{digits}f}" for value in values for digits in (0, 1, 2, 3)}
    known |= {times(value).rstrip("x") for value in values}
    notes = " ".join(csv.note.dropna())
    known |= set(re.findall(r"([\d.]+) on ", notes))
    known |= {row[4].split("x ")[0] for row in rows_of("README.md", "answer")}
    papers = [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    wrong = []
    for paper in papers:
        place = str(paper.relative_to(ROOT))
        wrong += found_in(place, paper.read_text(), known | OTHER.get(place, set()))
    for notebook in sorted(ROOT.glob("notebooks/**/*.ipynb")):
        for cell in jupytext.read(notebook).cells:
            if cell.cell_type == "markdown":
                wrong += found_in(str(notebook.relative_to(ROOT)), cell.source, known)
    assert wrong == []


def found_in(place: str, text: str, known: set[str]) -> list[str]:
    """Numbers of times that are none of these."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    pattern = r"(?<![\w.])([\d,]+(?:\.\d+)?)(?:x(?!\w)| times as (?:fast|long))"
    return [f"{place}: {number}" for number in re.findall(pattern, text)
            if number not in known and number not in ("1", "2")]  # fmt: skip


@pytest.mark.claim("Charts, tables, verdicts and CSV of a report show one value for each ratio.")
def test_the_report_agrees(replays: list[Replay]) -> None:
    for one in replays:
        table = speedup_table(one.speedups)
        rows = [row for row in pair_rows(one) if row.predicted]
        told = table[table.predicted.notna()]
        assert sorted(first(row.predicted) for row in rows) == sorted(map(times, told.predicted))
        html = unescape(page([one], {one.workload.name: ("<svg></svg>", "<svg></svg>")}, "0"))
        for row in rows:
            assert row.verdict in html and row.predicted.split(" ±")[0] in html
        drawn = 0
        for pair in one.speedups:
            if pair.before is None or pair.after is None:
                continue
            sides = [one.outcome.time(judged.timed.side, judged.timed.quantity, judged.timed.case)
                     for judged in (pair.before, pair.after) if judged.timed]  # fmt: skip
            before, after = sides
            assert before and after and before.modelled and after.modelled
            assert pair.predicted and pair.reported and before.reported and after.reported
            assert before.modelled / after.modelled == pytest.approx(pair.predicted.value)
            assert before.reported / after.reported == pytest.approx(pair.reported.value)
            if pair.measured and before.measured and after.measured:
                assert before.measured / after.measured == pytest.approx(pair.measured.value)
            drawn += 1
        assert drawn == len(table.reported.dropna())


@pytest.mark.claim("A verdict is two sentences at most, in plain words; the worst pair is first.")
def test_verdicts_are_short(replays: list[Replay]) -> None:
    words = {BOTH, SMALLER, LARGER, CONTRARY}
    for one in replays:
        rows = pair_rows(one)
        worse = [row.worse for row in rows if " alone" not in row.case]
        assert worse == sorted(worse, reverse=True)
        assert len(worse) == sum(not pair.alone for pair in one.speedups)
        for row in (*rows, commit_row(one)):
            assert len(re.findall(r"\.(?= [A-Z-]|$)", row.verdict)) <= 2, row.verdict
            if row.reported:
                assert any(word in row.verdict for word in words), row.verdict
    for row in rows_of("README.md", "answer"):
        assert len(re.findall(r"\.(?= [A-Z-]|$)", row[5].split(" <details>")[0])) <= 2


def test_a_series_is_told_as_such() -> None:
    """The row of its last commit says so, links the rest, and tells what two of it do alone."""
    (row,) = [row for row in rows_of("README.md", "answer") if "`send-utimes`" in row[0]]
    series = commits.load("send-utimes").series
    assert series is not None
    assert f"[Series of {series.number}]({series.url}), its last commit" in row[0]
    assert re.search(r"Alone: send-dir-created-cache [\d.]+x, send-utimes-cache "
                     r"\(this commit\) 1\.01x", row[0])  # fmt: skip
    table = tomllib.loads(Path(ROOT / "data/commits/send-utimes.toml").read_text())
    assert table["series"] is True


def test_what_is_measured_is_told_beside_what_is_not(csv: pd.DataFrame) -> None:
    """The companion fix, then the commit: that pair was measured."""
    pair = csv[csv.case.str.endswith("before + fix, then after")].iloc[0]
    (row,) = [row for row in rows_of("README.md", "answer") if "`send-truncate`" in row[0]]
    assert row[3].startswith(times(pair.measured)) and "companion fix, then the commit" in row[3]
    assert "on samsung-850-evo (" in row[2] and "the size depends on the device" in row[5]
    assert f"reported {times(pair.reported)}" in row[5]
