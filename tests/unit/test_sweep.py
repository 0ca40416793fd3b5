# SPDX-License-Identifier: GPL-2.0-only
"""Sweeps: plans, the store, what a cell measures, and what is refused."""

import errno
import json
import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cells
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import btrfs_model as bm
from btrfs_model.cli import run as run_cli
from btrfs_model.experiments.sweep import driver
from btrfs_model.experiments.sweep.api import IncompleteSweepError
from btrfs_model.experiments.sweep.plan import plan
from btrfs_model.experiments.sweep.store import Store
from btrfs_model.experiments.sweep.target import Function, Workloads, target_of
from btrfs_model.experiments.workloads import send_utimes


@pytest.fixture
def here() -> ThreadPoolExecutor:
    """An engine in this process."""
    return ThreadPoolExecutor(1)


# ---------------------------------------------------------------------------------------- plans --


def test_a_grid_has_all_combinations_in_order() -> None:
    made = plan(Function(cells.quick), {"a": [1, 2], "b": [5], "name": ["x", "y", "z"]})
    found = [made.params(cell) for cell in range(len(made))]
    assert [(one["a"], one["b"], one["name"]) for one in found] == [
        (a, 5, name) for a in (1, 2) for name in "xyz"
    ]
    assert len(set(made.keys)) == 6


@settings(max_examples=30)
@given(st.permutations(["a", "b", "name"]), st.lists(st.integers(0, 9), min_size=1))
def test_the_key_of_a_cell_is_what_its_values_are(order: list[str], values: list[int]) -> None:
    """Neither the order of knobs nor of values, nor what stands beside it, is in a key."""
    knobs = {"a": values, "b": [1], "name": ["x", "y"]}
    made, other = (
        plan(Function(cells.quick), one)
        for one in (knobs, {name: list(reversed(knobs[name])) for name in order})
    )
    assert len(made) == 2 * len(set(values))
    by_key = dict(zip(made.keys, map(made.params, range(len(made))), strict=True))
    assert by_key == dict(zip(other.keys, map(other.params, range(len(other))), strict=True))


def test_true_is_not_one() -> None:
    made = plan(Function(cells.quick), {"a": [1, True, 1.0]})
    assert [type(made.params(cell)["a"]) for cell in range(3)] == [int, bool, float]
    assert len(set(made.keys)) == 3


@pytest.mark.parametrize("sampler", ["random", "latin", "saltelli", "morris"])
def test_samples_lie_in_their_ranges(sampler: str) -> None:
    knobs = {"a": {"from": 1, "to": 8}, "b": {"from": 1, "to": 1024, "log": True}, "name": "xyz"}
    made = plan(Function(cells.quick), {**knobs, "name": ["x", "y"]}, sampler, 64, seed=3)
    again = plan(Function(cells.quick), {**knobs, "name": ["x", "y"]}, sampler, 64, seed=3)
    assert made.keys == again.keys and made.varied == ("a", "b", "name")
    found = pd.DataFrame([made.params(cell) for cell in made.sampled])
    assert found.a.between(1, 8).all() and found.b.between(1, 1024).all()
    assert found.a.min() == 1 and found.a.max() == 8 and set(found.name) == {"x", "y"}
    if sampler != "morris":  # which has a few levels
        assert 8 < found.b.median() < 128, "half of a logarithmic range is below its middle"
    assert len(made.shares) == len(made.sampled) >= len(made)


def test_a_latin_hypercube_has_each_stratum_once() -> None:
    made = plan(Function(cells.quick), {"a": {"from": 0.0, "to": 1.0}, "b": [0]}, "latin", 20)
    values = sorted(made.params(cell)["a"] for cell in range(len(made)))
    assert [int(value * 20) for value in values] == list(range(20))


# ---------------------------------------------------------------------------------------- cells --


@pytest.mark.claim("A cell of a sweep over a workload has the figures of a replay.")
def test_a_cell_has_the_figures_of_a_replay(here: ThreadPoolExecutor) -> None:
    table = bm.sweep("send-utimes", {"files": [600], "nodesize": [4096]}, scheduler=here)
    replayed = bm.replay("send-utimes", 0.01, nodesize=4096)
    replayed = replayed[(replayed.files == 600) & replayed.side.isin(["before", "after"])]
    keys = ["side", "quantity", "unit"]
    found, wanted = (one.set_index(keys).sort_index() for one in (table, replayed))
    pd.testing.assert_series_equal(
        found.value, wanted.modelled, check_names=False, check_index_type=False
    )
    assert found.low.notna().sum() == 2


