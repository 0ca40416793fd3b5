# SPDX-License-Identifier: GPL-2.0-only
"""Everyday questions to a filesystem of real files, beside the running kernel and btrfs-progs.

The files are the machine's own, of /usr up to some gigabytes, with their owners, times and links.
As root they are copied into a btrfs on a loop device; then seeded changes and read-only snapshots
take turns, and some files are stored once more, compressed. Everything is measured warm, as whole
commands, and the median of some runs counts. Without root `mkfs.btrfs --rootdir` makes the image,
and what needs a mount or a snapshot is left out.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import btrfs_model as bm
from bench.bench_send import memory_file
from btrfs_model.kernels.inside import ioctls
from btrfs_model.kernels.inside.mounts import mounted
from btrfs_model.kernels.inside.mounts import run as run_program
from btrfs_model.kernels.timings import make_filesystem

SOURCE: Final = Path("/usr")
BYTES: Final = 2_500_000_000
PACKED: Final = 150_000_000
ROUNDS = 5
SNAPSHOTS: Final = ("snap0", "snap1", "snap2", "snap3")
FIEMAPS: Final = 2000
MEMORY_MIB: Final = 200
START_MS: Final = 60

_COMPRESSED: Final = 4  # BTRFS_SEND_FLAG_COMPRESSED

Row = dict[str, Any]


def _row(name: str, value: float, unit: str, bar: str, peer: float | None = None) -> Row:
    """Return a row; the value and its peer are times or sizes, so less is better."""
    ratio = None if peer is None else peer / value
    return {"name": f"real: {name}", "value": value, "unit": unit, "peer": peer, "ratio": ratio,
            "bar": bar}  # fmt: skip


def middle(action: Callable[[], object]) -> float:
    """Return the median of the seconds of some runs, after one that does not count."""
    times = []
    action()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# ------------------------------------------------------------------------------------ the files --


def choose(source: Path, limit: int) -> list[Path]:
    """Return files and directories of a folder in the order of their names, `limit` bytes of them.

    A directory comes before what it holds; what is neither file, directory nor link is left out.
    """
    chosen, size = [], 0
    for folder, names, files in os.walk(source):
        names.sort()
        here = Path(folder)
        chosen.append(here)
        chosen += [here / name for name in names if (here / name).is_symlink()]
        for name in sorted(files):
            path = here / name
            if not path.is_symlink() and not (path.is_file() and os.access(path, os.R_OK)):
                continue
            size += path.lstat().st_size
            if size > limit:
                return chosen
            chosen.append(path)
    return chosen


def copy(source: Path, paths: list[Path], target: Path) -> None:
    """Copy files with all that is known of them; those that are one stay one."""
    names = "\0".join(str(path.relative_to(source)) for path in paths)
    target.mkdir(parents=True)
    pack = ["tar", "-C", str(source), "--no-recursion", "--null", "-T", "-", "-c"]
    unpack = ["tar", "-C", str(target), "-x"]
    with subprocess.Popen(unpack, stdin=subprocess.PIPE) as unpacking:
        subprocess.run(
            pack, input=os.fsencode(names), stdout=unpacking.stdin, stderr=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip
        assert unpacking.stdin is not None
        unpacking.stdin.close()
        if unpacking.wait():
            raise OSError(f"{' '.join(unpack)}: status {unpacking.returncode}")


def change(top: Path, seed: int) -> None:
    """Change one of fifty files in one of six ways."""
    rng = random.Random(seed)
    folders = sorted(os.walk(top))
    files = [Path(folder, name) for folder, _, names in folders for name in sorted(names)]
    files = [path for path in files if not path.is_symlink()]
    for path in rng.sample(files, -(-len(files) // 50)):
        size = path.lstat().st_size
        match rng.randrange(6):
            case 0:
                path.unlink()
            case 1:
                path.rename(path.with_name(f"{path.name[:200]}.{seed}"))
            case 2:
                with path.open("ab") as file:
                    file.write(rng.randbytes(rng.randrange(20_000)))
            case 3:
                with path.open("r+b") as file:
                    file.seek(rng.randrange(size + 1))
                    file.write(rng.randbytes(rng.randrange(9000)))
            case 4:
                path.chmod(0o600)
            case _:
                os.truncate(path, size // 2)


def make_mounted(folder: Path, source: Path, limit: int) -> Path:
    """Make the image as root: ``tree`` and its snapshots, ``packed`` and its own."""
    image, paths = folder / "image", choose(source, limit)
    make_filesystem(image, 4 * limit + (1 << 30), [])
    with mounted(str(image), str(folder / "mount"), "noatime") as top:
        run_program("btrfs", "subvolume", "create", str(top / "tree"))
        copy(source, paths, top / "tree" / "files")
        for seed, name in enumerate(SNAPSHOTS):
            run_program("btrfs", "subvolume", "snapshot", "-r", str(top / "tree"), str(top / name))
            change(top / "tree", seed)
        run_program("btrfs", "subvolume", "create", str(top / "packed"))
        run_program("btrfs", "property", "set", str(top / "packed"), "compression", "zstd")
        copy(source, choose(source, limit * PACKED // BYTES), top / "packed" / "files")
        run_program(
            "btrfs", "subvolume", "snapshot", "-r", str(top / "packed"), str(top / "packed0")
        )
    return image


def make_unmounted(folder: Path, source: Path, limit: int) -> Path:
    """Make the image without root, by mkfs.btrfs: no snapshots."""
    image, top = folder / "image", folder / "top"
    copy(source, choose(source, limit), top / "files")
    make_filesystem(image, 4 * limit + (1 << 30), ["--rootdir", str(top)])
    shutil.rmtree(top)
    return image


# ------------------------------------------------------------------------------------- commands --


def _seconds(*command: str) -> float:
    """Return the seconds that a command takes; what it says goes nowhere."""
    return middle(
        lambda: subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    )


def _model(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "btrfs_model.cli", *arguments)


def private_memory(*command: str) -> float:
    """Return the most memory, beside mapped files, that a command has at once, in MiB."""
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            found = re.search(r"^RssAnon:\s+(\d+) kB", status.read_text(), re.M)
            most = max(most, int(found[1]) if found else 0)
            time.sleep(0.005)
    return most / 1024


def _beside(name: str, bar: str, model: tuple[str, ...], peer: tuple[str, ...]) -> Iterator[Row]:
    """Measure a command of the model beside another one, and its memory."""
    arguments = _model(*model)
    yield _row(name, _seconds(*arguments), "s", bar, _seconds(*peer))
    yield _row(f"memory of {name}", private_memory(*arguments), "MiB", f"<= {MEMORY_MIB}")


def command_rows(image: Path) -> Iterator[Row]:
    """Measure the commands whose peers are btrfs-progs without a mount."""
    disk = str(image)
    inspect = ("btrfs", "inspect-internal", "dump-tree", disk)
    yield from _beside("dump-tree", "1 x peer", ("dump-tree", disk), inspect)
    yield from _beside("check", "2.5 x peer", ("check", disk), ("btrfs", "check", disk))
    peer = ("btrfs", "check", "--check-data-csum", disk)
    yield from _beside("check --data", "2.5 x peer", ("check", "--data", disk), peer)
    for name, command in (
        ("import", (sys.executable, "-c", "import btrfs_model")),
        ("--help", _model("--help")),
    ):
        yield _row(name, 1000 * _seconds(*command), "ms", f"<= {START_MS}")


def mounted_rows(image: Path, top: Path) -> Iterator[Row]:
    """Measure the commands whose peers look at the mounted filesystem."""
    disk = str(image)
    find = ("find", str(top / "tree"), "-ls")
    yield from _beside("ls -R", "0.667 x peer", ("ls", disk, "tree"), find)
    usage = ("btrfs", "filesystem", "du", str(top))
    yield from _beside("du", "1 x peer", ("du", disk), usage)


# ---------------------------------------------------------------------------- sends and FIEMAP --


def _kernel_send(top: Path, snapshot: str, parent: str | None, compressed: bool) -> float:
    above = 0 if parent is None else ioctls.root_id(top / parent)
    with memory_file() as out, ioctls.opened(top / snapshot) as volume:
        clones, flags = [above] if above else [], _COMPRESSED if compressed else 0

        def send() -> None:
            out.seek(0)
            ioctls.send(volume, out.fileno(), above, clones, flags, 2 if compressed else 1)

        return middle(send)


def send_rows(image: Path, top: Path) -> Iterator[Row]:
    """Measure sends beside the kernel's, into memory."""
    for name, snapshot, parent, compressed, bar in (
        ("full send", "snap0", None, False, "2 x peer"),
        ("incremental send", "snap1", "snap0", False, "3.333 x peer"),
        ("compressed-data send", "packed0", None, True, "3.333 x peer"),
    ):
        with bm.open(image) as fs, memory_file() as out:

            def send(snapshot=snapshot, parent=parent, compressed=compressed, fs=fs, out=out):  # type: ignore[no-untyped-def]
                out.seek(0)
                bm.send(fs, snapshot, parent, compressed=compressed, proto=1 + compressed, to=out)

            seconds = middle(send)
        peer = _kernel_send(top, snapshot, parent, compressed)
        yield _row(name, seconds, "s", bar, peer)
    arguments = _model("send", str(image), "snap0", "-f", os.devnull)
    yield _row("memory of send", private_memory(*arguments), "MiB", f"<= {MEMORY_MIB}")


