# SPDX-License-Identifier: GPL-2.0-only
"""What the course says of the model, said of kernels: its claims on filesystems that they write."""

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from progs import needs_progs

import btrfs_model as bm
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify import sides
from btrfs_model.kernels.inside import operations
from btrfs_model.kernels.inside.mounts import Place
from btrfs_model.kernels.session import Kernel
from btrfs_model.ondisk.structs import INODE_ITEM

pytestmark = [
    needs_progs,
    pytest.mark.claim(
        "Some twenty claims of the course hold on filesystems that kernels write: the machine's "
        "own and User-Mode Linux."
    ),
]

PATTERN = ["pat", "a"]
SHARED = 0x2000
NOCOW = 0x800000


class Told:
    """A filesystem that a kernel has mounted, and copies of its device."""

    def __init__(self, kernel: Kernel, image: Path) -> None:
        self.kernel, self.image = kernel, image
        self.copies = 0

    def do(self, *steps: list[Any]) -> operations.Taken:
        """Carry out operations of scenarios."""
        first = [["mkfs", []], ["mount", "rw"]]
        parsed = [
            parse_step("course", number, one) for number, one in enumerate([*first, *steps], 1)
        ]
        taken = self.kernel.call(operations.take, sides.operations_of(Scenario("course", parsed)))
        assert not any(taken["ended"]), taken["ended"]
        return taken

    @contextmanager
    def seen(self) -> Iterator[bm.Filesystem]:
        """The device as it is now, as after a loss of power."""
        self.copies += 1
        copy = self.image.with_suffix(f".{self.copies}")
        subprocess.run(["cp", "--sparse=always", self.image, copy], check=True)
        try:
            with bm.open(copy) as fs:
                yield fs
        finally:
            copy.unlink()


@contextmanager
def told(kernel: Kernel, *options: str) -> Iterator[Told]:
    image = kernel.new_file()
    sides.make_filesystem(image, 256 << 20, options)
    with kernel.attached(image, read_only=False) as source:
        place = Place(source=source, top=kernel.top, options="noatime,commit=3600,nodiscard")
        kernel.call(operations.begin, place)
        try:
            yield Told(kernel, image)
        finally:
            kernel.call(operations.end)
            image.unlink()


def items(fs: bm.Filesystem, tree: int = 5) -> dict[Any, bytes]:
    return {item.key: bytes(item.data) for item in fs.tree(tree).items()}


def addresses(fs: bm.Filesystem, name: str | int = "") -> set[int]:
    return {block.logical for block in fs.subvolume(name).tree.blocks()}


def test_what_lies_where(kernel: Kernel) -> None:
    """Course 00."""
    with told(kernel) as one:
        one.do(
            ["create", "empty"], ["create", "small"], ["write", "small", 0, 50, PATTERN],
            ["create", "large"], ["write", "large", 0, 100_000, PATTERN], ["sync"],
        )  # fmt: skip
        with one.seen() as fs:
            disk = fs.image.view
            for at in (65_536, 64 << 20):
                assert bytes(disk[at + 64 : at + 72]) == b"_BHRfS_M"
            named = {item.key.objectid for item in fs.root_tree.items() if item.key.type == 132}
            assert named == {one for one in fs.trees if one not in (1, 3)}
            superblock = fs.image.superblock
            (chunk,) = superblock.sys_chunks
            assert 0 <= superblock.chunk_root - chunk.logical < chunk.length
            top = fs.subvolume("")
            found = [key for key in items(fs) if key.objectid == top.resolve("empty")]
            assert [key.type for key in found] == [1, 12]
            (small,), (large,) = top.extents("small"), top.extents("large")
            assert small.inline and large.disk_num_bytes == 25 * 4096


