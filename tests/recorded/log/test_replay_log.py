# SPDX-License-Identifier: GPL-2.0-only
"""Replay of logs, judged by the replays of four kernels.

The corpus has the image of each crash and the one that the same kernel's mount made of it. What
`replay_log` gives must have the same items in every subvolume, byte for byte, but for one thing:
times at which the replay itself changed an inode are those of the clock, the kernel's or the
model's. Such a time must stand in the same field on both sides. Replays by a kernel of another era
give the same but for times, generations and versions (``cross.json`` of the corpus).
"""

import hashlib
import json
import shutil
import stat
import subprocess
from pathlib import Path

import corpus
import pytest
from click.testing import CliRunner
from damage import Broken
from hypothesis import given, settings
from hypothesis import strategies as st
from progs import btrfs_check

import btrfs_model as bm
from btrfs_model.cli import cli
from btrfs_model.experiments.verify.logs import items_of
from btrfs_model.mount.live_inode import InodeFields
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.ondisk.items import dir_items
from btrfs_model.ondisk.keys import ItemType, ObjectId

BEHAVIOURS = {
    "5.10": "v5.10.46",
    "5.10.223": "v5.10.223",
    "5.10p": "v5.10.223 + log-dir-index-only",
    "6.1": "v6.1.176",
    "6.12": "v6.12.101",
    "6.18": "v6.18.44",
}
TIMES = ("atime", "ctime", "mtime", "otime")
# where the model's clock starts, and a day after; the corpus was made later
CLOCK = range(1_700_000_000 * 10**9, 1_700_086_400 * 10**9)


def crashes(family="log"):
    """Images of crashes that have a judge."""
    found = [
        f"{family}/{name}"
        for name in corpus.files(family, "crash*.img.zst")
        if corpus.has(family, name.replace("/crash", "/replayed"))
    ]
    return sorted(found)


def sample():
    """All that comes with the project; of the oracle every ninth crash, in long runs all of it."""
    own = [name for name in crashes() if (corpus.KERNEL_DATA / name).exists()]
    others = [name for name in crashes() if name not in own]
    return own + (others if corpus.LONG else others[::9])


def few(step=7):
    return sample()[:: 1 if corpus.LONG else step]


def behaviour_of(name):
    return BEHAVIOURS[name.split("/")[-2]]


def replay(name, behaviour=None):
    with bm.open(corpus.image(name)) as fs:
        return bm.replay_log(fs, behaviour=behaviour or behaviour_of(name))


def judge(name):
    return bm.open(corpus.image(name.replace("/crash", "/replayed")))


def same_but_for_times_of_now(ours, theirs):
    """Whether inode items are equal, where times of the replay stand for each other."""
    ours, theirs = InodeFields.unpack(ours), InodeFields.unpack(theirs)
    for field in TIMES:
        if getattr(ours, field) in CLOCK:
            if getattr(theirs, field) in CLOCK:
                return False
            setattr(ours, field, getattr(theirs, field))
    return ours == theirs


def difference(ours, theirs):
    return [
        (key, ours.get(key), theirs.get(key))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
        and not (
            key in ours
            and key in theirs
            and key[1] == ItemType.INODE_ITEM
            and same_but_for_times_of_now(ours[key], theirs[key])
        )
    ]


def observable(fs, tree):
    """Items without generations, versions and times."""
    found = {}
    for key, data in items_of(fs, tree).items():
        if key[1] == ItemType.INODE_ITEM:
            item = InodeFields.unpack(data)
            skipped = {*TIMES, "generation", "transid", "sequence"}
            found[key] = [getattr(item, f) for f in item.__slots__ if f not in skipped]
        elif key[1] in (ItemType.DIR_ITEM, ItemType.DIR_INDEX, ItemType.XATTR_ITEM):
            found[key] = [entry._replace(transid=0) for entry in dir_items(data)]
        else:
            found[key] = data[8:] if key[1] == ItemType.EXTENT_DATA else data
    return found


# ------------------------------------------------------------------------------- the judge's --


