# SPDX-License-Identifier: GPL-2.0-only
"""Assignments: solutions have all points, starts have none, and what is handed in is graded."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus
import jupytext
import nbformat
import pytest

import btrfs_model as bm
from btrfs_model.cli import run
from btrfs_model.teaching import ASSIGNMENTS, grade
from btrfs_model.teaching.notebooks import grade_notebook
from btrfs_model.teaching.recover import broken_disk
from btrfs_model.teaching.smaller import save_slowly

FOLDER = corpus.PROJECT / "notebooks/assignments"
SOLUTIONS = corpus.PROJECT / "tests/solutions"


def solution(name: str) -> dict[str, Any]:
    return runpy.run_path(str(SOLUTIONS / f"{name}.py"))


def handed_in(name: str, path: Path, *sources: str) -> Path:
    """Write a notebook in which the start is replaced."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    (start,) = (cell for cell in notebook.cells if "start" in cell.metadata.get("tags", []))
    start.source = "\n".join(sources)
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
    return path


@pytest.mark.claim("Solutions of the assignments have all points, on any filesystems.")
@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_solutions_have_all_points(name: str) -> None:
    for seed in range(3):
        table = grade(name, solution(name), seed)
        assert table["points"].tolist() == table["of"].tolist(), table
        assert table["of"].sum() == 10 and not table["problem"].any()


def nothing(*_: object) -> None: ...


LAZY: dict[str, list[dict[str, Callable[..., Any]]]] = {
    "recover": [
        dict.fromkeys(("lost", "leaves", "recover"), nothing),
        {"lost": lambda path: 30535680, "leaves": lambda path: set(),
         "recover": lambda path, name: b""},
        {"lost": lambda path: bm.open(path).image.superblock.root,
         "leaves": lambda path: range(0, 1 << 28, 4096),
         "recover": lambda path, name: bm.rescue(path)},
        {"leaves": lambda path: [block.logical for block in bm.open(path).tree(5).blocks()],
         "recover": lambda path, name: broken_disk(path)[name]},
    ],
    "log": [
        dict.fromkeys(("zeroed", "comes_along", "save"), nothing),
        {"zeroed": lambda crashed: set(), "comes_along": lambda: [["create", "a"], ["fsync", "a"]],
         "save": lambda name, new: []},
        {"zeroed": lambda crashed: bm.replay_log(crashed).listing("")["path"],
         "comes_along": lambda: [["create", "a"], ["create", "b"], ["fsync", "a"]],
         "save": lambda name, new: [["write", name, 0, new], ["truncate", name, len(new)],
                                    ["fsync", name]]},
        {"comes_along": lambda: [["create", "a"], ["sync"], ["fsync", "a"]],
         "save": lambda name, new: [["create", "x"], ["write", "x", 0, new],
                                    ["rename", "x", name]]},
        # a second name of what was synced is no other file
        {"comes_along": lambda: [["create", "a"], ["link", "a", "b"], ["fsync", "a"]],
         "save": lambda name, new: [["unlink", name], ["create", name], ["write", name, 0, new],
                                    ["fsync", name]]},
    ],
    "smaller": [
        {"save": nothing},
        {"save": save_slowly},
        {"save": lambda fs, path, content: fs.write(path, 0, content[:4096])},
        {"save": lambda fs, path, content: fs.write("other", 0, content)},
    ],
    "toggle": [
        dict.fromkeys(("truncates", "patched"), nothing),
        {"truncates": lambda stream: 40, "patched": lambda stream: stream},
        {"truncates": lambda stream: bytes(stream).count(b"truncate"),
         "patched": lambda stream: stream[:100]},
    ],
}  # fmt: skip


@pytest.mark.claim("An assignment gives no point for a lazy answer, and says what is wrong.")
@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_lazy_answers_have_no_points(name: str) -> None:
    assert len(LAZY[name]) >= 3
    for answers in [{}, *LAZY[name]]:
        table = grade(name, answers, seed=1)
        # the slow way of saving is right, and no smaller
        right = (
            table.loc[table["part"] == "right"].index if answers.get("save") is save_slowly else []
        )
        assert (table.drop(index=right)["points"] == 0).all(), table
        assert all(table.drop(index=right)["problem"])


def test_a_rule_without_holes_has_a_part_of_the_points() -> None:
    def patched(stream: bytes) -> bytes:
        writer = bm.StreamWriter()
        kept = (one for one in bm.read_stream(stream) if one.name != "truncate")
        return writer.header() + b"".join(
            writer.command(one.name, **one.attributes) for one in kept
        )

    table = grade("toggle", {"patched": patched}).set_index("part")
    assert table["points"].to_dict() == {"truncates": 0, "patched": 3, "patched_holes": 0}
    assert "truncate" in table["problem"]["patched_holes"]


