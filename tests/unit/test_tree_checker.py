# SPDX-License-Identifier: GPL-2.0-only
"""A filesystem that is changed has sound items: others are refused by block and slot, as a kernel.

Each damage is one item of an image that was sound, with right checksums. Nothing may be half done.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import corpus
import pytest
from damage import Broken
from mounts import mounted

import btrfs_model as bm
from btrfs_model.base.errors import CorruptImageError, Fault, SubvolumeNotFoundError
from btrfs_model.cli import run
from btrfs_model.kernels.native import why_not
from btrfs_model.native.choice import select
from btrfs_model.native.door import lib
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image

FS, ROOT, EXTENT, DEV = 5, 1, 2, 4
WRONG = b"\xff" * 8

# tree, type of the first item there, byte of its payload, what is written there
DAMAGES = {
    "length of a name": (FS, ItemType.INODE_REF, 8, WRONG[:2]),
    "length of an entry": (FS, ItemType.DIR_ITEM, 27, WRONG[:2]),
    "type of an entry": (FS, ItemType.DIR_ITEM, 29, b"\x09"),
    "name that has another hash": (FS, ItemType.DIR_ITEM, 30, b"!"),
    "place of an entry": (FS, ItemType.DIR_INDEX, 8, b"\x0c"),
    "length of an attribute": (FS, ItemType.XATTR_ITEM, 25, WRONG[:2]),
    "mode": (FS, ItemType.INODE_ITEM, 52, WRONG[:4]),
    "flags of an inode": (FS, ItemType.INODE_ITEM, 64, b"\0\xf0"),
    "links of a directory": (FS, ItemType.INODE_ITEM, 40, b"\x02"),
    "kind of an extent": (FS, ItemType.EXTENT_DATA, 20, b"\x03"),
    "compression": (FS, ItemType.EXTENT_DATA, 16, b"\x07"),
    "encryption": (FS, ItemType.EXTENT_DATA, 17, b"\x01"),
    "address of an extent": (FS, ItemType.EXTENT_DATA, 21, b"\x01"),
    "length of an extent": (FS, ItemType.EXTENT_DATA, 45, WRONG),
    "level of a tree": (ROOT, ItemType.ROOT_ITEM, 238, b"\x09"),
    "address of a tree": (ROOT, ItemType.ROOT_ITEM, 176, b"\x01"),
    "flags of an extent": (EXTENT, ItemType.EXTENT_ITEM, 16, b"\x03"),
    "use of a block group": (EXTENT, ItemType.BLOCK_GROUP_ITEM, 0, WRONG),
    "kind of a block group": (EXTENT, ItemType.BLOCK_GROUP_ITEM, 16, b"\x08"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "sound.img"
    with bm.create(1 << 28) as fs:
        fs.create("f", 0o644)
        fs.write("f", 0, b"x" * 8192)
        fs.mkdir("d", 0o755)
        fs.setxattr("f", "user.a", b"v")
        fs.create_subvolume("s")
        fs.save(path)
    return path


@pytest.fixture(scope="module")
def stream(sound: Path) -> bytes:
    with bm.WritableFilesystem.load(sound) as fs:
        fs.snapshot("", "snap")
        return bytes(bm.send(fs, "snap").data)


def damaged(sound: Path, to: Path, name: str) -> tuple[Path, int, int]:
    """An image with one of the damages; the block and the slot of it."""
    tree, kind, offset, data = DAMAGES[name]
    subprocess.run(["cp", "--sparse=always", sound, to], check=True)
    broken = Broken(sound)
    item = next(item for item in broken.fs().tree(tree).items() if item.key.type == kind)
    broken.write_item(item, offset, data)
    broken.store(to, [item.block])
    return to, item.block, item.slot


@pytest.mark.claim(
    "A filesystem that is changed has sound items: a broken item of any kind is refused in "
    "one line with its tree, block and slot."
)
@pytest.mark.parametrize("name", DAMAGES)
def test_broken_items_are_refused_by_their_place(
    sound: Path, stream: bytes, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, block, slot = damaged(sound, tmp_path / "x.img", name)
    before = corpus.content(path)
    said = set()
    for kernels in ("c", "python"):
        with select(kernels), pytest.raises(CorruptImageError) as caught:
            fs = bm.WritableFilesystem.load(path)
            fs.create("new", 0o644)
        said.add(str(caught.value))
        assert caught.value.errno == errno.EUCLEAN
    (line,) = said
    assert line.startswith(f"{path}: tree ")
    assert f"block {block}, slot {slot}, " in line
    assert "\n" not in line

    (tmp_path / "stream").write_bytes(stream)
    assert run(["receive", str(path), "-f", str(tmp_path / "stream")]) == 1
    errors = capsys.readouterr().err
    assert f"{path}: tree " in errors and f"block {block}, slot {slot}" in errors
    assert errors.count("\n") == 1
    assert corpus.content(path) == before

    assert run(["replay-log", str(path), "-o", str(tmp_path / "new.img")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "new.img").exists()


@pytest.mark.claim("The running kernel refuses the same broken items.", judge="live")
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("name", DAMAGES)
def test_the_running_kernel_refuses_them_too(sound: Path, tmp_path: Path, name: str) -> None:
    path, _, _ = damaged(sound, tmp_path / "x.img", name)
    try:
        with mounted(path, "ro") as top, pytest.raises(OSError) as caught:
            for folder in (top, top / "s"):
                for entry in os.scandir(folder):
                    entry.stat()
        assert caught.value.errno in (errno.EUCLEAN, errno.EIO)
    except subprocess.CalledProcessError:
        pass  # not mounted at all


@pytest.mark.claim("No item that a kernel wrote is refused.", judge="recorded")
@pytest.mark.parametrize("name", sorted({*corpus.images()} - corpus.SEVERAL_DEVICES))
def test_what_kernels_wrote_is_sound(name: str) -> None:
    with Filesystem(Image.open(corpus.image(name), checks_items=True)) as fs:
        for tree in [*fs.trees.values(), *fs.log_trees.values()]:
            tree.blocks()


@pytest.mark.parametrize("tree", [EXTENT, DEV, FS, ObjectId.CSUM_TREE, ObjectId.DATA_RELOC_TREE])
def test_a_missing_tree_is_named(sound: Path, tmp_path: Path, tree: int) -> None:
    path = tmp_path / "x.img"
    subprocess.run(["cp", "--sparse=always", sound, path], check=True)
    broken = Broken(sound)
    item = broken.fs().root_tree.get((tree, ItemType.ROOT_ITEM, 0))
    assert item is not None
    items = [(key, data) for key, data in broken.items(item.block) if key != tuple(item.key)]
    broken.write_items(item.block, items)
    broken.store(path, [item.block])
    with pytest.raises((CorruptImageError, SubvolumeNotFoundError)) as caught:
        bm.WritableFilesystem.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(int(tree)) in str(caught.value)


def test_a_size_that_does_not_fit_wraps_around_as_in_a_kernel(tmp_path: Path) -> None:
    """The size of a directory is counted on, whatever it was: no kernel looks at it."""
    path, new = tmp_path / "crashed.img", tmp_path / "new.img"
    with bm.create(1 << 28) as fs:
        fs.create("a", 0o644)
        fs.commit()
        fs.create("b", 0o644)
        fs.fsync("b")
        fs.save_crash(path)
    broken = Broken(path)
    item = broken.fs().tree(FS).get((256, ItemType.INODE_ITEM, 0))
    assert item is not None
    broken.write_item(item, 16, WRONG)
    broken.store(path, [item.block])
    assert run(["replay-log", str(path), "-o", str(new)]) == 0
    with bm.open(new) as fs:
        assert fs.subvolume(FS).inode("").size == 1


@pytest.mark.claim(
    "Damage met in the middle of a change aborts the transaction; nothing is half done."
)
@pytest.mark.parametrize(("meets", "aborted"), [("insert_entry", True), ("tree", False)])
def test_damage_met_in_the_middle_of_a_change_aborts(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meets: str, aborted: bool
) -> None:
    """A call that has begun to change something cannot go on; a look-up has changed nothing."""
    with bm.WritableFilesystem.load(sound) as fs:

        def broken(*_: object) -> None:
            raise CorruptImageError(fs.path, Fault(lib.BM_BAD_VALUE, FS))

        with monkeypatch.context() as patch, pytest.raises(CorruptImageError):
            patch.setattr(fs.writer, meets, broken)
            fs.setxattr("f", "user.new", b"v")
        assert fs.aborted == aborted
        if not aborted:
            fs.save(tmp_path / "new.img")
            return
        with pytest.raises(OSError) as caught:
            fs.save(tmp_path / "never.img")
        assert caught.value.errno == errno.EROFS
    assert not (tmp_path / "never.img").exists()


def test_what_is_written_in_place_needs_a_chunk(tmp_path: Path) -> None:
    """A preallocated extent that is said to be longer than all chunks: no leaf is wrong by that."""
    path = tmp_path / "x.img"
    with bm.create(1 << 27) as fs:
        ino = fs.create("f")
        fs.fallocate("f", 0, 4096)
        fs.commit()
        length = max(chunk.end for chunk in fs.image.chunks)
        key = (ino, int(ItemType.EXTENT_DATA), 0)
        fs.writer.update(FS, key, 45, length.to_bytes(8, "little"))
        fs.save(path)
    with bm.WritableFilesystem.load(path) as fs:
        fs.truncate("f", length)
        fs.write("f", length - 4096, b"x" * 4096)
        with pytest.raises(CorruptImageError, match=f"{path}: no chunk maps logical address"):
            fs.sync()


def test_receive_says_what_was_damaged(sound: Path, stream: bytes, tmp_path: Path) -> None:
    """Not that a commit after the damage is refused."""
    path, block, _ = damaged(sound, tmp_path / "x.img", "length of a name")
    with bm.WritableFilesystem.load(path) as fs, pytest.raises(OSError) as caught:
        bm.receive(fs, stream)
    assert f"{path}: tree 5, block {block}" in str(caught.value)


def test_errors_of_calls_name_the_file(tmp_path: Path) -> None:
    """Neither the image nor "<memory>" in place of it."""
    with bm.create(1 << 28) as fs:
        fs.mkdir("d", 0o755)
        for name in ("d/f", "d/g"):
            fs.create(name, 0o644)
        fs.write("d/f", 0, b"x" * 8192)
        for call in (
            lambda: fs.fallocate("d/f", -1, 4096),
            lambda: fs.fallocate("d/f", 0, 2**63 - 1 + 1),
            lambda: fs.clone_range("d/g", "d/f", 1, 0, 4096),
            lambda: fs.fallocate("d/f", 0, 1 << 40),
        ):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.filename == "d/f"
        fs.save(tmp_path / "x.img")
        fs.aborted = True
        with pytest.raises(OSError, match=r"x\.img"):
            fs.commit()
        assert fs.path == str(tmp_path / "x.img")


def test_errors_of_receive_name_the_file(sound: Path) -> None:
    writer = bm.StreamWriter(version=1)
    stream = b"".join([
        writer.header(),
        writer.command("subvol", path=b"new", uuid=bytes(range(16)), ctransid=1),
        writer.command("mkfile", path=b"f", ino=257),
        writer.command("clone", file_offset=0, clone_len=4096, path=b"f",
                       clone_uuid=bytes(range(16)), clone_ctransid=1, clone_path=b"f",
                       clone_offset=1),
        writer.end(),
    ])  # fmt: skip
    with bm.WritableFilesystem.load(sound) as fs, pytest.raises(OSError) as caught:
        bm.receive(fs, stream)
    assert "clone 'new/f' failed: Invalid argument" in str(caught.value)
    assert str(sound) not in str(caught.value)


def calls_of(step: Callable[[], object]) -> int:
    """How many functions of Python a step calls."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(before)
    return count


