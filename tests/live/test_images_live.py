# SPDX-License-Identifier: GPL-2.0-only
"""Images of all builders, used by kernels: what they are for once they leave the model.

A kernel mounts each image, sends its snapshots, takes and receives others, counts quotas, balances,
scrubs. Nobody may find anything wrong afterwards, and the model goes on with what the kernel left.
Other tests compare what two sides wrote; here nothing is left out of the comparison.
"""

import os
import random
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import calls
import corpus
import judges
import live
import pytest
import scenarios
from progs import btrfs_check, needs_progs

import btrfs_model as bm
from btrfs_model.experiments.verify.listing import snapshots_of
from btrfs_model.experiments.verify.random.calls import Call, acl, random_call
from btrfs_model.experiments.verify.random.scenarios import random_scenario
from btrfs_model.experiments.workloads import NAMES as WORKLOADS
from btrfs_model.kernels.inside.calls import KernelCalls
from btrfs_model.kernels.session import Kernel
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.items import decode
from btrfs_model.ondisk.keys import ItemType, ObjectId
from btrfs_model.ondisk.structs import SUPER_BLOCK
from btrfs_model.ondisk.superblock import SUPER_OFFSETS
from btrfs_model.volume.filesystem import Filesystem

SIZE = 256 << 20
ROOM = 256 << 20
INITIALIZED = 1 << 31
"""``BTRFS_INODE_ROOT_ITEM_INIT``."""


# --------------------------------------------------------------------------- files of all kinds --


def fill(fs: WritableFilesystem, top: str = "") -> None:
    """Make a file of each kind below a path."""
    fs.mkdir(f"{top}d")
    for name, size in (("empty", 0), ("inline", 100), ("blocks", 70_000), ("large", 3 << 20)):
        fs.create(f"{top}d/{name}")
        fs.write(f"{top}d/{name}", 0, (name.encode() * size)[:size])
    fs.create(f"{top}sparse")
    fs.write(f"{top}sparse", 1 << 20, b"s" * 5000)
    fs.fallocate(f"{top}sparse", 2 << 20, 1 << 20)
    fs.create(f"{top}clone")
    fs.clone_range(f"{top}d/large", f"{top}clone", 4096, 0, 1 << 20)
    fs.create(f"{top}nocow")
    fs.chattr(f"{top}nocow", 0x800000, 0)
    fs.write(f"{top}nocow", 0, b"n" * 200_000)
    fs.create(f"{top}packed")
    fs.set_compression(f"{top}packed", "zstd")
    fs.write(f"{top}packed", 0, b"packed" * 60_000)
    fs.symlink("d/large", f"{top}symlink")
    fs.link(f"{top}d/blocks", f"{top}link")
    fs.mknod(f"{top}fifo", stat.S_IFIFO | 0o600)
    fs.mknod(f"{top}device", stat.S_IFCHR | 0o600, (1 << 8) + 3)
    fs.setxattr(f"{top}d", "user.x", b"value" * 30)
    fs.setxattr(f"{top}d", "system.posix_acl_default", acl(7, 5, 1, 6))
    fs.utimes(f"{top}d/inline", 10**18, 2 * 10**18 + 1)


def change(fs: WritableFilesystem, top: str = "") -> None:
    """Change them, so that there is something to send."""
    fs.write(f"{top}d/large", 1 << 20, b"changed" * 3000)
    fs.rename(f"{top}d/blocks", f"{top}moved")
    fs.unlink(f"{top}clone")
    fs.punch_hole(f"{top}d/large", 0, 65536)
    fs.create(f"{top}d/new")
    fs.write(f"{top}d/new", 0, b"new" * 30_000)
    fs.chmod(f"{top}d", 0o2711)
    fs.removexattr(f"{top}d", "user.x")