def test_a_leaf_at_the_end_is_halved(kernel: Kernel) -> None:
    """Course 01."""
    with told(kernel, "-n", "4096") as one:
        one.do(["create", "f"], ["sync"])
        split, before = [], list[int]()
        for number in range(130):
            one.do(["write", "f", 8192 * number, 4096, PATTERN], ["sync"])
            if number not in (43, 44, 94, 95, 129):
                continue
            with one.seen() as fs:
                now = [block.nritems for block in fs.tree(5).blocks() if block.level == 0]
            if before and len(now) > len(before):
                split.append((before, now))
            before = now
    assert split == [([50], [25, 26]), ([50, 51], [50, 26, 26])]
    assert now == [50, 51, 35]


def test_what_a_chmod_writes(kernel: Kernel) -> None:
    """Course 02."""
    with told(kernel, "-n", "4096") as one:
        one.do(["mkfiles", "", "file", 10, 39], ["sync"])
        with one.seen() as fs:
            before, old, roots = items(fs), addresses(fs), dict(fs.trees)
            roots = {number: tree.bytenr for number, tree in roots.items()}
        one.do(["chmod", "file17", 0o600], ["sync"])
        with one.seen() as fs:
            after, new = items(fs), addresses(fs)
            moved = {number for number in roots if fs.trees[number].bytenr != roots[number]}
        assert len(new - old) == 2
        assert moved == {1, 2, 5, 10}
        ((key, value),) = [(key, value) for key, value in after.items() if value != before[key]]
        one_inode, other = INODE_ITEM.unpack(before[key]), INODE_ITEM.unpack(value)
        changed = {
            name for name in other._fields if getattr(one_inode, name) != getattr(other, name)
        }
        assert changed == {"transid", "mode", "sequence", "ctime"}
        one.do(["write", "file20", 0, 9000, PATTERN], ["sync"])
        with one.seen() as fs:
            assert 7 in {number for number in roots if fs.trees[number].bytenr != roots[number]}


def test_a_crash_is_the_last_commit_and_nocow_is_in_place(kernel: Kernel) -> None:
    """Course 02."""
    with told(kernel) as one:
        one.do(
            ["create", "old"], ["create", "usual"], ["create", "place"],
            ["chattr", "place", NOCOW], ["write", "usual", 0, 8192, PATTERN],
            ["write", "place", 0, 8192, PATTERN], ["sync"],
        )  # fmt: skip
        with one.seen() as fs:
            at = {
                name: fs.subvolume("").extents(name)[0].disk_bytenr for name in ("usual", "place")
            }
            generation = fs.image.superblock.generation
        one.do(["create", "new"], ["unlink", "old"])
        with one.seen() as fs:
            names = {entry.name for entry in fs.subvolume("").readdir("")}
            assert b"new" not in names and b"old" in names
            assert fs.image.superblock.generation == generation
            assert not bm.check(fs)
        one.do(*(["write", name, 0, 8192, ["pat", "b"]] for name in at), ["sync"])
        with one.seen() as fs:
            for name, was in at.items():
                (extent,) = fs.subvolume("").extents(name)
                assert (extent.disk_bytenr == was) == (name == "place")
        one.do(["snapshot", "", "shows"], ["write", "place", 0, 8192, ["pat", "c"]], ["sync"])
        with one.seen() as fs:
            (extent,) = fs.subvolume("").extents("place")
            assert extent.disk_bytenr != at["place"]


def references(fs: bm.Filesystem) -> dict[int, int]:
    """The count of references of each tree block that has one."""
    return {
        key.objectid: int.from_bytes(value[:8], "little")
        for key, value in items(fs, 2).items()
        if key.type == 169
    }


def test_what_a_snapshot_shares(kernel: Kernel) -> None:
    """Course 03."""
    with told(kernel, "-n", "4096") as one:
        one.do(["mkfiles", "", "file", 10, 69], ["sync"], ["snapshot", "", "snap"], ["sync"])
        with one.seen() as fs:
            top, snap = addresses(fs), addresses(fs, "snap")
            shared = top & snap
            assert fs.subvolume("").tree.bytenr in top - shared
            counted = references(fs)
            assert all(counted[at] == (2 if at in shared else 1) for at in top | snap)
        one.do(["chmod", "file50", 0o600], ["sync"])
        with one.seen() as fs:
            assert addresses(fs, "snap") >= shared
            assert len(shared - addresses(fs)) == 1
        one.do(*(["chmod", f"file{number}", 0o640] for number in range(10, 70)), ["sync"])
        with one.seen() as fs:
            assert not addresses(fs) & addresses(fs, "snap")