@pytest.mark.one_of(2)
@pytest.mark.claim(
    "A replayed log gives every item that the kernel's own replay gives, for the crashes of "
    "90 workloads on four kernels; in part by default, all in long runs."
)
@pytest.mark.parametrize("name", sample())
def test_replay_gives_the_items_of_the_kernel(name):
    with replay(name) as ours, judge(name) as theirs:
        assert ours.subvolume_ids == theirs.subvolume_ids
        for tree in theirs.subvolume_ids:
            assert difference(items_of(ours, tree), items_of(theirs, tree)) == []
        csums = [items_of(fs, ObjectId.CSUM_TREE) for fs in (ours, theirs)]
        assert covered(csums[0]) == covered(csums[1])
        assert ours.image.superblock.log_root == 0
        assert bm.check(ours, verify_data=True) == []


def covered(csums):
    """Checksums by sector: how they are spread over items depends on what was freed before."""
    return {
        key[2] + at // 4 * 4096: data[at : at + 4]
        for key, data in csums.items()
        for at in range(0, len(data), 4)
    }


@pytest.mark.claim("Logs of one kernel are replayed as another kernel replays them.")
@pytest.mark.parametrize("behaviour", ["v5.10", "v5.17", "v6.18"])
def test_any_era_replays_any_log_to_the_same_state(behaviour):
    for name in few():
        with replay(name, behaviour) as ours, judge(name) as theirs:
            for tree in theirs.subvolume_ids:
                assert observable(ours, tree) == observable(theirs, tree), name


def test_corpus_says_that_cross_replays_are_equal():
    """What the test above relies on."""
    found = [
        row
        for name in corpus.cases("log")
        if corpus.has(name, "cross.json")
        for row in json.loads(corpus.path(name, "cross.json").read_text())
    ]
    if not found:
        pytest.skip("cross.json is in the oracle alone")
    assert all(row["items_equal"] and row["listing_equal"] for row in found)


def test_listing_is_that_of_applications():
    """Names, sizes, link counts and data, as programs saw them after the kernel's replay."""
    for name in few(5):
        folder, _, file = name.rpartition("/")
        number = int(file.removeprefix("crash").split(".")[0])
        crash = json.loads(corpus.path(folder, "result.json").read_text())["crashes"][number - 1]
        with replay(name) as ours:
            # of the largest filesystems there is none
            for row in crash["replay"].get("listing", []):
                ino = ours.inode(*ours.resolve(row["path"].removeprefix("."), follow=False))
                assert ino.ino == row["ino"]
                assert ino.item.nlink == row["nlink"]
                assert ino.item.size == row["size"]
                assert oct(stat.S_IMODE(ino.item.mode)) == row["mode"]
                subvolume = ours.subvolume(ino.root)
                if row["type"] == "file":
                    content = subvolume.read_file(ino.ino)
                    assert hashlib.sha256(content).hexdigest() == row["sha256"]
                elif row["type"] == "dir":
                    names = [entry.name.decode() for entry in subvolume.readdir(ino.ino)]
                    assert names == [name for name, _ in row["entries"]]


@pytest.mark.skipif(shutil.which("btrfs") is None, reason="needs btrfs-progs")
def test_btrfs_check_finds_nothing(tmp_path):
    for name in few(9):
        with replay(name) as fs:
            fs.save(tmp_path / "image")
        assert btrfs_check(tmp_path / "image") == "", name


def test_twins_replay_the_same():
    for name in few(11):
        with replay(name) as ours:
            want = {tree: items_of(ours, tree) for tree in ours.trees}
        bm.use_code("python")
        try:
            with replay(name) as ours:
                assert {tree: items_of(ours, tree) for tree in ours.trees} == want
        finally:
            bm.use_code("c")


def test_replayed_filesystem_can_be_changed_further(tmp_path):
    with replay("log/nd/nd_20_5/6.18/crash2.img.zst") as fs:
        fs.create("testdir/new")
        fs.write("testdir/new", 0, b"x" * 9000)
        fs.save(tmp_path / "image")
    with bm.open(tmp_path / "image") as fs:
        assert bm.check(fs, verify_data=True) == []
        assert fs.log_root_tree is None


