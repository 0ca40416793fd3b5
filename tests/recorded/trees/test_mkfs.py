# SPDX-License-Identifier: GPL-2.0-only
"""Fresh filesystems, beside those of mkfs.btrfs: the same bytes for the same uuids and time."""

import json
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
from fresh import RECORDS, cases, identity_of, parts, seconds_of
from progs import btrfs_check, why_mounts_are_unknown

import btrfs_model as bm
from btrfs_model.mount.mkfs.identity import Identity
from btrfs_model.mount.mkfs.layout import Format
from btrfs_model.mount.mkfs.make import format_device
from btrfs_model.mount.mkfs.releases import RELEASES
from btrfs_model.ondisk.structs import SUPER_BLOCK, RawSuperBlock
from btrfs_model.ondisk.superblock import SUPER_OFFSETS
from btrfs_model.ondisk.superblock_write import super_offsets
from btrfs_model.volume.device.memory import Memory

MKFS = shutil.which("mkfs.btrfs")
PROGS = MKFS and subprocess.check_output([MKFS, "--version"], text=True).split()[-1] == "v6.2"
WHY_NOT = why_mounts_are_unknown() if PROGS else "mkfs.btrfs of btrfs-progs 6.2 is not here"
judged_by_mkfs = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
MIN_DEVICE, MIN_SINGLE = Format(0).smallest, Format(0, metadata="single").smallest
IDENTITY = Identity(b"f" * 16, b"c" * 16, b"d" * 16, b"s" * 16, 1_700_000_000)

SINGLE = ["-m", "single", "-d", "single"]
FORMATS = [
    (Format(1 << 30), []),
    (Format(300 << 30, csum="sha256", label="gr\u00fc\u00dfe"),
     ["--csum", "sha256", "-L", "gr\u00fc\u00dfe"]),
    (Format(200 << 20, 4096, no_holes=False), ["-n", "4096", "-O", "^no-holes"]),
    (Format(700 << 20, 65536, csum="xxhash"), ["-n", "65536", "--csum", "xxhash"]),
    (Format(1 << 30, skinny_metadata=False), ["-O", "^skinny-metadata"]),
    (Format(1 << 30, 8192, csum="blake2", free_space_tree=False, no_holes=False, extref=False),
     ["-n", "8192", "--csum", "blake2", "-R", "^free-space-tree", "-O", "^no-holes,^extref"]),
    (Format(256 << 20, metadata="single"), SINGLE),
    (Format(300 << 30, 65536, csum="sha256", metadata="single"),
     [*SINGLE, "-n", "65536", "--csum", "sha256"]),
    (Format(MIN_SINGLE, 4096, metadata="single", skinny_metadata=False, no_holes=False),
     [*SINGLE, "-n", "4096", "-O", "^skinny-metadata,^no-holes"]),
    (Format(70_000_000, metadata="single"), SINGLE),
    (Format(1 << 30, metadata="single", free_space_tree=False),
     [*SINGLE, "-R", "^free-space-tree"]),
]  # fmt: skip


def mkfs(path: Path, size: int, arguments: list[str]) -> Path:
    """A filesystem of mkfs.btrfs."""
    with path.open("wb") as file:
        file.truncate(size)
    assert MKFS is not None
    subprocess.run([MKFS, "-q", "-f", *arguments, str(path)], check=True, capture_output=True)
    return path


def mkfs_in_one_second(path: Path, size: int, arguments: list[str]) -> Path:
    """The same where the clock did not tick between the looks that mkfs.btrfs has at it."""
    for _ in range(100):
        with bm.open(mkfs(path, size, arguments)) as fs:
            if len(seconds_of(fs)) == 1:
                return path
    raise AssertionError("the clock ticks each time")


def superblock_at(buffer: memoryview, offset: int) -> RawSuperBlock:
    """A superblock without what mkfs.btrfs left behind of its own earlier transactions."""
    raw = SUPER_BLOCK.unpack(buffer[offset : offset + SUPER_BLOCK.size])
    array = raw.sys_chunk_array[: raw.sys_chunk_array_size]
    return raw._replace(csum=b"", super_roots=(raw.super_roots[1],) * 4, sys_chunk_array=array)


