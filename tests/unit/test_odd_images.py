# SPDX-License-Identifier: GPL-2.0-only
"""What only filesystems with a history have; kernels taught each of these."""

import io
import subprocess
from pathlib import Path

import pytest
from damage import Broken
from progs import btrfs_check, dumped, needs_progs

import btrfs_model as bm
from btrfs_model.base.errors import CheckWarning, UnsupportedError
from btrfs_model.kernels.timings import make_filesystem
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import DEV_REPLACE_ITEM, SUPER_BLOCK
from btrfs_model.questions.dumptree.text import dump_tree_text

SIZE = 128 << 20


@needs_progs
def test_the_quota_tree_of_mkfs_is_no_deleted_subvolume(tmp_path: Path) -> None:
    """Its root item has no references."""
    image = tmp_path / "image"
    make_filesystem(image, SIZE, ["-R", "quota"])
    with bm.open(image) as fs:
        root = fs.roots[ObjectId.QUOTA_TREE]
        assert root.item.refs == 0
        assert fs.tree(ObjectId.QUOTA_TREE).get((0, ItemType.QGROUP_STATUS, 0))


@pytest.mark.parametrize(("state", "refused"), [(0, False), (1, True), (2, False), (4, True)])
def test_the_replacement_of_a_device_that_was_interrupted(
    state: int, refused: bool, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    with bm.create(SIZE) as fs:
        fs.create("a")
        item = DEV_REPLACE_ITEM.unpack(bytes(DEV_REPLACE_ITEM.size))
        key = (0, ItemType.DEV_REPLACE, 0)
        data = DEV_REPLACE_ITEM.pack(item._replace(src_devid=1, replace_state=state))
        fs.writer.insert(ObjectId.DEV_TREE, key, data)
        fs.save(image)
    if refused:
        with pytest.raises(UnsupportedError, match="replacement of a device was interrupted"):
            WritableFilesystem.load(image)
    else:
        WritableFilesystem.load(image).close()


def test_a_gap_behind_the_end_of_a_file_is_none(tmp_path: Path) -> None:
    """Where holes have items, one that is punched behind the end gets none."""
    image = tmp_path / "image"
    with bm.create(SIZE, no_holes=False) as fs:
        fs.create("a")
        fs.write("a", 0, b"a" * 5000)
        fs.fallocate("a", 65536, 65536, keep_size=True)
        fs.sync()
        fs.punch_hole("a", 65536 + 8192, 8192)
        fs.save(image)
        starts = [
            item.key.offset for item in fs.tree(5).items((257, 108, 0), (257, 108, 2**64 - 1))
        ]
        assert bm.check(fs) == []
    assert 65536 + 8192 not in starts
    assert 65536 + 16384 in starts
    assert not btrfs_check(image)


def test_a_gap_inside_a_file_is_one() -> None:
    with bm.create(SIZE, no_holes=False) as fs:
        fs.create("a")
        fs.write("a", 65536, b"a" * 5000)
        fs.sync()
        fs.writer.delete(5, (257, ItemType.EXTENT_DATA, 0))
        fs.create("b")  # so that there is something to commit
        fs.sync()
        assert any("gap before a file extent" in str(one) for one in bm.check(fs))


def test_the_tree_of_a_relocation_shares_nothing_with_files() -> None:
    """In the middle of a balance, when it has the leaves of a subvolume."""
    with bm.create(SIZE) as fs:
        fs.create_subvolume("sub")
        fs.create("sub/a")
        fs.write("sub/a", 0, b"a" * 100_000)
        fs.sync()
        (before,) = bm.du(fs, "sub").to_dict("records")
        assert before["exclusive"] == before["total"] == 102_400
        root = fs.root_tree.get((256, ItemType.ROOT_ITEM, 0))
        assert root is not None
        key = (ObjectId.TREE_RELOC, ItemType.ROOT_ITEM, 256)
        fs.writer.insert(ObjectId.ROOT_TREE, key, bytes(root.data))
        fs.create("b")  # so that there is something to commit
        fs.sync()
        assert fs.roots[ObjectId.TREE_RELOC].item.bytenr == fs.roots[256].item.bytenr
        (after,) = bm.du(fs, "sub").to_dict("records")
        assert {**after, "path": "sub"} == {**before, "path": "sub"}


@needs_progs
@pytest.mark.claim(
    "Images that `btrfs-image` restored are read: their trees are there, their data are not.",
    judge="progs",
)
def test_what_btrfs_image_restored(tmp_path: Path) -> None:
    source, dump, image = (tmp_path / name for name in ("source", "dump", "image"))
    with bm.create(SIZE) as fs:
        fs.mkdir("d")
        fs.create_files("d", [f"file{number}" for number in range(2000)])
        fs.create("a")
        fs.write("a", 0, b"a" * 100_000)
        fs.snapshot("", "snapshot")
        fs.save(source)
    for command in ([str(source), str(dump)], ["-r", str(dump), str(image)]):
        subprocess.run(["btrfs-image", *command], check=True, capture_output=True)
    with image.open("r+b") as file:
        file.truncate(SIZE)
    with bm.open(source) as before, bm.open(image) as fs:
        assert fs.listing("snapshot", content=False).equals(
            before.listing("snapshot", content=False)
        )
        # it writes one of the superblocks
        with pytest.warns(CheckWarning, match="there is no superblock at 67108864"):
            assert bm.check(fs) == []
        out = io.BytesIO()
        dump_tree_text(fs.image, out)
    assert out.getvalue() == dumped(image)


@pytest.mark.claim("`check` names what the superblock says wrongly of all devices together.")
@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("num_devices", 8, "superblock says 8 devices, there are 1"),
        ("stripesize", 593920, "superblock says stripes of 593920 bytes"),
    ],
)
def test_totals_of_a_superblock(tmp_path: Path, field: str, value: int, text: str) -> None:
    image = tmp_path / "image"
    with bm.create(SIZE) as fs:
        fs.save(image)
    broken = Broken(image)
    at = int(SUPER_BLOCK.dtype.fields[field][1])
    width = SUPER_BLOCK.dtype[field].itemsize
    broken.map[65536 + at : 65536 + at + width] = value.to_bytes(width, "little")
    broken.seal_super()
    with broken.fs() as fs:
        assert text in [str(one) for one in bm.check(fs)]
