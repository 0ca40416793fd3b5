# SPDX-License-Identifier: GPL-2.0-only
"""What a release of Linux made of some scenarios, each of which shows a toggle.

``PYTHONPATH=tests/support python -m releases KERNEL`` records it: KERNEL is what ``btrfs-model
verify --kernel`` takes.
"""

import contextlib
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from btrfs_model.behaviour import preset_of, version
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.data import stored_files
from btrfs_model.experiments.verify.sides import Ran, in_the_kernel, in_the_model
from btrfs_model.kernels.choice import start
from btrfs_model.volume.filesystem import Filesystem

HERE = Path(__file__).resolve().parents[1] / "data"
_MKFS = ["-n", "16384", "-O", "no-holes"]
_RANDOM = ["rnd", "1"]
SCENARIOS: dict[str, list[list[Any]]] = {
    "inline, in place": [
        ["mkfs", _MKFS], ["mount", "noatime,nodatacow"],
        ["create", "f"], ["write", "f", 0, 100, 7], ["sync"], ["write", "f", 10, 50, 8], ["sync"],
        ["create", "g"], ["fallocate", "g", 1, 0, 65536], ["write", "g", 0, 100, 7], ["sync"],
    ],
    "inline, compressed": [
        ["mkfs", _MKFS], ["mount", "noatime,compress=zlib"],
        ["create", "f"], ["write", "f", 0, 900, ["pat", "a"]], ["sync"],
        ["create", "g"], ["write", "g", 0, 900, _RANDOM], ["sync"], ["write", "g", 0, 900, 7],
        ["sync"], ["create", "h"], ["write", "h", 0, 4096, ["pat", "b"]], ["sync"],
    ],
    "inline, compressed by force": [
        ["mkfs", _MKFS], ["mount", "noatime,compress-force=lzo"],
        ["create", "f"], ["write", "f", 0, 864, _RANDOM], ["sync"],
        ["create", "g"], ["write", "g", 0, 3000, _RANDOM], ["sync"],
    ],
    "compressed to its end": [
        ["mkfs", _MKFS], ["mount", "noatime,compress-force=zstd"],
        ["create", "f"], ["write", "f", 0, 70_001, ["pat", "a"]], ["sync"],
        ["create", "g"], ["write", "g", 0, 12_500, ["pat", "b"]], ["sync"],
    ],
    "attributes of a socket": [
        ["mkfs", _MKFS], ["mount", "noatime"],
        ["mknod", "s", 0o140600], ["setxattr", "s", "user.a", "61"], ["sync"],
    ],
    "a punch where a clone brought a hole": [
        ["mkfs", _MKFS], ["mount", "noatime"], ["create", "f"], ["create", "g"],
        ["write", "f", 8192, 4095, 7], ["write", "g", 131_072, 131_071, 8],
        ["clone_range", "g", 4096, 131_072, "f", 8192], ["fallocate", "f", 3, 2048, 8193],
    ],
    "a snapshot of what did not change": [
        ["mkfs", _MKFS], ["mount", "noatime"],
        ["subvol_create", "v"], ["create", "v/f"], ["sync"], ["remount"],
        ["snapshot", "v", "s", True], ["sync"],
    ],
    "a hole between holes": [
        ["mkfs", ["-n", "16384", "-O", "^no-holes"]], ["mount", "noatime"],
        ["create", "f"], ["write", "f", 0, 262_144, 7], ["sync"],
        ["fallocate", "f", 3, 0, 65_536], ["fallocate", "f", 3, 131_072, 65_536], ["sync"],
        ["fallocate", "f", 3, 65_536, 65_536], ["sync"],
    ],
    "chattr without checksums": [
        ["mkfs", _MKFS], ["mount", "noatime,nodatasum"],
        ["create", "f"], ["chattr", "f", 0x40], ["create", "g"], ["chattr", "g", 0x800000],
        ["chattr", "g", 0, 0x800000], ["remount", "noatime"], ["create", "h"],
        ["chattr", "h", 0x800000], ["chattr", "h", 0, 0x800000], ["sync"],
    ],
    "a clone of a part of a hole": [
        ["mkfs", ["-n", "16384", "-O", "^no-holes"]], ["mount", "noatime"],
        ["create", "f"], ["truncate", "f", 131_072], ["create", "g"],
        ["clone_range", "f", 8192, 8192, "g", 65_536], ["sync"],
    ],
    "holes punched behind the end": [
        ["mkfs", ["-n", "16384", "-O", "^no-holes"]], ["mount", "noatime"],
        ["create", "f"], ["fallocate", "f", 3, 1, 20_000], ["write", "f", 65_536, 4095, 1],
        ["create", "g"], ["fallocate", "g", 3, 4097, 2047], ["truncate", "g", 20_000],
        ["create", "h"], ["fallocate", "h", 3, 4096, 4096], ["fallocate", "h", 3, 0, 4095],
        ["write", "h", 131_072, 9000, 2], ["fallocate", "h", 3, 4096, 40_000],
        ["create", "i"], ["write", "i", 0, 5000, 3], ["fallocate", "i", 3, 12_288, 20_000],
        ["truncate", "i", 50_000], ["remount"], ["fallocate", "i", 3, 60_000, 4000],
        ["truncate", "i", 100_000], ["sync"],
    ],
    "an empty file that is truncated": [
        ["mkfs", _MKFS], ["mount", "noatime"], ["create", "f"], ["truncate", "f", 0],
        ["write", "f", 0, 4096, 7], ["write", "f", 4096, 8192, 7], ["sync"],
    ],
    "a dedupe of what differs": [
        ["mkfs", _MKFS], ["mount", "noatime"],
        ["create", "f"], ["write", "f", 0, 8192, 1], ["create", "g"], ["write", "g", 0, 8192, 2],
        ["dedupe", "f", 0, 4096, "g", 0], ["sync"],
    ],
    "fsync of a directory that is gone": [
        ["mkfs", _MKFS], ["mount", "noatime"],
        ["mkdir", "d"], ["sync"], ["open", "d", "h"], ["rmdir", "d"], ["fsyncfd", "h"],
        ["create", "g"], ["fsync", "g"],
    ],
    "calls on quota groups at a limit": [
        ["mkfs", _MKFS], ["mount", "noatime"], ["quota_enable"], ["create", "f"], ["sync"],
        ["qgroup_limit", "0/5", 1, -1], ["qgroup_create", "1/1"], ["qgroup_limit", "0/5", -1, -1],
        ["sync"],
    ],
}  # fmt: skip


