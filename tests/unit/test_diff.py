# SPDX-License-Identifier: GPL-2.0-only
"""What changed between two subvolumes, beside a walk of both."""

import contextlib
import random
import stat
from itertools import permutations
from pathlib import Path
from typing import Any

import corpus
import pytest
from click.testing import CliRunner

import btrfs_model as bm
from btrfs_model.cli import cli

FORMAT = stat.S_IFMT(0xFFFF)
XATTR = ["user.a", "user.b"]


def change(fs: bm.WritableFilesystem, choice: random.Random, top: str, paths: list[str]) -> None:
    """Change something below `top`; what cannot be done is let be."""
    directories = [path for path in paths if path.endswith("/")] or [""]
    new = top + choice.choice(["", *directories]) + f"n{choice.randrange(30)}"
    here = choice.choice(paths) if paths else ""
    old, data = top + here.rstrip("/"), choice.randbytes(choice.randrange(1, 20000))
    kind = choice.randrange(16)
    if kind == 0:
        fs.mkdir(new)
        paths.append(new.removeprefix(top) + "/")
    elif kind == 1:
        fs.symlink(choice.choice(["t", "u", "longer"]), new)
        paths.append(new.removeprefix(top))
    elif kind == 2:
        fs.link(old, new)
        paths.append(new.removeprefix(top))
    elif kind == 3:
        fs.rename(old, new)
        paths.remove(here)
        paths.append(new.removeprefix(top) + "/" * here.endswith("/"))
    elif kind == 4:
        (fs.rmdir if here.endswith("/") else fs.unlink)(old)
        paths.remove(here)
    elif kind == 5:
        fs.setxattr(old, choice.choice(XATTR), data[:50], follow=False)
    elif kind == 6:
        fs.chmod(old, choice.choice([0o600, 0o644, 0o755]))
    elif kind == 7:
        fs.truncate(old, choice.randrange(30000))
    elif kind == 8:  # the same bytes once more
        fs.write(old, 0, fs.file(old).read())
    elif kind == 9:  # as editors write: a new file of the name
        content = fs.file(old).read() if choice.random() < 0.5 else data
        fs.create(f"{top}.new")
        fs.write(f"{top}.new", 0, content)
        fs.rename(f"{top}.new", old)
    elif kind == 10:
        fs.clone_range(top + choice.choice(paths).rstrip("/"), old, 0, 0, 0)
    elif kind == 11:
        fs.chown(old, choice.randrange(3), 0, follow=False)
    elif kind == 12:
        fs.fallocate(old, choice.randrange(5) * 4096, 8192)
    else:
        if new.removeprefix(top) not in paths:
            fs.create(new)
            paths.append(new.removeprefix(top))
        fs.write(new, choice.choice([0, 1, 4096, 50000]), data)


def changed(seed: int, *, apart: bool) -> bm.WritableFilesystem:
    """Two snapshots ``a`` and ``b``; with `apart`, of subvolumes that have nothing in common."""
    fs = bm.create("256M", seed=seed, compress="zstd" if seed % 2 else None)
    fs.create_subvolume("w")
    for number, snapshot in enumerate("ab"):
        choice = random.Random(f"{seed}-{number * (not apart)}")
        if not number or apart:
            top, paths = f"w{number}/", list[str]()
            fs.create_subvolume(top)
        for step in range(choice.choice([3, 30, 80])):
            if apart and step > 20:
                choice = random.Random(f"{seed}-{number}-{step}")
            with contextlib.suppress(OSError, IndexError):
                change(fs, choice, top, paths)
        fs.snapshot(top, snapshot)
    fs.sync()
    return fs


def rows_of(fs: bm.Filesystem, path: str | int) -> dict[str, dict[str, Any]]:
    rows = fs.listing(path).to_dict("records")
    return {row["path"]: row for row in rows if not row["subvolume"]}


def counterpart(path: str, rows: dict[str, dict[str, Any]]) -> str | None:
    """The path that a file had before, as the rows say; None of what is new."""
    row = rows.get(path)
    if row is not None and row["change"] in ("added", "linked"):
        return None
    if row is not None and row["was"]:
        return str(row["was"])
    if not path:
        return ""
    above, _, name = path.rpartition("/")
    before = counterpart(above, rows)
    if before is None:
        return None
    return f"{before}/{name}" if before else name


def differs(old: dict[str, Any], new: dict[str, Any]) -> tuple[bool, set[str]]:
    """What `diff` has to say of two files."""
    content = old["sha256"] != new["sha256"] or old["target"] != new["target"]
    attributes = {
        "mode": old["mode"] != new["mode"],
        "owner": (old["uid"], old["gid"]) != (new["uid"], new["gid"]),
        "time": old["mtime"] != new["mtime"],
        "xattrs": old["xattrs"] != new["xattrs"],
        "flags": old["flags"] != new["flags"],
        "device": old["rdev"] != new["rdev"],
    }
    return content, {name for name, is_so in attributes.items() if is_so}


