# SPDX-License-Identifier: GPL-2.0-only
"""How objects show themselves: one line, and a small table in a notebook; at once, and always."""

import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import corpus
import pytest

import btrfs_model as bm
from btrfs_model.base.tables import html_table
from btrfs_model.stream.index import read_batches

NAME = "<b>&\udcff\n\x1b"


class Tables(HTMLParser):
    """The cells of all tables, which are well formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def html(shown: Any) -> Tables:
    text = shown._repr_html_()
    text.encode()  # a notebook is UTF-8
    assert len(text) < 20_000
    tables = Tables(text)
    assert tables.tags <= {"p", "table", "caption", "thead", "tbody", "tr", "th", "td"}
    return tables


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shown") / "disk.img"
    with bm.create("256M") as fs:
        fs.create("f", 0o644)
        fs.write("f", 0, os.urandom(1 << 20))
        fs.create_subvolume(NAME)
        fs.snapshot("", "snap", read_only=True)
        fs.save(path)
    return path


def test_a_send_shows_no_stream(image: Path) -> None:
    with bm.open(image) as fs:
        sent = bm.send(fs, "snap", explain=True)
        plain = bm.send(fs, "snap")
    assert sent.size > 1 << 20
    commands = sum(sent.commands.values())
    assert repr(sent) == repr(plain) == f"SendResult({sent.size:,} bytes, {commands:,} commands)"
    rows = html(sent).rows
    for name, count in sent.commands.items():
        assert [name, f"{count:,}"] in rows
    assert ["btrfs_search_slot", f"{sent.work['btrfs_search_slot']:,}"] in rows
    causes = {row[0]: row[1] for row in rows if len(row) == 4}
    assert causes["subvol-begin"] == "1"
    assert not any(len(row) == 4 for row in html(plain).rows)


def test_what_was_received(image: Path) -> None:
    with bm.open(image) as fs, bm.create("256M") as copy:
        got = bm.receive(copy, bm.send(fs, "snap").data)
    commands = sum(got.commands.values())
    assert repr(got) == f"ReceiveResult(1 subvolume, {commands:,} commands)"
    rows = html(got).rows
    assert ["snap"] in rows
    assert ["write", str(got.commands["write"])] in rows


@pytest.mark.claim(
    "Results, filesystems, subvolumes, trees, commands, behaviours and work show themselves "
    "in one line and a small table."
)
def test_a_filesystem_open_closed_and_changed(image: Path) -> None:
    with bm.open(image) as fs:
        assert repr(fs) == f"Filesystem({os.fspath(image)!r}, 3 subvolumes)"
        rows = html(fs).rows
        assert [row[0] for row in rows[1:]] == ["5", "256", "257"]
        assert rows[2][1] == "<b>&\\xff\\n\\x1b"
        assert rows[3][1:] == ["snap", str(fs.subvolume(257).item.generation), "yes"]
    assert repr(fs) == f"Filesystem({os.fspath(image)!r}, closed)"
    assert "closed" in fs._repr_html_()
    html(fs)


def test_a_filesystem_in_memory() -> None:
    fs = bm.create("256M")
    assert repr(fs) == "WritableFilesystem('<memory>', 1 subvolume)"
    fs.create("f", 0o644)
    assert repr(fs) == "WritableFilesystem('<memory>', 1 subvolume, not committed)"
    fs.create_subvolume("v")
    fs.sync()
    assert repr(fs) == "WritableFilesystem('<memory>', 2 subvolumes)"
    assert html(fs).rows[2][:2] == ["256", "v"]
    fs.create("g", 0o644)
    fs.close()
    assert repr(fs) == "WritableFilesystem('<memory>', closed)"
    html(fs)


@pytest.mark.claim("Closed and damaged filesystems show themselves too.")
def test_a_damaged_filesystem_is_shown(image: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.img"
    damaged.write_bytes(image.read_bytes())
    with bm.open(image) as fs:
        root = fs.image.superblock.root
        chunk = fs.image.chunk_at(root)
        assert chunk is not None
        places = [fs.image.map(root, copy)[0] for copy in range(len(chunk.stripes))]
    with damaged.open("r+b") as file:
        for place in places:
            file.seek(place + 200)
            file.write(b"\xff" * 100)
    with bm.open(damaged) as fs:
        assert repr(fs) == f"Filesystem({os.fspath(damaged)!r}, damaged)"
        html(fs)


@pytest.mark.claim("Showing an object is no counted work.")
def test_to_show_it_is_no_work(image: Path) -> None:
    with bm.open(image) as fs, bm.counting() as work:
        repr(fs), fs._repr_html_()
    assert dict(work) == {}
    with bm.open(image) as fs:
        bare = bm.send(fs, "snap").work
    with bm.open(image) as fs:
        repr(fs), fs._repr_html_()
        assert bm.send(fs, "snap").work == bare


def test_subvolumes_trees_and_commands(image: Path) -> None:
    with bm.open(image) as fs:
        path = os.fspath(image)
        assert repr(fs.subvolume("snap")) == f"Subvolume(257, 'snap', read-only, of {path!r})"
        assert repr(fs.subvolume(256)) == f"Subvolume(256, {NAME!r}, of {path!r})"
        assert "\n" not in repr(fs.subvolume(256))
        snap, tree = fs.subvolume("snap"), fs.tree(257)
        assert ["uuid", snap.uuid.hex()] in html(snap).rows
        assert ["bytenr", f"{tree.bytenr:,}"] in html(tree).rows
        data = bm.send(fs, "snap").data
    for shown in (snap, tree):  # of a closed filesystem
        assert "\n" not in repr(shown)
        html(shown)
    for command in bm.read_stream(data):
        assert "\n" not in repr(command) and len(repr(command)) < 5000
        assert len(html(command).rows) == 1 + len(command.attributes)
    for batch in read_batches(data):
        assert repr(batch) == f"Batch({len(batch):,} commands at byte {batch.base})"


def test_a_long_value_of_a_command_is_not_shown() -> None:
    writer = bm.StreamWriter(version=1)
    stream = writer.header() + writer.command(
        "set_xattr", path=b"f", xattr_name=b"user.a", xattr_data=b"x" * 60000
    ) + writer.end()  # fmt: skip
    command = next(iter(bm.read_stream(stream)))
    assert len(repr(command)) < 200
    assert ["xattr_data", "<60000 bytes>"] in html(command).rows


def test_work_and_behaviours() -> None:
    with bm.counting() as work, bm.open(corpus.image("send/send-truncate/n500")) as fs:
        list(fs.root_tree.items())
    assert "\n" not in repr(work)
    assert html(work).rows[0] == ["function", "times"]
    assert ["btrfs_search_slot", str(work["btrfs_search_slot"])] in html(work).rows
    behaviour = bm.Behaviour.parse("v6.12 - send-utimes-cache + send-inline-not-hole")
    assert repr(behaviour) == "Behaviour('v6.12 - send-utimes-cache + send-inline-not-hole')"
    _, *rows = html(behaviour).rows
    assert [row[:2] for row in rows] == [["-", "send-utimes-cache"], ["+", "send-inline-not-hole"]]
    assert html(bm.Behaviour.parse("v6.12")).rows[1:] == []
    html(bm.Behaviour(frozenset({"send-utimes-cache"}), ""))


def test_a_table_is_small_and_says_what_is_left_out() -> None:
    text = html_table("<t>", ["n"], ([i] for i in range(1000)), 1000)
    tables = Tables(text)
    assert [row[0] for row in tables.rows[1:]] == [str(i) for i in range(20)]
    assert "and 980 more" in text and "&lt;t&gt;" in text
