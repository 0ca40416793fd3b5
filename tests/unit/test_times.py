# SPDX-License-Identifier: GPL-2.0-only
"""Times of replays: figures of the messages, what is predicted beside them, what is shown."""

import csv
import io
import json
import math
import re
import tomllib
from fractions import Fraction
from pathlib import Path

import corpus
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.cli import cli
from btrfs_model.cost import machine as machines
from btrfs_model.experiments import commits
from btrfs_model.experiments.commits import PERCENTAGES
from btrfs_model.experiments.formulas import find, formulas
from btrfs_model.experiments.replay import Replay, run
from btrfs_model.experiments.report import write
from btrfs_model.experiments.report.verdicts import commit_row, pair_row
from btrfs_model.experiments.results import to_csv
from btrfs_model.experiments.times import FIGURES, SPEEDUPS, message_table, speedup_table
from btrfs_model.experiments.workloads import NAMES, load
from btrfs_model.experiments.workloads.knobs import Knobs
from btrfs_model.experiments.workloads.timed import SECONDS

FILE = str(corpus.TEST_DATA / "machine.toml")
DATA = corpus.PROJECT / "data"


# ------------------------------------------------------------------------------ the messages --


@pytest.mark.claim("All 31 times of the five commit messages are data, and the replays read them.")
def test_the_figures_of_the_messages() -> None:
    assert sum(len(commits.load(name).figures) for name in NAMES) == 31
    for name in NAMES:
        message, workload = commits.load(name), load(name)
        commit = workload.toggles[0]
        assert commit.commit.startswith(message.commit) and commit.release == message.release
        assert message.title == commit.subject
        known = {side.name for side in workload.compared}
        assert {one.side for one in message.figures} <= known
        assert set(message.stand_in.values()) <= known
        full = workload.input("full").parameters
        for one in message.figures:
            assert one.unit in SECONDS
            assert set(one.case) <= {*full, "cache", "fsync", "deletes"}
        assert message.size.items() <= full.items()


@pytest.mark.parametrize("name", NAMES)
def test_what_a_message_says_of_its_times_follows_from_them(name: str) -> None:
    """By the rule of its percentages: those of 2021-03 are differences over the mean."""
    message = commits.load(name)
    said = [(before, after) for before, after in message.pairs if after.said]
    assert bool(said) == (message.percentages != "none")
    for before, after in said:
        assert PERCENTAGES[message.percentages](before.value, after.value) == after.said
    others = {kind for kind in ("of before", "of the mean") if kind != message.percentages}
    if message.percentages.startswith("of "):
        wrong = PERCENTAGES[others.pop()]
        assert any(wrong(b.value, a.value) != a.said for b, a in said)


_WHOLE = """
title = "x"
commit = "x"
release = "x"
percentages = "none"
machine = "x"
device = ""
resolution = { below = 0, above = 1 }
why = {}
work = {}
figure = [{ side = "before", case = {}, quantity = "time", unit = "s", value = 2 }]
"""
_HEAD = 'percentages = "none"\nresolution = { below = 0, above = 1 }\n'


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "percentages is missing"),
        ('percentages = "some"', "percentages is 'some', not one of none, times"),
        ('percentages = "none"', "figure is missing"),
        (
            _HEAD + '[[figure]]\nside = "after"',
            "figure 1: unit is missing",
        ),
        (
            _HEAD + '[[figure]]\nside = "x"\nunit = "h"',
            "figure 1: unit is 'h', not",
        ),
        ('percentages = "none"\n[[figure]]\nside = "x"\n', "resolution is missing"),
        (_WHOLE + 'pipe = "no"', "pipe is 'no', not true or false"),
        (
            _HEAD.replace("below = 0", "below = -1") + '[[figure]]\nside = "x"\n',
            "resolution is negative",
        ),
        (
            _HEAD + '[[figure]]\nside = "x"\nunit = "s"\nvalue = 0',
            "figure 1: value is 0, not more than 0",
        ),
        (
            _HEAD + '[[figure]]\nside = "x"\nunit = "s"\nvalue = "2"',
            "figure 1: value is '2'",
        ),
        (
            _HEAD + '[[figure]]\nside = "after"\nunit = "s"\nvalue = 2\n'
            'quantity = "time"\ncase = {}',
            "the first figure is not of the side before",
        ),
    ],
)
def test_a_message_that_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, what: str
) -> None:
    monkeypatch.setenv("BTRFS_MODEL_DATA", str(tmp_path))
    (tmp_path / "commits").mkdir()
    path = tmp_path / "commits" / f"{abs(hash(text))}.toml"
    path.write_text(text)
    with pytest.raises(bm.BtrfsModelError) as error:
        commits.load(path.stem)
    assert str(error.value).startswith(f"{path}: {what}")


