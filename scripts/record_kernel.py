# SPDX-License-Identifier: GPL-2.0-only
"""Record what one more kernel makes of the images of ``data/kernel``, and of nothing else.

``record_kernel.py KERNEL NAME``, e.g. ``sid 7.2``: the kernel (``verify --kernel``) sends what the
others sent and maps what they mapped. Each ``case.json`` of sends gets a row of that name; a stream
that is that of 6.18 is told as such, of another one its sha256 is kept. Maps and references stand
in ``fiemap.NAME.json.zst``. Then run ``make_corpus.py provenance``.
"""

import argparse
import errno
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import zstandard

from btrfs_model.kernels import choice
from btrfs_model.kernels.inside import asked
from btrfs_model.kernels.inside.mounts import Place
from btrfs_model.kernels.inside.timed import Sent
from btrfs_model.kernels.session import Kernel
from btrfs_model.stream.reader import read_stream

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "tests/support"))

import corpus  # noqa: E402 (it lies with the tests)

SENDS = [
    name
    for name in (*corpus.cases("send"), *corpus.cases("balance"), *corpus.cases("features"))
    if corpus.case(name).get("sends") and name not in corpus.SEVERAL_DEVICES
]
MAPPED = [name for name in corpus.cases() if corpus.has(name, "fiemap.6.18.json.zst")]


def sent(stream: bytes, ended: int, native: dict[str, Any] | None) -> dict[str, Any]:
    """Return the record of a send."""
    if ended:
        return {"errno": errno.errorcode[ended], "same_as_native": False}
    digest = hashlib.sha256(stream).hexdigest()
    if native is not None and digest == native.get("sha256"):
        return {"same_as_native": True}
    commands = Counter(command.name.upper() for command in read_stream(stream))
    return {
        "bytes": len(stream), "sha256": digest, "stream_version": stream[13],
        "commands": dict(commands), "same_as_native": False,
    }  # fmt: skip


def record_sends(kernel: Kernel, name: str, called: str) -> int:
    """Record the sends of a case; how many are not those of 6.18."""
    described = corpus.case(name)
    plans = [
        Sent(snapshot=ask["snap"], parent=ask["parent"], clones=ask["clones"], flags=ask["flags"],
             protocol=ask["proto"] or 1)
        for ask in described["sends"]
    ]  # fmt: skip
    targets = [kernel.new_file() for _ in plans]
    with kernel.attached(corpus.image(name), read_only=True) as source:
        place = Place(source=source, top=kernel.top, options="ro")
        ended = kernel.call(asked.streams, place, plans, [str(target) for target in targets])
    others = 0
    for ask, target, number in zip(described["sends"], targets, ended, strict=True):
        record = sent(target.read_bytes(), number, ask.get("native"))
        ask.setdefault("kernels", {})[called] = record
        others += not record["same_as_native"]
        target.unlink()
    described.setdefault("kernel_releases", {})[called] = kernel.release
    corpus.path(name, "case.json").write_text(json.dumps(described, indent=1) + "\n")
    return others


def record_maps(kernel: Kernel, name: str, called: str) -> bool:
    """Record maps and references of a case; whether they are those of 6.18."""
    known = json.loads(corpus.data(name, "fiemap.6.18.json.zst"))
    files = list(known["files"]) if "files" in known else [corpus.case(name)["file"]]
    addresses = [one["logical"] for one in known.get("logical_ino", [])]
    questions = [(address, ignored) for address in addresses for ignored in (False, True)]
    with kernel.attached(corpus.image(name), read_only=True) as source:
        place = Place(source=source, top=kernel.top, options="ro")
        answer = kernel.call(asked.sharing, place, files, [], questions)
    found = {**known, "kernel": kernel.release}
    if "files" in known:
        found["files"] = {
            path: {**known["files"][path], "extents": [list(row) for row in rows]}
            for path, rows in zip(files, answer["extents"], strict=True)
        }
        references = iter(answer["references"])
        found["logical_ino"] = [
            {"logical": address, "refs": by_root(next(references)),
             "refs_ignore_offset": by_root(next(references))}
            for address in addresses
        ]  # fmt: skip
    else:
        found["extents"] = [list(row) for row in answer["extents"][0]]
    text = json.dumps(found, separators=(",", ":")).encode()
    target = corpus.path(name, "fiemap.6.18.json.zst").with_name(f"fiemap.{called}.json.zst")
    target.write_bytes(zstandard.compress(text, 19))
    return {**found, "kernel": known["kernel"]} == known


def by_root(references: Any) -> list[list[int]]:
    """Return references as the corpus has them: root, inode, offset; sorted as it has them."""
    rows = sorted(references, key=lambda row: (row[2], row[0], row[1]))
    return [[root, inode, offset] for inode, offset, root in rows]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel")
    parser.add_argument("name")
    arguments = parser.parse_args()
    with choice.start(arguments.kernel) as kernel:
        for name in SENDS:
            print(name, "sends unlike 6.18:", record_sends(kernel, name, arguments.name))
        for name in MAPPED:
            same = record_maps(kernel, name, arguments.name)
            print(name, "maps", "as 6.18" if same else "unlike 6.18")


if __name__ == "__main__":
    main()
