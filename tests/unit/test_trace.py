# SPDX-License-Identifier: GPL-2.0-only
"""What fsyncs decide, as events: each decision with what leads to it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import btrfs_model as bm
from btrfs_model.cli import run
from btrfs_model.experiments.verify.events import _comparable, _how
from btrfs_model.kernels.inside.traced import _by_operation
from btrfs_model.mount.log.trace import EVENTS, FORCE_COMMIT, NO_LOG_SYNC, Event, Trace

Decided = list[tuple[str, int, int]]


@pytest.fixture
def fs() -> Iterator[bm.WritableFilesystem]:
    """``d`` with two files, ``e`` with one, all committed: inodes 257 to 261."""
    with bm.create("256M", behaviour="v7.2") as made:
        made.mkdir("d")
        made.mkdir("e")
        for name in ("d/f", "d/g", "e/f"):
            made.create(name)
        made.sync()
        yield made


def decided(fs: bm.WritableFilesystem, call: Callable[[], object]) -> Decided:
    """Events of a call without ``btrfs_`` in front, of which inode, what is returned."""
    with fs.trace() as trace:
        call()
    return [
        (event.name.removeprefix("btrfs_"), event.fields.get("ino", 0), event.fields.get("ret", 0))
        for event in trace.events
    ]


def entered(found: Decided) -> list[tuple[str, int]]:
    return [(name, ino) for name, ino, _ in found if not name.endswith("_exit")]


def fields(trace: Trace, name: str) -> list[dict[str, int]]:
    return [event.fields for event in trace.events if event.name == f"btrfs_{name}"]


def test_an_old_file_is_logged_without_its_parents(fs: bm.WritableFilesystem) -> None:
    fs.write("d/f", 0, b"a" * 5000)
    assert entered(decided(fs, lambda: fs.fsync("d/f"))) == [
        ("sync_file_enter", 259), ("log_inode_parent_enter", 259), ("log_inode_enter", 259),
        ("sync_log_enter", 0),
    ]  # fmt: skip


def test_what_nobody_changed_is_not_logged(fs: bm.WritableFilesystem) -> None:
    assert entered(decided(fs, lambda: fs.fsync("d/f"))) == [("sync_file_enter", 259)]


def test_new_ancestors_are_said_to_exist(fs: bm.WritableFilesystem) -> None:
    fs.mkdir("d/n")
    fs.create("d/n/f")
    with fs.trace() as trace:
        fs.fsync("d/n/f")
    logged = [(one["ino"], one["log_mode"]) for one in fields(trace, "log_inode_enter")]
    assert logged == [(263, 0), (262, 1)]  # the file whole, its directory by its names alone


def test_a_file_that_was_moved_takes_its_old_directory_along(fs: bm.WritableFilesystem) -> None:
    fs.write("d/g", 0, b"a")
    fs.fsync("d/g")
    fs.fsync("d")
    assert ("record_unlink_dir", 260, 0) in decided(fs, lambda: fs.unlink("d/g"))
    fs.link("d/f", "e/n")
    assert entered(decided(fs, lambda: fs.fsync("d/f")))[2:5] == [
        ("log_inode_enter", 259), ("log_all_parents_enter", 259),
        ("log_inode_enter", 257),
    ]  # fmt: skip


def test_a_directory_that_lost_a_name_to_another_one_commits(fs: bm.WritableFilesystem) -> None:
    fs.rename("d/f", "e/n")
    assert decided(fs, lambda: fs.fsync("d"))[2:] == [
        ("log_inode_enter", 257, 0), ("log_inode_exit", 257, FORCE_COMMIT),
        ("log_inode_parent_exit", 257, FORCE_COMMIT), ("transaction_commit", 0, 0),
        ("sync_file_exit", 257, 0),
    ]  # fmt: skip


def test_a_new_file_logs_who_had_its_name(fs: bm.WritableFilesystem) -> None:
    fs.rename("d/f", "d/old")
    fs.create("d/f")
    with fs.trace() as trace:
        fs.fsync("d/f")
    (found,) = fields(trace, "add_conflicting_inode_enter")
    assert found["conflict_ino"], found["conflict_ino_parent"] == (259, 257)
    logged = fields(trace, "log_inode_enter")
    assert [(one["ino"], one["is_conflict_inode"]) for one in logged][:2] == [(262, 0), (259, 1)]


def test_more_than_ten_conflicts_commit(fs: bm.WritableFilesystem) -> None:
    folders = [f"d/{number}" for number in range(11)]
    for folder in folders:
        fs.mkdir(folder)
        fs.create(f"{folder}/x")
    fs.sync()
    fs.create("d/y")
    for folder in folders:
        fs.rename(f"{folder}/x", f"{folder}/z")
        fs.link("d/y", f"{folder}/x")
    found = decided(fs, lambda: fs.fsync("d/y"))
    ends = [ret for name, _, ret in found if name == "add_conflicting_inode_exit"]
    assert ends == [0] * 10 + [FORCE_COMMIT]


def test_a_directory_logs_the_files_of_new_entries(fs: bm.WritableFilesystem) -> None:
    fs.create("d/n")
    with fs.trace() as trace:
        fs.fsync("d")
    first, second = fields(trace, "log_inode_enter")
    assert (first["ino"], first["logging_new_delayed_dentries"]) == (257, 0)
    assert (second["ino"], second["logging_new_delayed_dentries"]) == (262, 1)
    assert fields(trace, "log_new_delayed_dentries_enter")


def test_a_rename_of_a_logged_file_logs_its_new_name(fs: bm.WritableFilesystem) -> None:
    with fs.trace() as trace:
        fs.rename("d/g", "d/h")  # in no log
    assert fields(trace, "log_new_name_exit")
    assert not fields(trace, "log_inode_enter")
    fs.write("d/f", 0, b"a")
    fs.fsync("d/f")
    with fs.trace() as trace:
        fs.rename("d/f", "e/n")
    (new,) = fields(trace, "log_new_name_enter")
    assert (new["ino"], new["old_dir_ino"], new["old_dir_index"]) == (259, 257, 2)
    assert all(one["logging_new_name"] for one in fields(trace, "log_inode_enter"))


def test_an_inode_with_many_names_commits(fs: bm.WritableFilesystem) -> None:
    for number in range(100):
        fs.link("d/f", f"e/{'n' * 240}{number}")
    found = decided(fs, lambda: fs.fsync("d/f"))
    assert ("log_all_new_ancestors_exit", 259, -31) in found  # EMLINK
    assert found[-2:] == [("transaction_commit", 0, 0), ("sync_file_exit", 259, 0)]


def test_notreelog_commits(fs: bm.WritableFilesystem) -> None:
    fs.set_mount_options("notreelog")
    fs.write("d/f", 0, b"a")
    assert ("log_inode_parent_exit", 259, FORCE_COMMIT) in decided(fs, lambda: fs.fsync("d/f"))


def test_who_does_not_listen_is_told_nothing(fs: bm.WritableFilesystem) -> None:
    with fs.trace() as outer, fs.trace() as inner:
        fs.create("n")
        fs.fsync("n")
    fs.create("o")
    fs.fsync("o")
    assert outer.events == inner.events
    assert {event.fields.get("ino", 262) for event in outer.events} == {262}
    assert fs.traces == []
    assert {event.name for event in outer.events} <= set(EVENTS)


def test_the_table_shows_what_is_below_what(fs: bm.WritableFilesystem) -> None:
    fs.rename("d/f", "e/n")
    with fs.trace() as trace:
        fs.fsync("d")
        fs.fsync("e")
    table = trace.table
    assert [*table.columns] == ["event", "root", "ino", "ret", "fields"]
    assert table.event[2] == "    log_inode_enter"
    assert table.fields[2].startswith("mode=16877 ")
    assert "log_mode=LOG_INODE_ALL" in table.fields[2]
    assert table.ret[3] == "a commit is needed"
    assert repr(trace) == f"Trace({len(table)} events)"
    assert "log_inode_enter" in trace._repr_html_()
    assert Trace([Event("btrfs_log_inode_parent_exit", {"ret": NO_LOG_SYNC})]).table.ret[0] == (
        "nothing to log"
    )


def test_run_prints_the_events_of_each_operation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario, image = tmp_path / "s.json", tmp_path / "s.img"
    for ops, told in (([["create", "f", 420], ["fsync", "f"]], True), ([["mkdir", "f"]], False)):
        scenario.write_text(json.dumps({"ops": ops}))
        assert run(["run", str(scenario), "-o", str(image), "--trace"]) == 0
        assert ("log_inode_enter" in capsys.readouterr().out) is told


def test_a_kernels_buffer_is_read_by_its_fields() -> None:
    text = (
        "# entries-in-buffer/entries-written: 4/4   #P:1\n"
        "  python-1  [000] .....  1.45: UNKNOWN TYPE 5\n"
        "  python-1  [000] .....  1.46: UNKNOWN TYPE 5\n"
        "  python-1  [000] .....  1.47: btrfs_log_inode_exit: fsid=<INVALID-SIZE> "
        "root_objectid=0x5 (5) last_log_commit=0xffffffff (-1) ret=0xfffff000 (-4096)\n"
        "  python-1  [000] .....  1.48: btrfs_record_unlink_dir: ino=0x101 (257) for_rename=(1)\n"
    )
    logged = {"root_objectid": 5, "last_log_commit": -1, "ret": FORCE_COMMIT}
    unlinked = {"ino": 257, "for_rename": 1}
    assert _by_operation(text) == [
        [], [("btrfs_log_inode_exit", logged), ("btrfs_record_unlink_dir", unlinked)]
    ]  # fmt: skip
    with pytest.raises(OSError, match=r"events were lost: .* 4/5"):
        _by_operation(text.replace("4/4", "4/5"))


def test_transactions_are_compared_as_running_or_not() -> None:
    commit = Event("btrfs_transaction_commit", {"generation": 9})
    logged = Event("btrfs_log_inode_exit", {"transid": 9, "logged_trans": 9, "ret": 0})
    found = _comparable([logged, commit, commit])
    assert found == [
        Event("btrfs_log_inode_exit", {"logged_trans": 1, "ret": 0}),
        Event("btrfs_transaction_commit", {"generation": 1}),
    ]
    other = Event("btrfs_log_inode_exit", {"logged_trans": 0, "ret": 0})
    assert _how(found[0], other) == ("btrfs_log_inode_exit", "logged_trans")
    assert _how(found[1], None) == ("btrfs_transaction_commit", "")
