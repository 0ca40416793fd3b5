# SPDX-License-Identifier: GPL-2.0-only
"""Large sparse images where a process may not have many addresses (``ulimit -v``)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import corpus
import pytest

LARGE = 256 << 30
PROGRAM = """
import resource, sys, zlib
import btrfs_model as bm
from btrfs_model.base.codes import Code
path, room = sys.argv[1], int(sys.argv[2])
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + room, resource.RLIM_INFINITY))
try:
    fs = bm.open(path)
except OSError as error:
    sys.exit(f"{error.filename}: {error.strerror}")
if len(sys.argv) < 4:
    sys.exit(print(zlib.crc32(bm.send(fs, "snap").data), bm.check(fs)))
with open(path, "r+b") as file:
    file.write(b"x")
try:
    bm.send(fs, "snap")
except bm.errors.CorruptImageError as error:
    print(Code(error.fault.code).name)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    image = tmp_path_factory.mktemp("large") / "image"
    shutil.copy(corpus.image("send/send-truncate/n500"), image)
    os.truncate(image, LARGE)
    return image


def read_within(image: Path, room: int, *more: str) -> tuple[str, str]:
    """Read an image in a process that may take so many bytes of addresses more."""
    command = [sys.executable, "-c", PROGRAM, str(image), str(room), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip(), done.stderr.strip()


@pytest.mark.claim("An image is read where there are addresses for it once, but not for copies.")
def test_addresses_for_the_file_alone(large: Path) -> None:
    within = read_within(large, LARGE * 3 // 2)
    assert within == read_within(large, LARGE * 5 // 2)
    assert within[0].endswith("[]")


@pytest.mark.claim("Without copies of its blocks, an image that was written to is not believed.")
def test_a_file_that_is_used_in_place_must_not_change(large: Path) -> None:
    assert read_within(large, LARGE * 3 // 2, "write") == ("FILE_CHANGED", "")
    assert read_within(large, LARGE * 5 // 2, "write") == ("", "")


@pytest.mark.claim(
    "Where an image cannot be mapped, one line says which and what there is no room for."
)
def test_no_addresses_for_the_file(large: Path) -> None:
    assert read_within(large, LARGE // 2) == ("", (
        f"{large}: no room for {LARGE} bytes of address space to map it "
        "(is there a limit, ulimit -v?)"))  # fmt: skip