def scenario_of(name: str) -> Scenario:
    """Return a scenario, as `verify` takes it."""
    steps = [parse_step(name, at, line) for at, line in enumerate(SCENARIOS[name], 1)]
    return Scenario(name, steps, hex_values=True)


def left(fs: Filesystem, ran: Ran) -> dict[str, Any]:
    """Return how the calls ended, what fsyncs came to, and what is there: files, ages of roots."""
    files = {
        path: [[hashlib.sha256(one).hexdigest() if isinstance(one, bytes) else int(one)
                for one in row] for row in rows]
        for path, rows in stored_files(fs)
    }  # fmt: skip
    generations = {number: fs.tree(number).generation for number in fs.subvolume_ids}
    ages = {str(number): max(generations.values()) - one for number, one in generations.items()}
    return {"ended": ran.ended, "synced": ran.synced, "files": files, "ages": ages}


def in_model(name: str, behaviour: str) -> dict[str, Any]:
    """Carry a scenario out in the model."""
    with in_the_model(scenario_of(name), behaviour) as (fs, ran):
        return left(fs, ran)


def record(which: str) -> Path:
    """Carry all scenarios out on a kernel, and write what it left."""
    found = {}
    with start(which) as kernel, contextlib.ExitStack() as stack:
        kernel.start()
        for name in SCENARIOS:
            image = kernel.images / "recorded"
            stack.callback(image.unlink, missing_ok=True)
            ran = in_the_kernel(kernel, scenario_of(name), image)
            with Filesystem.open(image) as fs:
                found[name] = left(fs, ran)
        path = HERE / f"linux-{'.'.join(map(str, version(kernel.release)))}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


if __name__ == "__main__":
    path = record(sys.argv[1])
    for name, wanted in json.loads(path.read_text()).items():
        same = in_model(name, preset_of(path.stem.removeprefix("linux-"))) == wanted
        print("equal    " if same else "different", name)
