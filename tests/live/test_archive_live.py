# SPDX-License-Identifier: GPL-2.0-only
"""What GNU tar makes of the model's archives, beside the snapshots of the running kernel."""

import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import live
import pytest

import btrfs_model as bm

pytestmark = [
    *live.BESIDE_THE_KERNEL,
    pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar"),
]


def seen(top: Path) -> dict[str, tuple[Any, ...]]:
    """What there is below a folder: attributes, links, xattrs, bytes; no sockets.

    The time of the folder itself is that of the receive where no command sets it.
    """
    found, first = {}, dict[int, Path]()
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        if stat.S_ISSOCK(status.st_mode):
            continue
        content: bytes | Path | None = None
        if stat.S_ISREG(status.st_mode):
            same = first.setdefault(status.st_ino, path)
            content = path.read_bytes() if same is path else same.relative_to(top)
        elif stat.S_ISLNK(status.st_mode):
            content = path.readlink()
        xattrs = {
            key: os.getxattr(path, key, follow_symlinks=False)
            for key in os.listxattr(path, follow_symlinks=False)
        }
        found[str(path.relative_to(top))] = (
            status.st_mode, status.st_uid, status.st_gid, status.st_rdev, status.st_mtime_ns,
            content, xattrs,
        )  # fmt: skip
    return found


@pytest.mark.claim(
    "GNU tar makes of the model's archive of a chain of streams what the kernel has in the "
    "snapshot that was sent."
)
@pytest.mark.parametrize("seed", range(2))
def test_an_archive_of_streams_is_the_snapshot(seed: int, tmp_path: Path) -> None:
    image, archive = tmp_path / "live.img", tmp_path / "last.tar"
    live.random_filesystem(image, seed)
    with bm.open(image) as fs:
        paths = sorted(path for path in fs.subvolumes()["path"] if path.startswith("s"))
        streams = [bm.send(fs, path, parent).data or b""
                   for path, parent in zip(paths, [None, *paths], strict=False)]  # fmt: skip
    with bm.stored_streams(*streams) as stored:
        assert stored.subvolumes == paths
        bm.write_tar(stored.fs, paths[-1], archive)
    with live.mounted(image, "rw") as top:
        made = top / "made"
        made.mkdir()
        how = ["--xattrs", "--xattrs-include=*", "--numeric-owner"]
        extract = ["tar", "-xpf", archive, *how, "-C", made]
        subprocess.run(extract, check=True, capture_output=True)
        assert seen(made) == seen(top / paths[-1])
