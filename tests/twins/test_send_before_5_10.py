# SPDX-License-Identifier: GPL-2.0-only
"""Sends of the kernels before 5.10: what each commit changed, on both sides, in C and Python."""

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import Broken

import btrfs_model as bm
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.stream.reader import Command

SIZE = 128 << 20
KIB = 1024
BLOCK = 4 * KIB
# btrfs_inode_item: generation, transid before it
SIZE_AT = 16
# btrfs_file_extent_item
GENERATION_AT, DISK_BYTENR_AT = 0, 21

pytestmark = pytest.mark.parametrize("kernels", ["c", "python"])


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def commands(fs: Any, snapshot: str, behaviour: str, *parent: str, **asked: Any) -> list[Command]:
    sent = bm.send(fs, snapshot, *parent, behaviour=behaviour, **asked)
    return list(bm.read_stream(sent.data))


def ranges(sent: list[Command], path: str) -> list[tuple[Any, ...]]:
    """What is sent of a file's data: command, offset and length, of a clone its source as well."""
    rows: list[tuple[Any, ...]] = []
    for name, at in ((one.name, one.attributes) for one in sent):
        if at.get("path") != path.encode():
            continue
        if name == "write":
            rows.append((name, at["file_offset"], len(at["data"])))
        elif name == "clone":
            rows.append((name, at["file_offset"], at["clone_len"], at["clone_path"].decode(),
                         at["clone_offset"]))  # fmt: skip
        elif name in ("truncate", "update_extent"):
            rows.append((name, *(at[one] for one in ("file_offset", "size") if one in at)))
    return rows


def total(rows: list[tuple[Any, ...]], name: str) -> int:
    return sum(row[2] for row in rows if row[0] == name)


def test_capabilities_come_after_the_owner_since_5_8(kernels: str) -> None:
    with bm.create(SIZE, seed=1) as fs, bm.use_code(kernels):
        fs.create("f")
        fs.setxattr("f", "security.capability", bytes.fromhex("01000002" + "00" * 16))
        fs.snapshot("", "snap")
        for kernel, order in (
            ("v5.7", ["chown", "set_xattr", "chown"]),
            ("v5.8", ["chown", "chown", "set_xattr"]),
        ):
            names = [one.name for one in commands(fs, "snap", kernel)]
            # the first chown is that of the top directory
            assert [name for name in names if name in ("set_xattr", "chown")] == order


def test_capabilities_are_sent_again_with_each_change_since_5_8(kernels: str) -> None:
    with bm.create(SIZE, seed=1) as fs, bm.use_code(kernels):
        fs.create("f")
        fs.setxattr("f", "security.capability", bytes.fromhex("01000002" + "00" * 16))
        fs.snapshot("", "s0")
        fs.chmod("f", 0o600)
        fs.snapshot("", "s1")
        sent = {kernel: [one.name for one in commands(fs, "s1", kernel, "s0")]
                for kernel in ("v5.7", "v5.8")}  # fmt: skip
    assert "set_xattr" not in sent["v5.7"]
    assert sent["v5.8"].count("set_xattr") == 1


def test_a_file_is_cloned_from_itself_since_5_5(kernels: str) -> None:
    with bm.create(SIZE, seed=1) as fs, bm.use_code(kernels):
        fs.create("f")
        fs.write("f", 0, noise(64 * KIB))
        fs.clone_range("f", "f", 0, 64 * KIB, 64 * KIB)
        fs.snapshot("", "snap")
        before, after = (ranges(commands(fs, "snap", one), "f") for one in ("v5.4", "v5.5"))
    assert {row[0] for row in before if row[0] != "truncate"} == {"write"}
    assert total(before, "write") == 128 * KIB
    assert [row for row in after if row[0] == "clone"] == [("clone", 64 * KIB, 64 * KIB, "f", 0)]
    assert total(after, "write") == 64 * KIB


def test_what_was_sent_in_part_is_no_clone_source_since_5_6(kernels: str) -> None:
    """An extent, in front of which stands its own first half: 5.5 clones what is not there yet."""
    with bm.create(SIZE, seed=1) as fs, bm.use_code(kernels):
        fs.create("f")
        fs.write("f", 64 * KIB, noise(128 * KIB))
        fs.commit()
        fs.clone_range("f", "f", 64 * KIB, 0, 64 * KIB)
        fs.snapshot("", "snap")
        before, after = (ranges(commands(fs, "snap", one), "f") for one in ("v5.5", "v5.6"))
    assert [row for row in before if row[0] == "clone"] == [
        ("clone", 64 * KIB, 64 * KIB, "f", 0),
        ("clone", 128 * KIB, 64 * KIB, "f", 128 * KIB),
    ]
    assert total(after, "write") == 192 * KIB


