# SPDX-License-Identifier: GPL-2.0-only
"""Block reads beside traces of real kernels: which, in which order, demand or ahead, by whom."""

import csv
import functools
import io
import json
from typing import Any

import corpus
import numpy as np
import pandas as pd
import pytest
from damage import Broken, node_ptr
from hypothesis import given, settings
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.cli import run as run_cli
from btrfs_model.cli.common import print_table
from btrfs_model.cli.rows import is_plain
from btrfs_model.limits import Limits
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.native.choice import select
from btrfs_model.ondisk.hashes import csum
from btrfs_model.questions.reads.cold import blocks_after_mount
from btrfs_model.questions.send import native
from btrfs_model.questions.send.ioctl import prepare
from btrfs_model.questions.send.ioctl import reads as send_reads
from btrfs_model.questions.send.ioctl import run as run_send
from btrfs_model.volume.filesystem import Filesystem

KERNELS = {"5.10": "v5.10.46", "6.1": "v6.1.176", "6.12": "v6.12.101", "6.18": "v6.18.44"}
TRACED = [name for name in corpus.cases("reada") if corpus.has(name, "image.zst")]
# phase in which the subvolume was opened; before it the mount, after it the operation
PHASES = {"send": 1, "readdir": 5, "incremental": 9}
# functions that the traced kernel's compiler put into others
INLINED = {"tree_move_down": "tree_advance", "read_tree_block": "read_tree_root_path"}
R5K = "reada/r5k"
SMALL = "send/random/seed-003"


@functools.cache
def trace(name: str, kernel: str) -> list[dict[str, str]]:
    text = corpus.data(name, f"reads.{kernel}.csv.zst").decode()
    return list(csv.DictReader(io.StringIO(text)))


def logical(fs: Filesystem, physical: int) -> int | None:
    """The address whose first copy lies at a byte of the device; None: no chunk is there."""
    for chunk in fs.image.chunks:
        if chunk.stripes[0] <= physical < chunk.stripes[0] + chunk.length:
            return physical - chunk.stripes[0] + chunk.logical
    return None


def operate(fs: Filesystem, operation: str, **options: Any) -> pd.DataFrame:
    if operation == "readdir":
        options.pop("behaviour", None)  # all kernels list alike
        return bm.readdir_reads(fs, "snap1", **options)
    if operation == "send":
        return bm.reads(fs, "snap1", **options)
    return bm.reads(fs, "snap2", parent="snap1", **options)


@pytest.mark.claim(
    "A cold send or listing reads the metadata blocks of four kernels, in their order: four "
    "filesystems, each with a full send, a listing and an incremental send, all 48 equal. "
    "Three of the filesystems are in `BTRFS_MODEL_ORACLE`."
)
@pytest.mark.parametrize("operation", PHASES)
@pytest.mark.parametrize("name", TRACED)
def test_reads_are_the_kernels(name: str, operation: str) -> None:
    """All blocks in the order of their first reads; what was dropped and read again aside."""
    with Filesystem.open(corpus.image(name)) as fs:
        for kernel, record in corpus.case(name)["kernels"].items():
            where, opened = f"{name} {kernel} {operation}", PHASES[operation]
            rows = trace(name, kernel)
            before = [row for row in rows if int(row["phase"]) in (opened - 1, opened)]
            at_start = {logical(fs, int(row["offset"])) for row in before} - {None}
            first = {
                row["offset"]: row for row in reversed(rows) if int(row["phase"]) == opened + 1
            }
            seen = sorted(first.values(), key=lambda row: int(row["seq"]))
            table = operate(fs, operation, behaviour=KERNELS[kernel], cached=at_start)
            assert table["physical"].tolist() == [int(row["offset"]) for row in seen], where
            assert table["logical"].tolist() == [logical(fs, at) for at in table["physical"]], where
            if "stacks" not in record:
                continue
            kinds = ["demand" if row["kind"] == "demand" else "ahead" for row in seen]
            assert table["kind"].tolist() == kinds, where
            for function, row in zip(table["issued_by"], seen, strict=True):
                assert INLINED.get(function, function) in record["stacks"][row["stack"]], where