# ------------------------------------------------------------------------------- the toggles --

OLD_LOG = "log/nd/nd_20_5/5.10/crash2.img.zst"


def logged(broken, kind, which=0):
    """An item of the log of the top subvolume."""
    tree = broken.fs().log_trees[5]
    return [item for item in tree.items() if item.key.type == kind][which]


def test_only_old_kernels_replay_entries_by_name():
    """log-dir-index-only: a DIR_ITEM of the log that leads elsewhere removes a name, or nothing."""
    broken = Broken(corpus.image(OLD_LOG))
    item = logged(broken, ItemType.DIR_ITEM)
    other = dir_items(logged(broken, ItemType.DIR_ITEM, 1).data)[0].location.objectid
    broken.write_item(item, 0, other.to_bytes(8, "little"))
    for behaviour, there in [
        ("v5.10", False),
        ("v5.10 + log-dir-index-only", True),
        ("v6.18", True),
        ("v6.18 - log-dir-index-only", False),
    ]:
        with bm.replay_log(broken.fs(), behaviour=behaviour) as fs:
            assert (items_of(fs, 5).get(tuple(item.key)) is not None) == there
            assert bm.check(fs) == []


def test_only_old_kernels_delete_by_name():
    """log-replay-index-deletes: an entry without its DIR_ITEM in the log is taken for deleted."""
    broken = Broken(corpus.image(OLD_LOG))
    item = logged(broken, ItemType.DIR_ITEM)
    (entry,) = dir_items(item.data)
    rest = [(key, data) for key, data in broken.items(item.block) if key != tuple(item.key)]
    broken.write_items(item.block, rest)
    inode = (entry.location.objectid, ItemType.INODE_ITEM, 0)
    for behaviour, touched in [
        ("v5.10", True),
        ("v5.10 + log-replay-index-deletes", False),
        ("v6.18", False),
    ]:
        with bm.replay_log(broken.fs(), behaviour=behaviour) as fs:
            # its DIR_INDEX brings it back; the unlink before that shows in the time
            assert tuple(item.key) in items_of(fs, 5)
            assert (InodeFields.unpack(items_of(fs, 5)[inode]).ctime in CLOCK) == touched


# ------------------------------------------------------------------------------- loading, CLI --

CRASH = "log/subvolume_log/6.18/crash2.img.zst".replace("log/", "log/scenarios/", 1)


def test_log_is_refused_unless_it_is_to_be_replayed():
    path = corpus.image(CRASH)
    with pytest.raises(bm.errors.UnsupportedError, match="must be replayed first"):
        WritableFilesystem.load(path)
    with (
        WritableFilesystem.load(path, replay_behaviour="v6.18") as fs,
        replay(CRASH, "v6.18") as other,
    ):
        assert items_of(fs, 5) == items_of(other, 5)
        assert fs.path == str(path)


def test_without_a_log_nothing_changes(small_image):
    with bm.open(small_image) as fs, bm.replay_log(fs) as same:
        assert same.image.superblock.generation == fs.image.superblock.generation
        assert items_of(same, 5) == items_of(fs, 5)


def test_unknown_behaviour_is_refused():
    with bm.open(corpus.image(CRASH)) as fs, pytest.raises(ValueError, match="unknown kernel"):
        bm.replay_log(fs, behaviour="v9")


