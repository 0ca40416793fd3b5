# SPDX-License-Identifier: GPL-2.0-only
"""The course: terms are introduced, claims asserted, exercises can be solved and not evaded."""

import ast
import contextlib
import io
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import corpus
import jupytext
import nbformat
import pytest

FOLDER = corpus.PROJECT / "notebooks/course"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.py"))
CASES = [
    FOLDER.parent / f"{name}.ipynb"
    for name in ("send-truncate", "log-dir", "send-utimes", "fiemap-shared", "send-readahead")
]

ANSWERS = FOLDER.parent / "answers.ipynb"
STUDIES = [*sorted(FOLDER.parent.glob("studies/*.ipynb")), FOLDER.parent / "trade-offs.ipynb"]


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


CONSTANTS = (None, True, 0, 1, 2, 3, 4, 5, "", b"", b"old", [], {}, set(), ["write", "x", "utimes"])


def lazy(
    name: str, solution: str, check: str, names: dict[str, Any], constants: tuple[Any, ...]
) -> list[Callable[..., Any]]:
    """What one might try in place of a solution: constants, what it returned once, a mistake."""
    exec(solution, names)
    right, said = names[name], []

    def noted(*given: Any) -> Any:
        said.append(right(*given))
        return said[-1]

    names[name] = noted
    assert printed(check, names) == "right\n"
    copied = [one for number, one in enumerate(said) if one not in said[:number]]
    returned = {repr(one): one for one in (*constants, *copied[:4])}
    return [
        *(partial(lambda one, *given: one, one) for one in returned.values()),
        lambda *given: given[0],
        *([lambda *given: more(right(*given))] if any(one is not None for one in said) else ()),
        lambda: None,
    ]


def more(one: Any) -> Any:
    """An answer that is wrong by a little."""
    if isinstance(one, int | float):
        return one + 1
    return one[:-1] if isinstance(one, list | str | bytes) and one else None


def test_terms_of_the_cases_are_in_the_glossary() -> None:
    rows = re.findall(
        r"^\| (.+?) \| .+ \| \[([a-z-]+)\]\(", (FOLDER / "glossary.md").read_text(), re.M
    )
    assert {case for _, case in rows} == {path.stem for path in CASES}
    for term, case in rows:
        text = " ".join(cell.source for cell in cells(FOLDER.parent / f"{case}.ipynb"))
        assert re.search(rf"\b{term}", " ".join(text.split()), re.I), term


def needed(codes: list[str], wanted: str) -> set[str]:
    """Which of the cells before an exercise bind names that it uses, or that those use."""
    found = set()
    names = names_in(wanted) - names_in(wanted, is_bound=True)
    for code in reversed(codes):
        bound = names_in(code, is_bound=True)
        if names & bound:
            found.add(code)
            names |= names_in(code) - bound
    return found


