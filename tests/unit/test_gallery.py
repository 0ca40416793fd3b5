# SPDX-License-Identifier: GPL-2.0-only
"""The gallery of the site: each disk is made, and answers its questions."""

import re
from pathlib import Path

import pytest
from disks import GALLERY
from gallery import QUESTIONS, SCRIPTS, Disk, answers, body

import btrfs_model as bm

LARGEST = 2 << 20
"""Bytes of a page at most."""


@pytest.mark.claim("What the gallery says of a disk is so on the disk that is made.")
@pytest.mark.parametrize("disk", list(GALLERY), ids=[disk.name for disk in GALLERY])
def test_a_disk_answers(disk: Disk, tmp_path: Path) -> None:
    """The functions that ask assert what they say besides what they read."""
    with bm.open(disk.write(tmp_path)) as fs:
        found = answers(disk, fs)
        assert bm.check(fs) == []
    assert len({question for question, _ in found}) == QUESTIONS
    assert all(question.endswith("?") and answer.endswith(".") for question, answer in found)
    assert all(re.search(r"\d|Yes|No", answer) for _, answer in found)


def test_each_script_is_a_disk() -> None:
    names = [disk.name for disk in GALLERY]
    assert len(names) == len(set(names)) >= 20
    assert {file.stem for file in SCRIPTS.iterdir()} == {
        disk.name for disk in GALLERY if disk.makes is None
    }


def test_pages_of_a_disk(tmp_path: Path) -> None:
    """The page leads to the live one, which needs nothing else."""
    (disk,) = (one for one in GALLERY if one.name == "many-files")
    text = body(disk, tmp_path / "many-files-disk.html")
    assert 'href="many-files-disk.html"' in text
    assert text.count("<details>") == QUESTIONS and "mkfs.btrfs" in text
    live = (tmp_path / "many-files-disk.html").read_text()
    assert len(live) < LARGEST
    assert not re.search(r'(src|href)="(?!#)', live)
