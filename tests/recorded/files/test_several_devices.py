# SPDX-License-Identifier: GPL-2.0-only
"""Filesystems of several devices that a kernel made, with what it sent of them."""

import errno
import random
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import corpus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from progs import needs_mkfs, why_mounts_are_unknown

import btrfs_model as bm
from btrfs_model.base.codes import Code
from btrfs_model.base.errors import BtrfsModelError, CorruptImageError, MissingDeviceError
from btrfs_model.cli import run as run_cli
from btrfs_model.native.door import ffi, lib
from btrfs_model.ondisk.chunks import parse_chunk_item
from btrfs_model.ondisk.keys import ItemType, Key
from btrfs_model.ondisk.structs import CHUNK_HEAD, STRIPE, ChunkHead, Stripe
from btrfs_model.volume.device.stripe_tree import read_strides
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.image import Image

CASES = corpus.cases("devices")
SPARE = {"raid1": 1, "raid1c3": 2, "raid1c4": 3, "raid10": 1, "raid5": 1, "raid6": 2,
         "raid5-to-raid1": 1}  # fmt: skip
"""How many devices may be missing."""
REDUNDANT = [f"devices/{name}" for name in SPARE]


@pytest.fixture(params=["c", "python"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    with bm.use_code(request.param):
        yield request.param


def devices(name: str) -> list[Path]:
    return [corpus.image(f"{name}/{file}") for file in corpus.files(name, "*.device.zst")]


def recorded(name: str) -> bytes:
    return corpus.stream(name, corpus.case(name)["sends"][0]["file"])


def sent(fs: Filesystem) -> bytes:
    return bm.send(fs, "snap", behaviour="v6.18.44").data


def copies_of(files: Sequence[Path], folder: Path) -> list[Path]:
    made = [folder / f"{number}.img" for number in range(len(files))]
    for file, copy in zip(files, made, strict=True):
        corpus.copy_sparse(file, copy)
    return made


@pytest.mark.claim(
    "Filesystems of several devices, of each profile and of two at once, are sent as the kernel "
    "sends them: whole, and without as many devices as the profile can do without."
)
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", CASES)
def test_send(name: str) -> None:
    files = devices(name)
    with bm.open(files) as fs:
        assert sent(fs) == recorded(name)
    for gone in combinations(files, SPARE.get(name.split("/")[1], 0)):
        left = [file for file in files if file not in gone]
        with bm.open(left, degraded=True) as fs:
            assert sent(fs) == recorded(name)


@pytest.mark.parametrize("name", CASES)
def test_check(name: str) -> None:
    assert bm.check(devices(name), verify_data=True) == []


@pytest.mark.skipif(bool(why_mounts_are_unknown()), reason=why_mounts_are_unknown())
@needs_mkfs
@pytest.mark.parametrize("profile", ["raid5", "raid6"])
def test_check_where_nothing_was_written(profile: str, tmp_path: Path) -> None:
    """mkfs.btrfs makes an empty chunk for data, without parity anywhere."""
    files = [tmp_path / f"{number}.img" for number in range(3)]
    for file in files:
        with file.open("wb") as made:
            made.truncate(200 << 20)
    subprocess.run(["mkfs.btrfs", "-q", "-f", "-m", profile, "-d", profile, *files],
                   check=True, capture_output=True)  # fmt: skip
    assert bm.check(files, verify_data=True) == []


@pytest.mark.parametrize("name", REDUNDANT)
def test_check_without_a_device(name: str) -> None:
    with bm.open(devices(name)[:-1], degraded=True) as fs:
        missing = fs.image.devices[-1]
        found = [finding.what for finding in bm.check(fs, verify_data=True)]
    assert len(found) == 1
    assert found[0].startswith(f"device {missing.devid} (uuid ")


@pytest.mark.parametrize("name", REDUNDANT)
def test_rotted_sectors(name: str, tmp_path: Path, kernels: str) -> None:
    """All chunks of a device are overwritten, and what each sector should be comes from others."""
    files = copies_of(devices(name), tmp_path)
    with bm.open(files) as fs:
        stripes = fs.stripes()
        stripes = stripes[stripes["devid"] == fs.image.devices[0].devid]
        first = Path(fs.image.devices[0].path)
    choice = random.Random(name)
    with first.open("r+b") as file:
        for start, length in zip(stripes["offset"], stripes["stripe_length"], strict=True):
            for at in range(int(start), int(start + min(length, 4 << 20)), 4096):
                if choice.random() < 0.5:
                    file.seek(at)
                    file.write(choice.randbytes(64))
    with bm.open(files) as fs:
        assert sent(fs) == recorded(name)
        listed = fs.listing("snap")
        found = bm.check(fs, verify_data=True)
    assert found
    with bm.open(devices(name)) as fs:
        assert listed.equals(fs.listing("snap"))


def test_parity_is_checked(tmp_path: Path) -> None:
    """Of a row that holds data, whichever stripe is damaged, P and Q do not fit any more."""
    name = "devices/raid6"
    files = copies_of(devices(name), tmp_path)
    with bm.open(files) as fs:
        start = int(fs.checksums.starts[0])
        chunk = fs.image.chunk_at(start)
        assert chunk is not None
        row = (start - chunk.logical) // (chunk.width << 16)
        within = (start - chunk.logical) % (1 << 16)
        damaged = (row + chunk.width + 1) % len(chunk.stripes)
        path = {one.devid: Path(one.path) for one in fs.image.devices}[chunk.devids[damaged]]
    with path.open("r+b") as file:
        file.seek(chunk.stripes[damaged] + (row << 16) + within)
        file.write(b"rotten")
    assert [f.what.split()[0] for f in bm.check(files, verify_data=True)] == ["Q"]
    assert bm.check(files) == []


# ---------------------------------------------------------------------------------- missing --


@pytest.mark.parametrize("name", CASES)
def test_missing_devices_are_named(name: str) -> None:
    files = devices(name)
    with bm.open(files) as fs:
        table = fs.devices()
    gone = table.iloc[-1]
    with pytest.raises(MissingDeviceError) as raised:
        bm.open(files[:-1])
    assert f"device {gone['devid']} (uuid {gone['uuid']})" in str(raised.value)
    assert "chunk" in str(raised.value)
    assert raised.value.errno == errno.EIO
    left = len(files) - SPARE.get(name.split("/")[1], 0) - 1
    if left:
        with pytest.raises(MissingDeviceError, match="no reading without"):
            bm.open(files[:left], degraded=True)


def test_devices_that_do_not_belong_together() -> None:
    raid1, raid0 = devices("devices/raid1"), devices("devices/raid0")
    with pytest.raises(BtrfsModelError, match="both device 1"):
        bm.open([*raid1, raid1[0]])
    with pytest.raises(BtrfsModelError, match="is of filesystem"):
        bm.open([raid1[0], raid0[1]])


def test_a_stale_device(tmp_path: Path) -> None:
    """The newest superblock of all devices counts."""
    files = copies_of(devices("devices/raid1"), tmp_path)
    with bm.open(files) as fs:
        newest, order = fs.image.superblock, [Path(one.path) for one in fs.image.devices]
    with order[0].open("r+b") as file:
        # the superblock of an earlier commit, with copies that are no better
        file.seek(65536)
        block = bytearray(file.read(4096))
        block[72:80] = (newest.generation - 1).to_bytes(8, "little")
        block[:32] = bytes(32)
        from btrfs_model.ondisk.hashes import csum

        block[:4] = csum(0, bytes(block[32:]))
        file.seek(65536)
        file.write(block)
        file.seek(64 << 20)
        file.write(bytes(4096))
    with bm.open(files) as fs:
        assert fs.image.superblock.generation == newest.generation
        assert sent(fs) == recorded("devices/raid1")
        assert any("generation" in finding.what for finding in bm.check(fs))


# ------------------------------------------------------------------------------ command line --


def test_images_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = copies_of(devices("devices/raid5"), tmp_path)
    (tmp_path / "notes.txt").write_text("no device")
    names = [str(file) for file in files]
    said = {}
    for command in (["subvolumes"], ["ls", "snap"], ["du", "snap"], ["devices"],
                    ["devices", "--stripes"]):  # fmt: skip
        for images in (names, [str(tmp_path)]):
            assert run_cli([command[0], *images, *command[1:]]) == 0
            said[len(images)] = capsys.readouterr().out
        assert said[1] == said[len(names)] != ""
    assert run_cli(["ls", *names[1:], "snap"]) == 1
    assert "--degraded" in capsys.readouterr().err
    assert run_cli(["ls", *names[1:], "snap", "--degraded"]) == 0
    assert run_cli(["receive", str(tmp_path), "-f", "/dev/null"]) == 1
    assert "cannot be changed: it has several devices" in capsys.readouterr().err
    assert run_cli(["reads", str(tmp_path), "snap", "--device", "deskstar-7k500"]) == 1
    assert "several devices" in capsys.readouterr().err


def test_reads_name_devices() -> None:
    with bm.open(devices("devices/raid5")) as fs:
        table = bm.reads(fs, "snap")
        assert set(table["devid"]) <= set(fs.devices()["devid"])
        for row in table.itertuples():
            devid, at = fs.image.byte_of_device(fs.image.map(row.logical)[0])
            assert (row.devid, row.physical) == (devid, at)


def test_tables_of_devices() -> None:
    with bm.open(devices("devices/raid10")) as fs:
        table, stripes = fs.devices(), fs.stripes()
        assert table["allocated"].sum() == stripes["stripe_length"].sum()
        kinds = [name for name in table.columns if "|" in name]
        assert (table[kinds].sum(axis=1) == table["allocated"]).all()
        assert not table["missing"].any()
        assert len(stripes) == sum(len(chunk.stripes) for chunk in fs.image.chunks)


# ------------------------------------------------------------------------------------- twins --


def mapped_by_c(image: Image, logical: int, copy: int) -> Any:
    physical, contiguous = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    fault = ffi.new("struct bm_fault *")
    with image.lease as handle:
        code = lib.bm_image_map(handle, logical, copy, physical, contiguous, fault)
    return (physical[0], contiguous[0]) if not code else (code, fault.found, fault.wanted)


def mapped_by_python(image: Image, logical: int, copy: int) -> Any:
    try:
        return image.map(logical, copy)
    except CorruptImageError as error:
        return error.fault.code, error.fault.found, error.fault.wanted


@settings(max_examples=30)
@given(data=st.data(), name=st.sampled_from(CASES))
def test_addresses_are_mapped_as_in_c(data: st.DataObject, name: str) -> None:
    files = devices(name)
    left = files[: len(files) - data.draw(st.integers(0, SPARE.get(name.split("/")[1], 0)))]
    with Image.open(left, degraded=True) as image:
        for _ in range(50):
            chunk = data.draw(st.sampled_from(image.chunks))
            logical = chunk.logical + data.draw(st.integers(-1, chunk.length))
            copy = data.draw(st.integers(0, 6))
            assert mapped_by_python(image, logical, copy) == mapped_by_c(image, logical, copy)
            if chunk.logical <= logical < chunk.end:
                with image.lease as handle:
                    assert lib.bm_image_copies(handle, logical) == chunk.copies


NUMBERS = st.one_of(
    st.integers(0, 4).map(lambda n: n << 20), st.integers(0, 2**64 - 1),
    st.integers(0, 1 << 28).map(lambda n: n & ~0xFFF),
)  # fmt: skip


@settings(max_examples=300)
@given(
    profile=st.sampled_from([0, *(1 << bit for bit in range(3, 12)), 1 << 3 | 1 << 4]),
    kind=st.integers(0, 7), logical=NUMBERS, length=NUMBERS,
    stripes=st.lists(st.tuples(st.integers(0, 4), NUMBERS), min_size=0, max_size=6),
    sub_stripes=st.integers(0, 3), within=NUMBERS,
    size=st.sampled_from([1, 4096, 70000]), copy=st.integers(-1, 7),
)  # fmt: skip
def test_hostile_chunk_items(
    profile: int, kind: int, logical: int, length: int, stripes: list[tuple[int, int]],
    sub_stripes: int, within: int, size: int, copy: int,
) -> None:  # fmt: skip
    """Whatever a chunk item says: it is refused, or there are bytes of devices, or an error."""
    head = ChunkHead(length, 2, 1 << 16, profile | kind, 1 << 16, 1 << 16, 4096, len(stripes),
                     sub_stripes)  # fmt: skip
    payload = CHUNK_HEAD.pack(head)
    payload += b"".join(STRIPE.pack(Stripe(devid, at, bytes(16))) for devid, at in stripes)
    with Image.open(devices("devices/raid5")) as image:
        try:
            chunk = parse_chunk_item(logical, payload, "made")
        except CorruptImageError:
            return
        image._set_chunks([chunk])
        at = (chunk.logical + within % chunk.length) % 2**64
        if copy >= 0:
            assert mapped_by_python(image, at, copy) == mapped_by_c(image, at, copy)
            with suppress(CorruptImageError):
                assert len(image.data(at, size, copy)) == size
        with pytest.raises(CorruptImageError):
            image.block(at // 4096 * 4096, level=0, generation=1)


# ------------------------------------------------------------------------- raid-stripe-tree --


class Items:
    """Items of a stripe tree that no kernel at hand can make."""

    def __init__(self, image: Image) -> None:
        self.image = image

    def items(self) -> Iterator[Any]:
        for chunk in self.image.chunks:
            if not chunk.type & 1:
                continue
            piece = 1 << 16 if chunk.width else chunk.length
            for within in range(0, chunk.length, piece):
                payload = b""
                for copy in range(chunk.placed):
                    stripe, offset, _ = chunk.locate(within, copy)
                    for number in (chunk.devids[stripe], chunk.stripes[stripe] + offset):
                        payload += number.to_bytes(8, "little")
                yield Item(Key(chunk.logical + within, ItemType.RAID_STRIPE, piece), payload)


class Item:
    def __init__(self, key: Key, data: bytes) -> None:
        self.key, self.data = key, data

    def decode(self, decoder: Any, path: str, tree: int) -> Any:
        return decoder(self.data)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["raid0", "raid1", "raid1c3", "raid10"])
def test_a_stripe_tree(name: str) -> None:
    """Data are read where its items say; without them there is no place for an address."""
    with bm.open(devices(f"devices/{name}")) as fs:
        image = fs.image
        image.superblock = replace(
            image.superblock, incompat_flags=image.superblock.incompat_flags | 1 << 14
        )
        image._set_chunks(image.chunks)
        with pytest.raises(CorruptImageError) as raised:
            fs.read_file("snap", "wide")
        assert raised.value.fault.code == Code.UNMAPPED
        image._set_chunks(image.chunks, read_strides(Items(image), "made"))  # type: ignore[arg-type]
        assert len(image.mapped) > len(image.chunks) or name != "raid0"
        assert sent(fs) == recorded(f"devices/{name}")
