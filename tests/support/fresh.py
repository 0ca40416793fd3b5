# SPDX-License-Identifier: GPL-2.0-only
"""Fresh filesystems of several releases of mkfs.btrfs: records of them, and how they are made.

``python tests/support/fresh.py RELEASE COMMAND...`` asks the mkfs.btrfs of a release, which the
command starts, and replaces its records in ``tests/data/fresh.json``.
"""

import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import btrfs_model as bm
from btrfs_model.mount.mkfs.identity import Identity
from btrfs_model.ondisk.items import decode
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import SUPER_BLOCK

RECORDS = Path(__file__).parents[1] / "data/fresh.json"
FEATURES = {"skinny_metadata": "skinny-metadata", "no_holes": "no-holes", "extref": "extref",
            "free_space_tree": "free-space-tree",
            "block_group_tree": "block-group-tree"}  # fmt: skip
Options = dict[str, Any]


def cases(progs: str) -> Iterator[Options]:
    """Options of :class:`Format` that the releases are compared with."""
    groups = [True, False] if progs != "6.2" else [None]
    for metadata, tree, nodesize, skinny in itertools.product(
        ["dup", "single"], groups, [4096, 16384, 65536], [True, False]
    ):
        yield {"size": 1 << 30, "nodesize": nodesize, "metadata": metadata,
               "block_group_tree": tree, "skinny_metadata": skinny}  # fmt: skip
    for metadata, nodesize in itertools.product(["dup", "single"], [8192, 32768]):
        yield {"size": 3 << 30, "nodesize": nodesize, "metadata": metadata,
               "block_group_tree": groups[-1], "free_space_tree": False}  # fmt: skip
    for size, csum in [(114294784, "crc32c"), (700 << 20, "xxhash"), ((50 << 30) + 4096, "sha256"),
                       (1 << 40, "blake2")]:  # fmt: skip
        yield {"size": size, "csum": csum, "label": "a label"}
    yield {"size": 1 << 30, "block_group_tree": groups[-1], "no_holes": False, "extref": False}
    yield {"size": 47185920, "nodesize": 4096, "metadata": "single"}


def arguments(options: Options, progs: str) -> list[str]:
    """The same as arguments of mkfs.btrfs."""
    words = ["-m", options.get("metadata", "dup"), "-d", "single",
             "-n", str(options.get("nodesize", 16384)), "--csum", options.get("csum", "crc32c"),
             "-L", options.get("label", "")]  # fmt: skip
    for field, name in FEATURES.items():
        value = options.get(field)
        if value is not None:
            runtime = progs == "6.2" and field == "free_space_tree"
            words += ["-R" if runtime else "-O", name if value else f"^{name}"]
    return words


def identity_of(fs: bm.Filesystem) -> Identity:
    """What is random or of the clock in a fresh filesystem."""
    top = fs.subvolume(5)
    assert top.uuid is not None
    chunk_tree_uuid = bytes(fs.image.block(fs.image.superblock.root)[64:80])
    sb = fs.image.superblock
    return Identity(sb.fsid, chunk_tree_uuid, sb.dev_item.uuid, top.uuid, top.item.ctime.sec)


def seconds_of(fs: bm.Filesystem) -> set[int]:
    """All times in a fresh filesystem."""
    inodes = [
        decode(item.key, item.data).ctime.sec
        for tree in fs.trees.values()
        for item in tree.items()
        if item.key.type == ItemType.INODE_ITEM
    ]
    return {fs.subvolume(5).item.ctime.sec, *inodes}


def parts(path: Path) -> dict[str, str]:
    """Digests of all that a fresh filesystem says: of each tree, and of the superblocks.

    Bytes of blocks that no item uses are left out, and what mkfs.btrfs left behind of its own
    earlier transactions: older roots in the superblock, and blocks that are free again.
    """
    found: dict[str, str] = {}
    with bm.open(path) as fs:
        for number, tree in fs.trees.items():
            blocks = [tree.bytenr]
            for bytenr in blocks:
                block = bytes(fs.image.block(bytenr))
                if block[100]:
                    slots = int.from_bytes(block[96:100], "little")
                    blocks += [int.from_bytes(block[at + 17 : at + 25], "little")
                               for at in range(101, 101 + 33 * slots, 33)]  # fmt: skip
            digest = hashlib.sha256()
            for bytenr in blocks:
                block = bytes(fs.image.block(bytenr))
                slots = int.from_bytes(block[96:100], "little")
                digest.update(block[32 : 101 + slots * (33 if block[100] else 25)])
            for item in tree.items():
                digest.update(repr(tuple(item.key)).encode() + item.data)
            found[str(number)] = digest.hexdigest()[:16]
        for offset in fs.image.superblock.copies:
            raw = SUPER_BLOCK.unpack(bytes(fs.image.view[offset : offset + SUPER_BLOCK.size]))
            newest = [cell for cell in raw.super_roots if cell.tree_root_gen == raw.generation]
            array = raw.sys_chunk_array[: raw.sys_chunk_array_size]
            told = raw._replace(csum=b"", super_roots=(), sys_chunk_array=array)
            found[f"superblock at {offset}"] = hashlib.sha256(
                repr((told, newest)).encode()
            ).hexdigest()[:16]
    return found


def make(command: list[str], path: Path, size: int) -> None:
    """A filesystem of mkfs.btrfs, made before the clock ticked."""
    for _ in range(100):
        path.unlink(missing_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
        subprocess.run([*command, str(path)], check=True, capture_output=True)
        with bm.open(path) as fs:
            if len(seconds_of(fs)) == 1:
                return
    raise AssertionError("the clock ticks each time")


def main() -> None:
    """Ask the mkfs.btrfs of one release."""
    progs, *command = sys.argv[1:]
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    records[progs] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "theirs"
        for options in cases(progs):
            make([*command, "-q", "-f", *arguments(options, progs)], path, options["size"])
            with bm.open(path) as fs:
                identity = [x.hex() if isinstance(x, bytes) else x for x in identity_of(fs)]
            records[progs].append([identity, parts(path)])
    lines = {name: ",\n".join(json.dumps(row) for row in rows) for name, rows in records.items()}
    text = ",\n".join(f'"{name}": [\n{rows}\n]' for name, rows in sorted(lines.items()))
    RECORDS.write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main()
