# SPDX-License-Identifier: GPL-2.0-only
"""Every system call that writes a file fails once, in every command that writes one.

Afterwards what was there is there still; nothing lies beside it, and the error is one line that
names the file. A write that takes half of its bytes makes no difference.
"""

import csv
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import corpus
import pytest

import btrfs_model as bm

PRELOAD = corpus.PROJECT / "native" / "tests" / "preload" / "write_faults.c"
POINTS = 40 if corpus.LONG else 1
"""Calls of a command that fail, spread evenly, each in all ways; 1: one of them in one way."""
FAILED = 1

Case = dict[str, Any]
Point = dict[str, Any]
TIMED = {"out/provenance.json"}
"""Files that say how long something took."""


def case(name: str, words: str, *, given: dict[str, Path] | None = None, old: str = "") -> Case:
    """Say what is run: @ is the folder, with copies of the files `given` and the old file."""
    return {
        "name": name,
        "words": words.split(),
        "given": {key: str(value) for key, value in (given or {}).items()},
        "old": old.split(),
    }


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Commands that write files; most where one is already."""
    made = tmp_path_factory.mktemp("given")
    log = corpus.image("log/nd/nd_20_5/6.18/crash2.img.zst")
    image, empty, stream = made / "image", made / "empty", made / "stream"
    scenario = made / "scenario.json"
    with bm.create(128 << 20) as fs:
        fs.save(empty)
        fs.mkdir("d", 0o755)
        for name, size in (("d/a", 9000), ("b", 300_000), ("c", 100)):
            fs.create(name, 0o644)
            fs.write(name, 0, bytes(range(100)) * (size // 100))
        fs.symlink("b", "link")
        fs.link("b", "d/again")
        fs.setxattr("b", "user.a", b"v")
        fs.snapshot("", "s")
        fs.unlink("c")
        fs.snapshot("", "t")
        fs.save(image)
    with bm.open(image) as fs:
        stream.write_bytes(bytes(bm.send(fs, "s").data))
    rotted = made / "rotted"
    corpus.copy_sparse(image, rotted)
    with bm.open(image) as fs, rotted.open("r+b") as file:
        file.seek(fs.image.copies(int(fs.checksums.starts[0]))[0])
        file.write(b"rot")
    ops = [["create", "f"], ["write", "f", 0, 100_000, 7], ["fsync", "f"]]
    scenario.write_text(json.dumps({"ops": ops}))
    return [
        case("send", f"send {image} s -f @out", old="out"),
        case("send --work", f"send {image} s -f /dev/null --work @out", old="out"),
        case("send --split", f"send {image} s -f @out --split 64K"),
        case("tar", f"tar {image} s -o @out", old="out"),
        case("plan", f"plan {image} -o @out.csv", old="out.csv"),
        case("plan, Parquet", f"plan {image} -o @out.parquet", old="out.parquet"),
        case("dump-tree", f"dump-tree {image} -o @out.parquet", old="out.parquet"),
        case("du", f"du {image} -o @out.csv", old="out.csv"),
        case("waste", f"waste {image} -o @out.csv", old="out.csv"),
        case("diff", f"diff {image} s t -o @out.csv", old="out.csv"),
        case("reads", f"reads {image} s -o @out.csv", old="out.csv"),
        case("draw", f"draw {image} -o @out.svg", old="out.svg"),
        case("explore", f"explore {image} -o @out.html", old="out.html"),
        case("rescue, tar", f"rescue {image} -o @out.tar", old="out.tar"),
        case("rescue, folder", f"rescue {image} -o @out"),
        case("stream tar", f"stream tar {stream} -o @out.tar", old="out.tar"),
        case("stream verify", f"stream verify {stream} -o @out.csv", old="out.csv"),
        case("mkfs", "mkfs @out -b 128M --uuid 01234567-89ab-cdef-0123-456789abcdef"),
        case("run", f"run {scenario} -o @out --work @work.json", old="out work.json"),
        case("replay-log", f"replay-log {log} -o @out", old="out"),
        case("receive", f"receive @disk.img -f {stream}", given={"disk.img": empty}),
        case("sample", "sample zstd -o @out", old="out"),
        case("heal", f"heal {rotted} --from {stream} -o @p.json", old="p.json"),
        case("heal --copy", f"heal {rotted} --from {stream} --copy @new.img", old="new.img"),
        *([case("replay", "replay send-truncate --scale quick -o @out")] if corpus.LONG else []),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build what makes calls fail."""
    place = tmp_path_factory.mktemp("library") / "write_faults.so"
    command = ["gcc", "-std=c11", "-O1", "-shared", "-fPIC", "-o", str(place), str(PRELOAD), "-ldl"]
    subprocess.run(command, check=True)
    return place