def test_there_is_no_other_assignment() -> None:
    with pytest.raises(bm.BtrfsModelError, match="no assignment 'essay': there are recover, log"):
        grade("essay", {})
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(ASSIGNMENTS)
    assert {path.stem for path in SOLUTIONS.glob("*.py")} == set(ASSIGNMENTS)


@pytest.mark.claim("`grade` gives solutions all points and starts none, a notebook a process.")
def test_notebooks_are_graded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (SOLUTIONS / "toggle.py").read_text()
    solved = handed_in("toggle", tmp_path / "ada.ipynb", text)
    before = solved.read_bytes()
    assert run(["grade", str(solved), str(FOLDER / "smaller.ipynb"), "--seed", "7"]) == 0
    out, err = capsys.readouterr()
    assert "ada.ipynb: 10 of 10 points" in err and "smaller.ipynb: 0 of 10 points" in err
    assert len(out.splitlines()) == 1 + 3 + 3
    assert solved.read_bytes() == before


def test_what_students_hand_in(tmp_path: Path) -> None:
    wrong = handed_in("smaller", tmp_path / "wrong.ipynb", "1 / 0", "def save(")
    assert grade_notebook(wrong)["points"].sum() == 0
    forever = handed_in("smaller", tmp_path / "forever.ipynb", "while True: ...")
    assert set(grade_notebook(forever, seconds=10)["problem"]) == {
        "a cell takes longer than 10 seconds"
    }
    silent = handed_in("smaller", tmp_path / "silent.ipynb", "print = None")
    assert set(grade_notebook(silent)["problem"]) == {"the checks could not be run after its cells"}
    dead = handed_in("smaller", tmp_path / "dead.ipynb", "import os; os._exit(1)")
    assert set(grade_notebook(dead)["problem"]) == {"Python died"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{}", "no notebook"),
        (b"\xff", "no notebook"),
        (b"def save(): ...", "no notebook"),
        (
            b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
            "one cell has to say",
        ),
    ],
)
def test_what_is_no_assignment_is_refused(
    content: bytes, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "essay.ipynb"
    path.write_bytes(content)
    assert run(["grade", str(path)]) == 1
    assert f"{path}: {why}" in capsys.readouterr().err


ROW = re.compile(
    r"^\| \[(\d\d)\]\(\.\./notebooks/course/([\w-]+)\.ipynb\) \| .+ \| (\d+) \| .*\|$", re.M
)
TEACHING = (corpus.PROJECT / "docs/teaching.md").read_text()


def minutes(path: Path) -> int:
    """What a notebook takes by the rule that the page tells."""
    words = cells = exercises = 0
    for cell in jupytext.read(path).cells:
        tags = set(cell.metadata.get("tags", []))
        if cell.cell_type == "markdown":
            text = re.sub(r"<details>.*?</details>|```.*?```", "", cell.source, flags=re.S)
            words += len(text.split())
        elif not tags & {"claims", "check"}:
            cells += 1
            exercises += "exercise" in tags
    assert exercises == 2
    return 5 * round((words / 120 + cells * 1.5 + exercises * 15) / 5)


def test_teachers_know_each_notebook() -> None:
    told = {f"{number}": (stem, int(time)) for number, stem, time in ROW.findall(TEACHING)}
    course = sorted((corpus.PROJECT / "notebooks/course").glob("[0-9]*.py"))
    assert told == {path.stem[:2]: (path.stem, minutes(path)) for path in course}
    assert {f"({path})" for path in re.findall(r"assignments/(\w+)\.ipynb", TEACHING)} == {
        f"({name})" for name in ASSIGNMENTS
    }
    term = TEACHING.partition("## A term")[2].partition("## Assignments")[0]
    assert set(told) == set(re.findall(r"\b\d\d\b", re.sub(r"^\| \d+", "", term, flags=re.M)))


def test_slides_begin_at_headings(tmp_path: Path) -> None:
    nbconvert = pytest.importorskip("nbconvert")
    for path in sorted((corpus.PROJECT / "notebooks/course").glob("[0-9]*.ipynb")):
        page, _ = nbconvert.SlidesExporter().from_filename(path)
        headings = re.findall(r"^# #+ ", path.with_suffix(".py").read_text(), re.M)
        assert page.count("<section>") >= len(headings)
        assert "class Exercise" not in page and "# yours" not in page
