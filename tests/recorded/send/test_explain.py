# SPDX-License-Identifier: GPL-2.0-only
"""Why commands were sent: both twins, every command, the cases that are known."""

import random
from contextlib import suppress
from typing import Any

import corpus
import pandas as pd
import pytest

import btrfs_model as bm
from btrfs_model.native.choice import select
from btrfs_model.native.door import lib
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.stream import STREAM_HEADER
from btrfs_model.ondisk.structs import INODE_ITEM
from btrfs_model.questions.send.causes import CAUSES, CAUSES_BY_NAME
from btrfs_model.questions.send.explain import summaries
from btrfs_model.questions.send.ioctl import SendResult, send
from btrfs_model.stream.reader import read_stream
from btrfs_model.volume.compare import compare_trees
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.listing import listing

KERNELS = {
    "5.10": "v5.10.46",
    "6.1": "v6.1.176",
    "6.12": "v6.12.101",
    "6.18": "v6.18.44",
    "7.2": "v7.2.7",
}
RANDOM = [f"send/random/seed-{seed:03}" for seed in (1, 3, 7, 11)]
RANDOM = [name for name in RANDOM if name in corpus.cases("send/random")]


def sends(name: str) -> list[tuple[dict[str, Any], str]]:
    return [(ask, kernel) for ask, kernel, record in corpus.records(name) if "errno" not in record]


def arguments(ask: dict[str, Any], kernel: str) -> dict[str, Any]:
    flags = ask["flags"]
    return {
        "snapshot": ask["snap"],
        "parent": ask["parent"],
        "clone_sources": ask["clones"],
        "behaviour": KERNELS.get(kernel, kernel),
        "proto": ask["proto"] or 1,
        "no_file_data": bool(flags & 1),
        "omit_header": bool(flags & 2),
        "omit_end": bool(flags & 4),
        "compressed": bool(flags & 16),
    }


def test_the_table_is_the_enum() -> None:
    names = [f"BM_SEND_{cause.name.upper().replace('-', '_')}" for cause in CAUSES]
    assert [getattr(lib, name) for name in names] == list(range(lib.BM_SEND_CAUSES))
    assert len(CAUSES_BY_NAME) == len(CAUSES)


@pytest.mark.one_of(2)
@pytest.mark.claim(
    "Each command of a send has one cause: a rule that sends such commands, and an item in "
    "which the trees differ."
)
@pytest.mark.parametrize("name", RANDOM)
def test_every_command_has_its_cause(name: str) -> None:
    """By a rule that sends such commands; where it stands, and its path, is what the stream has."""
    commands = {cause.name: cause.commands for cause in CAUSES}
    functions = {cause.name: cause.function for cause in CAUSES}
    with Filesystem.open(corpus.image(name)) as fs:
        for ask, kernel in sends(name):
            where = f"{name} {ask.get('id', '')} {kernel}"
            asked = arguments(ask, kernel)
            result, plain = send(fs, **asked, explain=True), send(fs, **asked)
            assert (result.data, result.commands) == (plain.data, plain.commands), where
            assert dict(result.work) == dict(plain.work), where
            assert plain.causes is None
            causes = result.causes
            assert causes is not None
            header = 0 if asked["omit_header"] else STREAM_HEADER.size
            assert header + causes["length"].sum() == result.size, where
            sent = list(
                read_stream(result.data or b"", header=bool(header), version=asked["proto"])
            )
            paths = [bytes(c.attributes.get("path", b"")) for c in sent]
            assert causes["offset"].tolist() == [c.offset for c in sent], where
            assert causes["command"].tolist() == [c.name for c in sent], where
            shown = [path.encode("utf-8", "surrogateescape") for path in causes["path"]]
            assert shown == paths, where
            for command, cause, function in zip(
                causes["command"], causes["cause"], causes["function"], strict=True
            ):
                assert command in commands[cause], where
                assert function == functions[cause], where