def names_in(code: str, *, is_bound: bool = False) -> set[str]:
    """The names that code uses, or those that it binds."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) == is_bound:
            found.add(node.id)
        elif is_bound and isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif is_bound and isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif is_bound and isinstance(node, ast.arg):
            found.add(node.arg)
    return found


@pytest.mark.claim(
    "Every exercise of the course and of the cases is solved by its solution, and neither by its "
    "start nor by constants, copied output and slips; its check says why."
)
@pytest.mark.parametrize("path", [*NOTEBOOKS, *CASES], ids=lambda path: path.stem)
def test_exercises(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    names: dict[str, Any] = {"__name__": "__main__", "display": lambda *_: None}
    all_cells = cells(path)
    solutions = [
        code for cell in all_cells if cell.cell_type == "markdown"
        for code in re.findall(r"```python\n(.*?)```", cell.source, re.DOTALL)
    ]  # fmt: skip
    codes = [cell for cell in all_cells if cell.cell_type == "code"]
    plain = [cell.source for cell in codes
             if not {"exercise", "check"} & set(cell.metadata.get("tags", []))]  # fmt: skip
    if path in CASES:  # where the cells before are run as a notebook, only what it takes
        checks = [cell.source for cell in codes if "check" in cell.metadata.get("tags", [])]
        takes = needed(plain, "\n".join(solutions + checks))
        plain = [code for code in plain if code in takes]
    start = ""
    solved = 0
    for cell in codes:
        tags = cell.metadata.get("tags", [])
        if "exercise" in tags:
            start = cell.source
        elif "check" in tags:
            (name,) = re.findall(r"^def (\w+)", start)
            exec(start, names)
            refused = [printed(cell.source, names)]
            solution = solutions.pop(0)
            constants = CONSTANTS[:3] if path in CASES else CONSTANTS
            for answer in lazy(name, solution, cell.source, names, constants):
                names[name] = answer
                refused.append(printed(cell.source, names))
            assert all(re.match(r"not yet: \S+ \S+ .*\n$", one) for one in refused), refused
            exec(solution, names)
            assert printed(cell.source, names) == "right\n"
            solved += 1
        elif cell.source in plain:
            printed(cell.source, names)
    pyplot.close("all")
    assert solved == (1 if path in CASES else 2)
    assert not solutions


CLAIM = re.compile(
    r"\d|\b(never|always|only|every|all|most|none|nobody|half|halves|twice|two|three|four|five|six|"
    r"seven|eight|nine|ten|hundreds?|thousands?)\b",
    re.I,
)
EXERCISES = re.compile(
    r"^(?:## (?:Exercise|Try it|To try)|\*\*Exercise|Exercise \d with|The first one with|"
    r"With a check|Next:)",
    re.M,
)
"""Where a cell goes over to what is for the reader to find out."""
NAMED = re.compile(r"Linux \d+\.\d+|notebooks? \d+|until 20\d\d|20\d\d")


def told(text: str) -> list[str]:
    """The sentences of a cell that say a number, or that something is always so."""
    text = re.sub(r"```.*?```|`[^`]*`|<[^>]*>|^#.*$", "", text, flags=re.S | re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    sentences = re.split(r"(?<=[.:?])\s+", " ".join(text.split()))
    return [one for one in sentences if CLAIM.search(NAMED.sub("", one)) and one[-1:] != "?"]


@pytest.mark.claim(
    "What the course, its cases and the studies say with a number, or as always so, is asserted in "
    "a cell beside it."
)
@pytest.mark.parametrize(
    "path", [*NOTEBOOKS, *CASES, ANSWERS, *STUDIES], ids=lambda path: path.stem
)
def test_claims_are_asserted(path: Path) -> None:
    all_cells = cells(path)
    wrong = []
    for number, cell in enumerate(all_cells):
        if cell.cell_type != "markdown":
            continue
        beside = ""
        for step in (-1, 1):
            at = number + step
            while 0 <= at < len(all_cells) and all_cells[at].cell_type == "code":
                beside += all_cells[at].source
                at += step
        if (claims := told(EXERCISES.split(cell.source)[0])) and "assert " not in beside:
            wrong += claims
    assert not wrong


COLUMNS = 70
"""Of code that the column of a page shows whole."""


def test_code_fits_into_the_column_of_a_page() -> None:
    lines = [
        (path.name, line)
        for path in (*NOTEBOOKS, *CASES, ANSWERS)
        for cell in cells(path)
        if cell.cell_type == "code"
        for line in cell.source.splitlines()
    ]
    assert [line for line in lines if len(line[1]) > COLUMNS] == []


def test_guesses_are_hidden_until_they_are_asked_for() -> None:
    guesses = 0
    for path in NOTEBOOKS:
        for cell, after in pairwise(cells(path)):
            if "**Guess" in cell.source and cell.cell_type == "markdown":
                guesses += 1
                assert "hide-output" in after.metadata.get("tags", []), cell.source
        saved = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
        for cell in saved.cells:
            if "hide-output" in cell.metadata.get("tags", []):
                assert cell.metadata.jupyter.outputs_hidden
    assert guesses >= len(NOTEBOOKS)


@pytest.mark.claim("A commit is the end of a transaction, in the course and in its cases.")
def test_commits_are_of_filesystems() -> None:
    """What kernel developers call so is a patch."""
    wrong = []
    for path in (*NOTEBOOKS, *CASES):
        for cell in cells(path):
            if cell.cell_type == "markdown":
                text = re.sub(r"`[^`]*`", "", cell.source)
                wrong += re.findall(
                    r".*commit message.*|.*\\bThe commit:.*|.*kernel commit.*", text
                )
    assert wrong == []


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
