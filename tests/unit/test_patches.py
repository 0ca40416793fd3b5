# SPDX-License-Identifier: GPL-2.0-only
"""The table of toggles: what stands in it, who asks, which kernel has which, what is told of it."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import corpus
import pytest

import btrfs_model as bm
from btrfs_model.base.errors import UnknownBehaviourError
from btrfs_model.behaviour import PRESETS, Behaviour
from btrfs_model.cli import run
from btrfs_model.experiments.evidence import places
from btrfs_model.experiments.workloads import NAMES, load
from btrfs_model.native.door import lib
from btrfs_model.patches import Patch

NATIVE = corpus.PROJECT / "native"
RELEASES = [
    *(f"v4.{minor}" for minor in range(16, 21)),
    *(f"v5.{minor}" for minor in range(20)),
    *(f"v6.{minor}" for minor in range(19)),
]


@pytest.mark.claim("The table of toggles has the id, release and backports of each.")
@pytest.mark.parametrize("patch", Patch)
def test_a_row_is_whole(patch: Patch) -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", patch.commit)
    assert re.fullmatch(r"(\d+\.\d+)?", patch.release)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", one) for one in patch.backports)
    assert patch.subject.lower().startswith("btrfs: ")
    assert patch.name == patch.upper().replace("-", "_")
    assert patch not in patch.needs


@pytest.mark.claim("Each toggle is asked for where the table says.")
@pytest.mark.skipif(not NATIVE.is_dir(), reason="needs the sources of the C kernels")
@pytest.mark.parametrize("patch", Patch)
def test_who_asks_is_who_the_table_says(patch: Patch) -> None:
    found = {one.split("/")[0] for one in places(patch)}
    allowed = {
        "C": [{"native"}, {"native", "btrfs_model"}],
        "Python": [{"btrfs_model"}],
        "nowhere": [set[str]()],
    }
    assert found in allowed[patch.asked]


@pytest.mark.claim("The toggles of C are those of the table.", judge="twins")
@pytest.mark.skipif(not NATIVE.is_dir(), reason="needs the sources of the C kernels")
def test_the_header_of_c_is_the_table() -> None:
    written = runpy.run_path(str(NATIVE / "build_ffi.py"))["toggles_header"]()
    assert (NATIVE / "toggles.h").read_text() == written


def test_the_compiled_module_is_of_this_table() -> None:
    asked = [patch for patch in Patch if patch.asked == "C"]
    bits = [getattr(lib, f"BM_TOGGLE_{patch.name}") for patch in asked]
    assert bits == list(range(len(asked)))
    assert len(bits) <= 64


def test_the_table_is_read_without_the_compiled_module() -> None:
    """It is what the C kernels are built from."""
    table = corpus.PROJECT / "btrfs_model" / "patches.py"
    program = f"import runpy; print(len(runpy.run_path({str(table)!r})['Patch']))"
    ran = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, check=True)
    assert int(ran.stdout) == len(Patch)


@pytest.mark.claim("Every release from v4.16 to v6.18 is a preset.")
def test_every_release_is_a_preset() -> None:
    """Each has what the one before has: a commit of the main line stays."""
    assert set(RELEASES) <= set(PRESETS)
    before = frozenset[Patch]()
    for name in RELEASES:
        patches = Behaviour.parse(name).patches
        assert before <= patches
        assert {patch.release for patch in patches - before} <= {name.removeprefix("v")} | (
            {"4.16"} if name == "v4.16" else set()
        )
        before = patches
    assert {patch for patch in Patch if patch.release} - before == {
        patch for patch in Patch if patch.release in {"6.19", "7.0", "7.1"}
    }


@pytest.mark.claim("A stable kernel has its backports.")
@pytest.mark.parametrize(
    ("name", "count", "there", "not_there"),
    [
        ("v5.10.46", 1, "send-rmdir-generation", "send-unlink-path"),
        ("v5.10.223", 8, "send-unlink-path", "send-reada"),
        ("v6.1.176", 13, "log-rmdir-commits", "log-conflict-dentries"),
        ("v6.12.101", 10, "log-rmdir-mark", "log-exists-size"),
        ("v6.18.44", 8, "log-exists-size", "log-rmdir-commits"),
    ],
)
def test_a_stable_kernel_has_its_backports(
    name: str, count: int, there: str, not_there: str
) -> None:
    stable, release = Behaviour.parse(name), Behaviour.parse(name.rpartition(".")[0])
    assert release.patches < stable.patches
    assert len(stable.patches - release.patches) == count
    assert there in stable
    assert not_there not in stable


# ------------------------------------------------------------------------- as a mount has it --


@pytest.mark.claim("Filesystems are made and loaded as any kernel.")
def test_a_filesystem_is_made_and_loaded_as_any_kernel(tmp_path: Path) -> None:
    def lost_a_directory(fs: bm.WritableFilesystem) -> str:
        fs.mkdir("d")
        fs.mkdir("d/gone")
        fs.sync()
        fs.rmdir("d/gone")
        way = fs.fsync("d")
        fs.rmdir("d")
        return way

    image = tmp_path / "disk.img"
    with bm.create(128 << 20, behaviour="v6.1.176") as fs:
        assert fs.behaviour == Behaviour.parse("v6.1.176")
        assert lost_a_directory(fs) == "commit"
        fs.save(image)
    with bm.WritableFilesystem.load(image, behaviour="v6.1") as fs:
        assert lost_a_directory(fs) == "log"
    with bm.WritableFilesystem.load(image) as fs:
        assert fs.behaviour == Behaviour.parse("v6.18.44")


@pytest.mark.parametrize(
    "make", [lambda text: bm.create("1G", behaviour=text),
             lambda text: bm.WritableFilesystem.load("no such file", behaviour=text)]
)  # fmt: skip
def test_an_unknown_kernel_is_refused_before_anything_is_done(
    make: Callable[[str], bm.WritableFilesystem],
) -> None:
    with pytest.raises(UnknownBehaviourError, match="unknown kernel 'v1'"):
        make("v1")


# ------------------------------------------------------------------------------- the command --


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Lines that ``btrfs-model patches`` prints."""

    def call(*arguments: str) -> list[str]:
        assert run(["patches", *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    return call


@pytest.mark.claim(
    "`btrfs-model patches SLUG` tells where a toggle is asked for and what shows it."
)
def test_all_about_one(told: Callable[..., list[str]]) -> None:
    lines = told("send-unlink-path")
    known = json.loads(told("send-unlink-path", "--json")[0])
    patch = Patch.SEND_UNLINK_PATH
    assert known["commit"] == patch.commit
    assert known["backports"] == list(patch.backports)
    assert any(line.split() == ["commit", patch.commit] for line in lines)
    assert any(line.endswith(patch.subject) for line in lines)
    for place in (*known["places"], *known["tests"]):
        file, number = place.rsplit(":", 1)
        line = (corpus.PROJECT / file).read_text().splitlines()[int(number) - 1]
        assert patch.name in line or patch in line
        assert any(place in shown for shown in lines)
    assert any(place.startswith("btrfs_model/reference/send/") for place in known["places"])
    assert any(place.startswith("tests/twins/test_send_written.py") for place in known["tests"])


def test_what_a_toggle_needs_and_what_shows_it(told: Callable[..., list[str]]) -> None:
    known = json.loads(told("log-delayed-items", "--json")[0])
    assert known["needs"] == ["log-skip-old-dir-items", "log-conflict-list"]
    for name in NAMES:
        for patch in load(name).toggles:
            assert name in json.loads(told(patch, "--json")[0])["workloads"]


def test_an_unknown_one_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patches", "send-unlik-path"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "did you mean 'send-unlink-path'?" in shown.err