@pytest.mark.parametrize("kernel", ["5.10", "6.1", "6.18"])
@pytest.mark.parametrize("name", RANDOM[:2])
def test_twins_are_equal(name: str, kernel: str) -> None:
    with Filesystem.open(corpus.image(name)) as fs:
        for ask, recorded in sends(name):
            if recorded != kernel:
                continue
            assert_twins_are_equal(fs, arguments(ask, kernel))


def assert_twins_are_equal(fs: Filesystem, asked: dict[str, Any]) -> None:
    native = send(fs, **asked, explain=True)
    with select("python"):
        twin = send(fs, **asked, explain=True)
    for ours, theirs in ((native.causes, twin.causes), (native.sources, twin.sources)):
        assert ours is not None and theirs is not None
        pd.testing.assert_frame_equal(ours, theirs)


# ------------------------------------------------------------------------ clone sources ----


def with_shared_data(seed: int) -> bm.WritableFilesystem:
    """Files that share data inside and between subvolumes: whole, in parts, their ends."""
    choice = random.Random(seed)
    fs = bm.create("256M", seed=seed)
    for volume in ("a", "b"):
        fs.create_subvolume(volume)
    names: list[str] = []
    for number in range(3):
        for _ in range(16):
            name = f"{choice.choice('ab')}/f{choice.randrange(9)}"
            if name not in names:
                fs.create(name)
                names.append(name)
            at, source = 4096 * choice.randrange(4), choice.choice(names)
            length = 0 if choice.random() < 0.5 else 4096
            if choice.random() < 0.6:
                with suppress(OSError):  # beyond its end, or that into the middle of a file
                    fs.clone_range(source, name, 4096 * choice.randrange(3), at, length)
            else:
                fs.write(name, at, choice.randbytes(choice.randrange(1, 20000)))
        for volume in ("a", "b"):
            fs.snapshot(volume, f"{volume}{number}")
    fs.sync()
    return fs


def assert_sources_are_those_of_the_stream(
    fs: Filesystem, result: SendResult, allowed: set[str]
) -> None:
    """`allowed`: paths of the clone sources, and of what is sent."""
    causes, sources = result.causes, result.sources
    assert causes is not None and sources is not None
    sent = read_stream(result.data or b"")
    stream = {command.offset: command.attributes for command in sent}
    chosen = sources[sources["reason"] == "chosen"].set_index(["inode", "file_offset"])
    assert chosen.index.is_unique
    row: Any
    for row in causes[causes["command"] == "clone"].itertuples():
        place = chosen.loc[(row.inode, row.item_offset)]
        attributes, item = stream[row.offset], fs.subvolume(place["source"]).item
        uuid = item.received_uuid if any(item.received_uuid) else item.uuid
        assert attributes["clone_uuid"] == uuid
        assert attributes["clone_ctransid"] == item.ctransid
        source = f"{place['source']}/{bytes(attributes['clone_path']).decode()}"
        # a file of the snapshot itself may have an orphan name at that time
        if fs.file(source).exists():
            assert fs.file(source).stat().ino == place["source_inode"]
    written = causes[causes["cause"] == "write-no-source"]
    keys = set(zip(written["inode"], written["item_offset"], strict=True))
    assert not keys & set(chosen.index)
    for row in sources.itertuples():
        key, rest = (row.inode, row.file_offset), row.reason
        assert (row.source not in allowed) == (rest == "not-a-source")
        if rest in ("other-place", "other-source"):
            refused = sources[sources["reason"] == "end-unaligned"]
            ends = set(zip(refused["inode"], refused["file_offset"], strict=True))
            assert key in chosen.index or key in ends


