# SPDX-License-Identifier: GPL-2.0-only
"""Names that are no UTF-8, far times and huge holes: whatever shows them, all of it is shown."""

import base64
import hashlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import btrfs_model as bm
from btrfs_model.cli.common import echo
from btrfs_model.mount.transaction import start_transaction
from btrfs_model.questions.send.explain import summaries

NAME = b"d\xff\x1b[1m\n"
FILE = NAME + b"/f\xfe"
SNAP = b"s\xff"
SHOWN = "d\\xff\\x1b[1m\\n/f\\xfe"
PROGRAM = [sys.executable, "-m", "btrfs_model.cli"]
INT64_MAX = 2**63 - 1


def text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("names") / "names.img"
    with bm.create(256 << 20) as fs:
        fs.mkdir(NAME, 0o755)
        fs.create(FILE, 0o644)
        fs.write(FILE, 0, b"x" * 9000)
        fs.setxattr(FILE, b"user.\xff", b"\xfe\0")
        fs.symlink(b"t\xfe", b"l\xff")
        fs.snapshot("", SNAP, read_only=True)
        fs.save(path)
    return path


def run(*arguments: object) -> bytes:
    """Run the command line in a pipe."""
    ran = subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        capture_output=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    return ran.stdout


def run_on_terminal(*arguments: object) -> str:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "COLUMNS": "200", "TERM": "dumb"}
    with subprocess.Popen(
        [*PROGRAM, *map(str, arguments)], stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 1 << 16):
                shown += piece
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0, shown
    os.close(ours)
    return shown.decode()


@pytest.fixture(scope="module")
def address(image: Path) -> int:
    with bm.open(image) as fs:
        return int(bm.extents(fs, 5, FILE)["disk_bytenr"][0])


def commands(address: int) -> dict[str, list[object]]:
    """Commands that show a path, after the image."""
    return {
        "ls": [5],
        "subvolumes": [],
        "logical-resolve": [address],
        "extents": [5, text(FILE), "--references"],
        "du": [],
    }


@pytest.mark.parametrize("command", commands(0))
def test_a_pipe_has_the_bytes_of_a_name_but_for_controls(
    image: Path, address: int, command: str
) -> None:
    out = run(command, image, *commands(address)[command])
    shown = SNAP if command in ("subvolumes", "du") else b"d\xff\\x1b[1m\\n/f\xfe"
    assert shown in out
    assert b"\x1b" not in out
    heading, *rows = out.splitlines()
    assert rows and all(row.count(b"\t") == heading.count(b"\t") for row in rows)


@pytest.mark.parametrize("command", commands(0))
def test_a_terminal_shows_escapes(image: Path, address: int, command: str) -> None:
    shown = run_on_terminal(command, image, *commands(address)[command])
    assert ("s\\xff" if command in ("subvolumes", "du") else SHOWN) in shown
    assert "\x1b[1m\n" not in shown and "\udcff" not in shown


@pytest.mark.claim("Names that are not UTF-8 are listed, printed and exported.", judge="unit")
@pytest.mark.parametrize("command", commands(0))
def test_json_gives_the_bytes_back(image: Path, address: int, command: str) -> None:
    rows = [*map(json.loads, run(command, image, *commands(address)[command], "--json")
                 .splitlines())]  # fmt: skip
    paths = [row["path"].encode("utf-8", "surrogateescape") for row in rows]
    assert (SNAP if command in ("subvolumes", "du") else FILE) in paths


def test_ls_json_has_attributes_and_targets(image: Path) -> None:
    rows = {row["path"]: row for row in map(json.loads, run("ls", image, 5, "--json").splitlines())}
    value = {"length": 2, "base64": base64.b64encode(b"\xfe\0").decode()}
    assert rows[text(FILE)]["xattrs"] == {"user.\udcff": value}
    assert rows["l\udcff"]["target"] == "t\udcfe"
    assert rows[""]["target"] is None and rows[""]["xattrs"] == {}


def test_extents_json_has_paths_inside(image: Path) -> None:
    (row,) = map(json.loads, run("extents", image, 5, text(FILE), "--json").splitlines())
    assert [one["path"] for one in row["references"]] == [text(FILE), text(SNAP + b"/" + FILE)]


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        (["du"], ["", "s\\xff"]),
        (["extents", 5, text(FILE), "--references"],
         ["d\\xff\x1b[1m\n/f\\xfe", "s\\xff/d\\xff\x1b[1m\n/f\\xfe"]),
    ],
)  # fmt: skip
def test_parquet_has_text(
    image: Path, tmp_path: Path, arguments: list[object], paths: list[str]
) -> None:
    command, *rest = arguments
    run(command, image, *rest, "--out", tmp_path / "table.parquet")
    table = pd.read_parquet(tmp_path / "table.parquet")
    assert table["path"].tolist() == paths
    assert all(kind == "uint64" for name, kind in table.dtypes.items() if name != "path")


@pytest.mark.parametrize("explain", ["summary", "commands"])
def test_explain_names_directories(image: Path, tmp_path: Path, explain: str) -> None:
    out = run("send", image, text(SNAP), "--explain", explain, "-f", tmp_path / "s.stream")
    assert b"\td\xff\\x1b[1m\\n" in out or b"\nd\xff\\x1b[1m\\n\t" in out


