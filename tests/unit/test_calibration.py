# SPDX-License-Identifier: GPL-2.0-only
"""Calibration: which costs there are, how they are found, what the file of a machine says."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.base.samples import data_folder
from btrfs_model.cli import main
from btrfs_model.cost import machine as machines
from btrfs_model.cost.causes import PARTS, QUANTITIES
from btrfs_model.cost.pipe import with_wakes
from btrfs_model.cost.prediction import predict
from btrfs_model.cost.receiver import LAST_PAGE_WAIT
from btrfs_model.experiments import workloads
from btrfs_model.experiments.calibration import fit as fitting
from btrfs_model.experiments.calibration import machine_file, micro, processor
from btrfs_model.experiments.calibration import measure as measuring
from btrfs_model.experiments.calibration.costs import TERMS
from btrfs_model.experiments.calibration.fit import Row, amounts, fit
from btrfs_model.experiments.calibration.measure import Measured
from btrfs_model.kernels.inside import timed as inside

SHIPPED = sorted((data_folder() / "machines").glob("*.toml"))
ROWS = len(TERMS) * 2
WAITS = np.array([term.waits for term in TERMS])


def _rows(costs: np.ndarray, noise: float, seed: int) -> list[Row]:
    """Make microbenchmarks: two for each cost, in which it takes most of the time."""
    chance = np.random.default_rng(seed)
    rows = []
    for number in range(ROWS):
        shares = chance.uniform(0.05, 0.3, len(TERMS))
        shares[number % len(TERMS)] = 3
        work: Counter[str] = Counter()
        for term, amount in zip(TERMS, shares / costs, strict=True):
            if not term.waits:  # what is waited for is computed for, too
                name = next(iter(term.counts))
                work[name] += amount / term.counts[name]
        parts = costs * amounts(TERMS, work)
        computed, waited = (
            tuple((parts[which].sum() * np.exp(noise * chance.standard_normal(9))).tolist())
            for which in (~WAITS, WAITS)
        )
        rows.append(Row(f"micro {number}", work, computed, waited))
    return rows


def test_runs_are_brought_to_one_speed(monkeypatch):
    """Of a send through a pipe, the time at that speed says how often the reader is woken."""
    work = {"send_cmd": 1000, "pipe_writes": 1000}
    # the host is twice as slow from the middle of the second run on
    times = iter([1.0, 20.0, 1.0, 20.0 * 2**0.5, 2.0, 40.0, 2.0])
    monkeypatch.setattr(measuring, "_fastest", lambda micro, kernel: (next(times) * 1e-3, 0.0))
    piped = micro.Micro("piped", None)
    works = {"piped": work, micro.REFERENCE.name: {}}
    found = measuring._timed(None, [piped], works, (0, 3), lambda text: None)
    row = found.rows[0]
    assert row.seconds == pytest.approx([0.02] * 3)
    assert row.work == with_wakes(work, 0.02)
    assert 0 < row.work["pipe_wakes"] < 1000


def test_the_last_cache_is_the_largest(monkeypatch):
    for caches, mib in (({"L1": 48, "L2": 1024, "L3": 16384}, 16), ({"L1": 32}, 1 / 32), ({}, 32)):
        monkeypatch.setattr(processor, "caches", lambda caches=caches: caches)
        assert processor.last_cache_mib() == mib


@pytest.mark.claim("A machine has at most twelve unit costs, for all five workloads together.")
def test_there_are_at_most_twelve_costs():
    assert len(TERMS) <= machines.MOST_COSTS == 12
    assert len({term.name for term in TERMS}) == len(TERMS)
    for path in SHIPPED:
        assert len(tomllib.loads(path.read_text())["cost"]) <= 12


def test_costs_are_paid_for_what_is_counted():
    for term in TERMS:
        assert set(term.counts) <= QUANTITIES
        assert term.unit in machines.UNITS


@pytest.mark.parametrize("counts", [
    pytest.param({one for term in TERMS for one in term.counts}, id="calibrate"),
    *(pytest.param({one for cost in machines.load(path.stem).costs for one in cost.counts},
                   id=path.stem) for path in SHIPPED),
])  # fmt: skip
def test_each_part_of_an_operation_has_a_cost(counts):
    """Else no time is told of any work that has it."""
    unpaid = {part for part, names in PARTS.items() if counts.isdisjoint(names)}
    assert unpaid == {part for part, names in PARTS.items() if LAST_PAGE_WAIT in names}


@pytest.mark.claim("No time of a workload takes part in a calibration.")
def test_no_workload_is_in_a_calibration():
    folder = Path(str(import_module("btrfs_model.experiments.calibration").__file__)).parent
    for module in folder.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            names = [alias.name for alias in getattr(node, "names", [])]
            assert "btrfs_model.experiments.workloads" not in [getattr(node, "module", ""), *names]
            assert not str(getattr(node, "module", "")).endswith("experiments.replay")
    known = {one.name for one in micro.microbenchmarks()}
    assert not [name for name in known for workload in workloads.NAMES if workload in name]
    for path in SHIPPED:
        table = tomllib.loads(path.read_text())
        assert table["measurement"]["microbenchmarks"] <= len(known)
        said = " ".join(cost["measured"] for cost in table["cost"].values())
        assert not [workload for workload in workloads.NAMES if workload in said]


@pytest.mark.parametrize(("kernel", "logs"), [("v5.10.46", 0), ("v6.1.176", 1)])
def test_an_fsync_that_commits_tells_nothing(kernel, logs):
    """In 5.10 an fsync of other names of files commits the transaction, which has no cost."""
    assert micro._logged_links(20).work(kernel).get("btrfs_sync_log", 0) == logs


def test_what_is_not_counted_is_not_timed(monkeypatch):
    class Nothing(micro.Fsync):
        def work(self, behaviour):
            return {}

        def time(self, kernel, runs):
            raise AssertionError("timed")

    class Session:
        preset = "v6.1.176"

    monkeypatch.setattr(
        measuring, "_timed", lambda kernel, micros, works, limits, step: (micros, works)
    )
    monkeypatch.setattr(micro.REFERENCE.operation, "build", lambda: micro._empty(3))
    nothing = micro.Micro("nothing", Nothing())
    timed, works = measuring.measure(Session(), [nothing], 0, 1, lambda _: None)
    assert not timed and works.keys() == {"nothing", micro.REFERENCE.name}


def test_files_with_data_are_found(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/data").write_bytes(b"x")
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("d/data")
    assert inside._with_data(tmp_path) == [str(tmp_path / "d/data")]


def test_names_of_microbenchmarks_differ():
    names = [one.name for one in micro.microbenchmarks()]
    assert len(set(names)) == len(names)
    assert micro.microbenchmarks()[0] is micro.REFERENCE


costs_of_chance = st.lists(
    st.floats(1e-9, 1e-3), min_size=len(TERMS), max_size=len(TERMS)
).map(np.array)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(costs_of_chance, st.integers(0, 1000))
def test_costs_are_found_again(costs, seed):
    found = fit(TERMS, _rows(costs, 0.0, seed), seed)
    assert found.values == pytest.approx(costs, rel=1e-6)
    assert found.low == pytest.approx(costs, rel=1e-6)
    assert max(found.residuals.values()) < 1e-6


@settings(max_examples=10, deadline=None)
@given(costs_of_chance, st.integers(0, 1000))
def test_costs_are_found_in_noise(costs, seed):
    found = fit(TERMS, _rows(costs, 0.02, seed), seed)
    assert found.values == pytest.approx(costs, rel=0.1)
    assert np.all(found.low <= found.values)
    assert np.all(found.values <= found.high)
    assert found.draws.shape == (fitting.DRAWS, len(TERMS))


def test_noise_widens_the_intervals():
    costs = np.full(len(TERMS), 1e-6)
    widths = [
        float(np.mean((found.high - found.low) / found.values))
        for found in (fit(TERMS, _rows(costs, noise, 0)) for noise in (0.01, 0.3))
    ]
    assert widths[1] > 5 * widths[0]


def test_a_cost_that_nothing_tells_is_named():
    rows = _rows(np.full(len(TERMS), 1e-6), 0.0, 0)
    without = [replace(row, work={**row.work, "log_leaves_entered": 0}) for row in rows]
    with pytest.raises(bm.BtrfsModelError, match="no microbenchmark tells the cost log_leaf"):
        fit(TERMS, without)


def test_without_scipy_one_line_says_so(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(fitting, "import_module", missing)
    with pytest.raises(bm.BtrfsModelError, match=r"needs scipy.*pip install 'btrfs-model\[calib"):
        fitting.needs_scipy()


@pytest.mark.parametrize("spread", [0.02, 0.4])
def test_the_file_of_a_machine_is_read_again(tmp_path, spread):
    costs = np.array([10.0 ** -(4 + number % 5) for number in range(len(TERMS))])
    measured = Measured(_rows(costs, 0.05, 1), 0.025, spread, 9)
    found = fit(TERMS, measured.rows)
    text = machine_file.text(TERMS, found, measured, kernel="v6.12.101", kind="uml")
    path = tmp_path / "some.toml"
    path.write_text(text)
    machine = machines.load(str(path))
    assert (machine.kernel, machine.kind) == ("v6.12.101", "uml")
    assert [cost.seconds for cost in machine.costs] == pytest.approx(found.values, rel=1e-4)
    assert machine.draws == pytest.approx(found.draws, rel=1e-3)
    assert ("busy, or its host was: equal runs spread by 40%" in text) == (spread > 0.1)
    assert tomllib.loads(text)["measurement"]["busy"] == (spread > 0.1)


def test_a_prediction_of_a_microbenchmark_is_what_the_fit_explains(tmp_path):
    costs = np.full(len(TERMS), 1e-6)
    measured = Measured(_rows(costs, 0.05, 1), 0.025, 0.01, 9)
    found = fit(TERMS, measured.rows)
    path = tmp_path / "some.toml"
    path.write_text(machine_file.text(TERMS, found, measured, kernel="v6.1", kind="native"))
    row = measured.rows[3]
    predicted = predict(machines.load(str(path)), row.work)
    assert predicted.seconds == pytest.approx(found.explained[row.name], rel=1e-4)
    assert predicted.low < row.took < predicted.high


def test_waiting_is_no_computing():
    """Where all is computed, a cost that is waited for is nothing, and the other way round."""
    rows = _rows(np.full(len(TERMS), 1e-6), 0.0, 0)
    computed = fit(TERMS, [replace(row, waited=(0.0,)) for row in rows]).values
    assert computed[WAITS] == pytest.approx(0)
    assert computed[~WAITS] == pytest.approx(1e-6)
    waited = fit(TERMS, [replace(row, seconds=row.waited) for row in rows]).values
    assert waited[WAITS] == pytest.approx(1e-6)
    assert waited[~WAITS] != pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kernel", "/nowhere/linux.uml", "-o", "made.toml"], "/nowhere/linux.uml"),
        (["--kernel", "uml", "-o", "nowhere/made.toml"], "nowhere"),
    ],
)
def test_bad_input_ends_in_one_line(tmp_path, monkeypatch, capfd, arguments, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", *arguments])
    assert ended.value.code == 1
    captured = capfd.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
