# SPDX-License-Identifier: GPL-2.0-only
"""Compressed files and mount options: what kernels stored and showed, and the same of the model."""

import json
import random
from typing import Any

import corpus
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from stored import DIGITS, FILES, SHOWN, SIZE, digest, files

import btrfs_model as bm
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.verify.data import any_options, comparable_options, random_data
from btrfs_model.kernels.inside.fill import data_of
from btrfs_model.mount.files.compress import compress
from btrfs_model.mount.files.compress_levels import LEVELS
from btrfs_model.mount.options import NOT_FOLLOWED, WITHOUT_EFFECT, MountOptions, memparse
from btrfs_model.native.data import lzo1x_compress, lzo1x_decompress
from btrfs_model.patches import KERNEL

RECORDED: list[dict[str, Any]] = json.loads(zstandard.decompress(FILES.read_bytes()))
OPTIONS = json.loads(zstandard.decompress(SHOWN.read_bytes()))
NEWEST = Behaviour.parse(KERNEL)
# what 5.10 goes on to show after a mount, and an option that it still follows
LEFT_OUT = {"v5.10.46": ("clear_cache", "inode_cache")}


@pytest.mark.claim(
    "Compressed extents and inline data have the bytes that kernels wrote, at every level: zlib "
    "and lzo of 5.10, 6.1, 6.12 and 6.18, zstd of 6.18."
)
@pytest.mark.parametrize("row", RECORDED, ids=lambda r: f"{r['option']}-{r['kernels'][0]}")
def test_files_are_stored_as_kernels_store_them(row: dict[str, Any]) -> None:
    wanted = [row["files"][at : at + DIGITS] for at in range(0, len(row["files"]), DIGITS)]
    number = len(wanted) if corpus.LONG else 30
    # each level looks at other files
    chosen = random.Random(row["option"]).sample([*zip(files(), wanted, strict=True)], number)
    for kernel in row["kernels"] if corpus.LONG else row["kernels"][-1:]:
        with bm.create(SIZE, behaviour=kernel) as fs:
            fs.set_mount_options(f"compress-force={row['option']}")
            for (name, size, fill), _ in chosen:
                fs.create(name)
                fs.write(name, 0, data_of(fill, 0, size))
            fs.sync()
            assert [digest(fs, name) for (name, *_), _ in chosen] == [one for _, one in chosen]


@pytest.mark.claim(
    "Mount options are taken, refused and shown as by kernels 5.10, 6.1, 6.12, 6.18."
)
@pytest.mark.parametrize("kernel", OPTIONS)
def test_options_are_shown_as_kernels_show_them(kernel: str) -> None:
    behaviour, compared = Behaviour.parse(kernel), 0
    for kind, answers in OPTIONS[kernel].items():
        for options, theirs in answers.items():
            if any(one in options for one in LEFT_OUT.get(kernel, ())):
                continue
            try:
                parsed = MountOptions.parse(options, behaviour, free_space_tree=kind != "v1")
            except ValueError as error:
                # what a kernel takes is not said to be refused by it
                assert theirs is None or "is not modelled" in str(error), options
            else:
                # with four threads more than processors it is not shown
                if options != "thread_pool=4":
                    mine = comparable_options(",".join(parsed.shown))
                    assert mine == comparable_options(theirs), options
                    compared += 1
    assert compared > 130


def test_every_option_that_is_not_followed_says_why() -> None:
    refused = {"ro": "ro", "sync": "sync", "dirsync": "dirsync", "lazytime": "lazytime",
               "noacl": "noacl", "ssd_spread": "ssd_spread", "metadata_ratio": "metadata_ratio=2",
               "subvol": "subvol=x", "subvolid": "subvolid=256",
               "space_cache": "space_cache=v1,clear_cache"}  # fmt: skip
    assert refused.keys() == NOT_FOLLOWED.keys()
    for name, option in refused.items():
        with pytest.raises(ValueError, match=f"'{name}' is not modelled: {NOT_FOLLOWED[name]}"):
            MountOptions.parse(option)