@pytest.mark.parametrize(
    ("behaviour", "cloned"),
    [("v5.4", True), ("v5.5", False), ("v6.1", False), ("v6.2", True),
     ("v5.5 - send-clone-refs-64", True)],
)  # fmt: skip
def test_an_extent_of_65_references(kernels: str, behaviour: str, cloned: bool) -> None:
    """From 5.5 to 6.1 it is written, each time."""
    with bm.create(SIZE, seed=1) as fs, bm.use_code(kernels):
        fs.create("f")
        fs.write("f", 0, noise(64 * KIB))
        for number in range(64):
            fs.create(f"c{number}")
            fs.clone_range("f", f"c{number}", 0, 0, 0)
        fs.snapshot("", "snap")
        sent = bm.send(fs, "snap", behaviour=behaviour)
    assert sent.commands.get("clone", 0) == (64 if cloned else 0)


def test_the_rest_of_an_extent_is_cloned_since_5_2(kernels: str) -> None:
    with bm.create(SIZE, seed=1) as fs, bm.use_code(kernels):
        fs.create("a")
        fs.write("a", 0, noise(256 * KIB))
        fs.create("b")
        fs.clone_range("a", "b", 0, 0, 0)
        fs.write("b", 0, noise(BLOCK, 1))
        fs.snapshot("", "snap")
        before, after = (ranges(commands(fs, "snap", one), "b") for one in ("v5.1", "v5.2"))
    assert "clone" not in {row[0] for row in before}
    assert [row for row in after if row[0] == "clone"] == [("clone", BLOCK, 252 * KIB, "a", BLOCK)]


def test_a_source_that_ends_in_the_extent_is_cloned_from_since_5_2(kernels: str) -> None:
    with bm.create(SIZE, seed=1) as fs, bm.use_code(kernels):
        fs.create("a")
        fs.write("a", 0, noise(256 * KIB))
        fs.create("b")
        fs.clone_range("a", "b", 0, 0, 0)
        fs.truncate("a", 128 * KIB)
        fs.snapshot("", "snap")
        before, after = (ranges(commands(fs, "snap", one), "b") for one in ("v5.1", "v5.2"))
    assert "clone" not in {row[0] for row in before}
    assert total(after, "clone") == 128 * KIB


def test_the_last_block_of_a_source_is_not_cloned_into_a_file(tmp_path: Path, kernels: str) -> None:
    """The release candidates of 5.2 did, which receivers refuse."""
    with bm.create(SIZE, seed=1) as fs:
        fs.create("a")
        fs.write("a", 0, noise(72 * KIB))
        fs.create("b")
        fs.clone_range("a", "b", 0, 0, 0)
        fs.write("b", 200 * KIB, noise(BLOCK))
        fs.snapshot("", "snap")
        fs.commit()
        fs.save(tmp_path / "image")
    size = 68 * KIB + 100
    broken = Broken(tmp_path / "image")
    tree = broken.fs().subvolume("snap").tree
    inode = next(one for one in tree.items() if one.key[:2] == (257, ItemType.INODE_ITEM))
    # as kernels before 5.0 left it, which cloned the last block of a file anywhere
    broken.write_item(inode, SIZE_AT, size.to_bytes(8, "little"))
    with broken.fs() as fs, bm.use_code(kernels):
        before, after = (ranges(commands(fs, "snap", one), "b")
                         for one in ("v5.2 - send-clone-eof-block", "v5.2"))  # fmt: skip
    assert ("clone", 0, size, "a", 0) in before
    assert ("clone", 0, 64 * KIB, "a", 0) in after
    assert ("write", 64 * KIB, size - 64 * KIB) in after


def no_holes(then: Callable[[Any], None]) -> Any:
    """A file of 64 KiB, with 1 MiB preallocated at 256 KiB, before and after a change."""
    fs = bm.create(SIZE, seed=1, no_holes=True)
    fs.create("f")
    fs.write("f", 0, noise(64 * KIB))
    fs.fallocate("f", 256 * KIB, 1 << 20, keep_size=True)
    fs.snapshot("", "s0")
    then(fs)
    fs.snapshot("", "s1")
    return fs


def test_no_hole_is_written_behind_the_end_since_4_19(kernels: str) -> None:
    with (
        no_holes(lambda fs: fs.punch_hole("f", 512 * KIB, 64 * KIB)) as fs,
        bm.use_code(kernels),
    ):
        before, after = (ranges(commands(fs, "s1", one, "s0"), "f") for one in ("v4.18", "v4.19"))
    assert before[0][:2] == ("write", 512 * KIB)
    assert total(before, "write") == 64 * KIB
    assert after == []