# ------------------------------------------------------------------------------- the replays --


@pytest.fixture(scope="module")
def log_dir() -> Replay:
    """Two of the message's four sizes."""
    return run("log-dir", "quick", machine=FILE)


def test_ratios_are_those_of_the_message(log_dir: Replay) -> None:
    table = speedup_table(log_dir.speedups)
    rows = list(csv.DictReader(io.StringIO(to_csv(table).decode())))
    assert tuple(rows[0]) == SPEEDUPS
    reported = {
        (one["side"], *one["case"].values()): one["value"]
        for one in tomllib.loads((DATA / "commits" / "log-dir.toml").read_text())["figure"]
    }
    assert len(rows) == 4
    for row in rows:
        case = tuple(int(part.partition("=")[2]) for part in row["case"].split())
        wanted = reported["before", *case] / reported["after", *case]
        assert float(row["reported"]) == pytest.approx(wanted)
        low, value, high = (float(row[name]) for name in ("low", "predicted", "high"))
        assert 0 < low <= value <= high


def test_ratios_are_those_of_the_times(log_dir: Replay) -> None:
    machine = log_dir.machine
    for pair in log_dir.speedups:
        assert pair.before.timed and pair.after.timed and pair.predicted
        before, after = pair.before.timed.on(machine), pair.after.timed.on(machine)
        assert before and after
        assert pair.predicted.value == pytest.approx(before.seconds / after.seconds)
        # measured: both on the same kernel, the one with the commit alone
        assert pair.measured and pair.before.measured_on in pair.after.measured_on


def test_the_first_time_is_used_and_the_others_are_predicted_by_it() -> None:
    """The factor of a message cancels in ratios, and its first time is never a prediction."""
    one = run("send-truncate", "full", machine=FILE)
    first, *others = one.judged
    assert first.is_used and first.predicted is None and first.error is None
    assert [row.is_used for row in others] == [False, False]
    used = first.timed.on(one.machine) if first.timed else None
    assert used
    for row in others:
        assert row.timed and row.predicted and row.low and row.high
        time = row.timed.on(one.machine)
        assert time
        factor = first.reported.seconds / used.seconds
        assert row.predicted == pytest.approx(factor * time.seconds)
        assert row.low <= row.predicted <= row.high
    table = bm.replay("send-truncate", "full", machine=FILE)
    rows = table[table.quantity == "receive time"].set_index("side")
    assert rows.reported.to_dict() == {"before": 26.49, "before + fix": 12.51, "after": 10.02}
    assert rows.modelled["before"] == pytest.approx(used.seconds)
    assert (rows.low < rows.modelled).all() and (rows.modelled < rows.high).all()
    # the times of the message are of a machine that is not known: they tell no error
    assert math.isnan(rows.error["before"])
    assert rows.error["after"] == pytest.approx(rows.modelled["after"] / rows.measured["after"] - 1)
    told = message_table([("send-truncate", one.message, row) for row in one.judged])
    assert tuple(told.columns) == FIGURES
    assert told.used.tolist() == [True, False, False]
    assert told.predicted.isna().tolist() == [True, False, False]
    assert told.error[1] == pytest.approx(told.predicted[1] / 12.51 - 1)


@pytest.mark.claim(
    "Where a message names no device, the interval has memory, SSDs and a disk in it, and the "
    "verdict says what it hangs on."
)
def test_a_message_that_names_no_device() -> None:
    one = run("send-truncate", "full", machine=FILE)
    *hang, fixed = one.speedups
    # both sides have the companion fix: nothing is waited for
    assert fixed.before and fixed.before.reported.side == "before + fix"
    assert fixed.predicted and not fixed.predicted.devices and fixed.measured
    for pair in hang:
        found = pair.predicted
        assert found and found.alone and not found.alone.devices
        assert list(found.devices)[-1] == "samsung-850-evo"
        assert {"memory", "deskstar-7k500"} < set(found.devices)
        values = found.devices.values()
        assert found.low <= min(values) < found.alone.low < found.alone.high < max(values)
        assert found.high >= max(values) and found.devices["deskstar-7k500"] > 20
        assert pair.note.startswith("hangs on the device: ")
        row = pair_row(one, pair)
        assert "on samsung-850-evo, reported" in row.verdict
        assert "; the size depends on the device" in row.verdict
        assert "x on samsung-850-evo (" in row.predicted
        folded = " ".join(row.more)
        assert "The message names no device" in folded
        assert "x on memory" in folded and "x on deskstar-7k500" in folded
    assert one.provenance["conditions"] == {"device": ["samsung-850-evo"], "pipe": ["no"]}
    # a device that is chosen is the one
    chosen = run("send-truncate", "full", machine=FILE, knobs=Knobs("memory"))
    assert all(pair.predicted and not pair.predicted.devices for pair in chosen.speedups)
    assert chosen.provenance["conditions"] == {"device": ["memory"], "pipe": ["no"]}


