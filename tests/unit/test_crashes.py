# SPDX-License-Identifier: GPL-2.0-only
"""Every state that a crash may leave, and which promises it breaks."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from corpus import PROJECT
from crash_promises import BROKEN

import btrfs_model as bm
from btrfs_model.base.errors import UnsupportedError
from btrfs_model.behaviour import name_ranges
from btrfs_model.cli import cli, common
from btrfs_model.experiments.crashes.api import Outcome, mount_after
from btrfs_model.experiments.crashes.enumerate import Small, sequences_of, text_of
from btrfs_model.experiments.crashes.promises import RULES, History
from btrfs_model.experiments.crashes.seen import TOP, Inode, Ref, State
from btrfs_model.experiments.small.sequences import Steps, enumerated
from btrfs_model.patches import Patch
from btrfs_model.volume.device.memory import Memory

FILE: Ref = (5, 257)
FOLDER: Ref = (5, 258)
MOVED = """
mkfs.btrfs -f /dev/sdx
mount /dev/sdx /mnt
mkdir /mnt/tmp /mnt/new
echo "a mail" >/mnt/tmp/1
sync
mv /mnt/tmp/1 /mnt/new/1
xfs_io -c fsync /mnt/new
"""


def scenario(path: Path, *operations: list[Any]) -> Path:
    path.write_text(json.dumps({"ops": operations}))
    return path


def state(*names: bytes, data: bytes = b"", xattrs: Any = (), mode: int = 0o100644) -> State:
    """A file with names in the top directory, and an empty folder beside it."""
    entries = {(b"d", FOLDER), *((name, FILE) for name in names)}
    found = {(5, TOP): Inode(0o40755, entries=frozenset(entries)), FOLDER: Inode(0o40755)}
    if names:
        found[FILE] = Inode(mode, data, xattrs=frozenset(xattrs))
    return found


A, B = state(b"a", data=b"old"), state(b"b", data=b"newer")


@pytest.mark.claim("Each rule of what a crash may leave is broken by a state that breaks it alone.")
@pytest.mark.parametrize(
    ("rule", "states", "fsynced", "result"),
    [
        ("inode", [A, A], {}, state()),
        ("name", [A, A], {}, state(b"c", data=b"old")),
        ("never-there", [A, A], {}, state(b"a", b"c", data=b"old")),
        ("inode-unlinked", [state(b"a", b"b"), state(b"b")], {}, state()),
        ("fsync-gone", [A, state()], {FILE: 1}, A),
        ("one-name", [state(b"a"), state(b"b")], {}, state(b"a", b"b")),
        ("fsync-inode", [state(), A, A], {FILE: 1}, state()),
        ("fsync-data", [A, state(b"a", data=b"two")], {FILE: 1}, state(b"a", data=b"oxx")),
        ("fsync-attributes", [A, state(b"a", data=b"old", mode=0o100600)], {FILE: 1}, A),
        ("fsync-entries", [state(), A], {(5, TOP): 1}, state()),
        ("fsync-names", [A, state(b"a", b"b", data=b"old")], {FILE: 1}, A),
        ("fsync-old-names", [state(b"a", b"c"), state(b"b", b"c")], {FILE: 1},
         state(b"a", b"b", b"c")),
        ("fsync-taken-names", [state(b"a", b"b"), state(b"b")], {FILE: 1}, state(b"a", b"b")),
        ("content", [A, B], {}, state(b"a", data=b"o")),
        ("content-cut", [state(b"a", data=b"old"), state(b"a", data=b"xy")], {},
         state(b"a", data=b"ol")),
        ("attributes", [A, state(b"a", data=b"old", mode=0o100600, xattrs=[(b"u", b"1")])], {},
         state(b"a", data=b"old", mode=0o100600)),
    ],
)  # fmt: skip
def test_a_rule_is_broken(
    rule: str, states: list[State], fsynced: dict[Ref, int], result: State
) -> None:
    found = {one.rule for one in History(states, fsynced, {}).broken(result)}
    # what is lost is lost with its name
    with_it = {"inode": {"name"}, "inode-unlinked": {"name"}, "name": {"never-there"},
               "never-there": {"one-name"}}  # fmt: skip
    assert rule in found <= {rule} | with_it.get(rule, set())
    assert [*History(states, fsynced, {}).broken(states[-1])] == []


def test_rules_are_named() -> None:
    assert set(RULES) >= BROKEN
    assert {rule.whose for rule in RULES.values()} == {"POSIX", "Linux", "btrfs"}


@pytest.mark.claim(
    "A crash at an fsync of the directory that a file was moved to leaves both of its names, since "
    "Linux 6.1: `crashes` finds it in a script."
)
def test_a_script() -> None:
    found = bm.crashes(MOVED, behaviours=["v5.15", "v6.1", "v7.2"])
    assert found.broken[["kernel", "call", "moment", "rule"]].values.tolist() == [
        ["v6.1", 7, "in", "one-name"], ["v7.2", 7, "in", "one-name"],
    ]  # fmt: skip
    assert found.table["call"].tolist() == [0, 5, 7] * 3
    itself = MOVED.replace("fsync /mnt/new", "fsync /mnt/new/1")
    assert bm.crashes(itself, behaviours=["v5.10", "v5.15", "v6.1", "v7.2"]).broken.empty
    assert found.states == found.table[found.table["kernel"] == "v7.2"]["states"].sum()


@pytest.mark.claim(
    "A crash after an exchange of two directories and an fsync of one loses the other up to 6.18; "
    "the device as the crash left it says so itself, and `log-old-conflicts` mends it."
)
def test_a_scenario(tmp_path: Path) -> None:
    path = scenario(tmp_path / "x.json", ["mkdir", "A"], ["mkdir", "B"], ["create", "B/bar"],
                    ["sync"], ["exchange", "A", "B"], ["fsync", "A"])  # fmt: skip
    kernels = ["v6.18", "v7.2", "v7.2 - log-old-conflicts"]
    found = bm.crashes(path, behaviours=kernels)
    assert found.broken["rule"].tolist() == ["inode", "inode"]
    assert found.broken["kernel"].tolist() == [kernels[0], str(bm.Behaviour.parse(kernels[2]))]
    written = found.save(tmp_path / "broken")
    assert written[0].name == "v6.18-6.img"
    with bm.open(written[0]) as fs, bm.replay_log(fs, behaviour="v6.18") as replayed:
        assert [entry.name for entry in replayed.subvolume(5).readdir(256)] == [b"A"]


def test_replay_by_another_kernel(tmp_path: Path) -> None:
    """What a log lacks no kernel finds."""
    path = scenario(tmp_path / "x.json", ["mkdir", "A"], ["mkdir", "B"], ["sync"],
                    ["exchange", "A", "B"], ["fsync", "A"])  # fmt: skip
    found = bm.crashes(path, behaviours=["v6.1"], replay="v7.2")
    assert found.broken["rule"].tolist() == ["inode"]


@pytest.mark.claim(
    "Data that are written in place come through or not, each subset of them; what goes to places "
    "that nothing refers to is the same state, whatever came through."
)
def test_writes_in_place(tmp_path: Path) -> None:
    path = scenario(
        tmp_path / "x.json", ["create", "f"], ["chattr", "f", 0x800000, 0],
        ["write", "f", 0, 3 * 4096, 1], ["sync"], ["write", "f", 0, 4096, 2],
        ["write", "f", 8192, 4096, 2], ["fsync", "f"],
    )  # fmt: skip
    one_by_one, subsets = (bm.crashes(path, reorder=reorder) for reorder in (False, True))
    in_place = [(one.table["written"] == "write in place").sum() for one in (one_by_one, subsets)]
    assert in_place == [2, 3]
    assert subsets.broken.empty or {*subsets.broken["rule"]} <= {"content"}
    torn = bm.crashes(path, torn=True)
    assert (torn.table["written"] == "torn write").sum() == 14
    refused = torn.table[torn.table["written"] == "torn superblock"]
    assert len(refused)
    assert (refused["broken"] == "mount").all()
    assert refused["outcome"].str.contains("checksum").all()


def test_where_it_crashes() -> None:
    calls = {at: bm.crashes(MOVED, at=at).table["call"].tolist()
             for at in ("every-write", "flush", "fsync")}  # fmt: skip
    assert calls == {"every-write": [0, 5, 7], "flush": [0, 5, 7], "fsync": [5, 7]}
    with pytest.raises(ValueError, match="at 'never' is none of every-write, flush, fsync"):
        bm.crashes(MOVED, at="never")


@pytest.mark.claim(
    "A script that crashes by itself is followed through its mounts; a subvolume without a log is "
    "as it was committed."
)
def test_mounts_of_a_script() -> None:
    found = bm.crashes("""
        mkfs.btrfs -f /dev/sdx
        mount /dev/sdx /mnt
        btrfs subvolume create /mnt/s
        echo 1 >/mnt/s/f
        sync
        echo 2 >>/mnt/s/f
        echo 3 >/mnt/g
        xfs_io -c fsync /mnt/g
        power_failure
        echo 4 >/mnt/h
        umount /mnt
    """)
    assert found.broken.empty
    assert found.table["what"].str.contains("umount").any()
    assert (found.table["what"] == "mount").sum() == 2


@pytest.mark.claim(
    "In 32 sequences of one operation and a few of two Linux 6.18 breaks the promises "
    "that it is known to break, and no other."
)
def test_sequences() -> None:
    small = Small(bm.Behaviour.parse("v6.18.44"))
    first = small.judge(sequences_of(1, 0)[::4])
    assert (first.sequences, first.broken) == (32, [])
    steps: list[Steps] = [
        [["rename", "A/bar", "B/new"], ["fsync", "B"]],
        [["rename", "A/bar", "A/foo"], ["fsync", "B/foo"]],
        [["fallocate", "A/foo", 17, 8192, 8192], ["fsync", "B/foo"], ["create", "A/new"],
         ["fsync", "A"]],
    ]  # fmt: skip
    found = small.judge(enumerate(steps))
    assert [(one.sequence, one.rule) for one in found.broken] == [
        (0, "one-name"), (1, "fsync-taken-names"),
    ]  # fmt: skip
    assert found.states > found.mounts >= len(steps)


@pytest.mark.claim(
    "Of sequences that begin alike a state that several of them leave is mounted once, and what "
    "they break is the same as of each alone."
)
def test_states_are_mounted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    behaviour, mounts = bm.Behaviour.parse("v6.18.44"), []

    def count(memory: Memory, kernel: bm.Behaviour) -> Outcome:
        mounts.append(kernel)
        return mount_after(memory, kernel)

    monkeypatch.setattr("btrfs_model.experiments.crashes.enumerate.mount_after", count)
    begin: Steps = [["rename", "A/bar", "B/new"], ["fsync", "B"]]
    sequences = [*enumerate([begin, [*begin, ["chmod", "A/foo", 0o600], ["fsync", "B/new"]],
                             [*begin, ["create", "A/new"], ["sync"]]])]  # fmt: skip
    together = Small(behaviour).judge(sequences)
    # what they start from, and three more
    assert len(mounts) == 4 <= together.mounts
    apart = [Small(behaviour).judge([one]) for one in sequences]
    assert [one for part in apart for one in part.broken] == together.broken
    assert sum(part.mounts for part in apart) == together.mounts


FINDINGS: dict[str, tuple[Steps, set[str]]] = {
    "one-name": ([["rename", "A/bar", "B/new"], ["fsync", "B"]],
                 {"v6.1", "v6.1.192", "v6.18.44", "v7.2"}),
    "fsync-taken-names": ([["rename", "A/bar", "A/foo"], ["fsync", "B/foo"]],
                          {"v5.10", "v6.1", "v6.1.192", "v6.18.44", "v7.2"}),
    "fsync-taken-names unlinked": ([["create", "A/new"], ["fsync", "A"], ["unlink", "A/foo"],
                                    ["fsync", "B/foo"]],
                                   {"v5.18", "v6.1", "v6.1.192", "v6.18.44", "v7.2"}),
    "inode": ([["exchange", "A", "B"], ["fsync", "A"]], {"v5.10", "v6.1"}),
    "inode exchanged": ([["exchange", "A/bar", "B/foo"], ["link", "A/foo", "B/D/new"],
                         ["fsync", "B/D"]], {"v6.1", "v6.1.192", "v6.18.44", "v7.2"}),
    "inode-unlinked": ([["link", "A/bar", "B/new"], ["unlink", "A/bar"], ["fsync", "A"]],
                       {"v5.10", "v6.1", "v6.1.192", "v6.18.44", "v7.2"}),
    "inode moved": ([["rename", "A/bar", "A/foo"], ["fsync", "A/foo"],
                     ["exchange", "A/foo", "B/D"], ["fsync", "B/D"]], {"v6.1", "v6.1.192"}),
    "fsync-gone": ([["open", "A/bar", "bar"], ["unlink", "A/bar"], ["fsyncfd", "bar"]],
                   {"v5.10", "v5.15", "v5.18", "v6.1", "v6.1.192"}),
}  # fmt: skip
"""The table of docs/findings.md: a sequence that breaks a rule, and on which kernels."""


@pytest.mark.claim("Which kernels break which promise, as docs/findings.md has it.")
@pytest.mark.parametrize(
    "kernel", ["v5.10", "v5.15", "v5.18", "v6.1", "v6.1.192", "v6.18.44", "v7.2"]
)
def test_findings(kernel: str) -> None:
    sequences = [steps for steps, _ in FINDINGS.values()]
    found = Small(bm.Behaviour.parse(kernel)).judge(enumerate(sequences))
    broken = {(one.sequence, one.rule) for one in found.broken}
    for number, (rule, (_, kernels)) in enumerate(FINDINGS.items()):
        assert ((number, rule.split()[0]) in broken) == (kernel in kernels), rule


def test_what_two_operations_break() -> None:
    """The numbers of docs/how-to/crashes.md are those stored; some are judged once more."""
    stored = json.loads((Path(__file__).parents[1] / "data" / "crashes_of_two.json").read_text())
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "crashes.md").read_text()
    for told in stored["kernels"].values():
        assert f"{told['states']:,}" in page
        assert f"{told['broken']:,} sequences" in page
        assert f"{told['sequences']:,} sequences of two" in page
    assert f"{stored['kernels']['v6.18.44']['mounts']:,}" in page
    known, asked = enumerated(2)[0], dict[int, set[str]]()
    for rule, numbers in stored["rules"].items():
        assert f"| `{rule}` | {len(numbers)} |" in page
        for number in (numbers[0], numbers[-1]):
            asked[number] = {one for one, some in stored["rules"].items() if number in some}
    asked[0] = set()
    found = Small(bm.Behaviour.parse("v7.2")).judge([(one, known[one]) for one in asked])
    for number, rules in asked.items():
        assert {one.rule for one in found.broken if one.sequence == number} == rules


MANY: Steps = [["mkfiles", "D", "", 0, 699]]
"""So many names that the worker writes into the trees what waited before them."""
TAKEN_AWAY: dict[str, tuple[str, Steps, str]] = {
    "log-sub-trans": (
        "v7.2.7", [["rename", "A/bar", "B/new"], ["fsync", "B"], ["chmod", "A/foo", 0o600],
                   ["fsync", "B/new"]], "fsync-old-names"),
    "log-new-name-logged": ("v5.15", [["exchange", "A", "B"], ["fsync", "A"]], "inode"),
    "log-symlinks-full": (
        "v5.18", [["create", "A/new"], ["fsync", "A"], ["symlink", "foo", "A/a"],
                  ["rename", "A/a", "A/b"], ["fsync", "A"]], "content"),
    "log-commit-error": (
        "v7.2.7", [["rename", "A/bar", "A/foo"], ["fsync", "A/foo"], ["exchange", "A/foo", "B/D"],
                   ["fsync", "B/D"]], "inode"),
    "log-no-links": (
        "v7.2.7", [["open", "A/bar", "bar"], ["unlink", "A/bar"], ["fsyncfd", "bar"]],
        "fsync-gone"),
    "log-new-name-refs": (
        "v7.2.7", [["symlink", "foo", "A/new"], ["fsync", "A"], ["rename", "A/new", "A/foo"],
                   ["fsync", "A"]], "fsync-entries"),
    "log-new-name-unsynced": (
        "v7.2.7", [["mkdir", "A/new"], ["chmod", "A/foo", 0o600], ["fsync", "A/foo"],
                   ["link", "A/foo", "A/new/new"], ["fsync", "A"]], "fsync-entries"),
    "log-moved-conflicts": (
        "v7.2.7", [["exchange", "A", "B"], ["rename", "A/foo", "B/new"], ["fsync", "B/foo"]],
        "fsync-old-names"),
    "log-new-name-dentries": (
        "v7.2.7", [["mkdir", "D"], ["sync"], ["create", "A/new"], *MANY, ["chmod", "A/bar", 0o600],
                   ["fsync", "A/bar"], ["rename", "A/bar", "A/b"], ["fsync", "A"]],
        "fsync-entries"),
    "log-old-conflicts": ("v7.2.7", [["exchange", "A", "B"], ["fsync", "A"]], "inode"),
    "log-conflict-dentries": (
        "v7.2.7", [["mkdir", "D"], ["sync"], ["rmdir", "B/D"], ["create", "B/new"], *MANY,
                   ["create", "B/D"], ["fsync", "B/D"], ["fsync", "B"]], "fsync-entries"),
    "log-exists-size": (
        "v7.2.7", [["truncate", "A/foo", 0], ["fsync", "A/foo"], ["link", "A/foo", "A/new"],
                   ["fsync", "A"]], "fsync-data"),
    "log-rmdir-mark": (
        "v7.2.7", [["mkdir", "D"], ["mkdir", "D/d"], ["sync"], ["chmod", "D", 0o700],
                   ["fsync", "D"], ["rename", "D/d", "A/d"], ["open", "D", "D"], ["rmdir", "D"],
                   ["fsyncfd", "D"]], "mount"),
}  # fmt: skip
"""By the toggle: a kernel that has it, a sequence, and the rule that it breaks without it."""


@pytest.mark.claim(
    "Thirteen fixes of the log, of 5.13 to 7.1, are found again: with the toggle taken away a "
    "sequence breaks a promise that it keeps with it."
)
@pytest.mark.parametrize("name", TAKEN_AWAY)
def test_fixes_are_found_again(name: str) -> None:
    kernel, steps, rule = TAKEN_AWAY[name]
    broken = [
        {one.rule for one in Small(bm.Behaviour.parse(behaviour)).judge([(0, steps)]).broken}
        for behaviour in (kernel, f"{kernel} - {name}")
    ]
    assert rule not in broken[0]
    assert rule in broken[1]


def test_the_page_has_the_fixes() -> None:
    page = (PROJECT / "docs" / "findings.md").read_text()
    assert len(TAKEN_AWAY) == 13 and "Thirteen are found" in page
    for name, (kernel, steps, rule) in TAKEN_AWAY.items():
        patch = Patch(name)
        assert (f"| `{name}` | {patch.commit} | {patch.release} | `{rule}` | `{text_of(steps)}` |"
                in page)  # fmt: skip
        older = {"log-new-name-logged": "v5.15", "log-symlinks-full": "v5.18"}
        assert kernel == older.get(name, "v7.2.7")


@pytest.mark.parametrize("kernel", ["v6.1.176", "v6.12.101"])
def test_kernels_without_a_fix(kernel: str) -> None:
    """Releases that were compared with kernels, and lack some of them."""
    for name, breaks in (("log-no-links", True), ("log-exists-size", True),
                         ("log-conflict-dentries", False)):  # fmt: skip
        _, steps, rule = TAKEN_AWAY[name]
        behaviour = bm.Behaviour.parse(kernel)
        found = {one.rule for one in Small(behaviour).judge([(0, steps)]).broken}
        assert (rule in found) == breaks
        assert not breaks or Patch(name) not in behaviour


def test_sequences_that_find_a_fix_are_in_the_corpus() -> None:
    """Those that `verify sequences` does not have."""
    for name, (_, steps, _) in TAKEN_AWAY.items():
        path = PROJECT / f"data/verify/log-fix-{name.removeprefix('log-')}.json"
        if path.exists():
            last = [json.loads(line.rstrip(",")) for line in path.read_text().splitlines()[1:-1]]
            assert last[-len(steps) - 1 :] == [*steps, ["crash"]]
    assert len([*(PROJECT / "data/verify").glob("log-fix-*.json")]) == 8


def test_a_table_of_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are remembered; commits that made a difference are found."""
    monkeypatch.setattr("btrfs_model.experiments.crashes.enumerate.PART", 2)
    number = next(number for part in range(468) for number, steps in sequences_of(1, part)
                  if steps == [["exchange", "A", "B"], ["fsync", "A"]])  # fmt: skip
    asked = {"behaviours": ["v5.18", "v6.1", "v7.2"], "first": number // 2, "parts": 1,
             "store": tmp_path / "store", "scheduler": ThreadPoolExecutor(1)}  # fmt: skip
    found = bm.enumerate_crashes(1, **asked)
    assert found.totals["sequences"].tolist() == [2] * 3
    row = found.table[found.table["rule"] == "inode"].iloc[0]
    assert (row["kernels"], row["shortest"]) == ("v6.1", "exchange A B; fsync A")
    assert "log-conflict-list" in row["came with"]
    assert "log-old-conflicts" in row["mended by"]
    assert bm.enumerate_crashes(1, **asked).table.equals(found.table)