def test_every_workload_is_swept(here: ThreadPoolExecutor) -> None:
    names = ["send-truncate", "send-utimes", "send-readahead", "log-dir"]
    table = bm.sweep(names, {"files": [200], "behaviour": ["v6.2", "v6.12"]}, scheduler=here)
    assert set(table.workload) == set(names) and set(table.behaviour) == {"v6.2", "v6.12"}
    table = bm.sweep("fiemap-shared", {"extents": [400], "fiemap_prev_extents": [1, 8]},
                     scheduler=here, quantities=["find_parent_nodes", "time"])  # fmt: skip
    assert set(table.quantity) == {"find_parent_nodes", "time"} and set(table.unit) == {
        "calls",
        "s",
    }


def test_a_toggle_is_a_knob_of_both_sides(here: ThreadPoolExecutor) -> None:
    table = bm.sweep(
        "send-utimes", {"files": 200, "send-utimes-cache": [True, False]}, scheduler=here,
        quantities=["command utimes"],
    )  # fmt: skip
    counts = table.set_index(["side", "send-utimes-cache"])["value"]
    with send_utimes.build(200) as fs:
        for (side, on), count in counts.items():
            kernel = {"before": "v6.2", "after": send_utimes.AFTER.behaviour}[side]
            has = "send-utimes-cache" in bm.Behaviour.parse(kernel)
            sign = "" if has == on else f" {'+' if on else '-'} send-utimes-cache"
            sent = bm.send(fs, "snap2", "snap1", ["snap1"], behaviour=kernel + sign)
            assert sent.commands["utimes"] == count


def test_a_workload_of_ones_own_and_its_arguments(here: ThreadPoolExecutor) -> None:
    def build(files: int, depth: int = 1) -> bm.Filesystem:
        fs = bm.create("256M")
        path = ""
        for level in range(depth):
            path += f"{'/' if path else ''}d{level}"
            fs.mkdir(path)
        fs.create_files(path, [f"f{number}" for number in range(files)])
        fs.snapshot("", "snap")
        fs.commit()
        return fs

    def measure(fs: bm.Filesystem, behaviour: str) -> object:
        return bm.send(fs, "snap", behaviour=behaviour)

    mine = bm.workload("mine", build, measure, "send-cur-inode-path", files=100)
    table = bm.sweep(mine, {"files": [5, 6], "depth": [1, 3]}, scheduler=here,
                     quantities=["command mkdir", "command mkfile"])  # fmt: skip
    dirs = table[table.quantity == "command mkdir"]
    assert (dirs.value == dirs.depth).all() and set(table.side) == {"before", "after"}
    # processes get it too, although nobody can import it
    beside = bm.sweep(mine, {"files": [5, 6], "depth": [1, 3]}, jobs=2,
                      quantities=["command mkdir", "command mkfile"])  # fmt: skip
    pd.testing.assert_frame_equal(table, beside)


def test_a_scenario_is_swept(tmp_path: Path, here: ThreadPoolExecutor) -> None:
    path = tmp_path / "run.json"
    ops = [["mkdir", "d"], ["create", "d/f"], ["sync"], ["create", "d/g"], ["fsync", "d/g"]]
    path.write_text(json.dumps({"ops": ops}))
    table = bm.sweep(str(path), {"behaviour": ["v5.10.223", "v6.12"]}, scheduler=here)
    found = table[table.quantity == "log_items_copied"]
    assert found["step"].notna().sum() == 2 and (found.value > 0).all()


def test_a_function_gives_counts_numbers_or_a_table(here: ThreadPoolExecutor) -> None:
    table = bm.sweep(cells.quick, {"a": [1, 2], "b": [3]}, scheduler=here)
    assert table.pivot(index="a", columns="quantity", values="value").to_dict("list") == {
        "sum": [4, 5], "product": [3, 6], "named x": [1 / 3, 2 / 3],
    }  # fmt: skip

    def table_of(a: int) -> pd.DataFrame:
        return pd.DataFrame({"step": [1, 2], "value": [a, 2 * a], "unit": "s"})

    found = bm.sweep(table_of, {"a": [5]}, scheduler=here)
    assert found.value.tolist() == [5, 10] and found["step"].tolist() == [1, 2]
    assert found.unit.tolist() == ["s", "s"]