def grow(fs: WritableFilesystem) -> None:
    """Snapshots of the top level and of a subvolume, others that are writable, one deleted."""
    fill(fs)
    fs.create_subvolume("sub")
    fill(fs, "sub/")
    fs.snapshot("", "top1")
    fs.snapshot("sub", "sub1")
    change(fs)
    change(fs, "sub/")
    fs.create_files("d", [f"{number:0100}" for number in range(300)])
    fs.snapshot("", "top2")
    fs.snapshot("sub", "sub2")
    fs.snapshot("sub", "writable", read_only=False)
    fs.write("writable/d/large", 0, b"w" * 9000)
    fs.snapshot("writable", "sub/inner", read_only=False)
    fs.set_read_only("sub/inner")
    fs.snapshot("", "gone")
    fs.delete_subvolume("gone")


# ------------------------------------------------------------------------------------- builders --

Build = Callable[[Path], None]


def by_hand(**options: Any) -> Build:
    """A fresh filesystem of the model."""

    def build(path: Path) -> None:
        with bm.create(SIZE, seed=1, **options) as fs:
            grow(fs)
            fs.save(path)

    return build


def make(path: Path, *options: str) -> None:
    """Make a filesystem with mkfs.btrfs."""
    with path.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run(["mkfs.btrfs", "-q", "-f", *options, str(path)], check=True, capture_output=True)


def of_mkfs(path: Path) -> None:
    """Of mkfs.btrfs, which the model goes on with."""
    make(path)
    with WritableFilesystem.load(path, seed=1) as fs:
        grow(fs)
        fs.save(path)


def workload(name: str) -> Build:
    """What a workload is replayed on."""

    def build(path: Path) -> None:
        fs = bm.build(name, 0.001)
        assert isinstance(fs, WritableFilesystem)
        with fs:
            fs.save(path)

    return build


def scenario(seed: int) -> Build:
    """A run of a random scenario."""

    def build(path: Path) -> None:
        with scenarios.model_run(random_scenario(f"used {seed}")) as (fs, _):
            fs.save(path)

    return build


def received(path: Path) -> None:
    """Snapshots that the model received: whole, and the next one as a change of it."""
    with bm.create(SIZE, seed=1) as source, bm.create(SIZE, seed=2) as target:
        grow(source)
        source.sync()
        for snapshot, parent in (("top1", None), ("top2", "top1"), ("sub1", None)):
            clones = [parent] if parent else []
            bm.receive(target, bm.send(source, snapshot, parent, clones).data)
        target.save(path)


def crashed(fs: WritableFilesystem) -> None:
    """Changes of which a log holds some."""
    grow(fs)
    fs.sync()
    fs.create("logged")
    fs.write("logged", 0, b"logged" * 5000)
    assert fs.fsync("logged") == "log"
    fs.write("d/large", 5000, b"logged too")
    assert fs.fsync("d/large") == "log"
    fs.create("lost")


def of_a_crash(path: Path) -> None:
    """A log, which the kernel replays."""
    with bm.create(SIZE, seed=1) as fs:
        crashed(fs)
        fs.save_crash(path)


def replayed(path: Path) -> None:
    """A log that the model replayed."""
    with bm.create(SIZE, seed=1) as fs:
        crashed(fs)
        with bm.replay_log(fs) as after:
            after.save(path)


BUILDERS: dict[str, Build] = {
    "by hand": by_hand(),
    "by hand, nodes of 4 KiB": by_hand(nodesize=4096, metadata="single", csum="xxhash"),
    "by hand, old": by_hand(no_holes=False, extref=False, skinny_metadata=False,
                            free_space_tree=False),
    "by hand, block group tree": by_hand(block_group_tree=True, compress="zstd"),
    "by hand, as mkfs.btrfs 7.3": by_hand(nodesize=4096, progs="7.3"),
    "of mkfs.btrfs": of_mkfs,
    **{f"workload {name}": workload(name) for name in WORKLOADS},
    **{f"scenario {seed}": scenario(seed) for seed in range(40 if corpus.LONG else 2)},
    "received": received,
    "of a crash": of_a_crash,
    "replayed": replayed,
}  # fmt: skip


