# SPDX-License-Identifier: GPL-2.0-only
"""What a newcomer's change costs in files: the diffs of the papers, applied as they stand there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import corpus
import pytest

ROOT = corpus.PROJECT
FILE = re.compile(r"^--- ([\w./]+)\n", re.MULTILINE)
HUNK = re.compile(r"^@@.*\n", re.MULTILINE)


def sections(paper: str) -> dict[str, str]:
    """The text below each heading of a paper."""
    parts = re.split(r"^## (.+)\n", (ROOT / paper).read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def changes(text: str) -> list[tuple[str, str, str]]:
    """What the diffs of a text change: the file, what stands there and what comes in its place."""
    found = []
    for diff in re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        parts = FILE.split(diff)
        for file, body in zip(parts[1::2], parts[2::2], strict=True):
            for hunk in HUNK.split(re.sub(r"^\+\+\+ .*\n", "", body, flags=re.MULTILINE)):
                lines = hunk.splitlines(keepends=True)
                old, new = ("".join(line[1:] for line in lines if line[0] in mark)
                            for mark in (" -", " +"))  # fmt: skip
                if lines:
                    found.append((file, old, new))
    return found


def changed(text: str, folder: Path) -> set[str]:
    """Copy the project, apply the diffs of a text, and say which files they change."""
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.so")
    for name in ("btrfs_model", "native"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored, dirs_exist_ok=True)
    for file, old, new in changes(text):
        before = (folder / file).read_text()
        assert before.count(old) == 1, f"{file} has not once:\n{old}"
        (folder / file).write_text(before.replace(old, new))
    return {file for file, *_ in changes(text)}


def run(folder: Path, code: str) -> str:
    """What Python prints in the copy."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.claim(
    "A new toggle changes at most four files, a command two, a release one and a workload two."
)
@pytest.mark.parametrize(
    ("section", "most", "code", "printed"),
    [
        ("A release", 1,
         "from btrfs_model.behaviour import PRESETS; print('v7.4' in PRESETS)", "True\n"),
        ("A command", 2,
         "from btrfs_model.cli import man; print('SS btrfs\\\\-model size' in man.page())",
         "True\n"),
        ("A toggle", 3,
         "from btrfs_model.patches import Patch; print(Patch.SEND_HOLE_NO_DATA.asked)",
         "Python\n"),
    ],
)  # fmt: skip
def test_what_a_change_costs(
    section: str, most: int, code: str, printed: str, tmp_path: Path
) -> None:
    text = sections("docs/extending.md")[section]
    files = changed(text, tmp_path)
    assert 0 < len(files) <= most
    assert run(tmp_path, code) == printed


def test_a_workload_is_a_module_and_its_entry_point() -> None:
    text = sections("docs/extending.md")["A workload"]
    assert set(re.findall(r"^```\w+ ([\w.]+)$", text, re.MULTILINE)) == {
        "my_workloads.py",
        "pyproject.toml",
    }
    assert not changes(text)


def test_a_commit_becomes_a_toggle_in_four_files(tmp_path: Path) -> None:
    text = (ROOT / "docs/a-commit.md").read_text()
    files = changed(text, tmp_path)
    assert len(files) == 3 and "```python\n@pytest.mark.parametrize" in text
    code = "from btrfs_model.patches import Patch; print(Patch.SEND_HOLE_NO_DATA.asked)"
    assert run(tmp_path, code) == "C\n"
    # a build writes the numbers for C; the rule compiles with them
    run(tmp_path, "import runpy; runpy.run_path('native/build_ffi.py')")
    assert "BM_TOGGLE_SEND_HOLE_NO_DATA" in (tmp_path / "native/toggles.h").read_text()
    if compiler := shutil.which("gcc") or shutil.which("clang"):
        subprocess.run(
            [compiler, "-std=c11", "-I.", "-fsyntax-only", "-Werror", "send/hole.c"],
            cwd=tmp_path / "native",
            check=True,
        )
