# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs_model/reference`` and ``native`` stand side by side under the kernel's names.

A module of the reference stands beside the C files that its head names, or else beside the one of
its name and folder. Its public functions are functions there, whatever prefix of their topic they
have: ``search_slot`` is ``bm_writer_search_slot`` and the kernel's ``btrfs_search_slot``.
``tests/twin_names.toml`` lists those that only Python has, by room, and why; the list is only to
get shorter.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import corpus
import pytest
import zstandard

ROOT = corpus.PROJECT
PACKAGE = ROOT / "btrfs_model"
REFERENCE = PACKAGE / "reference"
SEARCH = [PACKAGE / "volume" / "blocks.py", PACKAGE / "volume" / "ctree.py"]
"""Python that is run beside C, and stands below the reference."""
DATA = ROOT / "tests" / "data"
OURS: dict[str, dict[str, str]] = tomllib.loads((ROOT / "tests" / "twin_names.toml").read_text())

C_FUNCTION = re.compile(
    r"^(?:static |inline |const )*[a-z]\w*(?: \w+)*[ *\n]+(\w+)\([^;{}]*\)\n?\s*\{", re.MULTILINE
)


def functions(module: ast.Module) -> Iterator[tuple[str, bool]]:
    """Public functions, and methods that are no properties; whether it is a method."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and "Protocol" in {
            getattr(b, "id", "") for b in node.bases
        }:
            continue
        if isinstance(node, ast.Module | ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                    marks = {getattr(mark, "id", "") for mark in inner.decorator_list}
                    if "property" not in marks:
                        yield inner.name, isinstance(node, ast.ClassDef)


def beside(file: Path, module: ast.Module) -> list[Path]:
    """Return the C files that a module stands beside."""
    named = re.findall(r"``(native/[\w/]+\.[ch])``", ast.get_docstring(module) or "")
    return [ROOT / name for name in named] or [
        ROOT / "native" / file.relative_to(REFERENCE).with_suffix(".c")
    ]


def bare(name: str, topics: set[str]) -> str:
    """Return a name without the prefixes of its topic."""
    parts = name.lstrip("_").split("_")
    while len(parts) > 1 and parts[0] in topics:
        parts.pop(0)
    return "_".join(parts)


def room(file: Path) -> tuple[str, str]:
    """Return the table that lists names of a module, and what it calls the module."""
    path = file.relative_to(file.parent if file in SEARCH else REFERENCE).with_suffix("")
    first = path.parts[0].split("_")[0]
    return {
        "blocks": "ctree",
        "compare": "ctree",
        "tree": "ctree",
        "share": "backref",
        "logical": "backref",
    }.get(first, first), path.name


def names() -> dict[str, dict[str, bool]]:
    """Return by room "module.function" and whether C has the function."""
    found: dict[str, dict[str, bool]] = {}
    for file in sorted([*REFERENCE.rglob("*.py"), *SEARCH]):
        module = ast.parse(file.read_text())
        table, called = room(file)
        places = beside(file, module)
        topics = {"bm", "btrfs"}
        topics.update(part for place in places for part in place.with_suffix("").parts[-3:])
        raw = {
            name
            for place in places
            if place.exists()
            for name in C_FUNCTION.findall(place.read_text())
        }
        # bm_<topic>_N; what a method is called without its object
        theirs = {bare(name, topics) for name in raw}
        theirs |= {name.split("_", 2)[2] for name in raw if re.match("bm_[a-z]+_", name)}
        after_word = {name.partition("_")[2] for name in theirs}
        for name, is_method in functions(module):
            there = bare(name, topics) in (theirs | after_word if is_method else theirs)
            found.setdefault(table, {})[f"{called}.{name}"] = there
    return found


@pytest.mark.claim("Of the functions of the reference nine in ten are in the C beside it.")
def test_functions_are_those_of_the_c_beside() -> None:
    found = names()
    assert set(OURS) == set(found)
    for table, there in found.items():
        missing = sorted(name for name, is_there in there.items() if not is_there)
        assert missing == sorted(OURS[table]), table
        assert len(missing) <= len(there) / 6, table
    assert sum(map(len, OURS.values())) <= sum(map(len, found.values())) / 10


def defined() -> set[str]:
    """Return what has a definition or a prototype in the project."""
    found: set[str] = set()
    for folder in ("native", "btrfs_model", "tests"):
        for file in (ROOT / folder).rglob("*.[pch]*"):
            if file.suffix == ".py":
                found |= set(re.findall(r"\bdef (\w+)\(", file.read_text()))
            elif file.suffix in {".c", ".h"}:
                found |= set(re.findall(r"^[\w#].*?\b(\w+)\(", file.read_text(), re.MULTILINE))
    return found


@pytest.mark.claim(
    "Functions that C or the reference name in prose are the kernel's, or are there."
)
def test_functions_named_in_prose_are_functions() -> None:
    packed = (DATA / "kernel_functions.txt.zst").read_bytes()
    known = set(zstandard.decompress(packed).decode().split()) | defined()
    prose = {".py": r'"""[\s\S]*?"""|#.*', ".c": r"/\*[\s\S]*?\*/|//.*", ".h": r"/\*[\s\S]*?\*/"}
    wrong = [
        f"{file.relative_to(ROOT)}: {name}()"
        for folder in (ROOT / "native", REFERENCE)
        for file in sorted(folder.rglob("*.[pch]*"))
        if file.suffix in prose
        for text in re.findall(prose[file.suffix], file.read_text())
        for name in re.findall(r"(?<![\w.])([a-zA-Z_]\w+)\(\)", text)
        if name not in known
    ]
    assert not wrong


@pytest.mark.claim("What stands in for C, by name, is there.")
def test_targets_of_twins_are_functions() -> None:
    named = [
        (file, target)
        for file in sorted(PACKAGE.rglob("*.py"))
        for target in re.findall(r'^ *@twin\("([^"]+)"\)', file.read_text(), re.MULTILINE)
    ]
    assert len(named) > 20
    for file, target in named:
        module, _, function = target.partition(":")
        stands_in = getattr(import_module(f"btrfs_model.{module}"), function, None)
        assert callable(stands_in), f"{file}: {target}"


WITHOUT = """
import sys
import btrfs_model as bm
from btrfs_model.cli import main

