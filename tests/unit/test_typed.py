# SPDX-License-Identifier: GPL-2.0-only
"""Types of the public names: mypy passes a user's script, and finds every mistake in another."""

import re
import runpy
import sys
from pathlib import Path

import corpus
import pytest

FOLDER = corpus.TEST_DATA / "typed"


@pytest.mark.claim("mypy --strict passes a user's script, and finds each mistake in another.")
def test_mistakes_are_found_where_they_are_and_nowhere_else(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    wrong = (FOLDER / "wrong.txt").read_text()
    planted = {("wrong", number, line.rpartition("  # ")[2])
               for number, line in enumerate(wrong.splitlines(), 1) if "  # " in line}  # fmt: skip
    for name in ("right", "wrong"):
        (tmp_path / f"{name}.py").write_text((FOLDER / f"{name}.txt").read_text())
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\n")
    said, errors, _ = api.run(
        ["--strict", f"--python-executable={sys.executable}", f"--config-file={settings}",
         f"--cache-dir={tmp_path / 'cache'}", "--follow-imports=silent",
         *(str(tmp_path / f"{name}.py") for name in ("right", "wrong"))]
    )  # fmt: skip
    lines = re.findall(r"(\w+)\.py:(\d+): error: .*\[([a-z-]+)\]", said)
    assert {(name, int(number), kind) for name, number, kind in lines} == planted, said + errors
    assert len(planted) > 20


def test_the_script_without_mistakes_runs(tmp_path: Path) -> None:
    runpy.run_path(str(FOLDER / "right.txt"))["main"](tmp_path / "disk.img")
