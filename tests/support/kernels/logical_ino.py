# SPDX-License-Identifier: GPL-2.0-only
"""What a live kernel answers to LOGICAL_INO_V2, in its own order.

As a program (with ``PYTHONPATH=tests/support``, as root, with loop devices and btrfs) it asks the
running kernel about the images of ``data/kernel`` for which it has such answers, and writes
``tests/data/logical_ino.json.zst``: the answers in that corpus are sorted, here they are as the
kernel gave them.
"""

import json
import platform
from collections.abc import Iterator

import corpus
import mounts
import zstandard

from btrfs_model.kernels.inside.ioctls import Refs, logical_ino

ANSWERS = corpus.TEST_DATA / "logical_ino.json.zst"

CASES = [
    name
    for name in (*corpus.cases("fiemap-random"), *corpus.cases("balance"))
    if corpus.files(name, "fiemap.*")
]


def questions(name: str, kernel: str = "6.12") -> Iterator[tuple[int, bool, Refs]]:
    """What the corpus asked of a case: address, ignore_offset, the sorted answer."""
    for entry in json.loads(corpus.data(name, f"fiemap.{kernel}.json.zst"))["logical_ino"]:
        for field, ignore_offset in (("refs", False), ("refs_ignore_offset", True)):
            yield (
                entry["logical"],
                ignore_offset,
                [[inum, offset, root] for root, inum, offset in entry[field]],
            )


def main() -> None:
    """Record the answers of the running kernel."""
    answers: dict[str, list[tuple[int, bool, Refs | int]]] = {}
    for name in CASES:
        if not (corpus.KERNEL_DATA / name).is_dir():
            continue
        with mounts.mounted(corpus.image(name), "ro") as folder:
            answers[name] = [
                (logical, ignore, logical_ino(folder, logical, ignore))
                for logical, ignore, _ in questions(name, "6.18")
            ]
    text = json.dumps({"kernel": platform.release(), "answers": answers}, separators=(",", ":"))
    ANSWERS.write_bytes(zstandard.compress(text.encode(), 19))


if __name__ == "__main__":
    main()
