# SPDX-License-Identifier: GPL-2.0-only
"""What rewrites, deletions and compression make of space, beside the running kernel."""

import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import corpus
import live
import live_sharing
import pytest

import btrfs_model as bm
from btrfs_model.questions.usage.forest import FileForest
from btrfs_model.questions.usage.stored import StoredFile, Trial

pytestmark = live.BESIDE_THE_KERNEL

SEEDS = range(25) if corpus.LONG else range(1)
WAYS = (None, 32 << 20, 256 << 10)
BLOCK = 4096


def used(top: Path) -> tuple[int, int]:
    """Bytes of data and of metadata in use, when all that is deleted has been freed."""
    for _ in range(200):
        # the cleaner frees after a commit
        (top / "touched").touch()
        live_sharing.btrfs("filesystem", "sync", top)
        if not live_sharing.btrfs("subvolume", "list", "-d", top):
            break
        time.sleep(0.05)
    (top / "touched").unlink()
    for _ in range(2):
        live_sharing.btrfs("filesystem", "sync", top)
    shown = live_sharing.btrfs("filesystem", "df", "--raw", top)
    found = [re.search(rf"^{kind}.*used=(\d+)", shown, re.M) for kind in ("Data", "Metadata")]
    return int(found[0][1]), int(found[1][1])  # type: ignore[index]


def write_again(file: Path, extents: list[tuple[int, int]]) -> None:
    """Write what a file has, range by range, all at once."""
    number = os.open(file, os.O_RDWR)
    data = [(start, os.pread(number, length, start)) for start, length in extents]
    for start, one in data:
        os.pwrite(number, one, start)
    os.close(number)


@pytest.mark.claim(
    "What a rewrite or `btrfs filesystem defragment` of a file frees and takes is told from the "
    "image alone, to the byte."
)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rewrite_frees_what_was_told(seed: int, tmp_path: Path) -> None:
    image, choice = tmp_path / "disk.img", random.Random(seed)
    live_sharing.random_sharing(image, seed)
    with bm.open(image) as fs:
        files = [(row.subvolume, row.path) for row in bm.waste(fs).itertuples()]
        paths = {number: fs.subvolume(number).path for number in fs.subvolume_ids}
    for at, (sub, path) in enumerate(choice.sample(files, min(6, len(files)))):
        threshold = WAYS[at % 3]
        with bm.open(image) as fs:
            (told,) = bm.waste(fs, sub, path, threshold=threshold).itertuples()
            before, generation = bm.extents(fs, sub, path), fs.image.superblock.generation
        with live.mounted(image, "noatime") as top:
            file = top / paths[sub] / path
            had = used(top)[0]
            if threshold is None:
                rows = before[before["type"] == "regular"]
                write_again(file, list(zip(rows["start"], rows["length"], strict=True)))
            else:
                options = ["-t", str(threshold)]
                live_sharing.btrfs("filesystem", "defragment", *options, file)
            has = used(top)[0]
        with bm.open(image) as fs:
            after = bm.extents(fs, sub, path)
        new = after[(after["generation"] > generation) & (after["disk_bytenr"] > 0)]
        written = int(new.drop_duplicates("disk_bytenr")["disk_num_bytes"].sum())
        assert had - has == int(told.frees) - written, (sub, path)
        if (before["compression"] == "none").all():
            assert written == told.writes, (sub, path)


@pytest.mark.claim(
    "What the deletion of several snapshots together frees is told before: data to the byte, and "
    "blocks of subvolumes except leaves that merge in those that stay."
)
@pytest.mark.parametrize("seed", SEEDS)
def test_deleted_together(seed: int, tmp_path: Path) -> None:
    image, choice = tmp_path / "disk.img", random.Random(seed)
    live_sharing.random_sharing(image, seed)
    with live.mounted(image, "noatime") as top:
        used(top)
    with bm.open(image) as fs:
        holders = {fs.subvolume(one).entry.parent for one in fs.subvolume_ids if one != 5}
        chosen = [one for one in fs.subvolume_ids if one != 5 and one not in holders]
        chosen = choice.sample(chosen, min(len(chosen), choice.choice([1, 2, 3, 9])))
        if not chosen:
            pytest.skip("it has no snapshot")
        told = bm.freed(fs, *chosen).iloc[-1]
        paths, blocks = [fs.subvolume(one).path for one in chosen], tree_bytes(fs)
        stay = {one: own_blocks(fs, one) for one in fs.subvolume_ids if one not in chosen}
    with live.mounted(image, "noatime") as top:
        had = used(top)
        for path in paths:
            live_sharing.btrfs("subvolume", "delete", top / path)
        has = used(top)
    with bm.open(image) as fs:
        merged = sum(count - own_blocks(fs, one) for one, count in stay.items())
        assert had[0] - has[0] == told["data"]
        assert blocks - tree_bytes(fs) == told["metadata"] + merged * fs.image.nodesize


