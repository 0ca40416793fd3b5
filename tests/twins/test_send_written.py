# SPDX-License-Identifier: GPL-2.0-only
"""Sends of random filesystems of the writer: C and Python agree, received is what was sent."""

import contextlib
import random
from pathlib import Path

import corpus
import pandas as pd
import pytest
from damage import Broken
from received import table

import btrfs_model as bm
from btrfs_model.behaviour import PRESETS
from btrfs_model.experiments.verify.random.calls import random_call
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.keys import ItemType

SEEDS = range(400) if corpus.LONG else range(10)
SIZE = 128 << 20
BLOCK = 4096
# btrfs_inode_item: generation, transid, size, nbytes, block_group before it
NLINK_AT = 40


def change_data(fs: WritableFilesystem, choice: random.Random) -> None:
    """One change of the data of a file that may not be there."""
    path, other = (choice.choice(["a", "b", "c", "d/a", "a/b", "b/c"]) for _ in range(2))
    offset, length = (choice.randrange(12) * BLOCK + choice.choice([0, 0, 5]) for _ in range(2))
    data = bytes([choice.randrange(256)]) * choice.choice([9, BLOCK, 3 * BLOCK, 70_000])
    choice.choice(
        [
            lambda: fs.write(path, offset, data),
            lambda: fs.write(path, offset, data),
            lambda: fs.write(path, 0, data),
            lambda: fs.truncate(path, offset),
            lambda: fs.punch_hole(path, offset, max(length, 1)),
            lambda: fs.fallocate(path, offset, max(length, 1)),
            lambda: fs.clone_range(path, other, 0, offset - offset % BLOCK, 0),
        ]
    )()


def written(seed: int) -> WritableFilesystem:
    """A filesystem with three read-only snapshots of its top, between which much happens."""
    choice = random.Random(f"written {seed}")
    fs = bm.create(
        SIZE, choice.choice([4096, 16384]), seed=seed, no_holes=choice.random() < 0.5,
        compress=choice.choice([None, None, "zlib", "lzo", "zstd"]),
    )  # fmt: skip
    for name in ("a", "d", "e"):
        fs.mkdir(name)
    for number in range(3):
        for _ in range(choice.randrange(60)):
            with contextlib.suppress(OSError):
                if choice.random() < 0.4:
                    change_data(fs, choice)
                else:
                    name, *arguments = random_call(choice, subvolumes=False)
                    getattr(fs, name)(*arguments)
        fs.snapshot("", f"s{number}")
    fs.commit()
    return fs


PAIRS = ((None, "s0"), ("s0", "s1"), ("s1", "s2"), ("s0", "s2"), ("s2", "s0"))


@pytest.mark.claim(
    "Sends of random filesystems of the writer are the same in C and Python for every preset."
)
@pytest.mark.parametrize("seed", SEEDS)
def test_c_and_python_send_the_same(seed: int) -> None:
    choice = random.Random(f"preset {seed}")
    with written(seed) as fs:
        for parent, snapshot in PAIRS:
            behaviour = choice.choice(PRESETS)
            results = []
            for kernels in ("c", "python"):
                with bm.use_code(kernels):
                    arguments = () if parent is None else (parent, [parent])
                    try:
                        sent = bm.send(fs, snapshot, *arguments, behaviour=behaviour)
                    except OSError as error:
                        results.append((error.errno, None, None))
                    else:
                        results.append((sent.data, sent.commands, dict(sent.work)))
            assert results[0] == results[1], (parent, snapshot, behaviour)


@pytest.mark.claim(
    "A received send of a filesystem of the writer gives the snapshot.",
    judge="unit",
)
@pytest.mark.parametrize("seed", SEEDS)
def test_received_is_what_was_written(seed: int) -> None:
    behaviour = random.Random(f"received {seed}").choice(PRESETS)
    parent = None
    with written(seed) as fs, bm.create(2 * SIZE) as target:
        for snapshot in ("s0", "s1", "s2"):
            arguments = () if parent is None else (parent, [parent])
            sent = bm.send(fs, snapshot, *arguments, behaviour=behaviour)
            assert sent.data is not None
            bm.receive(target, sent.data, "/")
            source, received = (table(one.subvolume(snapshot)) for one in (fs, target))
            if "send-utimes-cache" not in bm.Behaviour.parse(behaviour):
                # new inodes are made in the top directory, and its times are not set again
                source.loc["", "mtime"] = received.loc["", "mtime"]
            pd.testing.assert_frame_equal(received, source)
            parent = snapshot