def test_extents_holes_checksums_and_pieces(kernel: Kernel) -> None:
    """Course 04."""
    with told(kernel) as one:
        one.do(
            ["create", "film"], ["write", "film", 0, 602_112, PATTERN], ["sync"],
            ["write", "film", 40_960, 4096, ["pat", "b"]], ["create", "sparse"],
            ["write", "sparse", 10_000_000, 7, PATTERN], ["create", "packed"],
            ["setxattr", "packed", "btrfs.compression", "zstd"],
            ["write", "packed", 0, 800_000, ["text", "a"]], ["sync"],
        )  # fmt: skip
        with one.seen() as fs:
            top = fs.subvolume("")
            film = bm.extents(fs, "", "film")
            assert list(film["length"]) == [40_960, 4096, 557_056]
            assert list(film["bookend"]) == [4096, 0, 4096]
            assert (top.inode("sparse").size, top.inode("sparse").nbytes) == (10_000_007, 4096)
            assert len(top.extents("sparse")) == 1
            packed = top.extents("packed")
            assert all(one.disk_num_bytes < one.ram_bytes <= 131_072 for one in packed)
            taken = {e.disk_bytenr: e.disk_num_bytes for name in ("film", "sparse", "packed")
                     for e in top.extents(name)}  # fmt: skip
            sums = sum(len(value) for key, value in items(fs, 7).items() if key.type == 128)
            assert sums == 4 * sum(taken.values()) // 4096


def test_names_links_and_renames(kernel: Kernel) -> None:
    """Course 05."""
    with told(kernel) as one:
        names = ("plan", "notes", "draft", "zebra", "apple")
        one.do(
            ["mkdir", "docs"], *(["create", f"docs/{name}"] for name in names),
            ["link", "docs/plan", "again"], ["sync"],
        )  # fmt: skip
        with one.seen() as fs:
            docs, before = fs.subvolume("").resolve("docs"), items(fs)
            assert fs.subvolume("").inode("again").nlink == 2
        found = [key for key in before if key.objectid == docs]
        assert [key.offset for key in found if key.type == 96] == [2, 3, 4, 5, 6]
        assert len([key for key in found if key.type == 84]) == 5
        one.do(["rename", "docs/zebra", "docs/aardvark"], ["sync"])
        with one.seen() as fs:
            after = items(fs)
        changed = [key for key in before.keys() & after.keys() if before[key] != after[key]]
        assert sorted(key.type for key in before.keys() - after.keys()) == [84, 96]
        assert sorted(key.type for key in after.keys() - before.keys()) == [84, 96]
        assert sorted(key.type for key in changed) == [1, 1, 12]


def test_who_refers(kernel: Kernel) -> None:
    """Course 06."""
    with told(kernel, "-n", "4096") as one:
        one.do(
            ["subvol_create", "sub"], ["mkfiles", "sub", "file", 10, 69], ["create", "sub/first"],
            ["write", "sub/first", 0, 131_072, PATTERN], ["sync"], ["create", "sub/second"],
            ["clone_range", "sub/first", 0, 131_072, "sub/second", 0], ["sync"],
        )  # fmt: skip

        def counted() -> tuple[int, int]:
            with one.seen() as fs:
                row = bm.extents(fs, "sub", "first").iloc[0]
                return int(row["refs"]), int(row["references"])

        assert counted() == (2, 2)
        one.do(["snapshot", "sub", "snap"], ["sync"])
        assert counted() == (2, 4)
        one.do(["write", "sub/second", 0, 4096, ["pat", "b"]], ["sync"])
        assert counted() == (4, 4)
        mapped = one.do(*(["fiemap", path] for path in ("sub/first", "sub/second")))["mapped"]
        shared = [[bool(extent[3] & SHARED) for extent in file["extents"]] for file in mapped]
        assert shared == [[True], [False, True]]


