# SPDX-License-Identifier: GPL-2.0-only
"""Make ``data/kernel``, the compact corpus.

``select ORACLE`` copies chosen cases of a larger corpus of the same layout. ``features`` makes,
with the machine's own kernel (as root, on loop devices), one tiny filesystem for each feature that
the larger corpus lacks, and has the kernel send its snapshot; ``devices`` those of several
devices. ``provenance`` writes
``provenance.json`` for all that is there, which the other two do as well.

UUIDs and times make every run of ``features`` give other bytes; the stored files are the truth.
"""

import argparse
import datetime
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import zstandard

from btrfs_model.kernels.inside.calls import KernelCalls

HERE = Path(__file__).resolve().parent.parent / "data" / "kernel"

# Folders taken whole.
WHOLE = [
    "send/send-truncate/n500",
    "send/send-readahead/n5000",
    "send/send-utimes/n200",
    "counts/W2/N500",
    "counts/W3/half200",
    "counts/W3/snap200",
    "counts/W4/N2000",
    "fiemap-random/s04",
    "fiemap-random/s05",
    "fiemap-random/s07",
    "fiemap-random/s13",
    "fiemap/f100",
    "reada/r5k",
]
# All random filesystems come with their image and case.json, which has the hash of every stream:
# that is enough to judge a send. These also come with their streams without parent ...
FULL_STREAMS = [1, 3, 5, 6, 10, 13, 15, 18, 19, 25, 27, 28, 29, 31, 32, 33, 38]
# ... and these with all streams and the listings of their snapshots.
ALL_STREAMS = [3, 6, 19, 27, 29, 32, 38]
# Crash images with log trees: (case, kernels).
LOGS = [
    ("log/nd/nd_20_5", ["5.10", "5.10p", "6.1", "6.12", "6.18"]),
    ("log/scenarios/chmod_only", ["5.10", "6.18"]),
    ("log/scenarios/dir_new_subdirs", ["5.10", "6.18"]),
    ("log/scenarios/sparse_and_holes", ["5.10", "6.18"]),
    ("log/scenarios/subvolume_log", ["5.10", "6.18"]),
    ("log/scenarios/xattrs_new_file", ["6.18"]),
    ("log/random/seed_9", ["6.18"]),
]

# What each tiny filesystem is for: mkfs options, mount options, further steps.
FEATURES: dict[str, dict[str, Any]] = {
    "csum-xxhash": {"mkfs": ["--csum", "xxhash"]},
    "csum-sha256": {"mkfs": ["--csum", "sha256"]},
    "csum-blake2": {"mkfs": ["--csum", "blake2"]},
    "nodesize-4096": {"mkfs": ["-n", "4096"], "files": 120},
    "nodesize-65536": {"mkfs": ["-n", "65536"]},
    "dup": {"mkfs": ["-m", "dup", "-d", "dup"]},
    "mixed": {"mkfs": ["--mixed", "-n", "4096", "-m", "single", "-d", "single"]},
    "mixed-dup": {"mkfs": ["--mixed", "-n", "4096", "-m", "dup", "-d", "dup"]},
    "quota": {"mkfs": [], "quota": True},
    "simple-quota": {"mkfs": [], "simple_quota": True},
    "space-cache-v1": {"mkfs": ["-R", "^free-space-tree"], "mount": ["space_cache=v1"]},
    "zlib": {"mkfs": [], "mount": ["compress-force=zlib:9"]},
    "lzo": {"mkfs": [], "mount": ["compress-force=lzo"]},
    "zstd": {"mkfs": [], "mount": ["compress-force=zstd:15"]},
    "metadata-uuid": {"mkfs": [], "tune": ["-m", "-f"]},
    "nodatacow": {"mkfs": [], "mount": ["nodatacow"]},
    "no-holes-off": {"mkfs": ["-O", "^no-holes"]},
    "skinny-metadata-off": {"mkfs": ["-O", "^skinny-metadata,^no-holes"]},
    "extended-refs": {"mkfs": [], "links": 400},
    "raid1-two-devices": {"mkfs": ["-m", "raid1", "-d", "raid1"], "devices": 2},
}
# Filesystems of several devices, all of which are stored.
DEVICES: dict[str, dict[str, Any]] = {
    name: {"mkfs": ["-d", data, "-m", metadata], "devices": count, "wide": True, **more}
    for name, data, metadata, count, more in [
        ("single", "single", "raid1", 2, {}),
        ("raid0", "raid0", "raid0", 3, {}),
        ("raid1", "raid1", "raid1", 3, {}),
        ("raid1c3", "raid1c3", "raid1c3", 3, {}),
        ("raid1c4", "raid1c4", "raid1c4", 4, {}),
        ("raid10", "raid10", "raid10", 4, {"mount": ["compress=zstd"]}),
        ("raid5", "raid5", "raid5", 3, {}),
        ("raid6", "raid6", "raid6", 5, {"mount": ["compress=zlib"]}),
        ("raid5-to-raid1", "raid5", "raid5", 3, {"convert": "raid1"}),
    ]
}
FAMILIES = {"features": FEATURES, "devices": DEVICES}
SIZE = 256 << 20


