# SPDX-License-Identifier: GPL-2.0-only
"""What users bring along: workloads and devices of their own; what completes, what is listed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import btrfs_model as bm
from btrfs_model.base.samples import samples
from btrfs_model.cli import common
from btrfs_model.cli import run as run_cli
from btrfs_model.cost import device

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


def test_a_device_of_ones_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file of parameters is a device wherever one is named."""
    drive = tmp_path / "drive.toml"
    drive.write_text((device.data_folder() / "devices/samsung-850-evo.toml").read_text())
    image = bm.sample("kernel/send/send-truncate/n500")
    with bm.open(image) as fs:
        mine, named = (
            bm.reads(fs, "snap", device=which) for which in (str(drive), "samsung-850-evo")
        )
    pd.testing.assert_frame_equal(mine, named)
    for name in ("fiemap-shared", "send-truncate"):
        table = bm.replay(name, "quick", device=str(drive))
        assert {str(drive)} >= set(table.get("device", pd.Series(dtype=str)).dropna())
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


def test_a_filesystem_completes_what_users_call() -> None:
    with bm.create("256M") as made, bm.open(bm.sample("kernel/features/zstd")) as opened:
        for fs in (made, opened):
            assert [name for name in dir(fs) if not hasattr(fs, name)] == []
        assert set(dir(opened)) < set(dir(made))
        assert {"create", "write", "fsync", "snapshot", "commit", "save"} <= set(dir(made))
        inside = {"delayed", "reservations", "hold", "tree_logs", "hooks", "add_root", "forget"}
        assert not inside & set(dir(made)) and inside <= {*vars(made), *object.__dir__(made)}


def test_progress_off_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with common.progress(3) as step:
        step("quick")
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(common, "_QUIET", 0.0)
    with common.progress(3) as step:
        step("one")
        step("two")
    lines = capfd.readouterr().err.splitlines()
    assert [re.sub(r"^ +\d+ s", "", line) for line in lines] == ["  1/3  one", "  2/3  two"]
