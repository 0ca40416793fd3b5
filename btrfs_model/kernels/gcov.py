# SPDX-License-Identifier: GPL-2.0-only
"""What a User-Mode Linux counted whose btrfs counts how often each line and branch runs.

:mod:`~btrfs_model.kernels.build` makes such a kernel.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from btrfs_model.base.errors import KernelFailedError


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
