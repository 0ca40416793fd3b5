# SPDX-License-Identifier: GPL-2.0-only
"""Files with data of many kinds under all mount options: what is made, what is compared of it."""

from __future__ import annotations

import random
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.bench import Bench, first_that_differs
from btrfs_model.experiments.verify.random.scenarios import mkfs_options
from btrfs_model.experiments.verify.sides import in_the_kernel, in_the_model
from btrfs_model.kernels.inside import asked
from btrfs_model.kernels.inside.mounts import Place
from btrfs_model.mount.files.zstd import is_exact
from btrfs_model.mount.options import WITHOUT_EFFECT
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.constants import Compression
from btrfs_model.volume.filesystem import Filesystem

_BLOCK: Final = 4096
_LARGE: Final = 128 << 10
_OF_DEVICE: Final = ("ssd", "discard=async")
_OF_VFS: Final = (*next(iter(WITHOUT_EFFECT.values())).split(), "ro", "sync", "dirsync", "lazytime")
_PLAIN: Final = (
    "nodatasum", "datasum", "nodatacow", "datacow", "ssd", "nossd", "flushoncommit", "notreelog",
    "treelog", "nobarrier", "degraded", "user_subvol_rm_allowed", "skip_balance", "enospc_debug",
    "noflushoncommit", "barrier", "discard", "nodiscard", "discard=sync", "nossd_spread",
)  # fmt: skip
_ROTTED: Final = 3
"""Sectors; of many a kernel does not tell."""
_SUMS: Final = re.compile(r"csum 0x([0-9a-f]+) expected csum 0x([0-9a-f]+)")
_FAILED: Final = re.compile(rf"csum failed root (-?\d+) ino (\d+) off \d+ {_SUMS.pattern}")
_REFUSED: Final = (
    "nothing", "compress=", "compress=gzip", "ssd=1", "commit=abc", "max_inline", "rescue=all",
    "thread_pool=0", "norecovery", "fatal_errors=abc", "discard=never",
)  # fmt: skip


class Stored(NamedTuple):
    """What the inode of a file says of its data."""

    size: int
    nbytes: int
    flags: int


class StoredExtent(NamedTuple):
    """An extent of a file, with its bytes where they are compressed."""

    start: int
    length: int
    type: int
    compression: int
    ram_bytes: int
    offset: int
    disk_num_bytes: int
    packed: bytes


def _level(choice: random.Random) -> str:
    return choice.choice(["", "", f":{choice.randint(1, 9)}", f":{choice.randint(1, 15)}",
                          f":{choice.randint(-16, 17)}", ":0"])  # fmt: skip


def _compression(choice: random.Random) -> str:
    name = choice.choice(["compress", "compress", "compress-force"])
    kind = choice.choice(["zlib", "zlib", "lzo", "lzo", "zstd", "no"])
    return f"{name}={kind}{'' if kind in ('lzo', 'no') else _level(choice)}"


def options_that_act(choice: random.Random) -> str:
    """Return mount options that decide what is written, those of compression among them."""
    chosen = [_compression(choice), choice.choice(["", "", "max_inline=0", "max_inline=4K"])]
    if choice.random() < 0.2:
        chosen.insert(choice.randrange(2), choice.choice(["nodatasum", "nodatacow", "datasum"]))
    return ",".join(filter(None, ["noatime", *chosen]))


def any_options(choice: random.Random) -> str:
    """Return options of any kind, now and then with one that kernels refuse."""
    chosen = choice.sample(_PLAIN, choice.randint(0, 4))
    chosen += [_compression(choice) for _ in range(choice.randint(0, 2))]
    number = (
        f"{choice.choice(['', '0', '0x'])}{choice.randint(1, 7)}{choice.choice(['', 'k', 'M'])}"
    )
    chosen += choice.sample([f"max_inline={number}", f"commit={number}"], choice.randint(0, 2))
    if choice.random() < 0.15:
        chosen.append(choice.choice(_REFUSED))
    choice.shuffle(chosen)
    return ",".join(["noatime", *chosen])