def subvolumes_received(number: int) -> None:
    writer = bm.StreamWriter(version=1)
    stream = b"".join([
        writer.header(),
        *(writer.command("subvol", path=b"s%d" % at, uuid=at.to_bytes(16, "big"), ctransid=1)
          for at in range(1, number + 1)),
        writer.end(),
    ])  # fmt: skip
    with bm.create(1 << 28) as fs:
        bm.receive(fs, stream)


def snapshots_taken(number: int) -> None:
    with bm.create(1 << 28) as fs:
        for at in range(number):
            fs.snapshot("", f"s{at}")
        fs.subvolumes()


def files_renamed(number: int) -> None:
    with bm.create(1 << 28) as fs:
        for at in range(number):
            fs.create(f"f{at}", 0o644)
        for at in range(number):
            fs.rename(f"f{at}", f"g{at}")
        fs.sync()


@pytest.mark.claim(
    "What a command costs in the writer does not grow with the number of subvolumes, "
    "snapshots or files."
)
@pytest.mark.parametrize("work", [subvolumes_received, snapshots_taken, files_renamed])
def test_work_for_one_does_not_grow_with_how_many_there_are(work: Callable[[int], None]) -> None:
    work(1)
    low, middle, high = (calls_of(lambda number=number: work(number)) for number in (20, 60, 100))
    assert high - middle < 1.15 * (middle - low)
