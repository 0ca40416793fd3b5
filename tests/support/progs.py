# SPDX-License-Identifier: GPL-2.0-only
"""btrfs-progs as a judge."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

needs_progs = pytest.mark.skipif(
    shutil.which("btrfs") is None, reason="btrfs-progs is not installed"
)
needs_mkfs = pytest.mark.skipif(
    shutil.which("mkfs.btrfs") is None, reason="mkfs.btrfs is not installed, or not on the path"
)
_ODD = re.compile(r"\b(errors?|warnings?|bad|mismatch|invalid|wrong)\b", re.IGNORECASE)
# of a check that found nothing: the steps, the result, that mounts cannot be looked at, and
# another program's device that goes away meanwhile
_USUAL = re.compile(
    r"\[\d/\d\] |.*no error found|WARNING: cannot check mount status|"
    r"warning, device \d+ is missing|ERROR: cannot scan /dev/loop\d+: Input/output error"
)


def btrfs_check(image: Path, *, data: bool = True) -> str:
    """What ``btrfs check`` has to say against an image, with `data` against checksums of data too.

    Empty when it finds nothing, or is not installed.
    """
    if shutil.which("btrfs") is None:
        return ""
    # forced: who is not root may not see whether a loop device that is mounted is this image
    options = ["--readonly", "--force", *(["--check-data-csum"] if data else [])]
    done = subprocess.run(["btrfs", "check", *options, image.name], cwd=image.parent,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    odd = [line for line in done.stdout.splitlines() if _ODD.search(line)]
    good = done.returncode == 0 and "no error found" in done.stdout
    return "" if good and all(map(_USUAL.match, odd)) else f"{done.returncode}\n{done.stdout}"


def why_mounts_are_unknown() -> str:
    """Why commands of btrfs-progs that spare mounted images fail here; empty where they do not."""
    for line in Path("/proc/mounts").read_text().splitlines():
        device = line.split()[0]
        if device.startswith("/dev/loop") and not os.access(device, os.R_OK):
            return f"{device} is mounted, and btrfs-progs may not look at what is in it"
    return ""


# The first and last second of a year of 32 bits: beyond these btrfs-progs shows what its memory
# happens to hold. Linux 5.10 leaves creation times in logs uninitialized, so there are such.
FIRST_SECOND, LAST_SECOND = -67768040609740800, 67767976233532799
TIME = re.compile(rb"(time (\d{16,})\.\d+) \([^)]*\)")


def without_senseless_times(text: bytes) -> bytes:
    """A dump without what btrfs-progs make of times beyond all years."""

    def replace(match: re.Match[bytes]) -> bytes:
        seconds = int(match[2])
        seconds -= 2**64 if seconds >> 63 else 0
        return match[0] if FIRST_SECOND <= seconds <= LAST_SECOND else match[1]

    return TIME.sub(replace, text)


def dumped(image: Path, *options: str | Path) -> bytes:
    """What ``btrfs inspect-internal dump-tree`` prints, but for its version.

    `options` may name other devices.
    """
    command = ["btrfs", "inspect-internal", "dump-tree", *options, image]
    done = subprocess.run(command, capture_output=True, check=True)
    assert not done.stderr, done.stderr
    return done.stdout.partition(b"\n")[2]
