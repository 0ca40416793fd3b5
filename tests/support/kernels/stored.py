# SPDX-License-Identifier: GPL-2.0-only
"""What kernels store of 150 files at each level, and show of mount options.

As a program (with ``PYTHONPATH=tests/support/kernels:tests/support``, as root) it asks kernels and
writes ``tests/data/compressed_files.json.zst`` and ``mount_options.json.zst``: name each kernel as
``verify --kernel`` does, after its preset, as in ``v6.1.176=uml``. Of a file eight digits are kept
of the SHA-256 of its extents and of the bytes that they have on disk.
"""

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import corpus
import zstandard

import btrfs_model as bm
from btrfs_model.kernels.choice import start
from btrfs_model.kernels.inside import asked, operations
from btrfs_model.kernels.inside.mounts import Place
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.timings import make_filesystem

FILES = corpus.TEST_DATA / "compressed_files.json.zst"
SHOWN = corpus.TEST_DATA / "mount_options.json.zst"
LEVELS = [f"zlib:{level}" for level in range(1, 10)] + ["lzo"]
LEVELS += [f"zstd:{level}" for level in (*range(1, 16), -1, -3, -7, -15)]
DIGITS = 8
SIZE = 512 << 20
MKFS = {"plain": [], "fst": [], "v1": ["-R", "^free-space-tree"]}


def files() -> Iterator[tuple[str, int, Any]]:
    """Names, sizes and what is written."""
    for number in range(150):
        choice = random.Random(f"f{number}")
        sizes = [
            choice.randint(1, 2100), choice.randint(1, 2100), choice.randint(1900, 4096),
            choice.randint(4097, 9000), choice.randint(9000, 70000), choice.randint(70000, 131072),
            131072, 131073, choice.randint(131072, 600000), 4096, 8192, 16384, 16385,
        ]  # fmt: skip
        size, tag = choice.choice(sizes), f"{number}"
        mix = ["mix", tag]
        fills: list[Any] = [["text", tag], mix, mix, mix, ["rnd", tag], ["zero"], 7]
        fill = choice.choice(fills)
        yield f"f{number}", size, fill if isinstance(fill, int) else tuple(fill)


def digest(fs: bm.Filesystem, name: str) -> str:
    """Digits of what is stored of a file."""
    rows = []
    for one in fs.subvolume(5).extents(name):
        said = ""
        if one.compression and one.disk_bytenr:
            data = bytes(fs.image.data(one.disk_bytenr, one.disk_num_bytes))
            said = hashlib.sha256(data).hexdigest()[:12]
        elif one.compression:
            said = f"{hashlib.sha256(one.inline).hexdigest()[:12]}:{len(one.inline)}"
        rows.append([one.start, one.length, one.type, one.compression, one.disk_num_bytes, said])
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:DIGITS]


def stored(kernel: Kernel, level: str) -> str:
    """Let a kernel write the files; the digits of all."""
    image = kernel.images / "stored"
    make_filesystem(image, SIZE, [])
    options = f"commit=300,noatime,nodiscard,compress-force={level}"
    steps: list[operations.OneStep] = []
    for name, size, fill in files():
        steps.append(("create", {"path": name, "mode": 0o644}))
        steps.append(("write", {"path": name, "offset": 0, "length": size, "fill": fill}))
    with kernel.attached(image, read_only=False) as source:
        kernel.call(operations.begin, Place(source=source, top=kernel.top, options=options))
        ended = kernel.call(operations.take, steps)["ended"]
        kernel.call(operations.end)
    assert not any(ended)
    with bm.open(image) as fs:
        found = "".join(digest(fs, name) for name, *_ in files())
    image.unlink()
    return found


def shown(kernel: Kernel, kind: str, options: list[str]) -> dict[str, str | None]:
    """Let a kernel mount a fresh filesystem with each of some options."""
    found: dict[str, str | None] = {}
    for some in [options] if kind == "plain" else [[one] for one in options]:
        image = kernel.images / "shown"
        make_filesystem(image, SIZE, MKFS[kind])
        with kernel.attached(image, read_only=False) as source:
            place = Place(source=source, top=kernel.top, options="")
            found |= zip(some, kernel.call(asked.shown_options, place, some), strict=True)
        image.unlink()
    return found


def main(kernels: list[str]) -> None:
    """Record what kernels store and show, with the options that stand in the file so far."""
    known = json.loads(zstandard.decompress(SHOWN.read_bytes()))
    rows: dict[tuple[str, str], list[str]] = {}
    answers = {}
    for preset, _, name in (one.partition("=") for one in kernels):
        with start(name, memory=512 << 20) as kernel:
            exact = [one for one in LEVELS if preset.startswith("v6.18") or "zstd" not in one]
            for level in exact:
                rows.setdefault((level, stored(kernel, level)), []).append(preset)
            asked_for = next(iter(known.values()))
            answers[preset] = {
                kind: shown(kernel, kind, [*ones]) for kind, ones in asked_for.items()
            }
    table = [{"kernels": names, "option": level, "files": digits}
             for (level, digits), names in rows.items()]  # fmt: skip
    for path, value in ((FILES, table), (SHOWN, answers)):
        text = json.dumps(value, separators=(",", ":"))
        path.write_bytes(zstandard.compress(text.encode(), 19))


if __name__ == "__main__":
    main(sys.argv[1:])