def leaf_of(fs: bm.Filesystem, tree: int) -> tuple[bytes, list[tuple[object, bytes]]]:
    """A tree of one leaf: its header after the checksum, its items; not the unused bytes."""
    root = fs.trees[tree]
    chunk = next(c for c in fs.image.chunks if c.logical <= root.bytenr < c.end)
    for copy in range(len(chunk.stripes)):
        fs.image.verify_copy(root.bytenr, copy)
    header = bytes(fs.image.block(root.bytenr)[32:101])
    return header, [(item.key, bytes(item.data)) for item in root.items()]


@pytest.mark.claim(
    "A fresh filesystem is that of mkfs.btrfs 6.2, item by item and superblock by superblock.",
    judge="progs",
)
@judged_by_mkfs
@pytest.mark.parametrize(("options", "arguments"), FORMATS)
def test_bytes_are_those_of_mkfs(options: Format, arguments: list[str], tmp_path: Path) -> None:
    path = mkfs_in_one_second(tmp_path / "theirs", options.size, arguments)
    memory = Memory(options.size)
    with bm.open(path) as theirs:
        format_device(memory.buffer, options, identity_of(theirs))
        memory.save(tmp_path / "ours")
        with bm.open(tmp_path / "ours") as ours:
            assert list(ours.trees) == list(theirs.trees)
            for tree in theirs.trees:
                assert leaf_of(ours, tree) == leaf_of(theirs, tree)
        view = theirs.image.view
        offsets = super_offsets(options.total_bytes)
        assert offsets == list(theirs.image.superblock.copies)
        for offset in offsets:
            found = superblock_at(memoryview(memory.buffer), offset)
            assert found == superblock_at(view, offset)


@judged_by_mkfs
@pytest.mark.parametrize(
    "size",
    [MIN_DEVICE, 314294784, 512 << 20, 3 << 30, (50 << 30), (50 << 30) + 4096],
)
def test_chunks_are_those_of_mkfs(size: int, tmp_path: Path) -> None:
    with bm.open(mkfs(tmp_path / "theirs", size, [])) as fs:
        assert fs.image.superblock.total_bytes == Format(size).total_bytes
        lengths = [chunk.length for chunk in fs.image.chunks if chunk.type & 4]
    with bm.create(size) as ours:
        assert lengths == [chunk.length for chunk in ours.image.chunks if chunk.type & 4]


@judged_by_mkfs
def test_smallest_device_is_that_of_mkfs(tmp_path: Path) -> None:
    for size, arguments in [(MIN_DEVICE, []), (MIN_SINGLE, SINGLE)]:
        mkfs(tmp_path / "device", size, arguments)
        with pytest.raises(subprocess.CalledProcessError):
            mkfs(tmp_path / "device", size - 1, arguments)


