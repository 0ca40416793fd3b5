# SPDX-License-Identifier: GPL-2.0-only
"""The exercises of the notebooks work as they are told."""

import json
import random
import re
from typing import Any

import corpus
import pytest

import btrfs_model as bm

EXTENT = 128 * 1024


def new_filesystem(extents: int, nodesize: int = 4096) -> Any:
    """As `fiemap-shared` makes it."""
    fs = bm.create(1 << 30, nodesize, compress="lzo")
    fs.create("foobar")
    fs.write("foobar", 0, b"\xab" * (extents * EXTENT))
    fs.sync()
    return fs


def told(notebook: str, number: int) -> list[str]:
    """The statements about `one` and `fs` that an exercise gives, in their order."""
    cells = json.loads((corpus.PROJECT / f"notebooks/{notebook}.ipynb").read_text())["cells"]
    text = next(
        "".join(cell["source"]) for cell in cells if "## Exercises" in "".join(cell["source"])
    )
    (item,) = re.findall(rf"^{number}\. (.*?)(?=^\d\. |\Z)", text, re.MULTILINE | re.DOTALL)
    return [
        " ".join(code.split())
        for code in re.findall(r"`([^`]+)`", item)
        if re.match(r"(?:one|fs)(?:\.| = )", code)
    ]


def flags(fs: Any) -> list[bool]:
    """Of each extent, whether FIEMAP calls it shared."""
    return [bool(flag & 0x2000) for flag in bm.fiemap(fs, "", "foobar")["flags"]]


def test_a_clone_within_a_file_is_shared() -> None:
    with new_filesystem(200) as one:
        for statement in told("fiemap-shared", 2):
            exec(statement, {"one": one, "EXTENT": EXTENT})
        shared = flags(one)
        assert len(shared) == 201
        assert [place for place, yes in enumerate(shared) if yes] == [0, 200]
        assert bm.extents(one, "", "foobar").files.eq(1).all()


def test_a_deleted_snapshot_shares_nothing_once_it_is_cleaned() -> None:
    with new_filesystem(200) as fs:
        fs.snapshot("", "snap1")
        fs.commit()
        states = []
        for statement in told("fiemap-shared", 3):
            exec(statement, {"fs": fs})
            states.append(any(flags(fs)))
        assert states[0] and not states[-1]
        # the name is gone before what it had is
        assert states.count(True) >= 2


def test_du_before_and_after_writing_again() -> None:
    extents = []
    statements = told("fiemap-shared", 1)
    assert statements[0].startswith("one = ") and statements[-1] == "one.sync()"
    space: dict[str, Any] = {"new_filesystem": new_filesystem}
    exec(statements[0], space)
    with space["one"] as one:
        one.snapshot("", "snap1")
        one.commit()
        extents.append(bm.du(one).set_index("id").loc[5])
        for number in range(0, 200, 10):
            one.write("foobar", number * EXTENT, b"\xcd" * EXTENT)
        exec(statements[-1], space)
        extents.append(bm.du(one).set_index("id").loc[5])
    assert extents[0].exclusive == 0
    assert extents[1].exclusive == 20 * EXTENT > extents[1].extent_exclusive > 0


@pytest.mark.parametrize("name", ["f16"])
def test_a_needed_truncate_is_before_a_hole(name: str) -> None:
    cells = json.loads((corpus.PROJECT / "notebooks/send-truncate.ipynb").read_text())["cells"]
    (code,) = (
        text for cell in cells if "def random_filesystem" in (text := "".join(cell["source"]))
    )
    space: dict[str, Any] = {"bm": bm, "random": random}
    exec(code[code.index("def random_filesystem") : code.index("rows = []")], space)
    fs = space["random_filesystem"](0)
    stream = bm.send(fs, "snap", behaviour="v4.16 + send-skip-truncate").data
    kept = {
        bytes(command["path"]).decode(): command["size"]
        for command in bm.read_stream(stream)
        if command.name == "truncate"
    }
    extents = bm.extents(fs, "snap", name)
    assert (extents.start + extents.length).max() < kept[name]