@pytest.mark.claim(
    "The clone source that an explained send names for an extent is that of the stream; each other "
    "place that refers to the extent has its reason."
)
@pytest.mark.parametrize("kernel", ["v4.20", "v5.10.46", "v6.18.44"])
@pytest.mark.parametrize("seed", range(2))
def test_sources_are_those_of_the_stream(seed: int, kernel: str) -> None:
    fs, met = with_shared_data(seed), set[str]()
    for snapshot, parent, clones in (
        ("a1", None, ()), ("a2", None, ("b1", "b2")), ("a2", "a0", ("a0", "b2")),
        ("b2", "b1", ("b1",)), ("b1", "b2", ("b2", "a0", "a1", "a2")),
    ):  # fmt: skip
        asked = {"snapshot": snapshot, "parent": parent, "clone_sources": clones,
                 "behaviour": kernel}  # fmt: skip
        result = send(fs, **asked, explain=True)
        assert_sources_are_those_of_the_stream(fs, result, {snapshot, *clones})
        assert_twins_are_equal(fs, asked)
        assert result.sources is not None
        met |= set(result.sources["reason"])
    assert met >= {"chosen", "not-a-source", "not-sent-yet"}
    # since 6.2 the walk may end at the first place
    assert "other-source" in met or kernel == "v6.18.44"


def test_too_many_references() -> None:
    """Before 6.2 no extent with more than 64 is looked at; those who refer to it are told."""
    fs = bm.create("256M", seed=1)
    fs.create("file")
    fs.write("file", 0, bytes(range(256)) * 64)
    for number in range(70):
        fs.create(f"copy{number}")
        fs.clone_range("file", f"copy{number}", 0, 0, 0)
    fs.snapshot("", "s1")
    fs.snapshot("", "s2")
    fs.sync()
    for kernel, reason in (("v5.10.46", "too-many-references"), ("v6.18.44", "chosen")):
        found = send(fs, "s2", None, ["s1"], behaviour=kernel, explain=True).sources
        assert found is not None
        other = {"too-many-references", "chosen"} - {reason}
        assert reason in set(found["reason"]), kernel
        assert not other & set(found["reason"]), kernel


def other_inodes(fs: Filesystem, ask: dict[str, Any]) -> set[int]:
    """Numbers that are another inode than in the parent, or one that lost or got its links."""
    found: list[dict[int, tuple[int, bool]]] = []
    for which in filter(None, (ask["snap"], ask["parent"])):
        items = [item for item in fs.subvolume(which).tree.items() if item.key.type == 1]
        inodes = {item.key.objectid: INODE_ITEM.unpack(item.data) for item in items}
        found.append({ino: (one.generation, one.nlink > 0) for ino, one in inodes.items()})
    first, last = found[0], found[-1]
    return {ino for ino in first.keys() & last.keys() if first[ino] != last[ino]}


@pytest.mark.parametrize("name", RANDOM)
def test_items_are_those_that_differ(name: str) -> None:
    """As the comparison of both trees has them, which knows nothing of send."""
    with Filesystem.open(corpus.image(name)) as fs:
        for ask, kernel in sends(name):
            if kernel != "6.18":
                continue
            causes = send(fs, **arguments(ask, kernel), explain=True).causes
            assert causes is not None
            tree = fs.subvolume(ask["snap"]).tree
            keys = {tuple(item.key) for item in tree.items()}
            differences = dict.fromkeys(keys, "new")
            if ask["parent"] is not None:
                differences = {
                    tuple(step.key): step.change.name.lower()
                    for step in compare_trees(tree, fs.subvolume(ask["parent"]).tree)
                }
            items = causes[causes["change"] != ""]
            assert set(causes["command"][causes["change"] == ""]) <= {"subvol", "snapshot", "end"}
            replaced = other_inodes(fs, ask)
            row: Any
            for row in items.itertuples(index=False):
                key = (row.item_objectid, ItemType[row.item_type], row.item_offset)
                if row.change == "same":
                    assert row.cause == "hole" and key in keys
                elif row.item_objectid in replaced:
                    # all items of such an inode are gone or new, whatever a comparison says
                    assert key in differences or key in keys
                elif row.item_type in ("INODE_REF", "INODE_EXTREF") and key not in differences:
                    # the directory was replaced, so that an equal item names another one
                    assert row.change == "changed" and key in keys
                else:
                    assert differences[key] == row.change


