#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Write data/workloads/send-utimes/measured.json from records of real kernels.

    scripts/measure_send_utimes.py CORPUS

CORPUS has the layout of data/kernel (see its README): ``send/send-utimes/n*/case.json`` say what
kernels sent, ``counts/W0/N*/case.json`` how often they called their functions,
``timings/send.json`` how long warm sends took.
"""

import json
import sys
from pathlib import Path

from measured import taken, write

TARGET = Path(__file__).parent.parent / "data/workloads/send-utimes/measured.json"
KERNELS = {"before": "6.1", "after": "6.12"}
# Calls that no other patch between the sides and these kernels changes.
FUNCTIONS = ("btrfs_get_next_valid_item", "changed_cb", "finish_inode_if_needed", "send_cmd")
RELEASES = {"before": "6.1.176", "after": "6.12.101"}
SOURCES = {
    "stream": {
        side: f"Linux {release}, User-Mode Linux, sending filesystems that the same script made on "
        "Linux 6.18.44"
        for side, release in RELEASES.items()
    },
    "calls of kernel functions": {
        side: f"Linux {release}, User-Mode Linux, by probes, on filesystems that the same script "
        "made on Linux 6.1.176"
        for side, release in RELEASES.items()
    },
    "time": {
        side: f"Linux {release}, User-Mode Linux on a two-core virtual machine, into a file in "
        "memory. Not the machine of the commit message"
        for side, release in RELEASES.items()
    },
}


def rows(corpus: Path) -> list[dict[str, object]]:
    """Return a row for each side, number of files and quantity that there is a record of."""
    found = []
    for folder in corpus.glob("send/send-utimes/n*"):
        case = json.loads((folder / "case.json").read_text())
        sent = next(one for one in case["sends"]
                    if (one["snap"], one["parent"], one["flags"], one["proto"])
                    == ("snap2", "snap1", 0, None))  # fmt: skip
        for side, kernel in KERNELS.items():
            one = sent["kernels"][kernel]
            found.append((case["n"], side, "stream size", one["bytes"]))
    for folder in corpus.glob("counts/W0/N*"):
        case = json.loads((folder / "case.json").read_text())
        files = int(folder.name.removeprefix("N"))
        for side, kernel in KERNELS.items():
            counts = case["kernels"][kernel]["counts"]
            found += [(files, side, f"sender: {name}", counts[name])
                      for name in FUNCTIONS if name in counts]  # fmt: skip
    counted = [
        {"files": files, "side": side, "quantity": name, "value": value}
        for files, side, name, value in sorted(found)
    ]
    return counted + times(corpus)


def times(corpus: Path) -> list[dict[str, object]]:
    """Return how long the warm sends of each size took; the first of three was cold."""
    entries = json.loads((corpus / "timings/send.json").read_text())["rows"]
    return [
        {
            "files": entry["n"], "side": side, "quantity": "time",
            **taken("uml", f"v{release}", "ms", entry["ioctl_ms"][1:]),
        }
        for side, release in RELEASES.items()
        for entry in entries
        if entry["workload"] == "send-utimes" and entry["kernel"].startswith(f"{release} ")
    ]  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(TARGET, SOURCES, rows(Path(sys.argv[1])))
