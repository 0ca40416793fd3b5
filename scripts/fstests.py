#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Run tests of fstests on the model: ``scripts/fstests.py CHECKOUT [TEST ...]``.

Without tests, all of the groups below. Each runs by ``btrfs-model script`` with the helpers of the
checkout as they stand. What came of them is in ``docs/fstests.csv``, and counted in
``docs/how-to/script.md``; tests that are named replace their rows.
"""

import argparse
import csv
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/fstests.csv"
PAGE = ROOT / "docs/how-to/script.md"
GROUPS = {"send", "log", "snapshot", "clone", "fiemap"}
SETTINGS = {
    "FSTYP": "btrfs", "LOGWRITES_DEV": "/dev/sdl", "TEST_DEV": "/dev/test", "TEST_DIR": "/mnt/test",
    "SCRATCH_DEV": "/dev/scratch", "SCRATCH_MNT": "/mnt/scratch", "RESULT_DIR": "/tmp/results",
}  # fmt: skip
GOLDEN = "golden output"
SECONDS = 120
TOO_LONG = f"more than {SECONDS} s"
# a machine that does other things besides takes so much longer
_LOADED = 8


def names(checkout: Path) -> list[str]:
    """Return the tests of the groups."""
    found = []
    for folder in ("btrfs", "generic"):
        for path in sorted((checkout / "tests" / folder).glob("[0-9][0-9][0-9]")):
            begins = re.search(r"^_begin_fstest (.*)$", path.read_text("latin-1"), re.M)
            if begins and GROUPS & set(begins[1].split()):
                found.append(f"{folder}/{path.name}")
    return found


def run(folder: Path, script: Path, test: str) -> str:
    """Run a test; return what came of it in a few words."""
    sets = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    program = subprocess.Popen(
        [sys.executable, "-m", "btrfs_model.cli", "script", "--size", "20G", "--folder", folder,
         *sets, script, test],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_CPU, (SECONDS, SECONDS)),
    )  # fmt: skip
    try:
        out, err = program.communicate(timeout=_LOADED * SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
        return TOO_LONG
    if program.returncode == -signal.SIGKILL:
        return TOO_LONG
    return told(out.decode(errors="replace"), err.decode(errors="replace"),
                (folder / "tests" / f"{test}.out").read_text("latin-1"))  # fmt: skip


def told(out: str, err: str, golden: str) -> str:
    """Say how the output of a test compares with what is expected of it."""
    refused = re.search(r"^btrfs-model: .*?: line \d+: (.*?)(?:; did you mean.*)?$", err, re.M)
    if refused:
        return f"not known: {refused[1]}"
    if skipped := re.search(r"^(?:NOTRUN|\d+ not run:) (.*)$", out, re.M):
        return f"not run: {skipped[1].strip()}"
    printed = re.split(r"\n(?=Between readings of the clock)", out)[0]
    lines, wanted = ([one.rstrip() for one in text.splitlines() if one.strip()]
                     for text in (printed, golden))  # fmt: skip
    return GOLDEN if lines == wanted else "another output"


def table(rows: dict[str, str]) -> str:
    """Count what came of the tests, as a table of Markdown."""
    kinds = Counter(one.split(":")[0] for one in rows.values())
    lines = [f"| {kind} | {count} |" for kind, count in kinds.most_common()]
    return "\n".join([f"| of {len(rows)} tests |  |", "| --- | ---: |", *lines])


def main() -> None:
    """Run the tests, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("tests", nargs="*")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count())
    given = parser.parse_intermixed_args()
    with RESULTS.open(newline="") as file:
        rows = {row["test"]: row["result"] for row in csv.DictReader(file)}
    recipe = re.search(r"cat > run-one <<'EOF'\n(.*?)^EOF$", PAGE.read_text(), re.M | re.S)
    assert recipe is not None
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "xfstests")
        for name in ("common", "src", "ltp", "tests", "lib"):
            shutil.copytree(given.checkout / name, copy / name, symlinks=True)
        script = copy / "run-one"
        script.write_text(recipe[1])
        with ThreadPoolExecutor(given.jobs) as pool:
            tests = given.tests or names(given.checkout)
            for test, result in zip(tests, pool.map(lambda one: run(copy, script, one), tests),
                                    strict=True):  # fmt: skip
                print(f"{test}: {result}", flush=True)
                rows[test] = result
    with RESULTS.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [("test", "result"), *sorted(rows.items())])  # fmt: skip
    begin, end = "<!-- fstests -->\n", "\n<!-- end of fstests -->"
    before, _, rest = PAGE.read_text().partition(begin)
    PAGE.write_text(before + begin + table(rows) + end + rest.partition(end)[2])


if __name__ == "__main__":
    main()