@pytest.mark.claim(
    "The changes between two subvolumes are those that a walk of both shows: files that came, went "
    "and were renamed, contents by their bytes, attributes; of snapshots and of others."
)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_changes_are_those_of_a_walk(seed: int, apart: bool) -> None:
    with changed(seed, apart=apart) as fs:
        compare(fs, "a", "b")


@pytest.mark.one_of(2)
@pytest.mark.parametrize("seed", [0, 7, 17, 21])
def test_changes_of_the_corpus_are_those_of_a_walk(seed: int) -> None:
    """Directories that came to the place of others, and much else that a kernel made."""
    with bm.open(corpus.image(f"send/random/seed-{seed:03}")) as fs:
        sent = [number for number in fs.subvolume_ids if fs.subvolume(number).is_read_only]
        for before, after in permutations(sent[:4], 2):
            compare(fs, before, after)


def compare(fs: bm.Filesystem, one: Any, other: Any) -> None:
    """Hold what `diff` says to a walk of both."""
    table = bm.diff(fs, one, other, times=True)
    before, after = rows_of(fs, one), rows_of(fs, other)
    rows: list[dict[str, Any]] = table.to_dict("records")
    told = [row for row in rows if row["type"] != "subvolume"]
    gone = {row["path"] for row in told if row["change"] in ("removed", "unlinked")}
    here = {row["path"]: row for row in told if row["change"] not in ("removed", "unlinked")}
    pairs = {path: counterpart(path, here) for path in after}
    were = {was for was in pairs.values() if was is not None}
    assert were <= before.keys()
    assert gone == before.keys() - were
    of_path = {
        path: (row["content"], {*filter(None, row["attributes"].split(","))} - {"links"})
        for path, row in here.items()
        if row["change"] in ("changed", "renamed")
    }
    # of a file that stays, under its first name
    of_inode = {after[path]["ino"]: said for path, said in of_path.items()}
    for path, was in pairs.items():
        if was is not None:
            old, new = before[was], after[path]
            assert old["mode"] & FORMAT == new["mode"] & FORMAT
            said = of_path.get(path, of_inode.get(new["ino"], (False, set())))
            assert said == differs(old, new), path


def test_what_people_do_between_snapshots() -> None:
    fs = bm.create("256M", seed=1)
    fs.mkdir("d")
    for name in ("d/stays", "d/edited", "d/again", "moved", "gone", "linked"):
        fs.create(name)
        fs.write(name, 0, name.encode() * 1000)
    fs.snapshot("", "a")
    fs.rename("d", "e")
    fs.write("e/again", 0, b"d/again" * 1000)
    fs.create("e/tmp")
    fs.write("e/tmp", 0, b"other")
    fs.rename("e/tmp", "e/edited")
    fs.rename("moved", "e/moved")
    fs.chmod("e/moved", 0o600)
    fs.unlink("gone")
    fs.link("linked", "second")
    fs.create_subvolume("inner")
    fs.snapshot("", "b")
    fs.sync()
    table = bm.diff(fs, "a", "b")
    found = {row["path"]: (row["change"], row["was"], row["content"], row["attributes"])
             for row in table.to_dict("records")}  # fmt: skip
    assert found == {
        "a": ("added", "", False, ""),
        "e": ("renamed", "d", False, ""),
        "e/edited": ("changed", "d/edited", True, ""),
        "e/moved": ("renamed", "moved", False, "mode"),
        "gone": ("removed", "", False, ""),
        "inner": ("added", "", False, ""),
        "second": ("linked", "", False, ""),
    }
    back = bm.diff(fs, "b", "a")
    assert set(back["change"]) == {"added", "changed", "removed", "renamed", "unlinked"}
    assert bm.diff(fs, "a", "a").empty
    fs.close()


def test_the_command(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    with changed(3, apart=False) as fs:
        fs.save(image)
        table = bm.diff(fs, "a", "b")
    run = CliRunner().invoke(cli, ["diff", str(image), "a", "b"])
    assert run.exit_code == 0 and len(run.output.splitlines()) == len(table) + 1
    contents = CliRunner().invoke(cli, ["diff", str(image), "a", "b", "--content-only", "--json"])
    assert 0 < len(contents.output.splitlines()) < len(table)
    wrong = CliRunner().invoke(cli, ["diff", str(image), "a", "c"])
    assert isinstance(wrong.exception, bm.errors.SubvolumeNotFoundError)
