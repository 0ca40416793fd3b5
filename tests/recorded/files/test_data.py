# SPDX-License-Identifier: GPL-2.0-only
"""File data: decompression, checksums, copies, damage."""

import zlib
from pathlib import Path

import corpus
import numpy as np
import pytest
import zstandard
from damage import Broken
from hypothesis import given
from hypothesis import strategies as st

from btrfs_model.base.errors import CorruptImageError
from btrfs_model.native.choice import select
from btrfs_model.native.data import lzo1x_compress, sector_sums
from btrfs_model.native.door import lib
from btrfs_model.ondisk.hashes import CSUM_SIZES, csum
from btrfs_model.ondisk.layout import PayloadError
from btrfs_model.volume.compression import decompress
from btrfs_model.volume.data import FileExtent
from btrfs_model.volume.filesystem import Filesystem

SECTOR = 4096
INLINE, REG, PREALLOC = (
    lib.BTRFS_FILE_EXTENT_INLINE,
    lib.BTRFS_FILE_EXTENT_REG,
    lib.BTRFS_FILE_EXTENT_PREALLOC,
)
KINDS = {"zlib": lib.BTRFS_COMPRESS_ZLIB, "lzo": lib.BTRFS_COMPRESS_LZO,
         "zstd": lib.BTRFS_COMPRESS_ZSTD}  # fmt: skip

# images that have extents of a kind
COMPRESSED = {"zlib": "send/random/seed-005", "lzo": "send/random/seed-006",
              "zstd": "send/random/seed-003"}  # fmt: skip


def compress(kind: int, data: bytes, sector: int = SECTOR) -> bytes:
    """An extent as the kernel lays it out, padding included."""
    if kind == lib.BTRFS_COMPRESS_ZLIB:
        packed = zlib.compress(data)
    elif kind == lib.BTRFS_COMPRESS_ZSTD:
        packed = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    else:
        body = bytearray(4)
        for at in range(0, len(data), sector):
            if sector - len(body) % sector < 4:
                body += bytes(sector - len(body) % sector)
            segment = lzo1x_compress(data[at : at + sector])
            body += len(segment).to_bytes(4, "little") + segment
        body[:4] = len(body).to_bytes(4, "little")
        packed = bytes(body)
    return packed + bytes(-len(packed) % sector)


contents = st.one_of(
    st.binary(max_size=3 * SECTOR),
    st.integers(1, 8).flatmap(
        lambda seed: st.integers(1, 131072).map(
            lambda size: np.random.default_rng(seed).integers(0, 4 * seed, size, "u1").tobytes()
        )
    ),
)