def test_what_is_in_a_log(kernel: Kernel) -> None:
    """Course 07."""
    with told(kernel) as one:
        one.do(["mkfiles", "", "file", 10, 29], ["sync"])
        with one.seen() as fs:
            roots = {number: tree.bytenr for number, tree in fs.trees.items()}
            inode = fs.subvolume("").resolve("file17")
        taken = one.do(["write", "file17", 0, 16, PATTERN], ["fsync", "file17"])
        assert taken["synced"] == ["log"]
        with one.seen() as fs:
            (log,) = fs.log_trees.values()
            assert fs.log_root_tree is not None
            assert fs.log_root_tree.bytenr == fs.image.superblock.log_root != log.bytenr
            keys = [item.key for item in log.items()]
            assert [key.type for key in keys] == [1, 12, 108]
            assert {key.objectid for key in keys} == {inode}
            assert {number: fs.trees[number].bytenr for number in roots} == roots
        one.do(
            ["sync"], ["unlink", "file13"], ["unlink", "file22"], ["create", "new"], ["fsync", ""]
        )
        with one.seen() as fs:
            names = {e.name for e in bm.replay_log(fs).subvolume("").readdir("")}
            assert not names & {b"file13", b"file22"} and b"new" in names
        one.do(["sync"], ["mkdir", "a"], ["create", "a/f"], ["sync"], ["rename", "a/f", "a/g"])
        assert one.do(["fsync", "a/g"])["synced"] == ["log"]
        one.do(["sync"], ["rename", "a/g", "g"])
        assert one.do(["fsync", "g"])["synced"] == ["commit"]


@pytest.mark.parametrize("with_fsync", [False, True])
@pytest.mark.parametrize("replaces", [False, True])
def test_why_editors_fsync(kernel: Kernel, with_fsync: bool, replaces: bool) -> None:
    """Course 07, the second exercise; a snapshot of another subvolume is a commit without data."""
    with told(kernel) as one:
        one.do(["subvol_create", "other"])
        if replaces:
            one.do(["create", "text"], ["write", "text", 0, 11, PATTERN])
        one.do(["sync"], ["create", "text.new"], ["write", "text.new", 0, 5, ["pat", "b"]])
        if with_fsync:
            one.do(["fsync", "text.new"])
        one.do(["rename", "text.new", "text"], ["snapshot", "other", "snap"])
        with one.seen() as fs:
            replayed = bm.replay_log(fs) if fs.log_trees else fs
            size = replayed.subvolume("").inode("text").size
        assert size == (5 if with_fsync or replaces else 0)


def test_a_database_with_and_without_copy_on_write(kernel: Kernel) -> None:
    """Course 13."""
    counts: dict[tuple[int, bool], list[int]] = {}
    for attributes, snapshots in ((0, False), (NOCOW, False), (NOCOW, True)):
        with told(kernel) as one:
            one.do(
                ["create", "db"], ["chattr", "db", attributes],
                ["write", "db", 0, 4 << 20, PATTERN], ["sync"],
            )  # fmt: skip
            choice = random.Random(3)
            counts[attributes, snapshots] = found = []
            for number in range(4):
                for _ in range(50):
                    at = 4096 * choice.randrange(1024)
                    one.do(["write", "db", at, 4096, ["pat", "b"]], ["sync"])
                with one.seen() as fs:
                    found.append(len(fs.subvolume("").extents("db")))
                if snapshots:
                    one.do(["snapshot", "", f"snap{number}"])
    assert counts == {
        (0, False): [98, 179, 251, 327],
        (NOCOW, False): [1, 1, 1, 1],
        (NOCOW, True): [1, 99, 179, 259],
    }


