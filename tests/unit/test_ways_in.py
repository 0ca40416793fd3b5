# SPDX-License-Identifier: GPL-2.0-only
"""What users bring along: workloads and devices of their own; what completes, what is listed."""

import ast
import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest

import btrfs_model as bm
from btrfs_model.base.samples import samples
from btrfs_model.cli import common
from btrfs_model.cli import run as run_cli
from btrfs_model.cli.rows import show
from btrfs_model.cost import device
from btrfs_model.patches import KERNEL

MINE = """
import btrfs_model as bm

def build(files, nodesize=16384):
    fs = bm.create("256M", nodesize=nodesize)
    fs.create_files("", [f"file{i}" for i in range(files)])
    fs.snapshot("", "snap")
    fs.commit()
    return fs

def measure(fs, behaviour, limits=None):
    return bm.send(fs, "snap", behaviour=behaviour, limits=limits)

mine = bm.workload("many-files", build, measure, "send-cur-inode-path", files=1000)
count = 5
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of somebody else, with entry points."""
    (tmp_path / "my_workloads.py").write_text(MINE)
    info = tmp_path / "my_workloads-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-workloads\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[btrfs_model.workloads]\nmany-files = my_workloads:mine\nfive = my_workloads:count\n"
        "gone = my_workloads:gone\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_workloads", raising=False)
    return tmp_path


def test_a_workload_of_ones_own(package: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import my_workloads

    table = bm.replay(my_workloads.mine, "quick", out=package / "out")
    assert set(table.workload) == {"many-files"} and set(table.files) == {10}
    work = table.pivot(index="quantity", columns="side", values="modelled")
    assert work.loc["get_cur_path", "before"] > work.loc["get_cur_path", "after"]
    assert work.loc["command mkfile"].tolist() == [10, 10]
    assert "many-files" in (package / "out/report.html").read_text()
    # the same by its entry point
    arguments = ["--scale", "quick", "--out", str(package / "cli"), "--nodesize", "4096"]
    assert run_cli(["replay", "many-files", *arguments, "--limits", "name_cache=1"]) == 0
    assert "get_cur_path" in capfd.readouterr().out
    turned = pd.read_csv(package / "cli/results.csv")
    assert set(turned.nodesize) == {4096} and set(turned.limit_name_cache) == {1}
    assert run_cli(["replay", "many-files", *arguments, "--device", "memory"]) == 1
    assert "its knobs: limits, nodesize" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("five", "workload 'five': my_workloads:count is no bm.workload()"),
        ("gone", "workload 'gone': my_workloads:gone: "),
        ("many-file", "did you mean 'many-files'?"),
    ],
)
def test_what_is_no_workload_is_said(
    package: Path, name: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["replay", name, "--out", str(package / "out")]) == 1
    assert words in capfd.readouterr().err


def test_a_toggle_of_a_workload_has_to_be_there() -> None:
    with pytest.raises(bm.BtrfsModelError, match="send-cur-inode-path"):
        bm.workload("mine", print, print, "send-cur-inode-paths")


def _one_directory(files: int) -> bm.WritableFilesystem:
    fs = bm.create("1G")
    fs.mkdir("d")
    fs.create_files("d", [f"f{number}" for number in range(files)])
    return fs


@pytest.mark.claim(
    "Your own workload that asks an fsync has a fresh filesystem for each side, built and "
    "mounted by the kernel of that side; its report has the predicted ratio."
)
def test_a_workload_that_changes_its_filesystem(tmp_path: Path) -> None:
    seen = []

    def measure(fs: bm.WritableFilesystem, behaviour: str) -> object:
        with bm.counting() as work:
            seen.append((behaviour, str(fs.behaviour), fs.fsync("d")))
        return work

    mine = bm.workload("mine", _one_directory, measure, "log-dir-index-only", files=300)
    table = bm.replay(mine, out=tmp_path)
    assert [how for *_, how in seen] == ["log", "log"]
    assert all(kernel == mounted for kernel, mounted, _ in seen)
    # toggles that need it are on neither side
    kernels = [set(bm.Behaviour.parse(kernel)) for kernel, *_ in seen]
    assert kernels[1] - kernels[0] == {"log-dir-index-only"}
    times = table[table.quantity == "time"]
    assert times.modelled.notna().all() and set(times.worker) == {"no"}
    (row,) = pd.read_csv(tmp_path / "speedups.csv").to_dict("records")
    assert row["case"] == "files=300" and 0 < row["low"] <= row["predicted"] <= row["high"]
    html = (tmp_path / "report.html").read_text()
    assert "Nothing reported, " in html and "nothing predicted" not in html
    told = json.loads((tmp_path / "provenance.json").read_text())["workloads"]["mine"]
    assert told["conditions"] == {"device": ["memory"], "pipe": ["no"], "worker": ["no"]}