def comparable_options(shown: str | None) -> str | None:
    """Leave out of what ``/proc/mounts`` shows what is the VFS's or the device's."""
    if shown is None:
        return None
    return ",".join(
        one for one in shown.split(",")
        if one not in (*_OF_VFS, *_OF_DEVICE) and not one.startswith("subvol")
    )  # fmt: skip


def random_data(seed: str) -> Scenario:
    """Make a scenario of writes that are or are not compressed."""
    choice = random.Random(seed)
    one = choice.choice
    operations: list[list[Any]] = [
        ["mkfs", mkfs_options(choice, portable=True)], ["mount", options_that_act(choice)],
        ["mkdir", "d"],
    ]  # fmt: skip
    kinds = ["zlib", "lzo", "zstd", "zlib:9", "no", "none", "lzox", "gzip", ""]
    for number in range(choice.randint(3, 8)):
        path = one([f"f{number}", f"d/f{number}"])
        if choice.random() < 0.3:
            value = one(kinds).encode().hex()
            operations.append(["setxattr", one(["d", path]), "btrfs.compression", value])
        operations.append(["create", path])
        for _ in range(choice.randint(1, 3)):
            size = one(
                [
                    choice.randint(1, 4200),
                    choice.randint(1, 4200),
                    2 * _BLOCK,
                    choice.randint(_BLOCK, 70_000),
                    _LARGE,
                    choice.randint(_LARGE, 400_000),
                ]
            )
            fill = [one(["text", "mix", "mix", "mix", "rnd"]), f"{choice.random()}"]
            start = one([0, 0, 0, _BLOCK, choice.randint(0, 9000)])
            operations.append(["write", path, start, size, fill])
            if choice.random() < 0.3:
                operations.append(["sync"])
        if choice.random() < 0.2:
            operations.append(["truncate", path, choice.randint(0, 9000)])
        if choice.random() < 0.15:
            operations.append(["remount", options_that_act(choice)])
    steps = [parse_step(seed, number, line) for number, line in enumerate(operations, 1)]
    return Scenario(f"seed {seed}", steps, hex_values=True)


def is_comparable(scenario: Scenario, behaviour: Behaviour) -> bool:
    """Whether all that a scenario compresses is what this kernel makes of it, to the byte."""
    return is_exact(behaviour) or not any(
        "zstd" in str(value) or b"zstd".hex() in str(value)
        for step in scenario.steps for value in step.arguments.values()
    )  # fmt: skip


def stored_files(fs: Filesystem) -> Iterator[tuple[str, list[Any]]]:
    """Yield the files, each with what is stored of it: size, flags, extents, compressed bytes."""
    for number in fs.subvolume_ids:
        subvolume = fs.subvolume(number)
        for row in fs.listing(number, content=False).to_dict("records"):
            if not stat.S_ISREG(row["mode"]) or row["ino"] < subvolume.root_dir:
                continue
            item = subvolume.inode(row["ino"])
            found: list[Any] = [Stored(item.size, item.nbytes, item.flags)]
            for one in subvolume.extents(row["ino"]):
                packed = b""
                if one.compression != Compression.NONE:
                    packed = bytes(
                        fs.image.data(one.disk_bytenr, one.disk_num_bytes)
                        if one.disk_bytenr else one.inline
                    )  # fmt: skip
                found.append(StoredExtent(
                    one.start, one.length, one.type, one.compression, one.ram_bytes, one.offset,
                    one.disk_num_bytes, packed,
                ))  # fmt: skip
            yield f"{subvolume.path}/{row['path']}", found