def run(*command: str | Path) -> str:
    """Output of a command that has to succeed."""
    return subprocess.run(
        [str(word) for word in command], check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def pack(raw: Path, target: Path) -> None:
    """Compress hard."""
    run("zstd", "-q", "-f", "-19", "--long=27", raw, "-o", target)


def chosen_files(oracle: Path) -> list[Path]:
    """Files of the larger corpus that the compact one takes, relative to it."""
    names: list[Path] = []
    for folder in WHOLE:
        names += [file.relative_to(oracle) for file in (oracle / folder).rglob("*")]
    for folder, kernels in LOGS:
        names.append(Path(folder) / "case.json")
        for kernel in kernels:
            names += [f.relative_to(oracle) for f in (oracle / folder / kernel).rglob("*")]
    for case in sorted((oracle / "send/random").iterdir()):
        names += [file.relative_to(oracle) for file in random_files(case)]
    return sorted(name for name in set(names) if (oracle / name).is_file())


def random_files(case: Path) -> list[Path]:
    """Files taken of a random filesystem."""
    seed = int(case.name.removeprefix("seed-"))
    taken = {"case.json", "image.zst"}
    described = json.loads((case / "case.json").read_text())
    for send in described["sends"]:
        if seed in ALL_STREAMS or (seed in FULL_STREAMS and send["parent"] is None):
            records = [send, *send["kernels"].values()]
            taken |= {record["file"] for record in records if record.get("file")}
    if seed in ALL_STREAMS:
        taken |= {"ops.jsonl.zst", "trees.jsonl.zst"}
    return [case / name for name in sorted(taken)]


def select(oracle: Path) -> None:
    """Take the chosen cases of the larger corpus."""
    for name in chosen_files(oracle):
        target = HERE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(oracle / name, target)
        target.chmod(0o644)


def fill(top: Path, described: dict[str, Any]) -> None:
    """Write a small tree of every kind of inode and extent into a new subvolume."""
    run("btrfs", "-q", "subvolume", "create", top)
    (top / "inline").write_bytes(b"a file so small that it lies in the tree\n" * 3)
    (top / "regular").write_bytes(
        b"".join(b"line %06d of a regular file\n" % i for i in range(3000))
    )
    (top / "random").write_bytes(hashlib.shake_256(b"btrfs").digest(9000))
    if described.get("wide"):
        (top / "wide").write_bytes(hashlib.shake_256(b"stripes").digest(300_000))
    (top / "empty").touch()
    with (top / "sparse").open("wb") as file:
        file.write(b"head" * 1024)
        file.seek(64 << 10)
        file.write(b"tail" * 1000)
        file.truncate(100_000)
    run("fallocate", "-l", "64K", top / "prealloc")
    run("fallocate", "-n", "-o", "128K", "-l", "64K", top / "regular")
    run("cp", "--reflink=always", top / "regular", top / "clone")
    (top / "directory" / "below").mkdir(parents=True)
    for i in range(described.get("files", 12)):
        (top / "directory" / f"file-{i:04d}").write_bytes(b"%d" % i * (i * 37 % 900))
    for i in range(described.get("links", 3)):
        os.link(top / "inline", top / "directory" / "below" / f"a-rather-long-link-name-{i:05d}")
    (top / "symlink").symlink_to("directory/below")
    os.mkfifo(top / "fifo", 0o640)
    os.mknod(top / "device", 0o600 | 0o020000, os.makedev(5, 1))
    os.setxattr(top / "regular", "user.colour", b"green")
    os.setxattr(top / "directory", "user.long", b"v" * 700)
    os.chown(top / "random", 1000, 1001)
    (top / "random").chmod(0o4751)


def make(family: str, name: str, described: dict[str, Any]) -> None:
    """Make one tiny filesystem, have its snapshot sent, and store both."""
    target = HERE / family / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    mkfs = ["-m", "single", "-d", "single"] if "-m" not in described["mkfs"] else []
    mkfs += described["mkfs"]
    options = ["noatime", *described.get("mount", [])]
    with tempfile.TemporaryDirectory() as folder:
        devices = [Path(folder) / f"device{i}" for i in range(described.get("devices", 1))]
        for device in devices:
            with device.open("wb") as file:
                file.truncate(SIZE)
        run("mkfs.btrfs", "-q", "-f", *mkfs, *devices)
        if "tune" in described:
            run("btrfstune", *described["tune"], devices[0])
        loops = [run("losetup", "--find", "--show", device).strip() for device in devices]
        top = Path(folder) / "mounted"
        top.mkdir()
        try:
            run("btrfs", "device", "scan", *loops)
            run("mount", "-t", "btrfs", "-o", ",".join(options), loops[0], top)
            try:
                if described.get("quota"):
                    run("btrfs", "quota", "enable", top)
                if described.get("simple_quota"):
                    # btrfs-progs before 6.7 have no option for it
                    KernelCalls(top).quota_enable(simple=True)
                fill(top / "volume", described)
                run("btrfs", "filesystem", "sync", top)
                if "convert" in described:
                    some = f"-dconvert={described['convert']},limit=1"
                    run("btrfs", "balance", "start", some, top)
                    (top / "volume" / "later").write_bytes(hashlib.shake_256(b"l").digest(200_000))
                run("btrfs", "-q", "subvolume", "snapshot", "-r", top / "volume", top / "snap")
                (top / "volume" / "regular").open("r+b").write(b"changed after the snapshot")
                run("btrfs", "filesystem", "sync", top)
                stream = Path(folder) / "stream"
                run("btrfs", "-q", "send", "-f", stream, top / "snap")
            finally:
                run("umount", top)
        finally:
            for loop in loops:
                run("losetup", "-d", loop)
        if family == "features":
            pack(devices[0], target / "image.zst")
        else:
            for number, device in enumerate(devices, 1):
                pack(device, target / f"{number}.device.zst")
        pack(stream, target / "00.stream.zst")
        (target / "00.stream.zst").chmod(0o644)
        case = {
            "family": family,
            "case": name,
            "kernel": platform.release(),
            "progs": run("btrfs", "--version").strip(),
            "mkfs": mkfs,
            "mount": ",".join(options),
            "devices": len(devices),
            **({"image": {"file": "image.zst", "raw_bytes": SIZE}} if family == "features" else {}),
            "sends": [
                {
                    "id": "00",
                    "what": "full",
                    "snap": "snap",
                    "parent": None,
                    "clones": [],
                    "flags": 0,
                    "proto": None,
                    "native": {
                        "bytes": stream.stat().st_size,
                        "sha256": hashlib.sha256(stream.read_bytes()).hexdigest(),
                    },
                    "file": "00.stream.zst",
                    "kernels": {},
                }
            ],
        }
        (target / "case.json").write_text(json.dumps(case, indent=1) + "\n")


def provenance() -> None:
    """Describe every stored file: size, hash, hash of the content, which kernel made it."""
    files = {}
    for file in sorted(HERE.rglob("*")):
        if not file.is_file() or file.parent == HERE:
            continue
        raw = file.read_bytes()
        entry = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        if file.suffix == ".zst":
            content = hashlib.sha256()
            size = 0
            decoder = zstandard.ZstdDecompressor(max_window_size=1 << 27)
            for piece in decoder.read_to_iter(raw):
                content.update(piece)
                size += len(piece)
            entry |= {"raw_bytes": size, "raw_sha256": content.hexdigest()}
        files[str(file.relative_to(HERE))] = entry
    described = {
        "made_by": "scripts/make_corpus.py",
        "made_on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "kernels": {
            "5.10": "5.10.46 (Debian 11, User-Mode Linux)",
            "5.10p": "5.10.223 with the commit log-dir-index-only and no other (User-Mode Linux)",
            "6.1": "6.1.176 (Debian 12, User-Mode Linux)",
            "6.12": "6.12.101 (Debian 13, User-Mode Linux)",
            "6.18": "6.18.44 (native)",
            "7.2": "7.2.7 (Debian sid, User-Mode Linux)",
        },
        "progs": "btrfs-progs v6.2",
        "files": files,
    }
    (HERE / "provenance.json").write_text(json.dumps(described, indent=1) + "\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("select").add_argument("oracle", type=Path)
    for family in FAMILIES:
        commands.add_parser(family).add_argument("names", nargs="*")
    commands.add_parser("provenance")
    arguments = parser.parse_args()
    if arguments.command == "select":
        select(arguments.oracle.resolve())
    elif arguments.command in FAMILIES:
        described = FAMILIES[arguments.command]
        for name in arguments.names or described:
            make(arguments.command, name, described[name])
    provenance()


if __name__ == "__main__":
    main()