def test_a_build_knows_its_side_and_makes_a_fresh_filesystem() -> None:
    named = []

    def build(files: int, behaviour: str) -> bm.WritableFilesystem:
        named.append(behaviour)
        return bm.create("256M", behaviour=behaviour)

    def nothing(fs: bm.Filesystem, behaviour: str) -> dict[str, int]:
        return {"btrfs_search_slot": 1}

    bm.replay(bm.workload("mine", build, nothing, "send-utimes-cache"))
    assert named == [f"{KERNEL} - send-utimes-cache", KERNEL]
    assert str(bm.create("256M").behaviour) == "v6.18.44"
    one = bm.create("256M")
    again = bm.workload("again", lambda files: one, nothing, "send-utimes-cache")
    with pytest.raises(bm.BtrfsModelError, match=r"^again: build gave the same filesystem again"):
        bm.replay(again)


@pytest.mark.claim("A ratio of 1 (1 to 1) is never told: what decides, and is missing, is named.")
def test_what_the_costs_do_not_tell_is_said(tmp_path: Path) -> None:
    """Without a worker the names of an fsync are all in memory, and the toggle has no work."""
    has = {}

    def build(files: int) -> bm.WritableFilesystem:
        fs = bm.create("64G")
        fs.machine.asynchronous = has["worker"]
        fs.mkdir("d")
        return fs

    def measure(fs: bm.WritableFilesystem, behaviour: str) -> object:
        for start in range(0, 3000, 100):
            fs.create_files("d", [f"f{number}" for number in range(start, start + 100)])
            with bm.counting() as work:
                fs.fsync("d")
        return work

    mine = bm.workload("mine", build, measure, "log-first-index", files=1)
    rows = []
    for has["worker"] in (False, True):
        bm.replay(mine, out=tmp_path)
        rows += pd.read_csv(tmp_path / "speedups.csv").to_dict("records")
    assert pd.isna(rows[0]["predicted"]) and pd.isna(rows[0]["low"])
    assert rows[0]["note"].endswith("fs.machine.asynchronous = True")
    # log_new_dir_dentries() goes through all names of the transaction, or through the new ones
    assert rows[1]["low"] > 1.5 and "log_dentries_got" in rows[1]["note"]


def test_a_toggle_that_later_ones_need_has_a_side_that_exists() -> None:
    """It is named where there is none: all that need it are taken away too."""
    with bm.create("256M", behaviour="v6.4 - log-first-index") as fs:
        fs.mkdir("d")
        with pytest.raises(bm.BtrfsModelError, match="'log-new-dentries' needs") as error:
            fs.fsync("d")
    named = str(error.value).rpartition(": ")[2].strip("'")
    assert named == "v6.4 - log-first-index - log-new-dentries"
    with bm.create("256M", behaviour=named) as fs:
        fs.mkdir("d")
        assert fs.fsync("d") == "log"