@given(st.sampled_from(sorted(KINDS.values())), contents)
def test_what_was_compressed_comes_back(kind: int, data: bytes) -> None:
    packed = compress(kind, data)
    assert decompress(kind, packed, len(data), SECTOR) == data
    # less than all, and zeros where there is no more
    assert decompress(kind, packed, len(data) // 2, SECTOR) == data[: len(data) // 2]
    if data:
        assert decompress(kind, packed, len(data) + 9, SECTOR) == data + bytes(9)


@given(st.sampled_from(sorted(KINDS.values())), st.binary(max_size=2000), st.integers(0, 131072))
def test_noise_decompresses_or_is_an_error(kind: int, noise: bytes, length: int) -> None:
    try:
        assert len(decompress(kind, noise, length, SECTOR)) == length
    except PayloadError as error:
        assert error.code == lib.BM_BAD_DATA


@pytest.mark.parametrize("kind", sorted(KINDS.values()))
def test_truncated_data_is_an_error(kind: int) -> None:
    data = np.random.default_rng(1).integers(0, 9, 3 * SECTOR, "u1").tobytes()
    packed = compress(kind, data).rstrip(b"\0")
    for size in (0, 3, 7, len(packed) // 2, len(packed) - 20):
        with pytest.raises(PayloadError):
            decompress(kind, packed[:size], len(data), SECTOR)


def test_unknown_compression_is_an_error() -> None:
    with pytest.raises(PayloadError):
        decompress(4, b"data", 4, SECTOR)


@given(
    st.sampled_from(sorted(CSUM_SIZES)),
    st.sampled_from([4096, 16384]),
    st.binary(max_size=20000),
)
def test_checksums_of_sectors_in_python_are_those_in_c(
    csum_type: int, sectorsize: int, data: bytes
) -> None:
    in_c = sector_sums(csum_type, data, sectorsize)
    starts = range(0, len(in_c) * sectorsize, sectorsize)
    in_python = [csum(csum_type, data[at : at + sectorsize]) for at in starts]
    assert in_c.tobytes() == b"".join(in_python)
    assert in_c.shape == (len(data) // sectorsize, CSUM_SIZES[csum_type])


# ------------------------------------------------------------------------------------- images


def files(fs: Filesystem) -> list[tuple[int, int, list[FileExtent]]]:
    """(subvolume, inode, extents) of every file with extents."""
    found = []
    for objectid in fs.subvolume_ids:
        subvolume = fs.subvolume(objectid)
        inos = {item.key.objectid for item in subvolume.tree.items() if item.key.type == 108}
        found += [(objectid, ino, subvolume.extents(ino)) for ino in sorted(inos)]
    return found


def on_disk(extent: FileExtent, compression: int | None = None) -> bool:
    return (
        extent.type == REG
        and extent.disk_bytenr != 0
        and (compression is None or extent.compression == compression)
    )


@pytest.mark.claim("These listings go through every kind of file extent.")
def test_the_corpus_has_every_kind_of_extent() -> None:
    """Listings are compared with the kernel's; this says that they go through all the code."""
    seen = set()
    for name in corpus.cases("send/random"):
        with Filesystem.open(corpus.image(name)) as fs:
            for _, _, extents in files(fs):
                for extent in extents:
                    seen.add(("type", extent.type, extent.compression))
                    if extent.is_hole:
                        seen.add(("hole",))
                    if on_disk(extent) and (extent.offset or extent.length < extent.ram_bytes):
                        seen.add(("bookend", bool(extent.compression)))
    kinds = (0, *KINDS.values())
    wanted = {("type", REG, kind) for kind in kinds} | {("type", INLINE, kind) for kind in kinds}
    wanted |= {("type", PREALLOC, 0), ("hole",), ("bookend", False), ("bookend", True)}
    if corpus.have_oracle:
        assert wanted <= seen
    assert len(wanted & seen) > 6


@pytest.fixture(params=["csum-xxhash", "csum-sha256", "csum-blake2", "mixed"])
def single(request: pytest.FixtureRequest) -> Broken:
    return Broken(corpus.image(f"features/{request.param}"))


def first_plain(broken: Broken, copies: int) -> tuple[int, int, FileExtent]:
    for objectid, ino, extents in files(broken.fs()):
        for extent in extents:
            if on_disk(extent, 0) and len(broken.copies(extent.disk_bytenr)) == copies:
                return objectid, ino, extent
    raise LookupError("no plain extent")


def test_damaged_sector_is_named(single: Broken) -> None:
    objectid, ino, extent = first_plain(single, 1)
    whole = single.fs().read_file(objectid, ino)
    (physical,) = single.copies(extent.disk_bytenr + extent.offset)
    single.map[physical + 7] ^= 0x40
    for choice in ("c", "python"):
        with select(choice), pytest.raises(CorruptImageError) as caught:
            single.fs().read_file(objectid, ino)
        fault = caught.value.fault
        assert fault.code == lib.BM_BAD_DATA_CSUM
        assert (fault.tree, fault.block, fault.slot) == (objectid, extent.block, extent.slot)
        assert fault.offset == extent.start
        assert "bad data checksum" in str(caught.value)
    # a read that does not touch the sector does not see it
    if extent.length > SECTOR:
        end = extent.start + SECTOR
        assert single.fs().read_file(objectid, ino, end) == whole[end:]


@pytest.mark.claim("The second copy of a block is read where the first is damaged.", judge="unit")
def test_second_copy_is_read_where_the_first_is_bad() -> None:
    broken = Broken(corpus.image("features/mixed-dup"))
    objectid, ino, extent = first_plain(broken, 2)
    whole = broken.fs().read_file(objectid, ino)
    first, second = broken.copies(extent.disk_bytenr + extent.offset)
    broken.map[first + 99] ^= 1
    assert broken.fs().read_file(objectid, ino) == whole
    broken.map[second + 99] ^= 1
    with pytest.raises(CorruptImageError, match="bad data checksum"):
        broken.fs().read_file(objectid, ino)


def test_data_without_checksums_are_read_as_they_are() -> None:
    broken = Broken(corpus.image("features/nodatacow"))
    fs = broken.fs()
    for objectid, ino, extents in files(fs):
        plain = [extent for extent in extents if on_disk(extent, 0)]
        if plain and fs.subvolume(objectid).inode(ino).flags & 1:
            (physical,) = broken.copies(plain[0].disk_bytenr + plain[0].offset)
            whole = bytearray(fs.read_file(objectid, ino))
            broken.map[physical] ^= 0xFF
            whole[plain[0].start] ^= 0xFF
            assert broken.fs().read_file(objectid, ino) == bytes(whole)
            return
    raise AssertionError("no file without checksums")


@pytest.mark.parametrize("name", sorted(KINDS))
def test_compressed_data_that_do_not_decompress(name: str) -> None:
    """With the checksum made to fit, so that the decompressor meets the damage."""
    kind = KINDS[name]
    broken = Broken(corpus.image(COMPRESSED[name]))
    fs = broken.fs()
    for objectid, ino, extents in files(fs):
        packed = [extent for extent in extents if on_disk(extent, kind)]
        if not packed:
            continue
        extent = packed[0]
        (physical,) = broken.copies(extent.disk_bytenr)
        broken.map[physical : physical + SECTOR] = b"\xff" * SECTOR
        row = int(np.searchsorted(fs.checksums.starts, extent.disk_bytenr, "right")) - 1
        within = (extent.disk_bytenr - int(fs.checksums.starts[row])) // SECTOR
        item = fs.tree(7).get((2**64 - 10, 128, int(fs.checksums.starts[row])))
        assert item is not None
        data = broken.map[physical : physical + SECTOR]
        broken.write_item(item, within * 4, sector_sums(0, data, SECTOR).tobytes())
        with pytest.raises(CorruptImageError) as caught:
            broken.fs().read_file(objectid, ino)
        assert caught.value.fault.code == lib.BM_BAD_DATA
        assert caught.value.fault.block == extent.block
        assert "decompressing" in str(caught.value) and "\n" not in str(caught.value)
        return
    raise AssertionError(f"no {name} extent")


def test_extent_past_the_end_of_the_device(small_image: Path) -> None:
    broken = Broken(small_image)
    for objectid, ino, extents in files(broken.fs()):
        for extent in extents:
            if not on_disk(extent):
                continue
            item = broken.fs().tree(objectid).get((ino, 108, extent.start))
            assert item is not None
            broken.write_item(item, 21, (1 << 50).to_bytes(8, "little"))
            with pytest.raises(CorruptImageError, match="no chunk maps") as caught:
                broken.fs().read_file(objectid, ino)
            assert caught.value.fault.offset == extent.start
            return