def own_blocks(fs: bm.Filesystem, number: int) -> int:
    """Blocks of a subvolume."""
    return len(fs.subvolume(number).tree.blocks())


def tree_bytes(fs: bm.Filesystem) -> int:
    """Bytes of all blocks of subvolumes."""
    forest = FileForest(fs)
    every = {root.id for root in forest.roots}
    return fs.image.nodesize * sum(int(mask.sum()) for mask in forest.reached(every))


def contents(choice: random.Random) -> dict[str, bytes]:
    """Data of many kinds and lengths."""
    unit = 128 << 10
    noise = choice.randbytes
    text = b"".join(f"{n} bottles of beer, {n * n} on the wall\n".encode() for n in range(40_000))
    kinds = {
        "text": lambda size: text[:size],
        "noise": noise,
        "zeros": bytes,
        "half": lambda size: noise(size // 2) + text[: size - size // 2],
        "late": lambda size: text[: size // 2] + noise(size - size // 2),
        "hex": lambda size: noise(size).hex().encode()[:size],
        "seven": lambda size: bytes(byte & 127 for byte in noise(size)),
        "few": lambda size: bytes(choice.choices(range(200), range(200), k=size)),
        "again": lambda size: (noise(BLOCK * 5) * (size // BLOCK + 1))[:size],
        "pieces": lambda size: b"".join(
            noise(unit) if choice.random() < 0.4 else text[:unit] for _ in range(size // unit + 1)
        )[:size],
        "thin": lambda size: b"".join(noise(3400) + bytes(696) for _ in range(size // BLOCK + 1))[
            :size
        ],
    }
    sizes = [700, 5000, unit + 100, 5 * unit + 7]
    if corpus.LONG:
        sizes += [3000, 4096, 9000, 40_000, unit, 12 * unit]
    return {f"{name}{size}": make(size) for name, make in kinds.items() for size in sizes}


OPTIONS = ("zstd:3", "force:zstd:3", "zlib", "lzo", "zlib:9", "zstd:15", "force:lzo")


@pytest.mark.claim(
    "What lies raw under compress= and compress-force= is told before it is written, extent by "
    "extent, and of what lies there the reason; totals are those of compsize."
)
@pytest.mark.parametrize("option", OPTIONS if corpus.LONG else OPTIONS[:2])
def test_what_lies_raw(option: str, tmp_path: Path) -> None:
    image, files = tmp_path / "disk.img", contents(random.Random(f"raw-{option}"))
    with image.open("wb") as file:
        file.truncate(1 << 30)
    subprocess.run(["mkfs.btrfs", "-q", "-f", image], check=True, capture_output=True)
    mount = f"compress-force={option[6:]}" if option.startswith("force:") else f"compress={option}"
    compsize = shutil.which("compsize")
    shown = ""
    with live.mounted(image, mount) as top:
        for name, data in files.items():
            (top / name).write_bytes(data)
        live_sharing.btrfs("filesystem", "sync", top)
        if compsize:
            shown = subprocess.run(
                [compsize, "-b", top], capture_output=True, text=True, check=True
            ).stdout
    with bm.open(image) as fs:
        kernel, sub = bm.Behaviour.parse(live.PRESET), fs.subvolume(5)
        trial = Trial(option, kernel, fs.image)
        for name in files:
            there = sub.extents(name)
            told = trial.extents(StoredFile(sub, sub.inode(name), kernel, ("zstd", 0)))
            assert [layout(one) for one in there] == [layout(one) for one in told], name
        table = bm.compression(fs, 5, by="extent", why=True, behaviour=live.PRESET)
        reasons = table.groupby("path")["why"].agg(list)
        assert set(table["why"]) <= {"", "small", "heuristic", "no gain", "nocompress"}
        # what sets the flag is a try of the same file that failed
        assert all("no gain" in one[: one.index("nocompress")]
                   for one in reasons if "nocompress" in one)  # fmt: skip
        assert {"heuristic", "no gain"} <= set(table["why"])
        totals = bm.compression(fs, 5, by="algorithm")
    if not compsize:
        pytest.skip("all but the totals was compared: there is no compsize")
    assert_as_compsize(totals, shown)


def layout(extent: object) -> tuple[object, ...]:
    """What of an extent does not depend on where it lies."""
    names = ("start", "length", "type", "compression", "disk_num_bytes", "ram_bytes", "inline")
    return tuple(getattr(extent, name) for name in names)


def assert_as_compsize(table: object, shown: str) -> None:
    rows = {
        line.split()[0]: tuple(map(int, line.split()[2:]))
        for line in shown.splitlines() if re.match(r"(none|zlib|lzo|zstd|prealloc) ", line)
    }  # fmt: skip
    told = {
        row.algorithm: (row.disk, row.uncompressed, row.referenced)
        for row in table.itertuples()  # type: ignore[attr-defined]
    }
    assert rows == told