def test_what_is_in_place(kernel: Kernel) -> None:
    """Course 13."""

    def place(path: str, offset: int) -> int:
        with one.seen() as fs:
            (extent,) = (
                extent for extent in fs.subvolume("").extents(path)
                if extent.start <= offset < extent.start + extent.length
            )  # fmt: skip
        return extent.disk_bytenr + extent.offset + offset - extent.start

    def stays(path: str, offset: int) -> bool:
        before = place(path, offset)
        one.do(["write", path, offset, 4096, ["pat", "b"]], ["sync"])
        return place(path, offset) == before

    with told(kernel) as one:
        one.do(
            ["create", "log"], ["fallocate", "log", 0, 0, 1 << 20],
            *(step for name in ("db", "clone")
              for step in (["create", name], ["chattr", name, NOCOW])),
            ["write", "db", 0, 1 << 20, PATTERN], ["sync"],
            ["clone_range", "db", 0, 1 << 20, "clone", 0], ["sync"],
        )  # fmt: skip
        assert [stays("log", 65_536), stays("log", 65_536)] == [True, False]
        assert not stays("db", 65_536)
        one.do(["unlink", "clone"], ["sync"])
        assert stays("db", 131_072)
        one.do(["snapshot", "", "snap"], ["sync"])
        assert not stays("log", 0)
        assert [stays("db", 0), stays("db", 0)] == [False, True]
        # that the snapshot is gone is not looked at
        one.do(["subvol_delete", "snap"], ["sync"])
        assert not stays("db", 262_144)


def test_what_quotas_count(kernel: Kernel) -> None:
    """Course 14."""

    def counted() -> list[tuple[int, int]]:
        one.do(["sync"])
        with one.seen() as fs:
            groups = fs.qgroups()
        return [(int(row.rfer), int(row.excl)) for row in groups.itertuples()][1:]

    film = [["create", "home/film"], ["write", "home/film", 0, 8 << 20, PATTERN], ["sync"]]
    with told(kernel, "-n", "4096") as one:
        one.do(["subvol_create", "home"], *film)
        for number in range(100):
            name = f"home/f{number:03}"
            one.do(["create", name], ["write", name, 0, 8192, PATTERN])
        one.do(["sync"], ["quota_enable"])
        assert counted() == [(9269248, 9269248)]
        one.do(["snapshot", "home", "snap1"])
        assert counted() == [(9269248, 4096)] * 2
        one.do(["unlink", "home/film"])
        assert counted() == [(880640, 20480), (9269248, 8409088)]
        one.do(["snapshot", "snap1", "snap2"])
        assert counted() == [(880640, 20480), (9269248, 4096), (9269248, 4096)]


def whole_states(one: Told) -> int:
    """How many commits can be read whole from the device."""
    with one.seen() as fs:
        return int((bm.rescue_roots(fs.image.path)["state"] == "whole").sum())


def test_how_long_older_trees_are_there(kernel: Kernel) -> None:
    """Course 15."""
    with told(kernel, "-n", "4096") as one:
        one.do(
            ["mkfiles", "", "file", 100, 299], ["create", "thesis"],
            ["write", "thesis", 0, 140_000, PATTERN], ["sync"],
        )  # fmt: skip
        with one.seen() as fs:
            last = fs.image.superblock.generation
            (extent,) = fs.subvolume("").extents("thesis")
        one.do(["unlink", "thesis"], ["sync"])
        before = whole_states(one)
        for number in range(60):
            one.do(["chmod", f"file{100 + number}", 0o600], ["sync"])
        assert whole_states(one) == before + 60
        with one.seen() as fs:
            rescued = bm.rescue(fs.image.path, root=last)
        assert rescued.files == 201 and rescued.table.empty
        one.do(["create", "novel"], ["write", "novel", 0, 140_000, ["pat", "b"]], ["sync"])
        with one.seen() as fs:
            (taken,) = fs.subvolume("").extents("novel")
            table = bm.rescue(fs.image.path, root=last).table
        assert taken.disk_bytenr == extent.disk_bytenr
        assert list(table["path"]) == ["thesis"]