def test_ranges() -> None:
    names = ["v5", "v6", "v7", "v8"]
    assert name_ranges(names, ["v5", "v7", "v8"]) == "v5, v7 to v8"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["crashes"], "one of FILE, --enumerate and --rules"),
        (["crashes", "--enumerate", "1", "--torn"], "--torn goes with FILE"),
        (["crashes", "--rules", "--jobs", "2"], "--jobs goes with --enumerate"),
        (["crashes", "--enumerate", "1", "--parts", "100"], "parts 0 to 99: there are 0 to 7"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.TOLD, "quiet", False)
    path = tmp_path / "moved.sh"
    path.write_text(MOVED)
    result = CliRunner().invoke(cli, ["crashes", str(path), "--behaviour", "v7.2", "--json",
                                      "--images", str(tmp_path / "i")])  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]
    assert [row["broken"] for row in rows] == ["", "", "one-name"]
    assert [one.name for one in (tmp_path / "i").iterdir()] == ["v7.2-7.img"]
    listed = CliRunner().invoke(cli, ["crashes", "--rules"])
    assert all(name in listed.output for name in RULES)
    path.write_text("mkfs.btrfs -f /dev/sdx\nmount /dev/sdx /mnt\nls /mnt/nothing\n")
    result = CliRunner().invoke(cli, ["crashes", str(path)])
    assert "note: the script ended with status 2" in result.output
    assert "ls: cannot access '/mnt/nothing'" in result.output
    path.write_text("true\n")
    result = CliRunner().invoke(cli, ["crashes", str(path)])
    assert (result.exit_code, str(result.exception)) == (
        1, "the script mounts nothing: there is nothing that a crash could leave")  # fmt: skip


def test_what_is_too_large_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("btrfs_model.experiments.crashes.record._MOST", 10)
    with pytest.raises(UnsupportedError, match="after 4 calls there are 4 inodes, too many"):
        bm.crashes(MOVED)


def test_what_the_model_does_not_handle_is_no_broken_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: object) -> State:
        raise UnsupportedError("a file is too large to be compared")

    monkeypatch.setattr("btrfs_model.experiments.crashes.api.seen", refuse)
    with pytest.raises(UnsupportedError, match="too large"):
        bm.crashes(MOVED)