def test_summaries_hold_names_as_python_has_them(image: Path) -> None:
    with bm.open(image) as fs:
        causes = bm.send(fs, SNAP, explain=True).causes
    by_directory = summaries(causes)["by directory"]
    row = by_directory.set_index("directory").loc[text(NAME)]
    inside = [path.startswith(text(NAME) + "/") for path in causes["path"]]
    assert row["commands"] == sum(inside)
    assert row["bytes"] == causes["length"][inside].sum()
    assert by_directory["bytes"].is_monotonic_decreasing


def test_a_line_with_such_a_name_is_printed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    echo("name f\udcff")
    assert capfdbinary.readouterr().out == b"name f\xff\n"


# --------------------------------------------------------------------------------------- times --


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("times") / "times.img"
    with bm.create(256 << 20) as fs:
        for name, seconds in (("a", 10413792000), ("b", -(2**40)), ("c", INT64_MAX), ("d", 7)):
            fs.create(name, 0o644)
            fs.utimes(name, 0, seconds * 10**9 + 5)
        fs.save(path)
    return path


@pytest.mark.claim("Times of any year are listed, printed and exported.", judge="unit")
def test_listing_and_ls_have_every_time(far: Path) -> None:
    with bm.open(far) as fs:
        rows = fs.listing(5).set_index("path")
    wanted = {"a": 10413792000, "b": -(2**40), "c": INT64_MAX, "d": 7}
    assert {name: rows["mtime"][name] for name in wanted} == {
        name: seconds * 10**9 + 5 for name, seconds in wanted.items()
    }
    lines = [line.split("\t") for line in run("ls", far, 5).decode().splitlines()]
    shown = {path: modified for *_, modified, path in lines}
    assert shown["a"] == "2300-01-01 00:00:00"
    assert shown["b"] == "-32873-11-12 23:23:44"
    assert shown["c"] == "292277026596-12-04 15:30:07"
    assert shown["d"] == "1970-01-01 00:00:07"
    rows = [*map(json.loads, run("ls", far, 5, "--json").splitlines())]
    assert {row["path"]: row["mtime"] for row in rows}["c"] == INT64_MAX * 10**9 + 5


@pytest.mark.parametrize(
    ("seconds", "unit"), [(7, "ns"), (10413792000, "us"), (-(2**40), "us"), (2**50, "ms"),
                          (INT64_MAX, "s"), (-INT64_MAX, "s")]
)  # fmt: skip
def test_times_of_subvolumes_have_the_finest_unit_that_fits(seconds: int, unit: str) -> None:
    with bm.create(256 << 20) as fs:
        fs.create_subvolume("v")
        live = fs.live_root(256)
        live.stime = live.stime._replace(sec=seconds % 2**64, nsec=0)
        start_transaction(fs)
        fs.commit()
        table = fs.subvolumes()
    assert table["stime"].dtype == f"datetime64[{unit}, UTC]"
    assert table["otime"].dtype == "datetime64[ns, UTC]"
    top, received = table["stime"].dt.tz_localize(None).to_numpy()
    assert np.isnat(top)
    assert received == np.datetime64(seconds, "s")


# --------------------------------------------------------------------------------------- holes --


@pytest.mark.claim("Holes of any size are listed, printed and exported.", judge="unit")
def test_a_file_of_nothing_but_a_hole_is_listed() -> None:
    with bm.create(256 << 20) as fs:
        fs.create("f", 0o644)
        fs.truncate("f", 1 << 62)
        fs.sync()
        row = fs.listing(5).set_index("path").loc["f"]
    assert row["size"] == 1 << 62
    digest = hashlib.sha256((1 << 62).to_bytes(8, "little")).hexdigest()
    assert row["sha256"] == f"sparse:{digest}"


@pytest.mark.parametrize("size", [(1 << 40) - 1, 1 << 40])
def test_a_sparse_digest_is_that_of_the_content(size: int) -> None:
    """However it was written: zeros of data and holes are the same."""
    pieces = {0: b"a" * 10, (1 << 39) + 4096: b"b" * 5000, (1 << 40) - 8192: b"c" * 8191}
    digests = []
    for zeros in (False, True):
        with bm.create(256 << 20) as fs:
            fs.create("f", 0o644)
            fs.truncate("f", size)
            for at, data in pieces.items():
                fs.write("f", at, data)
            if zeros:
                fs.write("f", 1 << 30, bytes(1 << 20))
                fs.sync()
                fs.fallocate("f", 1 << 31, 1 << 20)
            fs.sync()
            digests.append(fs.listing(5).set_index("path").loc["f", "sha256"])
    blocks = {}
    for at, data in pieces.items():
        for i, byte in enumerate(data):
            blocks.setdefault((at + i) // 4096, bytearray(4096))[(at + i) % 4096] = byte
    wanted = hashlib.sha256()
    for number, block in sorted(blocks.items()):
        wanted.update(number.to_bytes(8, "little") + block)
    wanted.update(size.to_bytes(8, "little"))
    assert digests == [f"sparse:{wanted.hexdigest()}"] * 2


def test_zeros_of_a_smaller_hole_are_read() -> None:
    with bm.create(256 << 20) as fs:
        fs.create("f", 0o644)
        fs.write("f", 1 << 24, b"x")
        fs.sync()
        digest = fs.listing(5).set_index("path").loc["f", "sha256"]
    assert digest == hashlib.sha256(bytes(1 << 24) + b"x").hexdigest()
