# SPDX-License-Identifier: GPL-2.0-only
"""A User-Mode Linux whose btrfs counts how often each line and branch runs.

It is built from the tree of a kernel into a folder with the program ``linux`` and, in ``gcov``,
what the compiler knows of each file of ``fs/btrfs`` (``*.gcno``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from btrfs_model.base.errors import KernelFailedError, KernelMissingError

_CONFIG = Path(__file__).parent / "gcov.config"
_NEEDED = {"make": "make", "gcc": "gcc", "flex": "flex", "bison": "bison", "bc": "bc"}
_MADE = ("*.o", "*.a", "*.cmd", "*.gcno", "*.mod", ".git")
# It is called before the kernel can print: by the C library, for constructors.
_SAYS = re.compile(r'^(\s*)pr_info\("version magic.*$', re.MULTILINE)


def build(tree: Path, output: Path, *, counting: bool = True) -> None:
    """Build a kernel from a tree, which is left as it is.

    Parameters
    ----------
    tree : Path
        Of a kernel's source, in which nothing is built.
    output : Path
        A folder that is made.
    counting : bool
        Whether its btrfs counts.

    Raises
    ------
    KernelMissingError
        With the package that is missing, or when this is no tree of a kernel.
    KernelFailedError
        When it cannot be built; the message is the compiler's last line.
    """
    for program, package in _NEEDED.items():
        if shutil.which(program) is None:
            raise KernelMissingError(f"{program} is not here (Debian: package {package})")
    if not (tree / "fs/btrfs/Makefile").is_file():
        raise KernelMissingError(f"{tree}: no tree of a kernel: it has no fs/btrfs/Makefile")
    output.mkdir()
    try:
        with TemporaryDirectory(dir=output) as place:
            copy = Path(place) / "tree"
            shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns(*_MADE))
            _make(copy, counting=counting)
            shutil.copy(copy / "linux", output / "linux")
            if counting:
                (output / "gcov").mkdir()
                for notes in (copy / "fs/btrfs").glob("*.gcno"):
                    shutil.copy(notes, output / "gcov")
    except BaseException:
        shutil.rmtree(output, ignore_errors=True)
        raise


def _make(tree: Path, *, counting: bool) -> None:
    config = _CONFIG.read_text()
    if counting:
        with (tree / "fs/btrfs/Makefile").open("a") as file:
            file.write("GCOV_PROFILE := y\n")
        base = tree / "kernel/gcov/gcc_base.c"
        base.write_text(_SAYS.sub(r"\1(void)0;", base.read_text()))
    else:
        config = config.replace("CONFIG_GCOV_KERNEL=y\n", "")
    (tree / "verify.config").write_text(config)
    jobs = f"-j{os.cpu_count() or 1}"
    for goals in (("KCONFIG_ALLCONFIG=verify.config", "allnoconfig"), (jobs, "linux")):
        ran = subprocess.run(["make", "-C", str(tree), "ARCH=um", *goals], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        if ran.returncode:
            lines = [line for line in ran.stdout.splitlines() if "rror" in line]
            raise KernelFailedError(f"{tree.name}: make {goals[-1]}: {(lines or ['failed'])[0]}")


@dataclass
class Counts:
    """How often functions, lines and branches ran, of the files of ``fs/btrfs``.

    Attributes
    ----------
    functions : Counter
        By name; of functions of one name in several files the sum.
    lines : dict
        Counts by file and line.
    branches : dict
        Counts by file, line and number of the branch in it.
    places : dict
        Where a function is: file, first and last line.
    """

    functions: Counter[str] = field(default_factory=Counter)
    lines: dict[tuple[str, int], int] = field(default_factory=dict)
    branches: dict[tuple[str, int, int], int] = field(default_factory=dict)
    places: dict[str, tuple[str, int, int]] = field(default_factory=dict)


def why_not(binary: Path) -> str:
    """Why a kernel does not count; empty when it does."""
    if (binary.parent / "gcov").is_dir():
        return ""
    return f"{binary}: it does not count what it runs (btrfs-model kernel build TREE)"


def counts(binary: Path, kept: Path, files: Iterable[str] = ()) -> Counts:
    """Read the counts that :mod:`~btrfs_model.kernels.inside.counted` kept of a kernel.

    Parameters
    ----------
    binary : Path
        The program that is the kernel.
    kept : Path
        The folder; it goes.
    files : iterable of str
        Names of files of ``fs/btrfs`` such as ``send.c``; all where there are none.
    """
    notes, found = binary.parent / "gcov", Counts()
    wanted = [name.removesuffix(".c") for name in files]
    for file in sorted(kept.glob("*.gcda")):
        if wanted and file.stem not in wanted:
            continue
        shutil.copy(notes / f"{file.stem}.gcno", kept)
        command = ["gcov", "-i", "-b", "--stdout", file.name]
        ran = subprocess.run(command, cwd=kept, text=True, capture_output=True)
        if ran.returncode:
            raise KernelFailedError(f"gcov: {file.name}: {' '.join(ran.stderr.split())}")
        _add(found, json.loads(ran.stdout), f"{file.stem}.c")
    shutil.rmtree(kept)
    return found


def _add(found: Counts, told: dict[str, list[dict[str, object]]], name: str) -> None:
    for one in told["files"]:
        for function in one["functions"]:  # type: ignore[attr-defined]
            # the compiler adds a suffix to what it changed; headers are in each file that has them
            symbol = function["name"].partition(".")[0]
            found.functions[symbol] += function["execution_count"]
            if str(one["file"]).endswith(f"/{name}"):
                place = (name, function["start_line"], function["end_line"])
                found.places[symbol] = place
        if not str(one["file"]).endswith(f"/{name}"):
            continue
        for line in one["lines"]:  # type: ignore[attr-defined]
            at = (name, line["line_number"])
            found.lines[at] = found.lines.get(at, 0) + line["count"]
            for number, branch in enumerate(line["branches"]):
                found.branches[(*at, number)] = branch["count"]