assert "btrfs_model.reference" not in sys.modules
with bm.create("256M", seed=1) as fs:
    fs.mkdir("d")
    fs.create_files("d", [f"f{i}" for i in range(300)])
    fs.create("g")
    fs.write("g", 0, b"x" * 100_000)
    fs.snapshot("", "one")
    fs.unlink("d/f7")
    fs.clone_range("g", "d/f8", 0, 0, 0)
    fs.snapshot("", "two")
    fs.create("n")
    assert fs.fsync("n") == "log"
    fs.save_crash("crash.img")
    fs.sync()
    fs.save("disk.img")
with bm.open("disk.img") as fs:
    assert bm.send(fs, "two", "one", ["one"], explain=True).commands["clone"] == 1
    assert len(bm.fiemap(fs, "two", "g")) and len(bm.reads(fs, "two"))
    logical = int(bm.extents(fs, "two", "g").disk_bytenr[0])
    assert len(bm.logical_ino(fs, logical))
    assert not bm.check(fs, verify_data=True)
    bm.draw(fs)
with bm.open("crash.img") as fs, bm.replay_log(fs) as replayed:
    assert "n" in set(replayed.listing(5).path)
assert len(bm.replay("send-truncate", 0.01))
main(["dump-tree", "disk.img"])
"""


@pytest.mark.claim("The package runs without its reference.")
def test_without_the_reference(tmp_path: Path) -> None:
    shutil.copytree(
        PACKAGE, tmp_path / "btrfs_model", ignore=shutil.ignore_patterns("reference", "__pycache__")
    )
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "BTRFS_MODEL_DATA": str(ROOT / "data")},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
