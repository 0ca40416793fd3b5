# SPDX-License-Identifier: GPL-2.0-only
"""docs/how-to/strange.md: its commands say what stands there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import corpus
import pytest

PAGE = corpus.PROJECT / "docs" / "how-to" / "strange.md"
BLOCKS = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
ODD = "other than the page says: "


@pytest.mark.claim("The page of strange things shows what commands say, word for word.")
def test_the_page_shows_what_is_said(tmp_path: Path) -> None:
    program = f"{shlex.quote(sys.executable)} -m btrfs_model.cli"
    shell = {**os.environ, "LC_ALL": "C.UTF-8"}
    for block in BLOCKS.findall(PAGE.read_text()):
        commands = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
        for command, _, wanted in (one.partition("\n") for one in commands):
            ran = subprocess.run(
                re.sub(r"^btrfs-model ", f"{program} ", command),
                shell=True, cwd=tmp_path, env=shell, text=True, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert ran.stdout == wanted, f"{command}: {ODD}{ran.stdout}"


@pytest.mark.parametrize("message", re.findall(r"^\| `([^`]+)`", PAGE.read_text(), re.MULTILINE))
def test_messages_of_the_table_are_there(message: str) -> None:
    if message == "project.license":
        return  # of setuptools
    package = corpus.PROJECT / "btrfs_model"
    assert any(message in file.read_text() for file in package.rglob("*.py")), message