@pytest.mark.parametrize("kernels", ["c", "python"])
@pytest.mark.parametrize("name", TRACED)
def test_what_a_mount_leaves_in_memory(name: str, kernels: str) -> None:
    """Mounted read-only, and a subvolume opened: the kernel had read exactly these blocks."""
    with Filesystem.open(corpus.image(name)) as fs, select(kernels):
        for kernel in corpus.case(name)["kernels"]:
            for operation, opened in PHASES.items():
                before = {
                    logical(fs, int(row["offset"]))
                    for row in trace(name, kernel)
                    if int(row["phase"]) in (opened - 1, opened)
                }
                subvolume = fs.subvolume("snap2" if operation == "incremental" else "snap1")
                behaviour = bm.Behaviour.parse(KERNELS[kernel])
                left = blocks_after_mount(fs, [subvolume], behaviour, writable=False)
                assert left == before - {None}, f"{name} {kernel} {operation}"


def test_full_send_reads_the_whole_tree() -> None:
    """With nothing cached: every block of the tree once, at its level."""
    blocks = json.loads(corpus.data(R5K, "treemap.json.zst"))["trees"]["256"]["blocks"]
    with Filesystem.open(corpus.image(R5K)) as fs:
        for behaviour in ("v5.12", "v5.13", "v6.18"):
            table = bm.reads(fs, "snap1", behaviour=behaviour).set_index("logical")
            assert table.index.is_unique
            levels = table["level"].to_dict()
            assert [levels.pop(block[0]) for block in blocks] == [block[2] for block in blocks]
            # the rest: the leaf of the tree of roots in which the subvolume's name is
            assert set(levels) <= {block.logical for block in fs.root_tree.blocks()}


def test_where_they_lie() -> None:
    with Filesystem.open(corpus.image(SMALL)) as fs:
        for row in bm.reads(fs, fs.subvolume_ids[-1]).itertuples():
            block = fs.image.view[row.physical : row.physical + fs.image.nodesize]
            assert int.from_bytes(block[48:56], "little") == row.logical
            assert block[100] == row.level
            assert bytes(block[:32]).startswith(csum(fs.image.superblock.csum_type, block[32:]))


def kinds(fs: Filesystem, behaviour: str) -> tuple[set[int], dict[str, int], int]:
    table = bm.reads(fs, "snap1", behaviour=behaviour)
    wasted = int((~table["used"]).sum())
    return set(table["logical"]), table["kind"].value_counts().to_dict(), wasted


def test_each_commit_reads_more_ahead() -> None:
    with Filesystem.open(corpus.image(R5K)) as fs:
        sides = [kinds(fs, behaviour) for behaviour in (
            "v5.12", "v5.12 + send-reada", "v5.13", "v5.16", "v6.18 - reada-always-cached",
        )]  # fmt: skip
    assert all(blocks == sides[0][0] for blocks, _, _ in sides)
    none, forward, always, cached, without = (counts.get("ahead", 0) for _, counts, _ in sides)
    assert none == 0 < forward < always < cached
    assert without == always
    # the tree is walked to its end: nothing was read in vain
    assert all(wasted == 0 for _, _, wasted in sides)


def test_nothing_is_read_twice_or_though_cached() -> None:
    with Filesystem.open(corpus.image(SMALL)) as fs:
        subvolume = fs.subvolume_ids[-1]
        every = bm.reads(fs, subvolume)["logical"].tolist()

        @settings(max_examples=25)
        @given(st.sets(st.sampled_from(every)), st.sampled_from(["v5.10", "v5.13", "v6.18"]))
        def check(cached: set[int], behaviour: str) -> None:
            table = bm.reads(fs, subvolume, behaviour=behaviour, cached=cached)
            assert sorted(table["logical"]) == sorted(set(every) - cached)

        check()
        assert bm.reads(fs, subvolume, cached=every).empty