LONG_RUNS = ["by hand", "by hand, block group tree", "scenario 1"]
IN_A_GUEST = ["by hand, nodes of 4 KiB", "replayed"]
WITHOUT_DATA = "workload fiemap-shared"
"""Its data are compressed and not stored: nobody can read them."""


# ----------------------------------------------------------------------------------- their use --


def cases() -> list[Any]:
    """Kernels and images; the guest is slow."""
    found = []
    few = [name for name in BUILDERS if name not in LONG_RUNS]
    for kernel, some in (("machine", few), ("uml", IN_A_GUEST)):
        started, marks = judges.STARTED[kernel], judges.MARKS[kernel]
        for name in BUILDERS if corpus.LONG else some:
            found.append(pytest.param(started, name, marks=marks, id=f"{kernel}-{name}"))
    return found


@pytest.mark.claim(
    "The running kernel and that of User-Mode Linux use the images of all builders: by hand, "
    "of mkfs.btrfs and changed, workloads, scenarios, received, crashed, replayed."
)
@pytest.mark.claim(
    "In these kernels read-only snapshots are read-only, and sends, whole and as a change, "
    "are the model's."
)
@pytest.mark.claim(
    "These kernels receive, take snapshots, count quotas, resize, balance and scrub; the "
    "model goes on with what they leave."
)
@needs_progs
@pytest.mark.parametrize(("kernel", "name"), cases(), indirect=["kernel"], scope="session")
def test_a_kernel_uses_it(kernel: Kernel, name: str, tmp_path: Path) -> None:
    image, before = kernel.new_file(), tmp_path / "before"
    BUILDERS[name](before)
    corpus.copy_sparse(before, image)
    # a small device has no room for a balance of all that is on it
    os.truncate(image, before.stat().st_size + ROOM)
    data = name != WITHOUT_DATA
    with bm.open(before) as fs:
        snapshots = snapshots_of(fs)
    answer = judges.ask(kernel, image, snapshots=snapshots, send_data=data, scrub=True)
    assert not answer.failed
    assert not answer.alarms
    assert "no errors found" in answer.scrub
    used = answer.used
    assert used is not None
    assert used["read_only"] == dict.fromkeys(snapshots, "ro=true")
    with bm.open(before) as fs, bm.open(image) as after:

        def sent(of: Filesystem, path: str, parent: str | None = None) -> bytes:
            clones = [parent] if parent else []
            return bm.send(of, path, parent, clones, behaviour=kernel.preset,
                           no_file_data=not data).data  # fmt: skip

        for path in snapshots:
            stream = (kernel.folder / used["full"][path]).read_bytes()
            assert stream == sent(fs, path) == sent(after, path)
        for newer, stream in used["incremental"].items():
            assert (kernel.folder / stream).read_bytes() == sent(fs, newer, snapshots[newer])
        new = sent(after, "taken by the kernel", max(snapshots, default=None))
        assert (kernel.folder / used["new"]).read_bytes() == new
        counted = {line.split()[0] for line in used["groups"]}
        assert {f"0/{number}" for number in after.subvolume_ids} <= counted
        assert bm.check(after, verify_data=True) == []
    assert not btrfs_check(image)

    with WritableFilesystem.load(image) as fs:
        fs.snapshot("", "taken by the model")
        fs.save(image)
        assert bm.check(fs) == []
    assert not btrfs_check(image)
    image.unlink()


# ----------------------------------------------------------------- item by item, nothing hidden --


ITEM_TIMES = ("atime", "ctime", "mtime", "otime", "stime", "rtime")
PLACES = ("bytenr", "disk_bytenr")
TAKEN = {ItemType.EXTENT_ITEM, ItemType.METADATA_ITEM, ItemType.EXTENT_CSUM}
"""Kinds of items keyed by where something lies: other tests are about that."""


