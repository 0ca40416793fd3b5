# SPDX-License-Identifier: GPL-2.0-only
"""Two images beside each other: what differs, and what that is about."""

from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

import btrfs_model as bm
from btrfs_model.cli import run


def made(*, before: int = 0, label: str = "") -> bm.WritableFilesystem:
    """A filesystem of some files, behind any number of others that are gone."""
    fs = bm.create("256M", label=label)
    fs.mkdir("d")
    for number in range(6):
        fs.create(f"d/{number}")
        fs.write(f"d/{number}", 0, bytes([number]) * (20_000 if number % 2 else 90))
    fs.sync()
    for _ in range(before):
        fs.create("gone")
        fs.write("gone", 0, bytes(50_000))
        fs.sync()
        fs.unlink("gone")
        fs.sync()
    fs.create_subvolume("sub")
    fs.create("sub/last")
    fs.write("sub/last", 0, b"x" * 30_000)
    fs.sync()
    return fs


@pytest.mark.claim("Images made alike have the same files; addresses and generations differ.")
@given(before=st.integers(1, 4))
def test_made_alike(before: int) -> None:
    with made() as one, made(before=before) as two:
        found = bm.image_diff(one, two)
        assert set(found.aspects) >= {"address", "generation"}
        # inode numbers of what came later differ: the files are the same
        assert found.files.empty
        assert str(bm.image_diff(two, two)) == "the same"


CHANGES: dict[str, tuple[Callable[[bm.WritableFilesystem], object], str]] = {
    "bytes": (lambda fs: fs.write("d/1", 5, b"other"), "d/1"),
    "inline bytes": (lambda fs: fs.write("d/2", 5, b"other"), "d/2"),
    "a name": (lambda fs: fs.rename("d/3", "d/moved"), "d/moved"),
    "an xattr": (lambda fs: fs.setxattr("d/4", "user.a", b"b"), "d/4"),
    "a mode": (lambda fs: fs.chmod("d/5", 0o600), "d/5"),
    "a file": (lambda fs: fs.create("more"), "more"),
}


@pytest.mark.claim("`image diff` names each file whose content, name or attributes differ.")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_found(name: str) -> None:
    change, path = CHANGES[name]
    with made() as one, made() as two:
        change(two)
        two.sync()
        found = bm.image_diff(one, two)
        assert not found.is_same
        assert found.aspects["content"]
        assert path in found.files["path"].tolist()
        back = bm.image_diff(two, one)
        assert back.table["items"].sum() == found.table["items"].sum()


def test_bytes_that_no_item_tells() -> None:
    # without checksums the items are equal, and the bytes that they lead to are not
    with made() as one, made() as two:
        for fs, byte in ((one, b"a"), (two, b"b")):
            fs.create("d/raw")
            fs.chattr("d/raw", 0x800000)  # FS_NOCOW_FL
            fs.write("d/raw", 0, byte * 40_000)
            fs.sync()
        found = bm.image_diff(one, two)
        assert found.files[["path", "content"]].values.tolist() == [["d/raw", True]]
        assert not found.is_same


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("a.img", "b.img")]
    for path, label in zip(paths, ("one", "two"), strict=True):
        with made(label=label) as fs:
            fs.save(path)
    assert run(["image", "diff", paths[0], paths[0]]) == 0
    assert "the same" in capsys.readouterr().err
    assert run(["image", "diff", *paths]) == 1
    said = capsys.readouterr()
    assert "superblock\t\tchanged\tlabel\tcontent\t1" in said.out
    assert "they differ in: " in said.err
    assert run(["image", "diff", paths[0], str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err