def test_options_without_effect_are_taken() -> None:
    values = {"commit": "commit=5", "thread_pool": "thread_pool=3", "device": "device=/dev/x",
              "fatal_errors": "fatal_errors=panic", "rescue": "rescue=usebackuproot",
              "recovery": "", "inode_cache": "", "noinode_cache": "", "space_cache": "",
              "nospace_cache": "", "subvol": "subvol=/", "subvolid": "subvolid=5"}  # fmt: skip
    for names in WITHOUT_EFFECT.values():
        for name in names.split():
            plain = MountOptions.parse(values.get(name, name))
            assert plain == MountOptions(shown=plain.shown), name


@given(st.integers())
def test_options_at_random_are_taken_or_refused_in_one_line(seed: int) -> None:
    options = any_options(random.Random(seed))
    try:
        shown = MountOptions.parse(options, NEWEST).shown
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert len({*shown}) == len(shown)


def test_random_data_is_the_same_again() -> None:
    assert random_data("one").steps == random_data("one").steps


def test_sizes_as_memparse_reads_them() -> None:
    sizes = {"2k": 2048, "2K": 2048, "0x10": 16, "010": 8, "1kk": 1024, "-1": 0, "k": 0, "": 0,
             "12abc": 12, "1M": 1 << 20, "1e": 1 << 60, "16E": 0}  # fmt: skip
    assert {text: memparse(text) for text in sizes} == sizes


def test_options_act() -> None:
    with bm.create(SIZE) as fs:
        fs.set_mount_options("nodatasum")
        fs.create("a")
        fs.set_mount_options("nodatacow,flushoncommit")
        fs.create("b")
        fs.write("b", 0, b"b" * 5000)
        # a file without copy on write gets no property from its directory
        fs.mkdir("d")
        fs.setxattr("d", "btrfs.compression", b"zlib:9")
        fs.create("d/c")
        fs.commit()
        top = fs.subvolume(5)
        assert [top.inode(name).flags for name in ("a", "b", "d/c")] == [1, 3, 0x803]
        assert [one.disk_num_bytes for one in top.extents("b")] == [8192]


# ------------------------------------------------------------------------------------- lzo, zlib --

DATA = st.one_of(
    st.binary(max_size=9000),
    st.tuples(st.binary(min_size=1, max_size=60), st.integers(1, 2000)).map(lambda x: x[0] * x[1]),
    st.lists(st.tuples(st.binary(max_size=300), st.integers(0, 40))).map(
        lambda pieces: b"".join(piece + bytes(zeros) for piece, zeros in pieces)
    ),
)


@given(DATA)
def test_lzo_comes_back(data: bytes) -> None:
    packed = lzo1x_compress(data)
    assert len(packed) <= len(data) + len(data) // 16 + 67
    assert lzo1x_decompress(packed, len(data)) == data
    if data:
        assert lzo1x_decompress(packed, len(data) - 1) is None


@given(DATA, st.integers(0), st.integers(0, 255), st.integers(0, 9000))
def test_lzo_trusts_no_byte(data: bytes, at: int, byte: int, most: int) -> None:
    packed = bytearray(lzo1x_compress(data))
    packed[at % len(packed)] = byte
    found = lzo1x_decompress(bytes(packed), most)
    assert found is None or len(found) <= most
    cut = lzo1x_decompress(bytes(packed[: at % len(packed)]), most)
    assert cut is None or len(cut) <= most


@given(DATA.map(lambda data: data[:131072]), st.sampled_from([*LEVELS]), st.integers(-16, 17))
def test_levels_are_of_the_algorithm(data: bytes, kind: str, level: int) -> None:
    if data:
        levels = LEVELS[kind]
        nearest = min(max(level, levels.least), levels.most) if level else levels.default
        packed = [compress(kind, one, data, 4096, NEWEST) for one in (level, nearest)]
        assert packed[0] == packed[1]
