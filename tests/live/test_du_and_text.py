# SPDX-License-Identifier: GPL-2.0-only
"""`btrfs filesystem du`, filefrag and xfs_io of this machine beside what the model says."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import live
import live_sharing
import pandas as pd
import pytest

import btrfs_model as bm

pytestmark = live.BESIDE_THE_KERNEL


def build(path: Path) -> None:
    """Files of all kinds, shared with each other, with snapshots and inside subvolumes."""
    choice = random.Random("du")
    with bm.create("1G") as fs:
        for place in ("d", "d/e", "empty"):
            fs.mkdir(place)
        fs.create_subvolume("sub")
        fs.create_subvolume("d/inside")
        names = ["d/a", "d/e/b", "c", "sub/f", "d/inside/g", "h"]
        for name in names:
            fs.create(name)
            for _ in range(4):
                fs.write(
                    name, 4096 * choice.randrange(60), choice.randbytes(choice.randrange(30_000))
                )
            fs.sync()
        for name in names[1:4]:
            fs.clone_range("d/a", name, 0, 1 << 20, 65536)
        fs.create("zlib")
        fs.set_compression("zlib", "zlib")
        fs.write("zlib", 0, b"A" * 300_000)
        fs.create("inline")
        fs.write("inline", 0, b"hi")
        fs.create("none")
        fs.create("sparse")
        fs.truncate("sparse", 1 << 20)
        fs.truncate("h", 5 << 20)
        fs.fallocate("h", 3 << 20, 1 << 17)
        fs.link("c", "d/again")
        fs.symlink("c", "link")
        fs.mknod("pipe", 0o10600)
        fs.sync()
        fs.snapshot("", "snap")
        fs.write("c", 8192, b"x" * 4096)
        fs.sync()
        fs.save(path)


@pytest.mark.claim(
    "The space of each file and directory is that of `btrfs filesystem du`; extents as text are "
    "those of filefrag and xfs_io."
)
def test_du_and_extents_as_programs_show_them(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    build(image)
    asked = [("",), ("d", "snap"), ("c", "inline", "sub/f"), ("d/again", "empty")]
    with live.mounted(image, "ro") as top, bm.open(image) as fs:
        for paths in asked:
            named = [top / path for path in paths]
            shown = live_sharing.btrfs("filesystem", "du", "--raw", *named).splitlines()[1:]
            rows = [
                f"{row.total} {row.exclusive} "
                f"{'-' if row.set_shared is pd.NA else row.set_shared} "
                f"{top / row.path}"
                for row in bm.du(fs, *paths, files=True).itertuples()
            ]
            assert [" ".join(line.split()) for line in shown] == rows
        for name in ("c", "d/a", "h", "inline", "zlib", "none", "sparse", "sub/f"):
            for style, command in (
                ("filefrag", ["filefrag", "-v"]),
                ("xfs_io", ["xfs_io", "-r", "-c", "fiemap"]),
                ("xfs_io -v", ["xfs_io", "-r", "-c", "fiemap -v"]),
            ):
                if shutil.which(command[0]) is None:
                    pytest.skip(f"there is no {command[0]}")
                ran = subprocess.run(
                    [*command, name], cwd=top, capture_output=True, text=True, check=True
                )
                told = "".join(line for line in ran.stdout.splitlines(keepends=True)
                               if not line.startswith("Filesystem type"))  # fmt: skip
                assert fs.file(name).fiemap_text(style) == told, os.fspath(name)
