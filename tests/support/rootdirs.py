# SPDX-License-Identifier: GPL-2.0-only
"""Folders for ``mkfs.btrfs --rootdir``, and records of what mkfs.btrfs 7.3 makes of them.

``python tests/support/rootdirs.py COMMAND...`` asks the mkfs.btrfs that the command starts, as
root, and replaces ``tests/data/rootdir.json``.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import btrfs_model as bm
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.structs import ROOT_ITEM

RECORDS = Path(__file__).parents[1] / "data/rootdir.json"
FSID = "11111111-2222-3333-4444-555555555555"
ENVIRONMENT = {"SOURCE_DATE_EPOCH": "1700000000", "DETERMINISTIC_SEED": "1"}
NOISE = random.Random(1).randbytes(700_000)
TEXT = b"some text \n"


def small(top: Path) -> None:
    """Inline files of all sizes around the limit, an empty one, links, owners, times."""
    for size in (0, 1, 2047, 2048, 4095, 4096, 4097):
        (top / f"size{size}").write_bytes(NOISE[:size])
    (top / "d").mkdir()
    os.link(top / "size1", top / "d/link")
    (top / "sym").symlink_to("size1")
    (top / "dangling").symlink_to("/nowhere" * 100)
    os.chown(top / "size0", 3, 4)
    (top / "size1").chmod(0o4751)
    os.utime(top / "d", ns=(0, 1_500_000_000_500_000_000))


def large(top: Path) -> None:
    """Extents: whole sectors, and what is none."""
    (top / "noise").write_bytes(NOISE)
    (top / "text").write_bytes(TEXT * 110_000)


def sparse(top: Path) -> None:
    """Holes at the start, between, at the end, and nothing else."""
    with (top / "sparse").open("wb") as file:
        for at in (1 << 20, 3 << 20):
            file.seek(at)
            file.write(NOISE[:5000])
        file.truncate(5 << 20)
    with (top / "hole").open("wb") as file:
        file.truncate(10_000)


def special(top: Path) -> None:
    """FIFOs, devices, attributes, ACLs and capabilities."""
    os.mkfifo(top / "fifo")
    os.mknod(top / "null", 0o20666, os.makedev(1, 3))
    os.mknod(top / "disk", 0o60600, os.makedev(8, 1))
    (top / "file").write_bytes(b"x")
    os.setxattr(top / "file", "user.one", b"1")
    os.setxattr(top / "file", "user.large", b"x" * 3000)
    os.setxattr(top / "file", "security.capability", bytes.fromhex("0100000200200000" + "00" * 12))
    acl = "0200000001000600ffffffff020007000100000004000400ffffffff10000700ffffffff20000400ffffffff"
    os.setxattr(top / "file", "system.posix_acl_access", bytes.fromhex(acl))
    os.setxattr(top, "user.top", b"top")


def deep(top: Path) -> None:
    """A tree of 40 folders, names of all lengths and of odd bytes."""
    path = top
    for number in range(40):
        path = path / f"d{number}"
        path.mkdir()
        (path / "file").write_bytes(b"%d" % number)
    for length in (1, 2, 100, 254, 255):
        (top / ("n" * length)).write_bytes(b"n")
    (top / "gr\u00fc\u00dfe").touch()
    (top / os.fsdecode(b"\xff\xfe")).touch()


def many(top: Path) -> None:
    """More files than a leaf holds."""
    for number in range(1500):
        (top / f"file_{number}").write_bytes(b"%d" % number)


def parts(top: Path) -> None:
    """Folders that become subvolumes, and links across them."""
    for name in ("one", "two/three"):
        (top / name).mkdir(parents=True)
        (top / name / "file").write_bytes(name.encode())
    os.link(top / "one/file", top / "one/link")
    os.link(top / "one/file", top / "two/link")


def mixed(top: Path) -> None:
    """What compresses, what does not, and both in one file."""
    (top / "text").write_bytes(TEXT * 40_000)
    (top / "noise").write_bytes(NOISE[:300_000])
    (top / "late").write_bytes((TEXT * 12_000)[: 128 << 10] + NOISE[:400_001] + TEXT * 20_000)
    (top / "early").write_bytes(NOISE[:4096] + TEXT * 9000)
    (top / "inline").write_bytes(TEXT * 200)
    (top / "tiny").write_bytes(b"tiny")
    (top / "one").write_bytes((TEXT * 400)[:4096])
    (top / "nine").write_bytes((TEXT * 900)[:9000])


def chunks(top: Path) -> None:
    """More data than fit into the first chunk, and a small file behind them."""
    (top / "a").write_bytes(TEXT * 500_000)
    (top / "b").write_bytes(NOISE)
    (top / "c").write_bytes(NOISE[:9000])


def wide(top: Path) -> None:
    """Folders with files of all sizes: nodes are split, free space is kept as bitmaps."""
    for number in range(700):
        folder = top / f"d{number % 17}"
        folder.mkdir(exist_ok=True)
        (folder / f"file_{number}_{'x' * (number % 90)}").write_bytes(NOISE[: number * 7])


def linked(top: Path) -> None:
    """More names in a folder than an item holds."""
    (top / "file").write_bytes(b"x")
    for number in range(250):
        os.link(top / "file", top / f"link_{number:04}_{'y' * 100}")


def attributes(top: Path) -> None:
    """Many attributes of many files."""
    for number in range(20):
        (top / f"file{number}").write_bytes(b"1")
        for one in range(20):
            os.setxattr(top / f"file{number}", f"user.n{one}", b"v" * (one * 9))


CASES: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "empty": (lambda top: None, {}),
    "small": (small, {}),
    "large": (large, {}),
    "sparse": (sparse, {}),
    "special": (special, {}),
    "deep": (deep, {}),
    "many": (many, {}),
    "chunks": (chunks, {}),
    "linked": (linked, {}),
    "attributes": (attributes, {}),
    "no subvolumes": (parts, {}),
    "subvolumes": (parts, {"subvolumes": {"one": "rw", "two": "ro"}}),
    "default": (parts, {"subvolumes": {"two": "default", "two/three": "rw"}}),
    "flags": (parts, {"flags": {"one": "nodatacow", "two/three/file": "nodatasum"}}),
    **{f"compress {how}": (mixed, {"compress": how})
       for how in ("zlib", "zlib:9", "lzo", "zstd", "zstd:15")},
    **{f"nodes of {size}": (wide, {"words": ["-n", size]}) for size in ("4K", "64K")},
    "holes": (sparse, {"words": ["-O", "^no-holes"]}),
    "few features": (wide, {"words": ["-O", "^bgt,^fst,^skinny-metadata,^extref"]}),
    "single": (wide, {"words": ["-m", "single", "--csum", "sha256"]}),
    "dup": (chunks, {"words": ["-d", "dup", "-b", "1G"]}),
    "mixed": (wide, {"words": ["-M", "-b", "500M"]}),
    "mixed dup": (chunks, {"words": ["-M", "-m", "dup", "-d", "dup", "-b", "500M"]}),
    "shrink": (chunks, {"words": ["--shrink", "-b", "2G"], "compress": "zstd"}),
}  # fmt: skip

ON_BTRFS: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "on btrfs": (large, {}),
    "without sums": (large, {"flags": {"noise": "nodatasum"}}),
    "reflink": (sparse, {"words": ["--reflink"]}),
    "reflink and compress": (mixed, {"words": ["--reflink"], "compress": "zstd"}),
    "reflink dup": (large, {"words": ["--reflink", "-d", "dup", "-b", "1G"]}),
}
"""Folders on a btrfs of Linux 6.18, which does not tell checksums."""


def arguments(options: dict[str, Any]) -> Iterator[str]:
    """Options of a copy as arguments of mkfs.btrfs."""
    for path, kind in options.get("subvolumes", {}).items():
        yield from ("-u", f"{kind}:{path}")
    for path, names in options.get("flags", {}).items():
        yield from ("--inode-flags", f"{names}:{path}")
    if "compress" in options:
        yield from ("--compress", options["compress"])
    yield from options.get("words", [])


def told(path: Path) -> dict[str, Any]:
    """What there is to an image: its digest, and what chance gave its subvolumes."""
    found: dict[str, Any] = {"size": path.stat().st_size, "digest": digest(path)}
    with bm.open(path) as fs:
        for item in fs.trees[1].items((256, ItemType.ROOT_ITEM, 0)):
            if item.key.type == ItemType.ROOT_ITEM and item.key.objectid < 1 << 48:
                root = ROOT_ITEM.unpack(bytes(item.data))
                found.setdefault("uuids", {})[str(item.key.objectid)] = root.uuid.hex()
                found["when"] = root.ctime.sec
    return found


def digest(path: Path) -> str:
    """Digest of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """A btrfs of the kernel that runs."""
    image, point = folder / "btrfs", folder / "mnt"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(3 << 30)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, point], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", point], check=True)


def main() -> None:
    """Ask mkfs.btrfs."""
    records = {}
    with tempfile.TemporaryDirectory() as folder, mounted(Path(folder)) as btrfs:
        for name, (build, options) in (CASES | ON_BTRFS).items():
            place = btrfs if name in ON_BTRFS else Path(folder)
            top, image = place / name, place / "image"
            top.mkdir()
            build(top)
            image.unlink(missing_ok=True)
            image.touch()
            subprocess.run([*sys.argv[1:], "-q", "-f", "-U", FSID, "-r", str(top),
                            *arguments(options), str(image)],
                           check=True, env=os.environ | ENVIRONMENT)  # fmt: skip
            records[name] = told(image)
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in records.items())
    RECORDS.write_text("{\n" + rows + "\n}\n")


if __name__ == "__main__":
    main()
