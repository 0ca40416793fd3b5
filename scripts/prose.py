#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Look for turns of phrase that plain English does without, in what users read.

That is papers, notebooks, the help of the command line and all docstrings.
``scripts/prose.py`` names each place, and what to write instead; the status is 1 if there is one.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jupytext

ROOT = Path(__file__).resolve().parents[1]
PAPERS = (
    "*.md", "docs/**/*.md", "notebooks/**/*.md", "tests/*.md", "bench/*.md",
    "data/kernel/README.md",
)  # fmt: skip
MOST_WORDS = 45

TURNS = {
    r"in order to": "to",
    r"(simply|obviously|of course|basically|actually|really|very unique)": "nothing",
    r"(utili[sz]|leverag)\w+": "use",
    r"please": "nothing",
    r"dear": "costly",
    r"but for": "except",
    r"for who": "for those who",
    r"by whom it may be": "by everybody",
    r"that there (is|are) not": "that does not exist",
    r"that there (is|are)(?=[.,;:)])": "that exist",
    r"one's own": "your own",
    r"\w+!(?=\s)": "a full stop",
    r"\w+ (--|\u2013|\u2014) \w+": "a colon, or two sentences",
}
SENTENCE = re.compile(r"(?<=[.:;?!])\s+")


def paragraphs(text: str) -> Iterator[str]:
    """Return the paragraphs and cells of a text in Markdown, without code and addresses."""
    text = re.sub(r"^```.*?^```|<!--.*?-->|^    .*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`+[^`]+`+", "CODE", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for block in re.split(r"\n\s*\n|^\s*(?:[-*#]|\d+\.)\s|\|", text, flags=re.MULTILINE):
        yield " ".join(block.split())


def texts() -> Iterator[tuple[str, str]]:
    """Return what users read, each with its place."""
    for pattern in PAPERS:
        for paper in sorted(ROOT.glob(pattern)):
            yield str(paper.relative_to(ROOT)), paper.read_text()
    for notebook in sorted(ROOT.glob("notebooks/**/*.ipynb")):
        for cell in jupytext.read(notebook).cells:
            if cell.cell_type == "markdown":
                yield str(notebook.relative_to(ROOT)), cell.source
    for module in sorted(ROOT.glob("btrfs_model/cli/**/*.py")):
        for text in re.findall(r'"""(.*?)"""|help="([^"]+)"', module.read_text(), re.DOTALL):
            yield str(module.relative_to(ROOT)), inspect.cleandoc("".join(text))
    for module in sorted(ROOT.glob("btrfs_model/**/*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield f"{module.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text


def found() -> Iterator[str]:
    """Return each turn and each sentence that is too long, with its place."""
    turns = {re.compile(rf"(?<!\w){turn}(?!\w)", re.I): say for turn, say in TURNS.items()}
    for place, text in texts():
        for paragraph in paragraphs(text):
            for turn, say in turns.items():
                for match in turn.finditer(paragraph):
                    around = paragraph[max(0, match.start() - 30) : match.end() + 30]
                    yield f"{place}: ...{around}...: write {say}"
            for sentence in SENTENCE.split(paragraph):
                if (words := len(sentence.split())) > MOST_WORDS:
                    yield f"{place}: {words} words: {sentence[:60]}..."


if __name__ == "__main__":
    places = sorted(set(found()))
    print("\n".join(places))
    sys.exit(bool(places))