# ---------------------------------------------------------------------------------------- store --


def measured(log: Path) -> list[int]:
    return sorted(map(int, log.read_text().split())) if log.exists() else []


@pytest.mark.claim("What a sweep has measured it does not measure again, whoever asks for it.")
def test_a_store_remembers(tmp_path: Path, here: ThreadPoolExecutor) -> None:
    log, store = tmp_path / "log", tmp_path / "store"
    knobs = {"a": [1, 2, 3], "log": str(log)}
    first = bm.sweep(cells.noted, knobs, store=store, scheduler=here)
    assert measured(log) == [1, 2, 3]
    pd.testing.assert_frame_equal(first, bm.sweep(cells.noted, knobs, store=store, scheduler=here))
    assert measured(log) == [1, 2, 3]
    more = bm.sweep(cells.noted, {**knobs, "a": [4, 3, 2, 1]}, store=store, scheduler=here)
    assert measured(log) == [1, 2, 3, 4]
    assert more.a.tolist() == [4, 3, 2, 1] and more.value.tolist() == [6.0, 4.5, 3.0, 1.5]


def test_what_another_model_measured_is_stale(
    tmp_path: Path, here: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, store = tmp_path / "log", tmp_path / "store"
    knobs = {"a": [1, 2], "log": str(log)}
    bm.sweep(cells.noted, knobs, store=store, scheduler=here)
    monkeypatch.setattr("btrfs_model.experiments.sweep.store.build", lambda: "0.0-other")
    with pytest.raises(bm.BtrfsModelError, match="another model measured 2"):
        bm.sweep(cells.noted, knobs, store=store, scheduler=here)
    assert Store(store).stale(plan(Function(cells.noted), knobs).keys) == 2
    bm.sweep(cells.noted, knobs, store=store, scheduler=here, refresh=True)
    assert measured(log) == [1, 1, 2, 2]


def test_a_cell_that_fails_costs_no_other(tmp_path: Path, here: ThreadPoolExecutor) -> None:
    knobs = {"a": list(range(1, 8))}
    with pytest.raises(IncompleteSweepError, match=r"2 of 7 cells failed, .*a=3: ValueError: 3 is"):
        bm.sweep(cells.failing, knobs, store=tmp_path, scheduler=here)
    table = bm.sweep(cells.failing, knobs, store=tmp_path, scheduler=here, incomplete=True)
    assert table.a.tolist() == [1, 2, 4, 5, 7]
    failed = Store(tmp_path).failed()
    assert sorted(one["params"]["a"] for one in failed.values()) == [3, 6]


def test_an_image_that_cells_share_is_built_once(
    tmp_path: Path, here: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    kept = send_utimes.build

    def build(files: int, lag: int = 0, nodesize: int = 16384) -> bm.Filesystem:
        built.append((files, nodesize))
        return kept(files, nodesize=nodesize)

    monkeypatch.setattr(send_utimes, "build", build)
    knobs = {"files": [60, 100], "nodesize": [4096, 16384], "name_cache": [1, 8, 256]}
    bm.sweep("send-utimes", knobs, store=tmp_path, scheduler=here)
    assert sorted(built) == [(60, 4096), (60, 16384), (100, 4096), (100, 16384)]
    assert len(list(tmp_path.glob("images/*/*.img"))) == 4


# ------------------------------------------------------------------------------------- engines --


@pytest.mark.claim("A sweep gives the same table, bit for bit, on every engine and in every order.")
@pytest.mark.parametrize("scheduler", [None, "local", "shuffled"])
def test_engines_agree(
    scheduler: str | None, here: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = {"files": [60, 120], "dir_utimes_cache": [1, 64], "behaviour": ["v6.2", "v6.12"]}
    wanted = bm.sweep("send-utimes", knobs, scheduler=here)
    if scheduler == "local":
        pytest.importorskip("distributed")
    if scheduler == "shuffled":
        taken = driver.Driver._take
        chance = random.Random(0)

        def take(self: driver.Driver, jobs: int) -> object:
            for group in self._groups.values():
                chance.shuffle(group)
            return taken(self, jobs)

        monkeypatch.setattr(driver.Driver, "_take", take)
    found = bm.sweep(
        "send-utimes", knobs, scheduler=here if scheduler == "shuffled" else scheduler, jobs=2
    )
    pd.testing.assert_frame_equal(wanted, found, check_exact=True)


@pytest.mark.claim("A process that dies, hangs or has no memory costs its cells another try.")
@pytest.mark.parametrize("how", ["killed", "hangs", "memory"])
def test_a_process_that_ends(tmp_path: Path, how: str) -> None:
    table = bm.sweep(
        cells.deadly, {"a": [1, 2, 3, 4], "folder": str(tmp_path), "how": how}, jobs=2, timeout=8
    )
    assert table.value.tolist() == [1.5, 2.5, 3.5, 4.5]


def test_a_cell_that_always_kills_fails_alone() -> None:
    with pytest.raises(IncompleteSweepError, match=r"1 of 6 cells failed.*a=2.*SIGKILL") as caught:
        bm.sweep(cells.always_deadly, {"a": [1, 2, 3, 4, 5, 6]}, jobs=2, retries=1)
    assert caught.value.table.a.tolist() == [1, 3, 4, 5, 6]


def test_a_process_has_the_memory_that_it_may_have() -> None:
    knobs = {"a": [1], "megabytes": [1, 4000]}
    with pytest.raises(IncompleteSweepError, match=r"1 of 2 .*megabytes=4000: MemoryError"):
        bm.sweep(cells.greedy, knobs, jobs=1, memory=2 << 30, retries=0)


# ----------------------------------------------------------------------------- the command line --

SPEC = """
title = "A test"
function = "cells:quick"
[knobs]
a = [1, 2, 3]
b = [10, 20]
[small.knobs]
a = [1]
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    (tmp_path / "cells.py").symlink_to(cells.__file__)
    return path


def test_the_command_line(spec: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["sweep", "spec.toml", "--dry-run"]) == 0
    assert capfd.readouterr().out.startswith("6 cells, 0 of them done; 6 take about ")
    assert not Path("spec.sweep").exists()
    assert run_cli(["sweep", "spec.toml", "--jobs", "1"]) == 0
    assert capfd.readouterr().out.startswith("6 of 6 cells, 18 rows")
    assert run_cli(["sweep", "status", "spec.toml"]) == 0
    assert capfd.readouterr().out == ("spec.sweep: 6 cells, 6 done, 0 failed, 0 stale, 0 missing\n")
    file = parquet.read_table("spec.parquet")
    assert file.num_rows == 18 and file.schema.field("value").metadata[b"unit"] == b"see unit"
    about = json.loads(file.schema.metadata[b"provenance"])
    assert about["sweep"]["knobs"] == {"a": [1, 2, 3], "b": [10, 20]}
    assert about["software"]["build"] and about["sweep"]["spec"]["sha256"]
    assert run_cli(["sweep", "spec.toml", "--small", "--out", "small.csv", "--jobs", "1"]) == 0
    assert len(pd.read_csv("small.csv")) == 6


def test_a_failed_cell_is_told(spec: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec.write_text('function = "cells:failing"\n[knobs]\na = [1, 2, 3]\n')
    assert run_cli(["sweep", "spec.toml", "--jobs", "1"]) == 1
    assert not Path("spec.parquet").exists()
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "1 of 3 cells failed" in err
    assert run_cli(["sweep", "status", "spec.toml"]) == 1
    assert "failed: function=failing, a=3: ValueError: 3 is a" in capfd.readouterr().out
    assert run_cli(["sweep", "spec.toml", "--jobs", "1", "--incomplete"]) == 1
    assert len(pd.read_parquet("spec.parquet")) == 2


@pytest.mark.claim("What is wrong with a sweep is one line, before anything is measured.")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('workload="send-utimes"\n[knobs]\nfils=[1]', "no knob 'fils'.*did you mean 'files'"),
        ('workload="send-utimes"\n[knobs]\nname_cach=[1]', "did you mean 'name_cache'"),
        ('workload="send-utimes"\n[knobs]\nsend-utime-cache=[true]', "mean 'send-utimes-cache'"),
        ('workload="send-utimes"\n[knobs]\nsend-utimes-cache=[2]', "a toggle is true or false"),
        ('workload="send-utimes"\n[knobs]\nfiles=[0]', "files = 0: not a whole number"),
        ('workload="send-utimes"\n[knobs]\nfiles=[2.5]', "files = 2.5: not a whole number"),
        ('workload="send-utimes"\n[knobs]\nnodesize=[5000]', "nodesize is 5000"),
        ('workload="send-utimes"\n[knobs]\nname_cache=[0]', "name_cache is 0"),
        ('workload="send-utimes"\n[knobs]\nbehaviour=["v9.9"]', "unknown kernel 'v9.9'"),
        ('workload="send-utimes"\n[knobs]\nmachine=["natve"]', "no machine 'natve'"),
        ('workload="send-utimes"\n[knobs]\ndevice=["tape"]', "no device 'tape'"),
        ('workload="log-dir"\n[knobs]\nname_cache=[1]', "log-dir has no knob 'name_cache'"),
        ('workload="send-utime"\n[knobs]\nfiles=[9]', "did you mean 'send-utimes'"),
        ('workload="send-utimes"\nsampler="gird"\n[knobs]\nfiles=[9]', "did you mean 'grid'"),
        ('workload="send-utimes"\n[knobs]\nfiles={from=1,to=9}', "grid has lists of values"),
        ('workload="send-utimes"\nsampler="random"\n[knobs]\nfiles={from=9,to=1}', "goes up"),
        ('workload="send-utimes"\nsampler="random"\n[knobs]\nfiles={form=9,to=1}', "mean 'from'"),
        ('workload="send-utimes"\nsampler="list"\n[knobs]\nfiles=[9,8]\nnodesize=[4096,8192,16384]',
         "as many values each: workload 1, files 2, nodesize 3"),
        ('workload="send-utimes"\nknbs=1\n[knobs]\nfiles=[9]', "did you mean 'knobs'"),
        ('workload="send-utimes"', "knobs: there is none"),
        ('[knobs]\nfiles=[9]', "one of workload, function, scenario"),
        ('function="cells:slow"\n[knobs]\na=[9]', "has no attribute 'slow'"),
        ('function="cells:quick"\n[knobs]\nc=[9]', r"quick\(\) has no knob 'c'; there is a, b"),
        ('workload="send-utimes"\n[knobs]\nfiles=[]', "there is no value"),
        ('workload="send-utimes"\n[knobs]\nfiles=[[1]]', "a number, a text, true or false"),
        ('workload="send-utimes"\n[knobs]\nbehaviour=[6.2]', "a kernel is a text"),
        ('workload="send-utimes"\nquantities=[1]\n[knobs]\nfiles=[9]',
         r"spec\.toml: quantities: 1 is no text"),
        ('workload=[1.5]\n[knobs]\nfiles=[9]', r"spec\.toml: workload: 1.5 is no text"),
        ('workload=[["a"]]\n[knobs]\nfiles=[9]', r"workload: \['a'\] is no text"),
        ('workload=[{a=1}]\n[knobs]\nfiles=[9]', r"workload: \{'a': 1\} is no text"),
        ('workload="send-utimes"\nquantities=["tiem"]\n[knobs]\nfiles=[9]',
         "no cell has a quantity 'tiem'; did you mean 'time'"),
        ('workload="send-utimes"\nquantities=["sender: btrfs_search_slt"]\n[knobs]\nfiles=[9]',
         "did you mean 'sender: btrfs_search_slot'"),
        ('workload="send-utimes"\nsampler="random"\nseed=-1\n[knobs]\nfiles={from=1,to=9}',
         "seed -1 is less than 0"),
        ('workload="send-utimes"\n[knobs]\nfiles=[9]\n[conclusions.x]\nquantity="time"\nsaves=[1]',
         "saves or costs, a fraction"),
        ('workload="send-utimes"\n[knobs]\nfiles=[9]\n[conclusions.x]\nquantity="time"\nsaves=0.1\n'
         "before=1", "before is no text"),
        ('workload="send-utimes"\n[knobs]\nfiles=[9]\n[conclusions.x]\nquantity="tme"\nsaves=0.1',
         "no cell has a quantity 'tme'; did you mean 'time'"),
        ('function="os:system"\n[knobs]\ncommand=["true"]', r"there is no os\.py beside the file"),
        ('function="os.path:join"\n[knobs]\na=["true"]', "not 'module:name'"),
        ('function="json:dumps"\n[knobs]\nobj=[1]', "another module has this name: .*json"),
        ('function="broken:f"\n[knobs]\na=[1]', r"function 'broken:f': SyntaxError: "),
        ('function="cells:NUMBER"\n[knobs]\na=[1]', "it is no function"),
        ('workload="send-utimes"\n[knobs]\nflipped="send-utime-cache"', "'send-utimes-cache'"),
        ('workload="send-utimes"\nsampler="random"\n[knobs]\nnodesize={from=4096,to=16384}',
         "nodesize is "),
        ('scenario="none.json"\n[knobs]\nseed=[9]', "none.json: No such file"),
        ('workload="send-utimes"\n[knobs]\nfiles=[9]\n[conclusions.x]\nquantity="a"', "saves or"),
    ],
)  # fmt: skip
def test_bad_input(spec: Path, capfd: pytest.CaptureFixture[str], text: str, why: str) -> None:
    spec.write_text(text)
    (spec.parent / "json.py").write_text("raise SystemExit\n")
    if "broken" in text:
        (spec.parent / "broken.py").write_text("def f(:\n")
    assert run_cli(["sweep", "spec.toml"]) == 1
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("btrfs-model: "), err
    assert re.search(why, err), err
    assert not Path("spec.sweep").exists()


def test_a_quantity_that_no_cell_has_is_told(spec: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of a function it is known only when cells are measured, which the store keeps."""
    spec.write_text('function = "cells:quick"\nquantities = ["produkt"]\n[knobs]\na = [1, 2]\n')
    assert run_cli(["sweep", "spec.toml", "--jobs", "1"]) == 1
    err = capfd.readouterr().err
    assert err == "btrfs-model: sweep: no cell has a quantity 'produkt'; did you mean 'product'?\n"
    assert run_cli(["sweep", "status", "spec.toml"]) == 0


def test_all_figures_of_workloads_are_quantities(here: ThreadPoolExecutor) -> None:
    """Also those that a very small run does not have."""
    for name in ("send-utimes", "send-truncate"):
        table = bm.sweep(name, {"files": [2000]}, scheduler=here)
        assert {*table.quantity} <= target_of(name).quantities()


def test_values_of_numpy_and_pandas_are_values(here: ThreadPoolExecutor) -> None:
    wanted = bm.sweep(cells.quick, {"a": [1, 2], "b": [3]}, scheduler=here)
    for a, b in ((np.array([1, 2]), np.int64(3)), (pd.Series([1, 2]), np.array(3)),
                 ([np.int32(1), np.uint8(2)], pd.Index([3]))):  # fmt: skip
        table = bm.sweep(cells.quick, {"a": a, "b": b}, scheduler=here)
        pd.testing.assert_frame_equal(table, wanted)
    knobs = {"a": {"from": np.int64(1), "to": np.float64(9)}}
    assert len(bm.sweep(cells.quick, knobs, scheduler=here, sampler="random", samples=np.int64(5)))


def test_a_cluster_and_a_client_of_the_caller_are_engines() -> None:
    """They stay as they are."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster, distributed.Client(cluster) as client:  # fmt: skip
        for scheduler in (cluster, client):
            table = bm.sweep(cells.quick, {"a": [1, 2]}, scheduler=scheduler, quantities=["sum"])
            assert table.value.tolist() == [1, 2]
        assert client.submit(sum, [1, 2]).result() == 3
        with pytest.raises(bm.BtrfsModelError, match="processes of the caller's cluster"):
            bm.sweep(cells.quick, {"a": [1]}, scheduler=client, memory=1 << 30)


def test_what_is_no_scheduler_is_named() -> None:
    pytest.importorskip("distributed")
    with pytest.raises(bm.BtrfsModelError, match="scheduler is of object: neither text, executor"):
        bm.sweep(cells.quick, {"a": [1]}, scheduler=object())


def test_a_store_that_is_none(spec: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = spec.parent / "spec.sweep"
    folder.mkdir()
    (folder / "thesis.tex").touch()
    assert run_cli(["sweep", "spec.toml"]) == 1
    assert "it is no store of sweeps, and not empty" in capfd.readouterr().err
    (folder / "sweep.json").write_text('{"format": 99}')
    assert run_cli(["sweep", "spec.toml"]) == 1
    assert "a store of version 99, and this model has version 1" in capfd.readouterr().err
    (folder / "sweep.json").write_text("{}")
    assert run_cli(["sweep", "spec.toml"]) == 1
    assert "not what a store of sweeps has" in capfd.readouterr().err


def test_two_sweeps_in_one_store(tmp_path: Path, here: ThreadPoolExecutor) -> None:
    store = Store(tmp_path / "store")
    with store.writing(), pytest.raises(bm.BtrfsModelError, match="another sweep is at work"):
        bm.sweep(cells.quick, {"a": [1]}, store=store.path, scheduler=here)


def test_a_scheduler_that_is_not_there(
    spec: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    client = distributed.Client
    monkeypatch.setattr(distributed, "Client", lambda where, timeout: client(where, timeout=1))
    for scheduler, why in (("tcp://127.0.0.1:9", "no scheduler answers at"), ("here", "neither")):
        assert run_cli(["sweep", "spec.toml", "--scheduler", scheduler]) == 1
        err = capfd.readouterr().err
        assert why in err.splitlines()[-1] and len(err.splitlines()) == 1, err
    cluster = ["--scheduler", "tcp://127.0.0.1:9", "--memory", "2G"]
    assert run_cli(["sweep", "spec.toml", *cluster]) == 1
    assert "where they are started" in capfd.readouterr().err


def test_a_full_disk(
    tmp_path: Path, here: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there stays, and the next run goes on from it."""
    log = tmp_path / "log"
    knobs = {"a": list(range(6)), "log": str(log)}
    add, added = Store.add, []

    def full(self: Store, batch: object) -> None:
        if added:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        added.append(1)
        add(self, batch)

    monkeypatch.setattr(Store, "add", full)
    with pytest.raises(OSError, match="No space left"):
        bm.sweep(cells.noted, knobs, store=tmp_path / "store", scheduler=here)
    monkeypatch.undo()
    there = len(Store(tmp_path / "store").done)
    assert there >= 1
    here = ThreadPoolExecutor(1)
    assert len(bm.sweep(cells.noted, knobs, store=tmp_path / "store", scheduler=here)) == 6


def test_a_damaged_part_is_named(tmp_path: Path, here: ThreadPoolExecutor) -> None:
    bm.sweep(cells.quick, {"a": [1]}, store=tmp_path, scheduler=here)
    (file,) = tmp_path.glob("cells/*/*.parquet")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(bm.BtrfsModelError, match=file.name):
        bm.sweep(cells.quick, {"a": [1]}, store=tmp_path, scheduler=here)


def test_targets() -> None:
    assert isinstance(target_of("send-utimes"), Workloads)
    assert isinstance(target_of(["send-utimes", "log-dir"]), Workloads)
    with pytest.raises(bm.BtrfsModelError, match="no workload, no scenario and no function"):
        target_of(3)


# --------------------------------------------------------------------------------- sensitivity --

ISHIGAMI = """
function = "cells:ishigami"
samples = 1024
quantities = ["value"]
[knobs]
x = { from = -3.141592653589793, to = 3.141592653589793 }
y = { from = -3.141592653589793, to = 3.141592653589793 }
z = { from = -3.141592653589793, to = 3.141592653589793 }
"""


@pytest.mark.claim(
    "Sobol indices of Ishigami's function are those that are known.", judge="measured"
)
def test_sobol_of_a_function_whose_indices_are_known(
    spec: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(ISHIGAMI)
    assert run_cli(["sweep", "spec.toml", "--sobol", "--jobs", "1"]) == 0
    assert capfd.readouterr().out.startswith("of\tknob\tindex\tvalue\tlow\thigh\tdecides\n")
    found = pd.read_parquet("spec-sobol.parquet").set_index(["index", "knob"])
    for key, wanted in {
        ("S1", "x"): 0.314, ("S1", "y"): 0.442, ("S1", "z"): 0.0,
        ("ST", "x"): 0.558, ("ST", "y"): 0.442, ("ST", "z"): 0.244,
    }.items():  # fmt: skip
        assert found.value[key] == pytest.approx(wanted, abs=0.05), key
        assert found.low[key] - 0.03 < wanted < found.high[key] + 0.03, key
    assert not found.decides["S1", "z"] and found.decides["ST", "z"]
    assert Path("spec-sobol.png").read_bytes().startswith(b"\x89PNG")


def test_morris_finds_the_knob_that_does_nothing(spec: Path) -> None:
    spec.write_text(
        'function = "cells:quick"\nquantities = ["sum"]\n[knobs]\na = { from = 0, to = 100 }\n'
        'b = { from = 0, to = 10 }\nname = ["x", "y"]\n'
    )
    # "named x" and "named y" are not in every cell, "sum" is
    assert run_cli(["sweep", "spec.toml", "--morris", "--jobs", "1"]) == 0
    found = pd.read_parquet("spec-morris.parquet").set_index(["index", "knob"]).value
    assert found["mu*", "name"] == 0
    assert found["mu*", "a"] > 5 * found["mu*", "b"] > 0


CONCLUSION = """
workload = "send-utimes"
samples = 8
[knobs]
files = { from = 20, to = 400, log = true }
name_cache = { from = 1, to = 512, log = true }
[conclusions."the series saves at least 10 % of the searches"]
quantity = "sender: btrfs_search_slot"
saves = 0.1
[conclusions."the stream becomes larger"]
quantity = "stream size"
costs = 0.0
"""


def test_what_a_conclusion_depends_on(spec: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec.write_text(CONCLUSION)
    assert run_cli(["sweep", "spec.toml", "--sobol"]) == 0
    capfd.readouterr()
    found = pd.read_parquet("spec-sobol.parquet")
    saves, larger = found["of"].unique()
    assert "10 %" in saves and larger.endswith("(0% of the samples)")
    assert (found[found["of"] == larger]["value"] == 0).all(), "what never holds depends on nothing"
    # the sentence holds where the table says so
    table = pd.read_parquet("spec.parquet")
    table = table[table.quantity == "sender: btrfs_search_slot"]
    wide = table.pivot_table(index=["files", "name_cache"], columns="side", values="value")
    assert 0 < (wide["after"] <= 0.9 * wide["before"]).mean() < 1


def test_nothing_is_said_of_cells_that_are_missing(spec: Path) -> None:
    spec.write_text(
        'function = "cells:failing"\nquantities = ["value"]\nsamples = 4\n[knobs]\n'
        "a = { from = 1, to = 99 }\n"
    )
    assert run_cli(["sweep", "spec.toml", "--sobol", "--jobs", "1"]) == 1
    assert not Path("spec-sobol.parquet").exists()


def test_a_heat_map_has_a_field_for_each_pair() -> None:
    from btrfs_model.base.charts import to_png
    from btrfs_model.experiments.sweep.charts import heat_map

    table = pd.DataFrame(
        [(a, b, side, a * b + 1.0) for a in (1, 4096) for b in (1, 2, 3) for side in "xy"],
        columns=["a", "b", "side", "value"],
    )
    chart = heat_map(table, "a", "b", by="side", title="A test")
    assert to_png(chart).startswith(b"\x89PNG")
    assert [len(axes.texts) for axes in chart.axes] == [6, 6]
    assert [label.get_text() for label in chart.axes[0].get_xticklabels()] == ["1", "4K"]
    with pytest.raises(bm.BtrfsModelError, match="several rows"):
        heat_map(table, "a", "b")
    # many panels stand below each other, so that numbers can be read in the column of a page
    many = pd.concat([table.assign(side=side) for side in "abcdefgh"])
    wide = many.drop_duplicates(["a", "b", "side"])
    chart = heat_map(wide, "a", "b", by="side")
    assert chart.get_size_inches()[0] <= 9
    assert sum(axes.get_visible() for axes in chart.axes) == 8
    assert {text.get_color() for axes in chart.axes for text in axes.texts} <= {"black", "white"}


def test_numbers_on_fields_stand_out() -> None:
    import numpy as np
    from matplotlib import colors

    from btrfs_model.experiments.sweep.charts import _ink_on

    def light(colour: np.ndarray) -> float:
        parts = np.where(colour <= 0.03928, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
        return float(parts @ (0.2126, 0.7152, 0.0722))

    for ground in np.random.default_rng(1).random((500, 3)):
        ink = np.array(colors.to_rgb(_ink_on(ground)))
        low, high = sorted((light(ground), light(ink)))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "SALib.sample.morris", None)
    with pytest.raises(bm.BtrfsModelError, match=r"'btrfs-model\[analysis\]' brings it"):
        plan(Function(cells.quick), {"a": [1, 2]}, "morris")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(bm.BtrfsModelError, match=r"'btrfs-model\[cluster\]' brings it"):
        bm.sweep(cells.quick, {"a": [1]}, scheduler="local")


@pytest.mark.claim("Each example of `docs/sweeps.md` runs as it stands.")
def test_the_page_on_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from test_newcomer import blocks

    monkeypatch.chdir(tmp_path)
    for kind, mark, code in blocks("docs/sweeps.md"):
        if mark:
            Path(mark).write_text(code)
        elif kind == "sh":
            for line in code.splitlines():
                assert run_cli(line.split()[1:]) == 0, line
        else:
            exec(code, {})
    assert "8 cells, 8 done" in capfd.readouterr().out
    assert len(pd.read_parquet("utimes.parquet")) == 8 * 2 * 2