@pytest.mark.parametrize("kernels", ["c", "python"])
@pytest.mark.parametrize(
    ("behaviour", "path"),
    [
        ("v5.10.46", "dir/link"),
        ("v5.13", "dir/link"),
        ("v5.13 + send-unlink-path", "o260-7-0/link"),
        ("v5.14", "o260-7-0/link"),
        ("v5.14 - send-recompute-ref-path", "o260-7-0/link"),
        ("v5.10.223", "o260-7-0/link"),
    ],
)
def test_a_link_in_the_way_is_removed_under_its_present_path(
    kernels: str, behaviour: str, path: str
) -> None:
    """Its directory was moved away just before, and was named in the stream before that."""
    with bm.create(SIZE, seed=1) as fs, bm.use_code(kernels):
        for name in ("zero", "one", "two"):
            fs.create(name)
        fs.mkdir("dir")
        fs.link("two", "dir/link")
        fs.rename("zero", "dir/zero")
        fs.snapshot("", "s0")
        fs.write("dir/zero", 0, b"changed")
        fs.rename("dir", "moved")
        fs.unlink("moved/link")
        fs.link("one", "moved/link")
        fs.rename("one", "dir")
        fs.snapshot("", "s1")
        fs.commit()
        sent = bm.send(fs, "s1", "s0", ["s0"], behaviour=behaviour)
    removed = [one.attributes["path"] for one in bm.read_stream(sent.data) if one.name == "unlink"]
    assert removed == [path.encode(), b"one"]


@pytest.mark.parametrize("kernels", ["c", "python"])
@pytest.mark.parametrize(
    ("behaviour", "path"), [("v5.10.46", b"d/d/f"), ("v6.0", b"d/d/f"), ("v6.1", b"d/f")]
)
def test_names_of_a_file_that_lost_its_links(
    tmp_path: Path, kernels: str, behaviour: str, path: bytes
) -> None:
    """Before 6.1 the path in the parent snapshot stood behind that of the directory."""
    with bm.create(SIZE, seed=1) as fs:
        fs.mkdir("d")
        fs.create("d/f")
        fs.snapshot("", "s0")
        fs.chmod("d/f", 0o600)
        fs.snapshot("", "s1")
        fs.commit()
        fs.save(tmp_path / "image")
    broken = Broken(tmp_path / "image")
    tree = broken.fs().subvolume("s1").tree
    inode = next(item for item in tree.items() if item.key[:2] == (258, ItemType.INODE_ITEM))
    broken.write_item(inode, NLINK_AT, bytes(4))
    with broken.fs() as fs, bm.use_code(kernels):
        sent = bm.send(fs, "s1", "s0", ["s0"], behaviour=behaviour)
    removed = [one.attributes["path"] for one in bm.read_stream(sent.data) if one.name == "unlink"]
    assert removed == [path]


@pytest.mark.parametrize("kernels", ["c", "python"])
@pytest.mark.claim("`send --no-data` has the length of a hole as a kernel has it: modulo 4 GiB.")
def test_lengths_of_holes_beyond_4_gib(kernels: str) -> None:
    """What Linux 6.18.44 sends: a hole of 5 GiB, one of 4 GiB, one at the end of 8 EiB."""
    with bm.create(SIZE, seed=1) as fs, bm.use_code(kernels):
        for name in ("disk", "even", "end"):
            fs.create(name)
            fs.write(name, 0, b"a" * 8192)
        fs.snapshot("", "s0")
        fs.punch_hole("disk", 4096, 4096)
        fs.write("disk", 5 << 30, b"b" * 4096)
        fs.punch_hole("even", 0, 8192)
        fs.write("even", 4 << 30, b"b" * 4096)
        fs.truncate("end", 4096)
        fs.truncate("end", (1 << 63) - 1)
        fs.snapshot("", "s1")
        fs.sync()
        sent = bm.send(fs, "s1", "s0", no_file_data=True)
        holes = [
            (one.attributes["path"], one.attributes["file_offset"], one.attributes["size"])
            for one in bm.read_stream(sent.data)
            if one.name == "update_extent"
        ]
    assert holes == [
        (b"disk", 5 << 30, 4096),
        (b"disk", 4096, 1073737728),
        (b"even", 4 << 30, 4096),
        (b"even", 0, 0),
        (b"end", 4096, 4294963199),
    ]