def told(record: Any, since: int) -> Any:
    """A record without what a clock or chance decides: times, uuids, places.

    The version of an inode that was made since is that of whoever had its memory before.
    """
    if isinstance(record, list):
        return [told(one, since) for one in record]
    if not hasattr(record, "_replace"):
        return record
    hidden: dict[str, Any] = dict.fromkeys({*ITEM_TIMES, *PLACES} & {*record._fields})
    if "nlink" in record._fields and record.generation > since:
        hidden["sequence"] = None
    for name in {"uuid", "parent_uuid"} & {*record._fields}:
        hidden[name] = any(getattr(record, name))
    if "inode" in record._fields:
        hidden["inode"] = told(record.inode, since)
    return record._replace(**hidden)


def everything(fs: Filesystem, since: int) -> dict[Any, Any]:
    """All items of all trees, by tree and key, and the superblock."""
    found: dict[Any, Any] = {}
    for number, tree in fs.trees.items():
        if number in (ObjectId.UUID_TREE, ObjectId.FREE_SPACE_TREE):
            continue
        for item in tree.items():
            if item.key.type not in TAKEN:
                found[number, *item.key] = told(decode(item.key, item.data), since)
    at = SUPER_OFFSETS[0]
    block = SUPER_BLOCK.unpack(fs.image.view[at : at + SUPER_BLOCK.size])
    found["superblock"] = block._replace(csum=None, root=None, super_roots=[
        cell._replace(**{name: None for name in cell._fields if name.endswith("_root")})
        for cell in block.super_roots
    ])  # fmt: skip
    return found


def both(image: Path, sequence: list[Call], tmp_path: Path) -> None:
    """Make calls on a filesystem, the kernel and the model, unmount, and compare everything."""
    model = WritableFilesystem.load(image, seed=9)
    since = model.transid - 1
    with live.mounted(image, "nossd,noatime,commit=9999") as top:
        theirs = [calls.run(KernelCalls(top), call) for call in sequence]
    mine = calls.ModelCalls(model)
    assert [calls.run(mine, call) for call in sequence] == theirs
    model.remount()
    with Filesystem.open(image) as kernel, model:
        ours, wanted = everything(model, since), everything(kernel, since)
        assert ours.keys() == wanted.keys()
        assert {key: value for key, value in ours.items() if value != wanted[key]} == {}
        assert bm.check(model) == []


@pytest.mark.claim(
    "After random calls on a fresh filesystem of mkfs.btrfs or of the model all items of all "
    "trees and the superblock are the running kernel's, except for places, times, uuids and the "
    "first version of an inode."
)
@live.beside_the_kernel
@needs_progs
@pytest.mark.parametrize("maker", ["of mkfs.btrfs", "of the model"])
@pytest.mark.parametrize("seed", range(60 if corpus.LONG else 2))
def test_everything_is_as_the_kernel_has_it(maker: str, seed: int, tmp_path: Path) -> None:
    """From the first transaction on, in which a kernel fills in what mkfs.btrfs left open."""
    choice = random.Random(f"everything {maker} {seed}")
    image, nodesize = tmp_path / "image", choice.choice([4096, 16384])
    if maker == "of the model":
        with bm.create(SIZE, nodesize, seed=seed) as fs:
            fs.save(image)
    else:
        make(image, "-n", str(nodesize))
    sequence: list[Call] = [("mkdir", "a"), ("create", "a/a"), ("create_subvolume", "sub"),
                                  ("snapshot", "", "ro"), ("snapshot", "", "b", False),
                                  ("setxattr", "a/a", "btrfs.compression", b"zstd")]  # fmt: skip
    while len(sequence) < 60:
        call = random_call(choice, subvolumes=True)
        # in which transaction a deleted subvolume is freed is the cleaner's own affair
        if call[0] not in ("delete_subvolume", "rmdir"):
            sequence.append(call)
    both(image, sequence, tmp_path)
