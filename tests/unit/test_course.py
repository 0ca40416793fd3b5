# SPDX-License-Identifier: GPL-2.0-only
"""The course: each term is introduced before it is used, exercises can be solved, pairs agree."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import corpus
import jupytext
import nbformat
import pytest

FOLDER = corpus.PROJECT / "notebooks/course"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.py"))


def cells(path: Path) -> list[Any]:
    return list(jupytext.read(path).cells)


def glossary() -> dict[str, str]:
    """The terms, and the notebook that introduces each."""
    rows = re.findall(r"^\| (.+?) \| .+ \| (\d\d) \|$", (FOLDER / "glossary.md").read_text(), re.M)
    return dict(rows)


def prose() -> list[tuple[str, str]]:
    """The text of the course in its order: number of the notebook, a paragraph without code."""
    found = []
    for path in NOTEBOOKS:
        for cell in cells(path):
            if cell.cell_type == "markdown":
                text = re.sub(r"```.*?```|`[^`]*`", "", cell.source, flags=re.S)
                text = re.sub(r"\]\([^)]*\)", "]", text)
                # a heading only names what comes
                text = re.sub(r"^#.*$", "", text, flags=re.M)
                found.append((path.name[:2], " ".join(text.split())))
    return found


@pytest.mark.claim("No term of the glossary is used in the course before it is introduced.")
def test_terms_are_introduced_where_they_first_come() -> None:
    terms = glossary()
    assert len(terms) > 40
    longer = sorted(terms, key=len, reverse=True)
    pattern = re.compile(
        rf"(\*\*)?\b({'|'.join(map(re.escape, longer))})(?:s|ed|es|ment)?\b(?=(\*\*)?)", re.I
    )
    seen: dict[str, tuple[str, bool, str]] = {}
    for number, text in prose():
        text = text.replace("leaves", "leaf").replace("reads ahead", "read ahead")
        for match in pattern.finditer(text):
            term = match[2].lower()
            bold = bool(match[1])
            around = text[max(0, match.start() - 30) : match.end() + 20]
            seen.setdefault(term, (number, bold, around))
    wrong = {
        term: seen.get(term)
        for term, number in terms.items()
        if term not in seen or seen[term][:2] != (number, True)
    }
    assert not wrong


@pytest.mark.claim("Every exercise of the course is solved by its solution, and not by its start.")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_exercises(path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    solutions: list[str] = []
    start = ""
    solved = 0
    for cell in cells(path):
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "markdown":
            solutions += re.findall(r"```python\n(.*?)```", cell.source, re.DOTALL)
        elif "exercise" in tags:
            start = cell.source
        elif "check" in tags:
            said = []
            for answer in (start, solutions.pop(0)):
                exec(answer, names)
                said.append(printed(cell.source, names))
            assert said == ["not yet\n", "right\n"]
            solved += 1
        else:
            printed(cell.source, names)
    assert solved >= 2
    assert not solutions


def printed(code: str, names: dict[str, Any]) -> str:
    """Run code; return what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, names)
    return out.getvalue()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_its_text(path: Path) -> None:
    """`scripts/run_notebooks.py notebooks/course/*.py` makes the one of the other."""
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    ours = [(cell.cell_type, cell.source) for cell in cells(path)]
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == ours
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.execution_count
            assert not [one for one in cell.outputs if one.output_type == "error"]