def fiemap_rows(image: Path, top: Path) -> Iterator[Row]:
    """Measure FIEMAP of many files, one by one."""
    with bm.open(image) as fs:
        table = fs.listing("snap1", content=False)
        paths = table["path"][(table["mode"] & 0o170000 == 0o100000) & (table["nlink"] == 1)]
        chosen = random.Random(1).sample(sorted(paths), min(FIEMAPS, len(paths)))
        snapshot = fs.subvolume("snap1")
        seconds = middle(lambda: [bm.fiemap(fs, snapshot, path) for path in chosen])
    peer = middle(lambda: [ioctls.fiemap(top / "snap1" / path) for path in chosen])
    each = 1000 / len(chosen)
    yield _row("FIEMAP of a file", seconds * each, "ms", "<= 0.1", peer * each)


# -------------------------------------------------------------------------------------- receive --


def receive_rows(folder: Path, image: Path, size: int) -> Iterator[Row]:
    """Measure the receive of a full stream into a fresh filesystem, until it is on the device."""
    stream, target = folder / "stream", folder / "target"
    with bm.open(image) as fs, stream.open("wb") as out:
        bm.send(fs, "snap0", to=out)
    took: dict[str, list[float]] = {"model": [], "kernel": []}
    for _ in range(ROUNDS):
        make_filesystem(target, size, [])
        start = time.perf_counter()
        subprocess.run(_model("receive", str(target), "-f", str(stream)), check=True,
                       stderr=subprocess.DEVNULL)  # fmt: skip
        took["model"].append(time.perf_counter() - start)
        make_filesystem(target, size, [])
        with mounted(str(target), str(folder / "mount"), "noatime") as top:
            start = time.perf_counter()
            run_program("btrfs", "receive", "-f", str(stream), str(top))
            run_program("btrfs", "filesystem", "sync", str(top))
            took["kernel"].append(time.perf_counter() - start)
    model, peer = (statistics.median(took[name]) for name in ("model", "kernel"))
    yield _row("receive", model, "s", "1 x peer", peer)
    target.unlink()
    stream.unlink()


def measure(source: Path = SOURCE, limit: int = BYTES) -> Iterator[Row]:
    """Measure with some bytes of the files of a folder."""
    # not in memory: the image is larger than that of some machines
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as name:
        folder = Path(name)
        if os.geteuid():
            print("real: not root, so the kernel is not measured", file=sys.stderr)
            yield from command_rows(make_unmounted(folder, source, limit))
            return
        image = make_mounted(folder, source, limit)
        yield from command_rows(image)
        with mounted(str(image), str(folder / "mount"), "ro,noatime") as top:
            yield from mounted_rows(image, top)
            yield from send_rows(image, top)
            yield from fiemap_rows(image, top)
        yield from receive_rows(folder, image, 4 * limit + (1 << 30))


def run() -> list[Row]:
    """Measure; a row for each figure."""
    if missing := [name for name in ("btrfs", "tar") if not shutil.which(name)]:
        print(f"real: no {', '.join(missing)} on this machine: not measured", file=sys.stderr)
        return []
    return list(measure())
