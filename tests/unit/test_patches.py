# SPDX-License-Identifier: GPL-2.0-only
"""The table of toggles: what stands in it, who asks, which kernel has which, what is told of it."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import corpus
import pytest

import btrfs_model as bm
from btrfs_model.base.errors import UnknownBehaviourError
from btrfs_model.behaviour import JUDGED, PRESETS, Behaviour, sides_judged, standing
from btrfs_model.cli import run
from btrfs_model.experiments.evidence import places
from btrfs_model.experiments.workloads import NAMES, load
from btrfs_model.native.door import lib
from btrfs_model.patches import Patch

NATIVE = corpus.PROJECT / "native"
RELEASES = [
    *(f"v4.{minor}" for minor in range(16, 21)),
    *(f"v5.{minor}" for minor in range(20)),
    *(f"v6.{minor}" for minor in range(20)),
    *(f"v7.{minor}" for minor in range(4)),
]


@pytest.mark.claim("The table of toggles has the id, release and backports of each.")
@pytest.mark.parametrize("patch", Patch)
def test_a_row_is_whole(patch: Patch) -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", patch.commit)
    assert re.fullmatch(r"(\d+\.\d+)?", patch.release)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", one) for one in patch.backports)
    assert re.match("(btrfs|zstd|lib/zlib|xattr): ", patch.subject.lower())
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


@pytest.mark.claim("Every release from v4.16 to v7.3 is a preset.")
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
    assert {patch for patch in Patch if patch.release} == before


@pytest.mark.claim("A stable kernel has its backports.")
@pytest.mark.parametrize(
    ("name", "count", "there", "not_there"),
    [
        ("v5.10.46", 2, "send-rmdir-generation", "send-unlink-path"),
        ("v5.10.223", 9, "send-unlink-path", "send-reada"),
        ("v6.1.176", 15, "log-rmdir-commits", "log-conflict-dentries"),
        ("v6.12.101", 14, "log-rmdir-mark", "log-exists-size"),
        ("v6.18.44", 9, "log-exists-size", "log-rmdir-commits"),
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


@pytest.mark.claim("A commit's id stands for the main line right after it, with ^ right before it.")
@pytest.mark.parametrize("patch", [patch for patch in Patch if patch.release])
def test_a_commit_is_the_main_line_there(patch: Patch) -> None:
    after, before = (Behaviour.parse(f"{patch.commit[:8]}{sign}") for sign in ("", "^"))
    assert after.patches - before.patches == {patch} and before.patches < after.patches
    assert {after, before} == {
        Behaviour.parse(f"{patch.commit}{'0' * 28}{sign}".upper()) for sign in ("", "^")
    }
    # between the release before it and its own, but for what neither preset names
    major, minor = map(int, patch.release.split("."))
    known = {one: Behaviour.parse(f"v{one}").patches for one in (patch.release,)
             if f"v{one}" in PRESETS}  # fmt: skip
    assert all(after.patches <= patches for patches in known.values())
    assert all(tuple(map(int, one.release.split("."))) <= (major, minor) for one in after)
    assert set(patch.needs) <= set(before)


def test_commits_of_a_series_are_in_its_order() -> None:
    """The order of kdave/linux, not that of names or of who asks."""
    series = ["cb689481947a", "498581f33c9e", "78cf1a954da5", "474e4761f6e8", "8c139e1d7806",
              "e8a7f49d9bfc", "c48545debfff", "ace79df8a44a", "3e49363be633", "e2fd83064a9b",
              "2280d425ba35"]  # fmt: skip
    for one, other in pairwise(series):
        assert Behaviour.parse(one) == Behaviour.parse(f"{other}^")
    plain = Behaviour.parse("3e49363be633 - send-utimes-cache")
    assert plain == Behaviour.parse("3e49363be633^") != Behaviour.parse("v6.2")
    assert "3e49363be633^" in Behaviour.parse("3e49363be633^")._repr_html_()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3e4936", "commit '3e4936': 8 digits or more name a commit; there is 3e49363be633"),
        ("abcdef12", "unknown commit 'abcdef12': no release in `btrfs-model patches` has it"),
        ("3e49363c^", "near is 3e49363be633 (send-utimes-cache)"),
        ("38622010a6de", "no release in `btrfs-model patches` has it"),
    ],
)
def test_an_unknown_commit_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UnknownBehaviourError) as error:
        Behaviour.parse(f"{text} + send-utimes-cache")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_commit_says_whether_kernels_stand_behind_it() -> None:
    assert "nothing before" in Behaviour.parse("ffa7c4296e93^").unjudged
    assert not Behaviour.parse("3e49363be633^").unjudged


def test_the_command_line_takes_commits(tmp_path: Path) -> None:
    image, streams = str(corpus.image("send/send-utimes/n200")), []
    for name in ("3e49363b^", "3e49363b", "v6.3"):
        out = tmp_path / "stream"
        assert run(["send", image, "snap2", "-p", "snap1", "--behaviour", name,
                    "-f", str(out)]) == 0  # fmt: skip
        streams.append(out.read_bytes())
    assert streams[0] != streams[1] == streams[2]


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


# ------------------------------------------------------------------- what no kernel judged --


@pytest.mark.claim(
    "A preset that no kernel stands behind is said to be so wherever it is asked for."
)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v4.16", "nothing before v5.10.46 was compared with a kernel"),
        ("v5.9", "nothing before v5.10.46 was compared with a kernel"),
        ("v5.10", "its stable kernel v5.10.46 was compared with a real one"),
        ("v5.10.46", "compared with this kernel"),
        ("v5.15", "stands between v5.10.223 and v6.1.176, which were compared with kernels"),
        ("v6.5", "stands between v6.1.192 and v6.12.101, which were compared with kernels"),
    ],
)
def test_how_far_a_preset_was_compared(
    told: Callable[..., list[str]], name: str, words: str
) -> None:
    assert standing(name) == words
    assert any(line.endswith(words) for line in told(name))
    known = json.loads(told(name, "--json")[0])
    assert (known["preset"], known["standing"]) == (name, words)
    assert set(known["new"]) <= set(Behaviour.parse(name).patches)
    changed = f"{name} + send-verity"
    unjudged = words if words.startswith("nothing") else ""
    assert {Behaviour.parse(one).unjudged for one in (name, changed)} == {unjudged}
    assert (unjudged in Behaviour.parse(name)._repr_html_()) or not unjudged


def test_which_sides_of_a_toggle_kernels_judged() -> None:
    for patch in Patch:
        sides = {patch in Behaviour.parse(name) for name in JUDGED}
        assert sides_judged(patch) == {
            (False, True): "both", (True,): "with", (False,): "without"
        }[tuple(sorted(sides))]  # fmt: skip
    assert sides_judged(Patch.SEND_CAPS_LAST) == "with"
    assert sides_judged(Patch.SEND_UTIMES_CACHE) == "both"


@pytest.mark.parametrize(
    ("behaviour", "lines"), [("v5.4 - send-rmdir-resume", 1), ("v5.15", 0), (None, 0)]
)
def test_a_command_says_it_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], behaviour: str | None, lines: int
) -> None:
    with bm.create(128 << 20) as fs:
        fs.snapshot("", "snap")
        fs.commit()
        fs.save(tmp_path / "disk.img")
    asked = [] if behaviour is None else ["--behaviour", behaviour]
    stream = str(tmp_path / "stream")
    assert run(["send", str(tmp_path / "disk.img"), "snap", "-f", stream, *asked]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "compared" in line]
    assert said == [
        f"btrfs-model: note: behaviour '{behaviour}': {standing('v5.4')}"
    ] * lines  # fmt: skip


def test_neighbours_before_5_10_differ_where_send_did() -> None:
    """Of 4.20, 5.0, 5.1, 5.4, 5.7 and 5.9 nothing is known that a send shows."""
    same = {"v4.20", "v5.0", "v5.1", "v5.4", "v5.7", "v5.9"}
    for before, name in pairwise(RELEASES[: RELEASES.index("v5.11") + 1]):
        new = Behaviour.parse(name).patches - Behaviour.parse(before).patches
        assert bool(new) == (name not in same), name
