# SPDX-License-Identifier: GPL-2.0-only
"""Ten wrong rules, each in a scratch copy of the model: ``verify`` finds nine in five minutes each.

Nobody tells it where to look: it compares all kinds, on all kernels that are there.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import corpus
import judges
import pytest


class Defect(NamedTuple):
    """A rule that is changed: where, what it is, what it becomes."""

    file: str
    right: str
    wrong: str


DEFECTS = {
    "send: zeros for a hole go beyond the end of the file": Defect(
        "native/send/hole.c",
        "\tif (end > sctx->cur_inode_size)\n\t\tend = sctx->cur_inode_size;\n",
        "",
    ),
    "send: a directory is put on its orphan name twice": Defect(
        "native/send/refs.c", "else if (!ret && !p->is_orphan)", "else if (!ret)"
    ),
    "send: a directory waits for its last entry to be gone, although it is": Defect(
        "native/send/moves.c", "entry->location.objectid > sctx->cur_ino",
        "entry->location.objectid >= sctx->cur_ino",
    ),
    "log: a single deleted entry between two old ones is in no range": Defect(
        "btrfs_model/mount/log/log_dir.py", "if index > last_old + 1:", "if index > last_old + 2:"
    ),
    "log: of an extent that is overwritten in the log a last block goes": Defect(
        "btrfs_model/mount/log/log_extents.py", "if extent.end > end and not extent.is_inline:",
        "if extent.end > end + fs.sectorsize and not extent.is_inline:",
    ),
    "replay: a directory keeps its version when it gains a name": Defect(
        "btrfs_model/mount/log/replay/links.py",
        "    directory.item.size += 2 * len(name)\n    directory.item.sequence += 1\n",
        "    directory.item.size += 2 * len(name)\n",
    ),
    "replay: attributes that the log does not have stay": Defect(
        "btrfs_model/mount/log/replay/deletes.py",
        "if not control.log.has_xattr(ino, entry.name)", "if entry.name in ()",
    ),
    "fiemap: an extent with two owners is not shared": Defect(
        "native/backref/share.c", "return share->share_count > 1 ?",
        "return share->share_count > 2 ?",
    ),
    "reads: opening a directory looks for its last index on other kernels": Defect(
        "btrfs_model/questions/reads/cold.py", "if Patch.OPENDIR_LAST_INDEX in behaviour:",
        "if Patch.OPENDIR_LAST_INDEX not in behaviour:",
    ),
    "images: a clone that ends where the target ends may not have part of a block": Defect(
        "btrfs_model/mount/files/reflink.py",
        "past_target = target_offset + length >= target.pages.i_size",
        "past_target = target_offset + length > target.pages.i_size",
    ),
}  # fmt: skip
MINUTES, WANTED = 5, 9
VERIFY = """
import json, sys, time
from btrfs_model.experiments.verify.kinds import KINDS
from btrfs_model.experiments.verify.run import Task, verify

began, kernels = time.time(), sys.argv[2:]
until = began + 60 * float(sys.argv[1])
tasks = [Task(name, [*KINDS], [*range(100_000)], 50_000, until) for name in kernels]
for outcome in verify(tasks, lambda text: None):
    if outcome.difference:
        print(json.dumps([time.time() - began, outcome.kernel, outcome.kind, outcome.difference]))
        break
"""
"""Ends with the first difference."""
KERNELS = [{"machine": "native"}.get(name, name) for name, mark in judges.MARKS.items()
           if not mark.args[0]]  # fmt: skip


def scratch(defect: Defect, folder: Path) -> None:
    """Copy the model into a folder, with a wrong rule in it."""
    for name in ("btrfs_model", "native"):
        shutil.copytree(corpus.PROJECT / name, folder / name,
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(corpus.PROJECT / name, folder)
    path = folder / defect.file
    text = path.read_text()
    assert text.count(defect.right) == 1
    path.write_text(text.replace(defect.right, defect.wrong))
    if path.suffix == ".c":
        subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=folder, check=True,
            env={**os.environ, "CFLAGS": "-O1", "SETUPTOOLS_SCM_PRETEND_VERSION": "0.1"},
            capture_output=True,
        )  # fmt: skip


def found_in(defect: Defect, folder: Path) -> list[object]:
    """Let ``verify`` look for a wrong rule; seconds, kernel, kind and difference, or nothing."""
    scratch(defect, folder)
    data = {"PYTHONPATH": str(folder), "BTRFS_MODEL_DATA": str(corpus.PROJECT / "data")}
    ran = subprocess.run(
        [sys.executable, "-c", VERIFY, str(MINUTES), *KERNELS], cwd=folder, text=True,
        env={**os.environ, **data}, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    shutil.rmtree(folder)
    found: list[object] = json.loads(ran.stdout or "[]")
    return found


def test_each_defect_is_one_place() -> None:
    for defect in DEFECTS.values():
        assert (corpus.PROJECT / defect.file).read_text().count(defect.right) == 1
        assert defect.right != defect.wrong


@pytest.mark.skipif(not corpus.LONG, reason="takes up to an hour (BTRFS_MODEL_TESTS=long)")
@pytest.mark.skipif(not KERNELS, reason="there is no kernel to compare with")
@pytest.mark.claim(
    "Of ten wrong rules in copies of the model, `verify` finds at least nine, each in 5 minutes."
)
def test_wrong_rules_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for number, (name, defect) in enumerate(DEFECTS.items()):
        found[name] = found_in(defect, tmp_path / str(number))
        with capsys.disabled():
            print(f"{name}: {found[name]}", flush=True)
    assert sum(map(bool, found.values())) >= WANTED, found