def test_reading_data_is_paid_for_reads() -> None:
    """A kernel that does not look for an extent elsewhere reads it all the same."""
    with bm.create("256M") as fs:
        for number in range(400):
            fs.create(f"f{number}")
            fs.write(f"f{number}", 0, b"x" * 4096)
        fs.snapshot("", "snap")
        fs.commit()
        looks, reads = (
            bm.send(fs, "snap", behaviour=behaviour)
            for behaviour in ("v6.1", "v6.1 + send-clone-no-backrefs")
        )
    assert looks.work["data_reads"] == reads.work["data_reads"] == 400
    assert looks.work["iterate_extent_inodes"] > reads.work["iterate_extent_inodes"]
    times = looks.time(), reads.time()
    for part in ("read", "wait"):
        assert times[0].parts[part] == times[1].parts[part]
        assert times[1].causes[part] == "reading the data of 400 extents"


def test_a_smaller_replay_has_no_times_of_the_message() -> None:
    for name in ("send-truncate", "send-utimes", "fiemap-shared", "send-readahead"):
        one = run(name, "quick", machine=FILE)
        assert one.judged == []
        # no time is set beside one of another size, but ratios are told
        table = speedup_table(one.speedups)
        assert table.reported.isna().all() and table.measured.isna().all()
        assert len(table) >= 1
        row = commit_row(one)
        timed = [timed for timed in one.outcome.timed if timed.on(one.machine) is None]
        assert ("no time, for a part of the work" in row.verdict) == bool(timed)
        assert timed or re.match(r"Predicted [\d.]+x.* \(.*\), reported [\d.]+x", row.verdict)
        times = [figure for figure in one.outcome.figures if figure.unit in SECONDS]
        assert times and all(figure.reported is None for figure in times)


def test_no_time_where_a_part_has_no_cost() -> None:
    """The example machine has no cost for walks of back references."""
    one = run("fiemap-shared", "quick", machine=FILE)
    assert one.outcome.timed
    assert all(timed.on(one.machine) is None for timed in one.outcome.timed)
    times = [figure for figure in one.outcome.figures if figure.quantity == "time"]
    assert times and all(figure.modelled is None for figure in times)


def test_other_knobs_have_no_message() -> None:
    one = run("send-readahead", 0.01, knobs=Knobs(nodesize=4096), machine=FILE)
    assert one.judged == []


def test_what_is_written(log_dir: Replay, tmp_path: Path) -> None:
    names = {path.name for path in write([log_dir], tmp_path)}
    assert {"speedups.csv", "messages.csv", "log-dir-time.png", "log-dir-time.svg"} <= names
    html = (tmp_path / "report.html").read_text()
    assert "Work in closed form" in html and "tells" not in html.split("<svg")[0]
    for row in log_dir.judged:
        assert f"{row.measured_on}</small>" in html
    assert "of " in html and "copying" in html
    assert json.loads((tmp_path / "provenance.json").read_text())["workloads"]["log-dir"][
        "machine"
    ] == "machine"  # fmt: skip
    table = pd.read_csv(tmp_path / "results.csv")
    times = table[(table.quantity == "time") & (table.side != "Linux 6.18")]
    assert (
        len(times) == 8 and times[["reported", "modelled", "low", "high", "measured"]].all().all()
    )
    # measured on User-Mode Linux, predicted for another machine
    assert times.error.isna().all()
    told = pd.read_csv(tmp_path / "messages.csv")
    assert told.reported.tolist() == [row.reported.seconds for row in log_dir.judged]


# ------------------------------------------------------------------------------- closed forms --


@given(
    st.lists(st.integers(-1000, 1000), min_size=1, max_size=3),
    st.lists(st.integers(1, 10**6), min_size=5, max_size=8, unique=True),
)
def test_a_polynomial_is_found(terms: list[int], sizes: list[int]) -> None:
    counts = {n: sum(term * n**power for power, term in enumerate(terms)) for n in sizes}
    formula = find(counts)
    assert formula
    assert all(formula.at(size) == count for size, count in counts.items())
    assert len(formula.terms) <= len(terms)
    assert max(formula.sizes) < min(formula.checked)
    # one count that is off by one, and there is none
    assert find({**counts, max(sizes): counts[max(sizes)] + 1}) is None