def test_a_number_of_files_is_no_scale() -> None:
    mine = bm.workload("mine", _one_directory, print, "send-utimes-cache", files=10_000)
    with pytest.raises(bm.BtrfsModelError, match=r"not 50000; 50,000 files are the scale 5$"):
        bm.replay(mine, 50_000)
    with (
        pytest.raises(
            bm.BtrfsModelError,
            match=r"^mine: 10,000,000 files need about 38.3 GiB of memory; 16 GiB are available",
        ),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("btrfs_model.experiments.workloads.room.available", lambda: 16 << 30)
        bm.replay(mine, 1000)


def test_a_device_of_ones_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file of parameters is a device wherever one is named."""
    drive = tmp_path / "drive.toml"
    drive.write_text((device.data_folder() / "devices/samsung-850-evo.toml").read_text())
    image = bm.sample("kernel/send/send-truncate/n500")
    with bm.open(image) as fs:
        mine, named = (bm.reads(fs, "snap").on(which) for which in (str(drive), "samsung-850-evo"))
    pd.testing.assert_frame_equal(mine, named)
    for name in ("fiemap-shared", "send-truncate"):
        table = bm.replay(name, "quick", device=str(drive))
        assert set(table.device.dropna()) <= {str(drive), "memory"}
    drive.write_text('title = "x"\nkind = "drum"\n')
    assert run_cli(["reads", str(image), "snap", "--device", str(drive)]) == 1
    assert f"{drive}: kind is 'drum'" in capfd.readouterr().err
    drive.write_text("title = ")
    assert run_cli(["reads", str(image), "snap", "--device", str(drive)]) == 1
    assert f"{drive}: Invalid value (at " in capfd.readouterr().err
    assert run_cli(["reads", str(image), "snap", "--device", str(tmp_path / "no.toml")]) == 1
    assert "no.toml: No such file" in capfd.readouterr().err


def test_samples(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["sample", "--json"]) == 0
    listed = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [one["name"] for one in listed] == samples()
    assert all(one["shows"] for one in listed)
    image = tmp_path / "disk.img"
    assert run_cli(["sample", "zstd", "-o", str(image)]) == 0
    assert image.read_bytes() == bm.sample("kernel/features/zstd").read_bytes()
    with image.open("r+b") as file:
        file.write(b"mine")
    assert run_cli(["sample", "crash1", "-o", str(image)]) == 1
    assert "no sample named crash1; it may be kernel/log/" in capfd.readouterr().err
    assert image.read_bytes()[:4] == b"mine"
    assert run_cli(["sample", "zstd"]) == 2


def test_the_package_completes_its_public_names() -> None:
    code = "import btrfs_model as bm; bm.create; import btrfs_model.cli; print(*dir(bm))"
    shown = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
    )
    assert shown.stdout.split() == bm.__all__


def test_the_table_of_public_names_is_what_type_checkers_see() -> None:
    """Both stand in the package; and nothing needs its source while it runs."""
    module = ast.parse(Path(bm.__file__).read_text())
    (block, *_) = (node.body for node in module.body if isinstance(node, ast.If))
    imported, public = {}, {}
    for node in block:
        if isinstance(node, ast.ImportFrom):
            (name,) = node.names
            imported[name.asname or name.name] = f"{node.module}:{name.name}"
            if name.asname:
                public[name.asname] = imported[name.asname]
        else:
            assert isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            first, *attributes = ast.unparse(node.value).split(".")
            public[node.targets[0].id] = ".".join([imported[first], *attributes])
    assert {name: f"btrfs_model.{home}" for name, home in bm._HOMES.items()} == public
    assert bm.__all__ == sorted(name for name in public if not name.startswith("_"))


def test_public_names_need_no_source(tmp_path: Path) -> None:
    package = tmp_path / "btrfs_model"
    shutil.copytree(Path(bm.__file__).parent, package, ignore=shutil.ignore_patterns("data"))
    compileall.compile_dir(package, quiet=1, legacy=True)
    for source in package.rglob("*.py"):
        source.unlink()
    code = "import btrfs_model as bm; print(bm.__file__, bm.create('256M').path, *bm.__all__)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True,
                         env={**os.environ, "PYTHONPATH": "."})  # fmt: skip
    assert ran.stdout.split() == [str(package / "__init__.pyc"), "<memory>", *bm.__all__], (
        ran.stderr
    )


def test_a_filesystem_completes_what_users_call() -> None:
    with bm.create("256M") as made, bm.open(bm.sample("kernel/features/zstd")) as opened:
        for fs in (made, opened):
            assert [name for name in dir(fs) if not hasattr(fs, name)] == []
        assert set(dir(opened)) < set(dir(made))
        assert {"create", "write", "fsync", "snapshot", "commit", "save"} <= set(dir(made))
        inside = {"delayed", "reservations", "hold", "tree_logs", "hooks", "add_root", "forget"}
        assert not inside & set(dir(made)) and inside <= {*vars(made), *object.__dir__(made)}


def test_progress_off_a_terminal_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """None for what is quick, few for many steps, and some for a step that takes long."""
    with common.progress(3) as step:
        for number in range(1000):
            step(f"quick {number}")
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(common, "SELDOM", 0.01)
    told = threading.Event()
    monkeypatch.setattr(common.click, "echo", lambda line, err: (lines.append(line), told.set()))
    lines: list[str] = []
    with common.progress(3) as step:
        step("one")
        step("two")
        told.clear()
        assert told.wait(600)
        told.clear()
        assert told.wait(600)
    assert {re.sub(r"^ +\d+ s", "", line) for line in lines[-2:]} == {"  2/3  two"}


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_number_is_broken_on_a_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    headings = ["id", *(f"disk_num_bytes_{number}" for number in range(12)), "path"]
    rows = [[str(row), *(str(10**11 + 100 * row + number) for number in range(12)), "long/" * 9]
            for row in range(3)]  # fmt: skip
    show(headings, rows, "a title", err=False)
    shown = capfd.readouterr().out
    assert shown.count("a title") == 1
    assert max(map(len, shown.splitlines())) <= width
    words = shown.split()
    assert all(cell in words for row in rows for cell in row[1:-1])
    assert "".join(word for word in words if "/" in word or word in "long").count("long/") == 27
