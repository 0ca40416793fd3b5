# SPDX-License-Identifier: GPL-2.0-only
"""An image as a folder, by FUSE: beside what the model reads, and beside the running kernel."""

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import corpus
import live
import pytest

import btrfs_model as bm
from btrfs_model.cli import run

IMAGES = ["send/send-utimes/n200", "features/zstd", "features/no-holes-off"]


def why_not() -> str:
    """Why no folder can be shown here, or nothing."""
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:
        return str(error)
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is not there"
    # whether a mount is allowed is seen by a mount
    return "" if os.geteuid() == 0 or shutil.which("fusermount") else "needs root or fusermount"


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it runs")


@contextmanager
def shown(image: Path, folder: Path) -> Iterator[Path]:
    """An image in a folder, by the command of users."""
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "btrfs_model.cli", "-q", "mount", image, folder]
    )
    try:
        for _ in range(600):
            if os.path.ismount(folder) or process.poll() is not None:
                break
            time.sleep(0.05)
        assert os.path.ismount(folder), "the folder is not mounted"
        yield folder
    finally:
        ends = ["umount"] if os.geteuid() == 0 else ["fusermount", "-u"]
        subprocess.run([*ends, folder], check=False)
        process.wait(timeout=60)


def seen(top: Path) -> dict[str, object]:
    """All that stat, readlink, listxattr and read say of what is below a folder."""
    found: dict[str, object] = {}
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        is_file, is_link = stat.S_ISREG(status.st_mode), stat.S_ISLNK(status.st_mode)
        times = status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns
        found[os.fsdecode(path.relative_to(top))] = (
            status.st_mode, status.st_nlink, status.st_uid, status.st_gid, status.st_size,
            status.st_rdev, status.st_blocks, times,
            {name: os.getxattr(path, name, follow_symlinks=False)
             for name in os.listxattr(path, follow_symlinks=False)},
            path.read_bytes() if is_file else path.readlink() if is_link else None,
        )  # fmt: skip
    return found


@pytest.mark.claim("A folder by FUSE has the names, bytes, times and xattrs that the model reads.")
@pytest.mark.parametrize("name", IMAGES)
def test_beside_the_model(name: str, tmp_path: Path) -> None:
    image = corpus.image(name)
    with bm.open(image) as fs, shown(image, tmp_path / "folder") as folder:
        found = seen(folder)
        for path in found:
            whole = folder / path
            try:
                file = fs.file(path)
                inode = file.stat()
            except FileNotFoundError:
                # a snapshot has the name of a subvolume alone
                assert not any(whole.iterdir())
                continue
            assert found[path][:5] == (inode.mode, inode.nlink, inode.uid, inode.gid, inode.size)  # type: ignore[index]
            if stat.S_ISREG(inode.mode):
                assert whole.read_bytes() == file.read()
        numbers = [path.lstat().st_ino for path in folder.rglob("*")]
        links = sum(path.lstat().st_nlink > 1 for path in folder.rglob("*"))
        assert len(set(numbers)) >= len(numbers) - links
        assert len(found) == sum(len(fs.listing(one)) - 1 for one in fs.subvolume_ids)


@live.beside_the_kernel
@pytest.mark.parametrize("name", IMAGES)
def test_beside_the_kernel(name: str, tmp_path: Path) -> None:
    image = corpus.image(name)
    kernel = tmp_path / "kernel"
    kernel.mkdir()
    made = subprocess.run(["mount", "-o", "loop,ro,noatime", image, kernel], check=False)
    if made.returncode:
        pytest.skip("the kernel of this machine does not mount it")
    try:
        with shown(image, tmp_path / "folder") as folder:
            theirs, ours = seen(kernel), seen(folder)
    finally:
        subprocess.run(["umount", kernel], check=True)
    with bm.open(image) as fs:
        alone = {path for path in theirs if not fs.file(path).exists()}
    assert {path: what for path, what in ours.items() if path not in alone} == {
        path: what for path, what in theirs.items() if path not in alone
    }
    assert alone <= ours.keys()


def test_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    image = str(corpus.image(IMAGES[0]))
    assert run(["mount", image, str(tmp_path)]) == 1
    assert "is not an empty folder" in capsys.readouterr().err