def test_what_lies_behind_the_end_is_no_range_since_4_17(kernels: str) -> None:
    """Linux 4.16.13 says of it that the file changed there, by a length below 0."""
    with (
        no_holes(lambda fs: fs.punch_hole("f", 512 * KIB, 64 * KIB)) as fs,
        bm.use_code(kernels),
    ):
        before, after = (
            ranges(commands(fs, "s1", one, "s0", no_file_data=True), "f")
            for one in ("v4.16", "v4.17")
        )
    assert [row for row in before if row[0] == "update_extent"] == [
        ("update_extent", 256 * KIB, 2**32 - 192 * KIB),
        ("update_extent", 576 * KIB, 2**32 - 512 * KIB),
        ("update_extent", 512 * KIB, 64 * KIB),
    ]
    assert after == [("update_extent", 512 * KIB, 64 * KIB)]


def test_a_hole_is_written_up_to_the_end_since_5_2(kernels: str) -> None:
    with (
        no_holes(lambda fs: fs.punch_hole("f", 32 * KIB, 32 * KIB)) as fs,
        bm.use_code(kernels),
    ):
        before, after = (ranges(commands(fs, "s1", one, "s0"), "f") for one in ("v5.1", "v5.2"))
    assert max(row[1] + row[2] for row in before) == 256 * KIB
    assert max(row[1] + row[2] for row in after) == 64 * KIB


@pytest.mark.parametrize(
    ("behaviour", "at", "error"),
    [
        ("v5.2", DISK_BYTENR_AT, None),
        ("v5.2", GENERATION_AT, errno.EIO),
        ("v5.3", DISK_BYTENR_AT, None),
        ("v5.3", GENERATION_AT, None),
    ],
)
def test_an_extent_that_changed_without_its_inode(
    tmp_path: Path, kernels: str, behaviour: str, at: int, error: int | None
) -> None:
    """After a relocation, or after the same number of deduplications."""
    with bm.create(SIZE, seed=1) as fs:
        fs.create("a")
        fs.write("a", 0, noise(64 * KIB))
        fs.create("b")
        fs.snapshot("", "s0")
        fs.chmod("b", 0o600)
        fs.snapshot("", "s1")
        fs.commit()
        fs.save(tmp_path / "image")
    broken = Broken(tmp_path / "image")
    tree = broken.fs().subvolume("s1").tree
    extent = next(one for one in tree.items() if one.key[:2] == (257, ItemType.EXTENT_DATA))
    old = int.from_bytes(bytes(extent.data[at : at + 8]), "little")
    broken.write_item(extent, at, (old + BLOCK).to_bytes(8, "little"))
    with broken.fs() as fs, bm.use_code(kernels):
        if error is None:
            sent = commands(fs, "s1", behaviour, "s0")
            assert ranges(sent, "a") == []
            return
        with pytest.raises(OSError, match="Input") as failed:
            bm.send(fs, "s1", "s0", behaviour=behaviour)
    assert failed.value.errno == error


@pytest.mark.parametrize(("behaviour", "fails"), [("v4.18", True), ("v4.19", False)])
@pytest.mark.parametrize("parent", [(), ("s0",)])
def test_an_inode_without_links_fails_before_4_19(
    kernels: str, behaviour: str, fails: bool, parent: tuple[str, ...]
) -> None:
    with bm.create(SIZE, seed=1) as fs, bm.use_code(kernels):
        fs.create("f")
        fs.snapshot("", "s0")
        fs.create("g")
        for name in ("f", "g"):
            fs.hold(name)
            fs.unlink(name)
        fs.snapshot("", "s1")
        if fails:
            with pytest.raises(FileNotFoundError):
                bm.send(fs, "s1", *parent, behaviour=behaviour)
            return
        sent = bm.send(fs, "s1", *parent, behaviour=behaviour)
    assert "mkfile" not in sent.commands
    assert sent.commands.get("unlink", 0) == len(parent)


def test_entries_of_a_directory_that_waits_are_passed_once_since_4_18(kernels: str) -> None:
    """The directory has a lower number than its files, which all lose their names."""
    with bm.create(SIZE, seed=1) as fs, bm.use_code(kernels):
        fs.mkdir("d")
        for number in range(40):
            fs.create(f"d/{number}")
        fs.snapshot("", "s0")
        for number in range(40):
            fs.unlink(f"d/{number}")
        fs.rmdir("d")
        fs.snapshot("", "s1")
        before, after = (bm.send(fs, "s1", "s0", behaviour=one) for one in ("v4.17", "v4.18"))
    assert before.data == after.data
    looked = "btrfs_get_next_valid_item"
    assert before.work[looked] - after.work[looked] > 600
