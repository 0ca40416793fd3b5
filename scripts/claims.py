# SPDX-License-Identifier: GPL-2.0-only
"""Write the tables of claims in ``tests/README.md``: ``python scripts/claims.py``.

A claim is a sentence at the test that shows it, ``@pytest.mark.claim("...")``. Its judge follows
from the test's folder; ``judge=`` names another one.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
PAGE = TESTS / "README.md"
BEGIN, END = "<!-- claims: written by scripts/claims.py -->\n", "<!-- end of claims -->\n"
JUDGES = {
    "recorded": "Real kernels, recorded",
    "live": "Live kernels",
    "progs": "btrfs-progs",
    "measured": "Published figures and headers",
    "twins": "C and Python, beside each other",
    "unit": "Properties",
}


def claims() -> Iterator[tuple[str, str, str]]:
    """Judge, sentence and test of each claim, in the order of files and lines."""
    for file in sorted(TESTS.rglob("test_*.py")):
        name = file.relative_to(TESTS)
        for node in ast.parse(file.read_text()).body:
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.claim":
                    judge = {key.arg: ast.literal_eval(key.value) for key in mark.keywords}
                    sentence = ast.literal_eval(mark.args[0])
                    yield judge.get("judge", name.parts[0]), sentence, f"{name}::{node.name}"


def page() -> str:
    """Return the page with the tables of today."""
    head, rest = PAGE.read_text().split(BEGIN)
    tail = rest.split(END)[1]
    tables = {judge: [f"### {title}\n\n| claim | test |\n|---|---|\n"]
              for judge, title in JUDGES.items()}  # fmt: skip
    for judge, sentence, test in claims():
        tables[judge].append(f"| {sentence} | `{test}` |\n")
    return head + BEGIN + "\n" + "\n".join(map("".join, tables.values())) + "\n" + END + tail


if __name__ == "__main__":
    PAGE.write_text(page())