@pytest.mark.parametrize(
    "options",
    [
        *(case[0] for case in FORMATS),
        Format(1 << 30, block_group_tree=True),
        Format(MIN_DEVICE, 32768, block_group_tree=True),
        Format(1 << 30, metadata="single", block_group_tree=True),
        Format(1 << 30, 4096, progs="7.3"),
        Format(MIN_SINGLE, 4096, metadata="single", progs="6.19"),
        Format(1 << 30, 65536, skinny_metadata=False, progs="6.14"),
    ],
)
def test_check_is_clean(options: Format, tmp_path: Path) -> None:
    memory = Memory(options.size)
    format_device(memory.buffer, options, IDENTITY)
    path = tmp_path / "fresh"
    memory.save(path)
    assert path.stat().st_blocks * 512 < 1 << 22
    with bm.open(path) as fs:
        assert bm.check(fs) == []
        assert fs.image.superblock.label == options.label
    assert btrfs_check(path) == ""


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (Format(MIN_DEVICE - 1), "size"),
        (Format(MIN_SINGLE - 1, metadata="single"), "size"),
        (Format(1 << 30, metadata="raid1"), "metadata"),
        (Format(1 << 30, 2048), "nodesize"),
        (Format(1 << 30, 12288), "nodesize"),
        (Format(1 << 30, csum="md5"), "csum"),
        (Format(1 << 30, label="x" * 256), "label"),
        (Format(1 << 30, label="a\nb"), "label"),
        (Format(1 << 30, block_group_tree=True, no_holes=False), "block_group_tree"),
        (Format(1 << 30, data="raid0"), "data"),
        (Format(1 << 30, 4096, mixed=True), "same way"),
        (Format(1 << 30, mixed=True, metadata="single"), "nodesize 16384 is not 4096"),
        (Format(1 << 30, block_group_tree=True, free_space_tree=False, progs="7.3"), "needs"),
        (Format(1 << 30, progs="6.3"), "btrfs-progs '6.3' is none of 6.2, 6.14, 6.19, 7.3"),
        (Format(1 << 30, uuid="1"), "uuid '1'"),
        (Format(1 << 30, device_uuid="1"), "device_uuid '1'"),
    ],
)
def test_refused(options: Format, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        options.check()


def test_superblocks_only_where_they_fit() -> None:
    first, second, third = SUPER_OFFSETS
    assert super_offsets(second + 4096) == [first]
    assert super_offsets(second + 8192) == [first, second]
    assert super_offsets(third + 8192) == [first, second, third]


@pytest.mark.claim(
    "A fresh filesystem of another release of btrfs-progs is that of mkfs.btrfs 6.14, 6.19 or 7.3.",
    judge="progs",
)
@pytest.mark.parametrize("progs", RELEASES)
def test_releases(progs: str, tmp_path: Path) -> None:
    recorded = json.loads(RECORDS.read_text())[progs]
    for options, (identity, theirs) in zip(cases(progs), recorded, strict=True):
        chosen = Format(progs=progs, **options)
        chosen.check()
        memory = Memory(chosen.size)
        uuids, seconds = identity[:-1], identity[-1]
        format_device(memory.buffer, chosen, Identity(*map(bytes.fromhex, uuids), seconds))
        memory.save(tmp_path / "ours")
        assert parts(tmp_path / "ours") == theirs, options


def test_uuids_follow_from_that_of_the_filesystem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETERMINISTIC_SEED", "1")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    fsid = "11111111-2222-3333-4444-555555555555"
    bm.create("1G", uuid=fsid, progs="7.3").save(tmp_path / "ours")
    with bm.open(tmp_path / "ours") as fs:
        # as mkfs.btrfs 7.3 has them
        assert [str(uuid.UUID(bytes=one)) for one in identity_of(fs)[1:4]] == [
            "b7ff5f02-ea48-5c64-b35b-a96171d12639",
            "d4f6fc08-1b7d-5fb6-8065-0a73877996c9",
            "83d8c221-11d5-5f61-a689-d97df9795f0c",
        ]
        assert seconds_of(fs) == {0}
    with pytest.raises(ValueError, match="DETERMINISTIC_SEED=1 requires -U/--uuid"):
        bm.create("1G", progs="7.3")
    bm.create("1G", progs="6.19")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    with pytest.raises(ValueError, match="invalid SOURCE_DATE_EPOCH: 'soon'"):
        bm.create("1G", uuid=fsid, progs="7.3")


def test_block_groups_in_a_tree_of_their_own_can_be_changed(tmp_path: Path) -> None:
    for nodesize in (4096, 16384):
        with bm.create("1G", nodesize, progs="7.3") as fs:
            fs.mkdir("d")
            fs.create_files("d", [f"file{n}" for n in range(300)])
            fs.create("d/large")
            fs.write("d/large", 0, bytes(range(256)) * 4096)
            fs.sync()
            fs.snapshot("", "snap")
            fs.unlink("d/large")
            fs.sync()
            fs.save(tmp_path / "image")
        with bm.open(tmp_path / "image") as made:
            assert bm.check(made) == []
        assert btrfs_check(tmp_path / "image") == ""