def test_command(tmp_path):
    source = corpus.scratch_copy(CRASH, tmp_path / "crashed.img")
    before = corpus.content(source)
    out = tmp_path / "new.img"
    result = CliRunner().invoke(cli, ["replay-log", str(source), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert result.output == "replayed the log of subvolume 5, 256\n"
    assert corpus.content(source) == before
    with bm.open(out) as fs, judge(CRASH) as theirs:
        assert difference(items_of(fs, 256), items_of(theirs, 256)) == []
    result = CliRunner().invoke(cli, ["replay-log", str(out), "-o", str(tmp_path / "again.img")])
    assert result.output == "there is no log\n"


def test_command_does_not_overwrite_its_source(tmp_path):
    source = corpus.scratch_copy(CRASH, tmp_path / "crashed.img")
    before = corpus.content(source)
    result = CliRunner().invoke(cli, ["replay-log", str(source), "-o", str(source)])
    assert result.exit_code == 2
    assert corpus.content(source) == before


# ------------------------------------------------------------------------------------- damage --


def fails(broken, match):
    before = broken.map[:]
    with pytest.raises(bm.errors.CorruptImageError, match=match) as caught:
        bm.replay_log(broken.fs())
    assert broken.map[:] == before
    assert str(caught.value).startswith("broken.img: ")
    return caught.value


def test_extents_that_cannot_be():
    broken = Broken(corpus.image("log/scenarios/sparse_and_holes/6.18/crash1.img.zst"))
    item = next(
        found for found in broken.fs().log_trees[5].items()
        if found.key.type == ItemType.EXTENT_DATA and any(found.data[21:29])
    )  # fmt: skip
    place = [(at, broken.nodesize) for at in broken.copies(item.block)]
    committed = broken.fs().root_tree.bytenr
    for bytenr in (1 << 50, committed):
        with broken.restored(*place):
            broken.write_item(item, 21, bytenr.to_bytes(8, "little"))
            fails(broken, rf"tree -6, block {item.block}, slot {item.slot}: ")


def test_range_that_ends_before_it_starts():
    broken = Broken(corpus.image("log/nd/nd_20_5/6.18/crash2.img.zst"))
    item = logged(broken, ItemType.DIR_LOG_INDEX, -1)
    broken.write_item(item, 0, (1).to_bytes(8, "little"))
    fails(broken, r"tree -6, block \d+, slot \d+: errno 117")


FUZZED = (
    "log/nd/nd_20_5/5.10/crash1.img.zst",
    "log/scenarios/sparse_and_holes/6.18/crash1.img.zst",
    "log/scenarios/xattrs_new_file/6.18/crash2.img.zst",
    CRASH,
)
BROKEN = {}


@settings(max_examples=2000 if corpus.LONG else 60)
@given(data=st.data())
def test_wrong_items_are_named_or_harmless(data):
    """Payloads that get past the checksums: a clear error, or a filesystem that can be saved."""
    name = data.draw(st.sampled_from(FUZZED))
    if name not in BROKEN:
        BROKEN[name] = Broken(corpus.image(name))
    broken = BROKEN[name]
    found = [item for tree in broken.fs().log_trees.values() for item in tree.items() if item.data]
    item = found[data.draw(st.integers(0, len(found) - 1))]
    at = data.draw(st.integers(0, len(item.data) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=min(8, len(item.data) - at)))
    behaviour = data.draw(st.sampled_from(["v5.10", "v6.18"]))
    with broken.restored(*((start, broken.nodesize) for start in broken.copies(item.block))):
        broken.write_item(item, at, patch)
        try:
            with bm.replay_log(broken.fs(), behaviour=behaviour) as fs:
                assert fs.image.superblock.log_root == 0
        except bm.errors.CorruptImageError as error:
            assert "broken.img: " in str(error)


# ---------------------------------------------------------------------------------- the kernel --


@pytest.mark.skipif(not corpus.LONG, reason="mounts crashed filesystems: only in long runs")
def test_running_kernel_takes_what_was_replayed(tmp_path: Path):
    """It mounts, and reads, the result; its own replay is in the corpus."""
    from mounts import mounted

    from btrfs_model.kernels.native import why_not

    reason = why_not()
    if reason:
        pytest.skip(reason)
    for name in few(9)[:20]:
        with replay(name) as fs:
            fs.save(tmp_path / "image")
        with mounted(tmp_path / "image", "ro") as top:
            subprocess.run(["ls", "-lR", str(top)], check=True, stdout=subprocess.DEVNULL)
