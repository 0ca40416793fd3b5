# SPDX-License-Identifier: GPL-2.0-only
"""The answer to "do the speedups come out?": the rule, the report in a browser, pictures."""

import json
import math
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpus
import pytest
from browser import CUT_LABELS, CUT_OFF, WIDTHS, views, violations
from matplotlib.figure import Figure

from btrfs_model.base.charts import COLOURS, KINDS, to_svg
from btrfs_model.cli.commands.experiments import _print_answer as print_answer
from btrfs_model.cost.prediction import Ratio
from btrfs_model.experiments import commits
from btrfs_model.experiments.numbers import amount, ratio_text, times
from btrfs_model.experiments.replay import Replay, run
from btrfs_model.experiments.report import write
from btrfs_model.experiments.report.verdicts import (
    BOTH,
    CONTRARY,
    LARGER,
    SMALLER,
    commit_row,
    compare,
    pair_row,
)
from btrfs_model.experiments.workloads import NAMES, load

SMALL = {
    "send-truncate": 0.004, "send-utimes": 0.004, "send-readahead": 0.004, "fiemap-shared": 0.003,
    "log-dir": 0.001,
}  # fmt: skip


@pytest.fixture(scope="module")
def replays() -> list[Replay]:
    """All workloads, small; of one the message has times of that size."""
    return [run(name, scale) for name, scale in SMALL.items()]


