#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Write where the kernel functions begin that the project names: ``docs/site/kernel.json``.

``scripts/kernel_functions.py linux-6.12 linux-6.1`` looks for each name in the trees in turn, so
the first one should be the newest. The site links the names to these lines.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fs/btrfs", "fs", "block")
BEGIN = re.compile(r"^(?:\w[\w \t*]*[ \t*])?(\w+)\([^;{}]*\)[^;{}()]*\n\{", re.MULTILINE)


def named() -> set[str]:
    """Return the names with an underscore that stand in papers, notebooks, docstrings and data."""
    files = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("data/machines/*.toml")]
    files += [*ROOT.glob("notebooks/**/*.ipynb"), *ROOT.glob("btrfs_model/**/*.py")]
    return {name for file in files for name in re.findall(r"\w*[a-z]_[a-z]\w*", file.read_text())}


def functions(tree: Path) -> dict[str, tuple[str, int]]:
    """Return where the functions of a tree begin: file and line."""
    found: dict[str, tuple[str, int]] = {}
    for folder in FOLDERS:
        for file in sorted((tree / folder).glob("*.[ch]")):
            text = file.read_text(errors="replace")
            for match in BEGIN.finditer(text):
                line = text.count("\n", 0, match.start(1)) + 1
                found.setdefault(match[1], (str(file.relative_to(tree)), line))
    return found


def main(trees: list[Path]) -> None:
    """Write the lines of the names, tree by tree and file by file."""
    names, versions = named(), {}
    for tree in trees:
        numbers = re.findall(
            r"^(?:VERSION|\w+LEVEL) = (\d+)", (tree / "Makefile").read_text(), re.M
        )
        here = functions(tree)
        files: dict[str, dict[str, int]] = {}
        for name in sorted(names & here.keys()):
            file, line = here[name]
            files.setdefault(file, {})[name] = line
        names -= here.keys()
        versions[f"v{'.'.join(numbers)}"] = dict(sorted(files.items()))
    target = ROOT / "docs" / "site" / "kernel.json"
    target.write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