# -------------------------------------------------------------------------- known cases ----


def test_truncates_before_4_17_are_needless() -> None:
    with Filesystem.open(corpus.image("send/send-truncate/n500")) as fs:
        before, after = (
            send(fs, "snap", behaviour=kernel, explain=True).causes for kernel in ("v4.16", "v4.17")
        )
    assert before is not None and after is not None
    truncates = before[before["command"] == "truncate"]
    assert len(truncates) == 500
    assert set(truncates["cause"]) == {"truncate-always"}
    assert set(truncates["function"]) == {"finish_inode_if_needed"}
    assert truncates["inode"].tolist() == truncates["item_objectid"].tolist()
    assert set(truncates["item_type"]) == {"INODE_ITEM"}
    assert not set(after["cause"]) & {"truncate-always", "truncate-size"}
    assert set(after["cause"][after["command"] == "write"]) == {"write-no-source"}
    # until 6.3 the times of the top were sent with each of its entries
    top = after[(after["command"] == "utimes") & (after["path"] == "")]
    assert top["cause"].astype(str).value_counts().to_dict() == {
        "times-entry": 500,
        "times-inode": 1,
    }


def test_utimes_of_a_directory_come_from_its_entries() -> None:
    """With the entry's item; a kernel that does not put them off sends one with each entry."""
    with Filesystem.open(corpus.image(RANDOM[2])) as fs:
        ask = next(a for a, k in sends(RANDOM[2]) if k == "6.18" and a["parent"] is not None)
        asked = arguments(ask, "6.18")
        late, early = (
            send(fs, **{**asked, "behaviour": kernel}, explain=True).causes
            for kernel in ("v6.12", "v6.12 - send-utimes-cache")
        )
    assert late is not None and early is not None
    for causes in (late, early):
        entries = causes[causes["cause"] == "times-entry"]
        assert len(entries)
        assert set(entries["item_type"]) <= {"INODE_REF", "INODE_EXTREF"}
        # the name is in that directory, or in a file that was in it
        refs = entries[entries["item_type"] == "INODE_REF"]
        assert refs["inode"].tolist() == refs["item_offset"].tolist()
    assert (early["cause"] == "times-entry").sum() > (late["cause"] == "times-entry").sum()


def test_names_and_inodes() -> None:
    with Filesystem.open(corpus.image(RANDOM[1])) as fs:
        ask = next(a for a, k in sends(RANDOM[1]) if k == "6.18" and a["parent"] is None)
        result = send(fs, **arguments(ask, "6.18"), explain=True)
        listed = listing(fs.subvolume(ask["snap"]), content=False)
    causes = result.causes
    assert causes is not None
    # a full send makes each inode once, and names it once as the first
    made = causes[causes["cause"].isin(["inode-new", "parent-early"])]
    inodes = set(listed["ino"][listed["subvolume"] == 0]) - {256}
    assert sorted(made["inode"]) == sorted(inodes)
    assert sorted(causes["inode"][causes["cause"] == "first-name"]) == sorted(inodes)
    assert set(made["change"]) == {"new"}
    renames = causes[causes["command"] == "rename"]
    assert all(path.startswith("o") for path in renames["path"])


def test_summaries_add_up() -> None:
    with Filesystem.open(corpus.image("send/send-truncate/n500")) as fs:
        result = send(fs, "snap", explain=True)
    assert result.causes is not None
    tables = summaries(result.causes)
    assert list(tables) == ["by cause", "by kernel function", "by command", "by directory"]
    for table in tables.values():
        assert table["commands"].sum() == len(result.causes)
        assert table["bytes"].sum() == result.size - STREAM_HEADER.size
        assert table["bytes"].is_monotonic_decreasing
    by_command = tables["by command"].set_index("command")["commands"]
    assert by_command.to_dict() == result.commands
    top = tables["by cause"].iloc[0]
    assert (top["cause"], top["commands"]) == ("write-no-source", 500)
    assert top["share"] > 90