@pytest.fixture(scope="module")
def folder(replays: list[Replay], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    write(replays, out)
    return out


# -------------------------------------------------------------------------------- the verdicts --


@pytest.mark.claim("Verdicts follow from the numbers by one rule.")
@pytest.mark.parametrize(
    ("reported", "value", "low", "high", "word"),
    [
        (12.9, 12.0, 11.0, 13.0, BOTH),  # within the interval
        (12.9, 12.0, 12.0, 12.0, BOTH),  # less than a tenth away
        (2.0, 1.2, 1.1, 1.3, SMALLER),
        (1.06, 1.21, 1.18, 1.25, LARGER),
        (1.9, 0.77, 0.77, 0.77, CONTRARY),
        (1.9, 0.95, 0.5, 2.0, CONTRARY),  # whatever the interval
        (0.5, 0.4, 0.3, 0.6, BOTH),  # slower, both
    ],
)
def test_the_rule(reported: float, value: float, low: float, high: float, word: str) -> None:
    assert compare(Ratio(reported, reported, reported), Ratio(value, low, high)) == word


def test_the_digits_of_a_message_leave_something_open() -> None:
    """9 ms may be 9.9 ms; the average of five runs may be off by their deviation."""
    by_case = {
        tuple(after.case.values()): commits.ratio_of(before, after)
        for before, after in commits.load("log-dir").pairs
    }
    few = by_case[1000, 100, 2]
    assert (few.value, few.low, few.high) == pytest.approx((4 / 3, 4 / 4, 5 / 3))
    many = by_case[1_000_000, 10_000, 1]
    assert many.high / many.low < 1.001
    before, after = commits.load("send-truncate").headline
    # 2.132 deviations of an average: Student's t of four degrees of freedom
    assert before.scatter == pytest.approx(2.132 * 2.53 / 26.49 / math.sqrt(5))
    told = commits.ratio_of(before, after)
    assert told.low < 2.3 and told.high > 3.0
    assert compare(told, Ratio(2.3, 2.25, 2.35)) == BOTH
    assert compare(told, Ratio(2.0, 1.9, 2.1)) == SMALLER


def test_each_message_has_a_headline_its_work_and_its_reasons() -> None:
    for name in NAMES:
        message = commits.load(name)
        before, after = message.headline
        assert (before.side, after.side) == ("before", "after")
        assert sum(one.is_headline for one in message.figures) == 1
        assert set(message.work) <= {"quantity", "words", "case"}
        known = {"predicted", "measured", "unmeasured"}
        assert set(message.why) <= known
        assert all(set(one.why) <= known for one in message.figures)
        assert message.url.endswith(f"/{message.commit}")


def test_a_measurement_that_is_the_contrary_is_told_with_its_runs() -> None:
    """The second fsync of log-dir at 1,000,000 files, by the records alone."""
    one = run("log-dir", 0.001)
    for row in one.judged:
        row.record = {"value": 1869.144, "min": 1869.144, "max": 1869.144, "runs": 1, "unit": "ms"}
        row.measured = 1.869144
        if row.reported.side == "before":
            row.measured, row.record = 1.438149, {**row.record, "value": 1438.149, "min": 1400.0,
                                                  "max": 1500.0, "runs": 3}  # fmt: skip
    verdict = pair_row(one, one.speedups[0]).verdict
    assert "contradicts, 1.44 s (3 runs, 1.4 s to 1.5 s) before, 1.87 s (one run) after" in verdict
    # also where it is not the headline
    assert "fsync 2: " in commit_row(one).verdict


def test_rows_of_commits(replays: list[Replay]) -> None:
    rows = {one.workload.name: commit_row(one) for one in replays}
    assert list(rows) == list(NAMES)
    assert rows["send-truncate"].work == "no pages waited for: 80, then 0"
    # another size than the message's: its ratio is told all the same
    assert "(80 files), reported 2.64x (20,000 files)" in rows["send-truncate"].verdict
    found = rows["log-dir"]
    assert (found.case, found.reported) == ("1,000 files, fsync 1", "1.29x ± 0.16")
    assert "±" in found.predicted and "±" in found.measured
    assert found.verdict.endswith(" on 5.10: agrees.")
    assert "816, then 26" in found.work


def test_a_workload_without_a_message(replays: list[Replay], tmp_path: Path) -> None:
    """It has a row and a section all the same."""
    nothing = commits.Message("", "", "", "none", "", "", {}, {}, {}, ())
    one = replace(replays[0], message=nothing, judged=[], pictures={})
    row = commit_row(one)
    assert row.reported == row.measured == "" and row.predicted.startswith("2.")
    assert row.verdict == "No commit message is about it. Predicted: faster after."
    write([one], tmp_path)
    html = (tmp_path / "report.html").read_text()
    assert "No commit message is about it." in html and 'href=""' not in html
    assert f"Nothing reported, {row.predicted} predicted, nothing measured" in html
    print_answer([one])


def test_how_figures_read() -> None:
    assert ratio_text(Ratio(12.93, 12.926, 12.931)) == "12.9x"
    assert ratio_text(Ratio(2.64, 2.3, 3.04)) == "2.64x ± 0.4"
    assert ratio_text(None) == ""
    assert times(12.927) == "12.9x" and times(15001.2) == "15,001x"
    assert times(1.2064, 1.0956, 1.3041) == "1.21x ± 0.11"
    assert amount("ms", 7837.106) == "7.84 s" and amount("calls", 7837) == "7,837"
    assert amount("s", 1.8, 1.7, 2.0) == "1.8 s ± 0.2"


# --------------------------------------------------------------------------------- the terminal --


@pytest.mark.claim("The last lines of a replay say whether the speedups come out.")
@pytest.mark.parametrize("width", [60, 160])
def test_the_last_lines_on_a_terminal(
    width: int, replays: list[Replay], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each line ends where the terminal does, and nothing is left out."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    print_answer(replays)
    # without what makes it bold, and the links
    printed = re.sub(r"\x1b\[[\d;]*m|\x1b\].*?\x1b\\", "", capsys.readouterr().out)
    lines = printed.splitlines()
    assert lines[0] == "Do the speedups come out?"
    assert max(map(len, lines)) <= width
    text = " ".join(printed.split())
    for one in replays:
        row = commit_row(one)
        assert row.message.url in text
        for cell in row.cells:
            assert " ".join(cell.split()) in text


def test_no_chart_cuts_what_is_drawn_in_it(replays: list[Replay]) -> None:
    """At the quick scale; ``scripts/readme.py --check`` looks at the full one."""
    cut_charts = runpy.run_path(str(corpus.PROJECT / "scripts" / "readme.py"))["cut_charts"]
    assert [text for one in replays for text in cut_charts(one)] == []


# ---------------------------------------------------------------------------------- the README --


@pytest.mark.claim("The README's table is that of a replay.")
def test_the_table_of_the_readme() -> None:
    """What it says of each commit, and the whole row of the workload that is soon replayed."""
    readme = (corpus.PROJECT / "README.md").read_text()
    table = re.search(r"<!-- answer -->\n(.*?)<!-- end of answer -->", readme, re.DOTALL)
    assert table
    rows = table[1].splitlines()[2:]
    assert len(rows) == len(NAMES)
    for name, row in zip(NAMES, rows, strict=True):
        before, after = (message := commits.load(name)).headline
        assert f"[{message.title}]({message.url}) ({message.release}); `{name}`" in row
        assert f"| {ratio_text(commits.ratio_of(before, after))} |" in row
    markdown = runpy.run_path(str(corpus.PROJECT / "scripts" / "readme.py"))["markdown"]
    assert markdown([commit_row(run("send-truncate"))]).splitlines()[2:] == rows[:1]


# ----------------------------------------------------------------------------------- the page --


SMALL_TEXT = """() => [...document.querySelectorAll("svg text")].filter(one => {
    if (!one.getClientRects().length) return false;
    const {a, b} = one.getScreenCTM();
    return parseFloat(getComputedStyle(one).fontSize) * Math.hypot(a, b) < 9;
}).map(one => one.textContent)"""


@pytest.mark.more
@pytest.mark.claim(
    "The report is readable at 1920, 1280 and 400 pixels, light and dark, by everybody: no "
    "drawing, label or cell is cut off, and axe finds nothing.",
    "Chromium",
)
def test_the_page_in_a_browser(browser: Any, folder: Path) -> None:
    page = browser.new_page(viewport={"width": max(WIDTHS), "height": 900})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    address = (folder / "report.html").as_uri()
    page.goto(address)
    # the first screen has the answer, where there is room for it
    assert page.locator("table").first.bounding_box()["y"] < 200
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert [line for line in said if line != address and not line.startswith("data:")] == []
    assert page.evaluate("document.querySelectorAll('figure').length") == 2 * len(NAMES)
    assert page.locator("svg text").count() > 100
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(CUT_OFF) == [], width
        assert page.evaluate(CUT_LABELS) == [], width
        assert page.evaluate(SMALL_TEXT) == [], width
        for scheme in views()[width]:
            page.emulate_media(color_scheme=scheme)
            assert violations(page) == [], (width, scheme)
    page.close()


def test_sections_open_with_the_verdict_and_the_chart(folder: Path) -> None:
    html = (folder / "report.html").read_text()
    head, *sections = html.split("<section ")
    assert len(sections) == len(NAMES)
    assert all(f'href="#{name}"' in head for name in NAMES)
    for name, section in zip(NAMES, sections, strict=True):
        message = commits.load(name)
        assert message.url in head and message.url in section.split("<figure")[0]
        assert section.index("reported") < section.index("<svg") < section.index("<details>")
        assert "<table" not in section.split("<svg")[0]
    for table in re.findall(r"<table.*?</table>", html, re.DOTALL):
        assert "<caption>" in table and 'scope="col"' in table
        assert len(re.findall('scope="row"', table)) == len(re.findall("<tr", table)) - 1


# ---------------------------------------------------------------------------------- the charts --


def test_charts_say_what_they_show(folder: Path) -> None:
    charts = sorted(folder.glob("*.svg"))
    assert len(charts) == 2 * len(NAMES)
    for chart in charts:
        text = chart.read_text()
        assert '<svg role="img" aria-labelledby=' in text
        title, description = (
            re.search(rf'<{tag} id="{chart.stem}-{tag}">(.*?)</{tag}>', text, re.DOTALL)
            for tag in ("title", "desc")
        )
        assert title and description and len(description[1]) > 80
        assert len(re.findall("<text ", text)) > 5
        sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", text)]
        assert min(sizes) >= 8.5
        from PIL import Image

        assert Image.open(chart.with_suffix(".png")).info["Description"] in description[1].replace(
            "&amp;", "&"
        ).replace("&#x27;", "'")


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_ids_of_a_picture_are_its_own() -> None:
    """They count; a solver leaves the last bits of a layout to chance."""
    pictures = []
    for left in (0.1, math.nextafter(0.1, 1)):
        figure = Figure()
        figure.add_axes((left, 0.1, 0.8, 0.8)).plot([1, 2], marker="o")
        pictures.append(to_svg(figure, "lines"))
    one, other = pictures
    assert one == other
    assert "clip-path" in one
    ids = re.findall(r'\bid="([^"]+)"', one)
    assert all(name.startswith("lines-") for name in ids)
    assert {*re.findall(r'(?:url\(|href=")#([^")]+)', one)} < {*ids}


def test_colours_of_text_have_contrast() -> None:
    for name, colour in {**COLOURS, **dict(enumerate(KINDS[:-1]))}.items():
        if name not in ("line", "plain"):
            assert 1.05 / (luminance(colour) + 0.05) >= 4.5, colour
    for ground in ("line", "plain"):
        assert (luminance(COLOURS[ground]) + 0.05) / (luminance(COLOURS["muted"]) + 0.05) >= 4.5


NOTEBOOKS = sorted((corpus.PROJECT / "notebooks").glob("**/*.ipynb"))


@pytest.mark.claim("Each picture of the notebooks and papers has an alternative text.")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_of_notebooks(path: Path) -> None:
    """Each has a text instead; colours are those of the charts."""
    cells = json.loads(path.read_text())["cells"]
    outputs = [one for cell in cells for one in cell.get("outputs", ())]
    pictures = [one for one in outputs if "image/png" in one.get("data", {})]
    drawings = [
        html
        for one in outputs
        if "<svg" in (html := "".join(one.get("data", {}).get("text/html", "")))
    ]
    shows_none = path.parent.name in ("course", "assignments") or path.stem == "answers"
    assert pictures or drawings or shows_none
    for html in drawings:
        assert re.search(r"<title[^>]*>.+</title>\s*<desc[^>]*>.{40,}</desc>", html, re.DOTALL)
    for one in pictures:
        assert len(one["metadata"].get("image/png", {}).get("alt", "")) > 40
    code = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    used = set(re.findall(r"#[0-9a-f]{6}\b", code)) | set(
        re.findall(r'color="(tab:\w+|C\d)"', code)
    )
    assert used <= {*COLOURS.values(), *KINDS}


def test_pictures_of_papers() -> None:
    for paper in [corpus.PROJECT / "README.md", *(corpus.PROJECT / "docs").glob("*.md")]:
        for text in re.findall(r"!\[(.*?)\]\(", paper.read_text(), re.DOTALL):
            assert len(text) > 30, paper


def test_all_workloads_are_here() -> None:
    assert list(SMALL) == list(NAMES) == [load(name).name for name in NAMES]