def compare_data(bench: Bench, scenario: Scenario) -> None:
    """Compare the bytes that files have on disk, and what mounts with other options show."""
    behaviour = Behaviour.parse(bench.behaviour)
    with bench.new_image() as image, in_the_model(scenario, behaviour) as (fs, ran):
        wanted = in_the_kernel(bench.kernel, scenario, image)
        bench.same_ends(scenario, wanted.ended, ran.ended)
        if is_comparable(scenario, behaviour):
            with Filesystem.open(image) as its:
                known, found = dict(stored_files(its)), dict(stored_files(fs))
            bench.same("files", "which files there are", sorted(known), sorted(found))
            for path, rows in known.items():
                different = first_that_differs(rows, found[path]) or (None, None)
                bench.same("files", f"what is stored of {path}", *different)
        _compare_options(bench, scenario, fs, image)
        _compare_rotted(bench, scenario, image)


def _compare_options(bench: Bench, scenario: Scenario, fs: WritableFilesystem, image: Path) -> None:
    choice = random.Random("; ".join(map(str, scenario.steps[:2])))
    options = [any_options(choice) for _ in range(6)]
    with bench.kernel.attached(image, read_only=False) as source:
        place = Place(source=source, top=bench.kernel.top, options="")
        shown = bench.kernel.call(asked.shown_options, place, options)
    for one, theirs in zip(options, shown, strict=True):
        bench.same("mount options", f"what {one} shows",
                   comparable_options(theirs), comparable_options(shown_by(fs, one)))  # fmt: skip


def shown_by(fs: WritableFilesystem, options: str) -> str | None:
    """Return what the model shows of mount options; None where it refuses them."""
    try:
        return ",".join(fs.parse_options(options).shown)
    except ValueError:
        return None


# ------------------------------------------------------------------------------------ rot -----


def _rot(image: Path, choice: random.Random) -> dict[tuple[int, int], str]:
    """Change a byte of some sectors of data; paths of all files, by root and inode number."""
    with Filesystem.open(image) as fs:
        paths, places = dict[tuple[int, int], str](), list[int]()
        for number in fs.subvolume_ids:
            subvolume = fs.subvolume(number)
            for row in fs.listing(number, content=False).to_dict("records"):
                if not stat.S_ISREG(row["mode"]) or row["ino"] < subvolume.root_dir:
                    continue
                paths[number, row["ino"]] = f"{subvolume.path}/{row['path']}".lstrip("/")
                for one in subvolume.extents(row["ino"]):
                    if one.disk_bytenr:
                        sector = choice.randrange(one.disk_num_bytes // _BLOCK)
                        places.append(fs.image.map(one.disk_bytenr + sector * _BLOCK)[0])
    with image.open("r+b") as file:
        for place in choice.sample(places, min(_ROTTED, len(places))):
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ choice.randint(1, 255)]))
    return paths


def _compare_rotted(bench: Bench, scenario: Scenario, image: Path) -> None:
    """Compare how files can be read, and what is told of the sums of their data."""
    paths = _rot(image, random.Random("; ".join(map(str, scenario.steps[:2]))))
    with bench.looked_at(image) as place:
        ended, said = bench.kernel.call(asked.contents, place, list(paths.values()))
    told: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for line in said:
        for root, ino, *sums in _FAILED.findall(line):
            told.setdefault((int(root), int(ino)), []).append((sums[0], sums[1]))
    with Filesystem.open(image) as fs:
        for (key, path), theirs in zip(paths.items(), ended, strict=True):
            ours, words = 0, ""
            try:
                fs.read_file(*key)
            except OSError as error:
                ours, words = error.errno or 0, str(error)
            bench.same("rotted files", f"how a read of {path} ends", theirs, ours)
            if key in told:
                _same_sums(bench, path, told[key], words)


def _same_sums(bench: Bench, path: str, kernel: list[tuple[str, str]], words: str) -> None:
    """See that an error names two sums of which a kernel's log tells; it has their first bytes."""
    found = _SUMS.findall(words)
    known = [
        tuple(sum_[: len(mine)] for sum_, mine in zip(pair, ours, strict=True))
        for ours in found for pair in kernel
    ]  # fmt: skip
    agree = len(found) == 1 and found[0] in known
    bench.same("sums", f"what is told of the sums of {path}", kernel, kernel if agree else words)