@settings(max_examples=30)
@given(
    name=st.sampled_from(["send/random/seed-003", "features/nodesize-4096"]),
    behaviour=st.sampled_from(["v5.12", "v5.12 + send-reada", "v5.13", "v5.16", "v6.18"]),
    distance=st.integers(0, 1 << 20),
    near=st.integers(0, 1 << 20),
    always=st.integers(0, 1 << 20),
    siblings=st.integers(0, 100),
)
def test_python_twin_is_equal(
    name: str, behaviour: str, distance: int, near: int, always: int, siblings: int
) -> None:
    readahead = Limits(distance, near, always, always // 2, near, near // 8, siblings)
    tables = []
    for kernels in ("c", "python"):
        with Filesystem.open(corpus.image(name)) as fs, select(kernels):
            snapshots = [which for which in fs.subvolume_ids if fs.subvolume(which).is_read_only]
            both = {"behaviour": behaviour, "limits": readahead}
            tables.append(
                [
                    bm.reads(fs, snapshots[0], **both),
                    bm.reads(fs, snapshots[-1], parent=snapshots[0], **both),
                    bm.readdir_reads(fs, snapshots[0], limits=readahead),
                ]
            )
    for one, other in zip(*tables, strict=True):
        pd.testing.assert_frame_equal(one, other)


ANY_DIR = st.integers(0, 5)
PLAIN_ENTRY = st.one_of(
    st.tuples(st.just("file"), ANY_DIR, st.integers(0, 2048)),
    st.tuples(st.just("mkdir"), ANY_DIR, st.just(0)),
    st.tuples(st.just("symlink"), ANY_DIR, st.integers(1, 1000)),
    st.tuples(st.just("mknod"), ANY_DIR, st.sampled_from([0o010644, 0o140644, 0o020600, 0o060600])),
    st.tuples(st.just("setxattr"), ANY_DIR, st.integers(0, 1500)),
)
OTHER_ENTRY = st.one_of(
    st.tuples(st.just("file"), ANY_DIR, st.sampled_from([3000, 9000])),
    st.tuples(st.just("link"), ANY_DIR, st.just(0)),
    st.tuples(st.just("rename"), ANY_DIR, ANY_DIR),
)
PLAIN = {"mkdir", "symlink", "mknod", "setxattr"}


def make_entries(fs: WritableFilesystem, entries: list[tuple[str, int, int]]) -> bool:
    """Make them in directories that there are; whether the walk alone can tell their reads."""
    dirs, plain = ["", "one/", "two/"], True
    for name in dirs[1:]:
        fs.mkdir(name.rstrip("/"))
    for number, (what, where, value) in enumerate(entries):
        path = f"{dirs[where % len(dirs)]}name_{number}"
        plain = plain and (what in PLAIN or (what == "file" and value <= 2048))
        if what == "mkdir":
            fs.mkdir(path)
            dirs.append(f"{path}/")
        elif what == "symlink":
            fs.symlink("t" * value, path)
        elif what == "mknod":
            fs.mknod(path, value, 0x105)
        elif what == "setxattr":
            fs.setxattr(dirs[where % len(dirs)] or ".", f"user.{number}", b"v" * value)
        elif what == "rename" and len(dirs) > 1:
            # a directory into one with a higher number, often
            moved, target = dirs[1 + where % (len(dirs) - 1)], dirs[value % len(dirs)]
            if not target.startswith(moved):
                fs.rename(moved.rstrip("/"), path_in := f"{target}moved_{number}")
                dirs = [f"{path_in}/{d.removeprefix(moved)}" if d.startswith(moved) else d
                        for d in dirs]  # fmt: skip
        else:
            fs.write_files(dirs[where % len(dirs)], [f"name_{number}"], b"f" * value)
            if what == "link":
                fs.link(path, f"{path}_again")
    return plain


@settings(max_examples=40)
@given(
    st.lists(PLAIN_ENTRY, min_size=1, max_size=25)
    | st.lists(PLAIN_ENTRY | OTHER_ENTRY, min_size=1, max_size=10),
    st.integers(1, 40),
    st.sampled_from(["v5.10", "v5.12 + send-reada", "v5.13", "v6.18"]),
)
def test_the_walk_alone_reads_what_the_send_reads(
    entries: list[tuple[str, int, int]], times: int, behaviour: str
) -> None:
    """Whatever the tree holds; and for plain trees it is the walk alone that tells."""
    with WritableFilesystem.mkfs(1 << 30, nodesize=4096, metadata="single") as fs, select("c"):
        plain = make_entries(fs, entries * times)
        fs.snapshot("", "snap")
        fs.commit()
        request = prepare(fs, "snap", behaviour=behaviour, write=lambda data: None)
        sent = run_send(request, [])[2]
        assert send_reads(request, []).tolist() == sent.tolist()
        half = [int(row["logical"]) for row in sent[::2]]
        assert send_reads(request, half).tolist() == run_send(request, half)[2].tolist()
        fs.image.start_cold([])
        assert native.walk(request) or not plain
        fs.image.stop_cold()


def test_readahead_knobs() -> None:
    """Each limit bounds what it is for."""
    with Filesystem.open(corpus.image(R5K)) as fs:

        def ahead(operation: str, behaviour: str, **limits: int) -> pd.DataFrame:
            table = operate(fs, operation, behaviour=behaviour, limits=limits)
            return table[table["kind"] == "ahead"]

        assert ahead("send", "v5.12 + send-reada", distance=0).empty
        assert ahead("readdir", "v6.18", distance=0).empty
        assert not ahead("readdir", "v6.18").empty
        # the limits are passed by one block
        one = ahead("send", "v5.12 + send-reada", near=0)
        assert 0 < len(one) < len(ahead("send", "v5.12 + send-reada"))
        assert 0 < len(ahead("send", "v5.13", always_leaves=0)) < len(ahead("send", "v5.13"))
        wide = ahead("send", "v5.13", always_leaves=1 << 40, siblings=1 << 40)
        assert len(wide) > len(ahead("send", "v5.13"))
        assert (wide["level"] == 0).sum() > len(ahead("send", "v5.13", siblings=0))
        assert ahead("incremental", "v6.18", compare_leaves=0, compare_nodes=0).empty
        assert set(ahead("incremental", "v6.18", compare_leaves=0)["level"]) == {1}
        assert set(ahead("incremental", "v6.18", compare_nodes=0)["level"]) == {0}
        # the next operation has the kernels' limits again
        assert len(ahead("incremental", "v6.18")) > 100
    for wrong in ({"near": -1}, {"siblings": 1 << 63}, {"always_nodes": -5}):
        with pytest.raises(ValueError, match="limits"):
            Limits(**wrong)


@pytest.mark.parametrize("nowhere", ["far away", "behind the last chunk"])
def test_what_is_asked_for_ahead_may_not_exist(nowhere: str) -> None:
    """A damaged pointer is read ahead from no device; who gets there fails."""
    wide = {"distance": 1 << 62}
    broken = Broken(corpus.image(R5K))
    with broken.fs() as fs:
        last = fs.image.chunks[-1]
        place = 1 << 60 if nowhere == "far away" else last.logical + last.length
        table = bm.readdir_reads(fs, "snap1", limits=wide)
        victim = table[~table["used"]].iloc[-1]["logical"]
        blocks = fs.subvolume("snap1").tree.blocks()
        block = next(block for block in blocks if block.logical == victim)
    broken.write(block.parent, node_ptr(block.parent_slot) + 17, place.to_bytes(8, "little"))
    with broken.fs() as fs:
        rest = bm.readdir_reads(fs, "snap1", limits=wide)["logical"].tolist()
        assert rest == [address for address in table["logical"] if address != victim]
        with pytest.raises(bm.errors.CorruptImageError):
            bm.reads(fs, "snap1")
        assert bm.readdir_reads(fs, "snap1", limits=wide)["logical"].tolist() == rest


@settings(max_examples=30)
@given(
    st.integers(0, 10_000),
    st.booleans(),
    st.integers(0, 8),
    st.integers(0, 32),
    st.binary(min_size=1, max_size=2),
)
def test_damaged_trees_are_read_alike(
    which: int, in_node: bool, slot: int, byte: int, damage: bytes
) -> None:
    """The C kernels take short cuts where keys are in order; where they are not, nobody differs."""
    broken = Broken(corpus.image("features/nodesize-4096"))
    with broken.fs() as fs:
        snapshot = next(n for n in fs.subvolume_ids if fs.subvolume(n).is_read_only)
        blocks = [block.logical for block in fs.subvolume(snapshot).tree.blocks()
                  if bool(block.level) == in_node]  # fmt: skip
    place = node_ptr(slot) if in_node else 101 + 25 * slot
    broken.write(blocks[which % len(blocks)], place + byte % (33 if in_node else 17), damage)
    found: list[Any] = []
    for kernels in ("c", "python"):
        with broken.fs() as fs, select(kernels):
            try:
                found.append(bm.reads(fs, snapshot).to_dict("list"))
            except (bm.BtrfsModelError, OSError) as error:
                found.append(str(error))
    assert found[0] == found[1]


def test_errors() -> None:
    with Filesystem.open(corpus.image(R5K)) as fs:
        with pytest.raises(OSError, match="not read-only"):
            bm.reads(fs, 5)
        for wrong in (
            lambda: bm.reads(fs, "nope"), lambda: bm.readdir_reads(fs, "nope"),
            lambda: bm.readdir_reads(fs, "snap1", "nope"),
        ):  # fmt: skip
            with pytest.raises(bm.BtrfsModelError, match="there is no"):
                wrong()
        with pytest.raises(NotADirectoryError, match="inode 297 of subvolume 256"):
            bm.readdir_reads(fs, "snap1", "file_1")
        for address in (-1, 1 << 64):
            with pytest.raises(ValueError, match="no address"):
                bm.reads(fs, "snap1", cached=[address])
        with pytest.raises(TypeError, match="parent"):
            bm.readdir_reads(fs, "snap2", parent="snap1")


def test_command(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(corpus.image(R5K))
    with Filesystem.open(image) as fs:
        table = bm.reads(fs, "snap2", parent="snap1", behaviour="v6.12", cached=[])
        some = table["logical"].tolist()[::2]
        cached = bm.reads(fs, "snap2", parent="snap1", behaviour="v6.12", cached=some)
        listed = bm.readdir_reads(fs, "snap1")

    def run(*arguments: str) -> str:
        assert run_cli(["reads", image, *arguments]) == 0
        return capsys.readouterr().out

    incremental = ["snap2", "-p", "snap1", "--behaviour", "v6.12"]
    lines = [json.loads(line) for line in run(*incremental, "--json").splitlines()]
    assert lines == table.reset_index().to_dict("records")
    assert [line["sequence"] for line in lines] == list(range(len(table)))
    start = tmp_path / "cached"
    start.write_text("".join(f"{address:#x}\n" for address in some))
    written = tmp_path / "reads.parquet"
    assert run(*incremental, "--cached", str(start), "--out", str(written)) == ""
    pd.testing.assert_frame_equal(pd.read_parquet(written), cached.reset_index())
    text = run("snap1", "--readdir", ".")
    assert text.splitlines()[0].split("\t") == ["sequence", *listed.columns]
    assert len(text.splitlines()) == len(listed) + 1
    mounted = run("snap1", "--mounted", "ro", "--json").splitlines()
    assert 0 < len(mounted) < len(run("snap1", "--json").splitlines())
    for number, text in enumerate(("here", "-5", "1" * 30, "1e5", "\udcff")):
        (tmp_path / str(number)).write_text(f"4096\n{text}\n", errors="surrogateescape")
        assert run_cli(["reads", image, "snap1", "--cached", str(tmp_path / str(number))]) == 2
        assert "Invalid value for --cached: not an address" in capsys.readouterr().err
    for wrong in (
        ["snap1", "--readdir", ".", "-p", "snap2"],
        ["snap1", "--json", "--out", str(written)],
    ):
        assert run_cli(["reads", image, *wrong]) == 2
    assert run_cli(["reads", image, "snap9"]) == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_long_tables_are_printed_like_short_ones(
    as_json: bool, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By columns, what the values one by one give."""
    rows = 2500
    table = pd.DataFrame(
        {
            "number": np.arange(rows) - 7,
            "large": np.uint64(2**64 - 1) - np.arange(rows, dtype=np.uint64),
            "text": [f'{n % 7} "\\ \u00e9\U0001f600' for n in range(rows)],
            "truth": np.arange(rows) % 3 == 0,
        }
    )
    assert is_plain(table)
    # floats, bytes and what is missing are printed one by one
    for other in (1.5, b"b", None):
        assert not is_plain(table.assign(other=other))
    monkeypatch.setattr("btrfs_model.cli.rows._CHUNK", 1000)
    written = []
    for is_long in (True, False):
        if not is_long:
            monkeypatch.setattr("btrfs_model.cli.common.is_plain", lambda table: False)
        print_table(table, as_json=as_json, title="of all kinds")
        written.append(capsysbinary.readouterr().out)
    assert written[0] == written[1]
    assert len(written[0].splitlines()) == rows + 2 - 2 * as_json


def test_table_is_plain() -> None:
    with Filesystem.open(corpus.image(SMALL)) as fs:
        table = bm.reads(fs, fs.subvolume_ids[-1])
    assert list(table.columns[:4]) == ["logical", "physical", "level", "kind"]
    assert [table[name].dtype for name in ("logical", "physical", "level")] == [np.int64] * 3


@pytest.mark.claim("`reads -p` has the reads of `btrfs send -p`: the parent is a clone source too.")
def test_parent_is_a_clone_source() -> None:
    with bm.create("256M", nodesize=4096) as fs:
        fs.write_files("", [f"f{number}" for number in range(20)], b"a" * 4096)
        fs.snapshot("", "snap1")
        fs.sync()
        fs.write_files("", [f"g{number}" for number in range(400)], b"b" * 4096)
        fs.snapshot("", "snap2")
        fs.sync()

        def read(parent: str | None, clones: list[str] | None) -> list[int]:
            table = bm.reads(fs, "snap2", parent=parent, clone_sources=clones)
            return list(table["logical"])

        assert read("snap1", None) == read("snap1", ["snap1"])
        assert len(read("snap1", None)) > len(read("snap1", []))
        assert read(None, None) == read(None, [])
        with pytest.raises(TypeError, match="clone_sources"):
            bm.readdir_reads(fs, "snap2", clone_sources=["snap1"])


def test_send_with_a_parent_is_that_of_btrfs_send() -> None:
    with bm.create("256M") as fs:
        fs.create("g")
        fs.write("g", 0, b"y" * 65536)
        fs.snapshot("", "old")
        fs.create("copy")
        fs.clone_range("g", "copy", 0, 0, 65536)
        fs.unlink("g")
        fs.sync()
        fs.snapshot("", "new")
        fs.sync()
        sent = bm.send(fs, "new", "old")
        assert sent.commands["clone"] == 1
        assert sent.data == bm.send(fs, "new", "old", ["old"]).data
        assert "clone" not in bm.send(fs, "new", "old", ()).commands
