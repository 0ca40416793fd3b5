# SPDX-License-Identifier: GPL-2.0-only
"""File data that the model writes: beside the running kernel, and beside bytes in memory."""

import subprocess
from pathlib import Path
from typing import Any

import corpus
import pytest
from live import mounted, why_not_live
from writing import (
    NAMES,
    KernelFiles,
    ModelFiles,
    PlainFiles,
    check_image,
    load,
    make,
    random_changes,
)

import btrfs_model as bm

LIVE = why_not_live()
SIZE = 128 << 20
HAVE_CHECK = subprocess.run(["which", "btrfs"], capture_output=True).returncode == 0


def apply(files: Any, change: tuple[Any, ...]) -> int:
    """Make a change; the errno, 0 for none."""
    try:
        getattr(files, change[0])(*change[1:])
    except OSError as error:
        return error.errno or -1
    return 0


def shown(change: tuple[Any, ...]) -> str:
    return str(tuple(len(x) if isinstance(x, bytes) else x for x in change))


# ----------------------------------------------------------------------------- the kernel --------


def items_of(fs: Any, *, sizes: bool) -> dict[str, list[Any]]:
    """File extents and inodes of all files; addresses on disk by the order in which they appear."""
    seen: dict[int, int] = {0: 0}
    top, found = fs.subvolume(5), {}
    for name in NAMES:
        inode = top.inode(name)
        rows: list[Any] = [("size", inode.size, "nbytes", inode.nbytes, "flags", inode.flags)]
        for extent in top.extents(name):
            where = seen.setdefault(extent.disk_bytenr, len(seen))
            on_disk = extent.disk_num_bytes if sizes or not extent.compression else -1
            rows.append((extent.start, extent.length, extent.type, extent.compression,
                         extent.ram_bytes, extent.offset, where, on_disk))  # fmt: skip
        found[name] = rows
    return found


def mkfs(image: Path, *options: str) -> None:
    with image.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run(["mkfs.btrfs", "-q", "-f", *options, str(image)], check=True)


CASES = [
    (seed, compress, holes)
    for seed in range(40 if corpus.LONG else 1)
    for compress in (None, "zlib", "lzo", "zstd")
    for holes in ("no-holes", "^no-holes")
]


@pytest.mark.skipif(bool(LIVE), reason=LIVE or "")
@pytest.mark.parametrize(("seed", "compress", "holes"), CASES)
def test_same_items_as_the_kernel(
    tmp_path: Path, seed: int, compress: str | None, holes: str
) -> None:
    image, before = tmp_path / "kernel.img", tmp_path / "before.img"
    mkfs(image, "-O", holes)
    subprocess.run(["cp", "--sparse=always", str(image), str(before)], check=True)
    changes = random_changes((seed, compress, holes), 60)
    fs = load(before, compress=compress)
    model = ModelFiles(fs)
    with mounted(image, f"compress={compress or 'no'}") as top:
        kernel = KernelFiles(top)
        for change in changes:
            assert apply(model, change) == apply(kernel, change), shown(change)
        kernel.sync()
        contents = {name: kernel.read(name) for name in NAMES}
    fs.sync()
    history = "\n".join(shown(change) for change in changes)
    for name in NAMES:
        assert fs.read(name) == contents[name], (name, history)
    with bm.open(image) as made:
        theirs = items_of(made, sizes=compress != "lzo")
    ours = items_of(fs, sizes=compress != "lzo")
    for name in NAMES:
        assert ours[name] == theirs[name], (name, history)
