# SPDX-License-Identifier: GPL-2.0-only
"""Commands that write files, of which one system call after the other fails.

A process with ``native/tests/preload/write_faults.c`` before its C library runs each case in a
child of its own, which begins with all modules loaded. What is said of each point goes to standard
output as a line of JSON.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import importlib
import json
import os
import pkgutil
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

from corpus import copy_sparse

HALF = 0
ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "half": HALF}
PIECE = 1 << 16
OLD = b"what was there before\n"


class Faults:
    """The functions of the library."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.write_faults_call.restype = ctypes.c_char_p

    def start(self, folder: Path, n: int, error: int) -> None:
        self._library.write_faults_start(os.fsencode(folder), ctypes.c_long(n), error)

    def stop(self) -> list[str]:
        """Names of the calls that there were."""
        count = self._library.write_faults_stop()
        return [self._library.write_faults_call(ctypes.c_long(n)).decode() for n in range(count)]


def digest(path: Path) -> str:
    """Digest of a file, in which holes and zeros are the same."""
    found = hashlib.sha256(b"%d" % path.stat().st_size)
    with path.open("rb", buffering=0) as file:
        at, end = 0, path.stat().st_size
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA) // PIECE * PIECE
            except OSError:
                break  # there is a hole up to the end
            piece = os.pread(file.fileno(), PIECE, at)
            if piece.strip(b"\0"):
                found.update(b"%d" % at + piece)
            at += PIECE
    return found.hexdigest()


def contents(folder: Path) -> dict[str, str]:
    """What is below a folder: of each file its bytes, of each link where it leads."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else "folder"
        if path.is_dir()
        else digest(path)
        if path.is_file()
        else "special"
        for path in sorted(folder.rglob("*"))
    }


def in_child(faults: Faults, words: list[str], folder: Path, n: int, error: int) -> dict[str, Any]:
    """Run a command line; its status, what it said, and the calls that it made."""
    place = folder.with_name("said")
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        from btrfs_model.cli import main

        faults.start(folder, n, error)
        status: Any = 1
        try:
            main(words)
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        calls = faults.stop()
        sys.stderr.flush()
        place.with_name("calls").write_text(json.dumps({"status": status, "calls": calls}))
        os._exit(0)
    _, state = os.waitpid(child, 0)
    if state:
        return {"status": state, "said": f"it died: {state}", "calls": []}
    answer: dict[str, Any] = json.loads(place.with_name("calls").read_text())
    return answer | {"said": place.read_text(errors="replace")}


def prepared(folder: Path, given: dict[str, str], old: list[str]) -> None:
    """Make a folder with copies of files, and old ones where the new will be."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, source in given.items():
        copy_sparse(Path(source), folder / name)
    for name in old:
        (folder / name).write_bytes(OLD)


def chosen(count: int, most: int, turn: int) -> list[tuple[int, str]]:
    """Which of the calls fail and how: all in each way, at most so many, or with 1 one in one way.

    `turn`: number of the case; what is taken of it with 1 goes round.
    """
    ways = list(ERRORS)
    if most == 1:
        return [((count - 1) * (turn % 4) // 3, ways[turn % len(ways)])] if count else []
    if not most or count <= most:
        numbers = list(range(count))
    else:
        numbers = sorted({i * (count - 1) // (most - 1) for i in range(most)})
    return [(n, way) for n in numbers for way in ways]


def run(faults: Faults, case: dict[str, Any], folder: Path, most: int, turn: int) -> None:
    """Try a case: once as it is, and then with each call that fails."""
    words = [word.replace("@", f"{folder}/") for word in case["words"]]
    os.chdir(folder.parent)
    prepared(folder, case["given"], case["old"])
    before = contents(folder)
    right = in_child(faults, words, folder, -1, HALF)
    wanted = contents(folder)
    point = {"case": case["name"], "count": len(right["calls"]), **right}
    print(json.dumps(point | {"calls": None}), flush=True)
    for n, way in chosen(len(right["calls"]), most, turn):
        prepared(folder, case["given"], case["old"])
        got = in_child(faults, words, folder, n, ERRORS[way])
        after = contents(folder)
        told = {
            "case": case["name"],
            "n": n,
            "call": right["calls"][n],
            "way": way,
            "status": got["status"],
            "said": got["said"],
            "is_new": after == wanted,
            # of neither: what is beside the files, and what is neither the old nor the new
            "beside": sorted(set(after) - set(before) - set(wanted)),
            "mixed": [name for name in after if name in before.keys() | wanted.keys()
                      and after[name] not in (wanted.get(name), before.get(name))],
            "gone": sorted(set(before) - set(after)),
        }  # fmt: skip
        print(json.dumps(told), flush=True)


def main() -> None:
    library, folder, most, cases = sys.argv[1:]
    import btrfs_model

    for module in pkgutil.walk_packages(btrfs_model.__path__, "btrfs_model."):
        wanted = module.name.startswith(("btrfs_model.cli", "btrfs_model.questions"))
        if wanted and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("pyarrow.parquet")
    faults = Faults(library)
    for turn, case in enumerate(json.loads(Path(cases).read_text())):
        run(faults, case, Path(folder), int(most), turn)


if __name__ == "__main__":
    main()