def test_how_a_formula_reads() -> None:
    assert str(find({n: 33 * n + 47 for n in (1, 2, 3, 9)})) == "33 N + 47"
    stepped = {n: n * n // 4 + 3 * n // 2 + 1 for n in (2, 4, 8, 10, 20)}
    formula = find(stepped)
    assert formula and str(formula) == "N²/4 + 3 N/2 + 1"
    assert formula.terms == (1, Fraction(3, 2), Fraction(1, 4))
    assert formula.at(60_000) == 900_090_001
    assert str(find({n: n - 3 for n in (5, 6, 7, 8)})) == "N - 3"
    assert str(find(dict.fromkeys((1, 2, 3), 0))) == "0"
    assert find({1: 1, 2: 2}) is None
    assert find({n: 2**n for n in range(8)}) is None


@pytest.mark.claim("Work has closed forms that hold exactly, from a few files to the full scale.")
def test_work_in_closed_form() -> None:
    one = run("send-utimes", "quick", machine=FILE)
    found = formulas(one.outcome, one.input.parameters, "files")
    assert str(found["sender: btrfs_get_next_valid_item", "", "before"]) == "N²/4 + 3 N/2 + 1"
    assert str(found["commands", "", "before"]) == "5 N + 10"
    assert str(found["commands", "", "after"]) == "4 N + 10"
    assert found["stream size", "", "before"] is None
    # of trees that Linux 6.18 wrote and 6.1 counted
    for row in json.loads((DATA / "workloads/send-utimes/measured.json").read_text())["rows"]:
        formula = found.get((row["quantity"], "", row["side"]))
        if formula is not None:
            assert formula.at(row["files"]) == row["value"], row


# ----------------------------------------------------------------------------------- commands --


def command(*arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_send_tells_its_time(tmp_path: Path) -> None:
    image, stream = str(bm.sample("kernel/send/send-utimes/n200")), str(tmp_path / "stream")
    work = tmp_path / "work.json"
    asked = ["send", image, "snap2", "-p", "snap1", "-f", stream, "--machine", FILE]
    out, _ = command(*asked, "--work", str(work), "--profile")
    counted = json.loads(work.read_text())
    first, *lines = out.splitlines()
    assert re.fullmatch(r"send: [\d.]+ ms \([\d.]+ ms to [\d.]+ ms\) on machine", first)
    assert f"searching trees {counted['btrfs_search_slot']:,} times" in out
    table = [line.split("\t") for line in lines[lines.index("# time by function on machine") + 1 :]]
    assert table[0] == ["function", "calls", "ms", "percent"]
    calls = {row[0]: int(row[1]) for row in table[1:]}
    assert calls["btrfs_search_slot"] == counted["btrfs_search_slot"]
    assert sum(float(row[3]) for row in table[1:]) == pytest.approx(100, abs=0.3)
    quiet, silence = command(*asked[:-2])
    assert quiet == silence == ""


def test_other_commands_tell_their_times(tmp_path: Path) -> None:
    image = str(bm.sample("kernel/counts/W3/snap200"))
    out, err = command("fiemap", image, "", "foobar", "--machine", FILE)
    assert "fiemap: " not in out
    assert "fiemap: " in err and "has no cost: walks of back references" in err
    image = str(bm.sample("kernel/send/send-utimes/n200"))
    out, err = command(
        "reads", image, "snap1", "--device", "samsung-850-evo", "--total", "--machine", FILE
    )
    assert "waiting for the device" in err
    scenario = tmp_path / "s.json"
    scenario.write_text('{"ops": [["mkdir", "d"], ["sync"], ["create", "d/x"], ["fsync", "d/x"]]}')
    work = tmp_path / "work.json"
    _, err = command(
        "run", str(scenario), "-o", str(tmp_path / "i"), "--machine", FILE, "--work", str(work)
    )
    (fsync,) = json.loads(work.read_text())
    assert fsync["how"] == "log" and fsync["work"]["btrfs_sync_log"] == 1
    assert err.startswith("fsync") and "of the log" in err


def test_a_machine_that_there_is_not(tmp_path: Path) -> None:
    image = str(bm.sample("kernel/send/send-utimes/n200"))
    for arguments in (
        ["send", image, "snap1", "-f", str(tmp_path / "x")],
        ["fiemap", image, "snap1", "A/file_1"],
        ["replay", "send-truncate", "--scale", "quick", "--out", str(tmp_path / "out")],
    ):
        with pytest.raises(bm.BtrfsModelError, match="no machine 'none'"):
            CliRunner().invoke(cli, [*arguments, "--machine", "none"], catch_exceptions=False)
    assert not (tmp_path / "x").exists()
    with pytest.raises(bm.BtrfsModelError, match="no machine 'none'"):
        bm.replay("send-truncate", "quick", machine="none")
    assert machines.chosen(FILE).name == "machine"