@pytest.fixture(scope="module")
def points(
    cases: list[Case], library: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Point]:
    """What came of each command, and of each call that failed."""
    place = tmp_path_factory.mktemp("points")
    (place / "cases.json").write_text(json.dumps(cases))
    driver = corpus.PROJECT / "tests" / "support" / "write_faults.py"
    done = subprocess.run(
        [sys.executable, driver, library, place / "written", str(POINTS), place / "cases.json"],
        env=os.environ | {"LD_PRELOAD": str(library), "SOURCE_DATE_EPOCH": "1700000000"},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    if place_of_results := os.environ.get("BTRFS_MODEL_WRITE_FAULTS"):
        Path(place_of_results).write_text(done.stdout)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_commands_write_files(points: list[Point]) -> None:
    """Each makes the calls that are to fail."""
    for point in points:
        if "count" in point:
            assert point["status"] == 0, point
            assert point["count"] > 3, point
    if not corpus.LONG:
        assert {point["way"] for point in points if "way" in point} == {"ENOSPC", "EIO", "half"}


@pytest.mark.claim(
    "When a write, close or rename fails, every command that writes files says so in one line that "
    "names the file; what was there stays, and nothing lies beside it."
)
def test_a_call_that_fails_is_told_and_changes_nothing(points: list[Point]) -> None:
    for point in points:
        if point.get("way") not in ("ENOSPC", "EIO") or is_told_late(point):
            continue
        assert point["status"] == FAILED, point
        assert point["said"].count("\n") == 1, point
        assert point["said"].startswith("btrfs-model: "), point
        assert "/written/" in point["said"], point
        assert "/written/." not in point["said"], point
        assert not point["beside"], point
        assert not point["gone"], point
        assert not set(point["mixed"]) - TIMED or is_told_incomplete(point), point


@pytest.mark.claim("A write that takes a part of its bytes makes no difference to any command.")
def test_a_write_may_take_a_part(points: list[Point]) -> None:
    for point in points:
        if point.get("way") == "half":
            assert point["status"] == 0, point
            assert point["is_new"] or set(point["mixed"]) <= TIMED, point


def is_told_late(point: Point) -> bool:
    """Whether all is in place when the last descriptor of a file is closed.

    It was flushed before: :func:`btrfs_model.base.whole_file.name_file`. And what the file does not
    take at once of data is written to it in the end.
    """
    calls = ("close", "pwritev")
    return bool(point["case"] == "receive" and point["call"] in calls and point["is_new"])


def is_told_incomplete(point: Point) -> bool:
    """A stream is written as `btrfs send` does: what was sent stays sent, and is told."""
    return point["case"].startswith("send") and "incomplete" in point["said"]


def test_figures_of_the_page() -> None:
    """They are those that the tools wrote."""
    page = (corpus.PROJECT / "docs" / "testing.md").read_text()
    lines = (corpus.PROJECT / "docs" / "testing.csv").read_text().splitlines()[1:]
    for _, _, unit, number in (line.split(",") for line in lines):
        assert f"| {int(number):,} {unit} |" in page


TOLD_OF_INPUTS = """\
BTRFS_MODEL_FUZZ_IMAGE= build/fuzzed/fuzz_text -max_len=256 -max_total_time=5 -timeout=20 \\
Done 40867 runs in 6 second(s)
stat::number_of_executed_units: 40867
BTRFS_MODEL_FUZZ_IMAGE= build/fuzzed/fuzz_chunks -max_len=256 -max_total_time=7 -timeout=20 \\
stat::number_of_executed_units: 12
"""
TOLD_OF_MEMORY = """\
build/sanitized/no_memory 0 a.img b.img
no_memory: 9 points, 8 told, 1 done without, 0 wrong
"""


def test_what_tools_print_is_entered(tmp_path: Path) -> None:
    docs, script = corpus.PROJECT / "docs", corpus.PROJECT / "scripts" / "testing.py"
    names = runpy.run_path(str(script))
    results, page = tmp_path / "testing.csv", tmp_path / "testing.md"
    for path in (results, page):
        path.write_text((docs / path.name).read_text())
    point = {"case": "send", "way": "EIO"}
    lines = "\n".join(map(json.dumps, (point, point, {"case": "tar"})))
    names["entered"]([TOLD_OF_INPUTS, TOLD_OF_MEMORY, lines], results, page)
    rows = {tool: row for tool, *row in csv.reader(results.read_text().splitlines())}
    assert rows["fuzz_text"] == ["5 seconds", "inputs", "40867"]
    assert rows["fuzz_chunks"] == ["7 seconds", "inputs", "12"]
    assert rows["no_memory"] == ["2 images", "points", "9"]
    assert rows["write_faults"] == ["2 commands", "points", "2"]
    assert rows["fuzz_stream"] == ["300 seconds", "inputs", "427115"]
    text = page.read_text()
    assert "| `TARGET=text` | 40,867 inputs |" in text and "| 9 points |" in text
    assert "| 427,115 inputs |" in text and "| 2 points |" in text
    done = subprocess.run([sys.executable, script, tmp_path / "none"], capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 1 and done.stderr.startswith("testing.py: ")
    with pytest.raises(ValueError, match="no tool says here"):
        names["told"](TOLD_OF_MEMORY.replace("0 wrong", "1 wrong"))
