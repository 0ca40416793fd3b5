# SPDX-License-Identifier: GPL-2.0-only
"""Ten wrong rules, each in a scratch copy of the model: ``verify`` finds nine in five minutes each.

Nobody tells it where to look: it compares all kinds, on all kernels that are there, on the corpus
of the repository and then on seeds. A difference that the right rule shows as well does not count.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
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
        "\tif (end > sctx->cur_inode_size && TOGGLE(sctx, SEND_NO_HOLE_BEHIND_EOF) &&\n"
        "\t    TOGGLE(sctx, SEND_HOLE_TO_EOF))\n\t\tend = sctx->cur_inode_size;\n",
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

began, (seconds, kernels, kinds, seeds, corpus) = time.time(), json.loads(sys.argv[1])
tasks = [Task(name, kinds or [*KINDS], seeds, 50_000, began + seconds, corpus=corpus)
         for name in kernels]
for one in verify(tasks, lambda text: None):
    if one.difference:
        print(json.dumps([time.time() - began, one.kernel, one.kind, one.case, one.difference]),
              flush=True)
"""
"""Tells each difference."""
CORPUS = corpus.PROJECT / "data/verify"
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


def differences(
    model: Path, kernels: list[str], kinds: list[str], seeds: list[int], scenarios: Path | str
) -> Iterator[tuple[float, str, str, str, str]]:
    """Yield what ``verify`` finds with a model: seconds, kernel, kind, case, what differs."""
    data = {"PYTHONPATH": str(model), "BTRFS_MODEL_DATA": str(corpus.PROJECT / "data")}
    task = json.dumps([60 * MINUTES, kernels, kinds, seeds, str(scenarios)])
    process = subprocess.Popen(
        [sys.executable, "-c", VERIFY, task], cwd=model, text=True, stdout=subprocess.PIPE,
        env={**os.environ, **data},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        for line in process.stdout:
            yield tuple(json.loads(line))
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def shown_by_the_right_model(kernel: str, kind: str, case: str, folder: Path) -> bool:
    """Compare once more, with the model as it is."""
    seeds, scenarios = [int(case)] if case.isdigit() else [], ""
    if not seeds:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        scenarios = str(folder)
        shutil.copy(CORPUS / case, folder)
    with closing(differences(corpus.PROJECT, [kernel], [kind], seeds, scenarios)) as known:
        return next(known, None) is not None


def found_in(defect: Defect, folder: Path) -> tuple[object, ...]:
    """Let ``verify`` look for a wrong rule; what it finds that the right one does not show."""
    scratch(defect, folder)
    with closing(differences(folder, KERNELS, [], [*range(10_000)], CORPUS)) as found:
        for one in found:
            _, kernel, kind, case, _ = one
            if not shown_by_the_right_model(kernel, kind, case, folder / "once more"):
                return one
    return ()


def test_each_defect_is_one_place() -> None:
    for defect in DEFECTS.values():
        assert (corpus.PROJECT / defect.file).read_text().count(defect.right) == 1
        assert defect.right != defect.wrong


@pytest.mark.skipif(not corpus.LONG, reason="takes up to an hour (BTRFS_MODEL_TESTS=long)")
@pytest.mark.skipif(not KERNELS, reason="there is no kernel to compare with")
def test_wrong_rules_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for number, (name, defect) in enumerate(DEFECTS.items()):
        found[name] = found_in(defect, tmp_path / str(number))
        with capsys.disabled():
            print(f"{name}: {found[name]}", flush=True)
    assert sum(map(bool, found.values())) >= WANTED, found
