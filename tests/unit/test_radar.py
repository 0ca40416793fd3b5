# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model radar`` where no kernel is needed: shapes, causes, titles, the page."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from btrfs_model.behaviour import Behaviour, version
from btrfs_model.cli import cli
from btrfs_model.experiments.radar import look
from btrfs_model.experiments.radar.groups import Group, grouped, set_beside, since
from btrfs_model.experiments.radar.look import Radar, rows_of
from btrfs_model.experiments.radar.titles import Title, between, ranked, titles
from btrfs_model.experiments.report.radar import page
from btrfs_model.experiments.verify.bench import Bench, DifferenceError
from btrfs_model.experiments.verify.causes import changed, is_known, remember, shape_of, toggles
from btrfs_model.experiments.verify.data import Stored, StoredExtent
from btrfs_model.experiments.verify.run import Outcome
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.patches import Patch

SCENARIO = [["mkfs", []], ["mount", "compress=zlib"], ["create", "f"], ["write", "f", 0, 9, 1]]


def outcome(kind: str, toggles: list[str], shape: list[str], **more: Any) -> Outcome:
    return Outcome("sid", "7.2.7", kind, more.pop("case", "1"), difference="it differs",
                   toggles=toggles, shape=shape, **more)  # fmt: skip


INLINE = (StoredExtent(0, 9, 0, 0, 9, 0, 0, b""), StoredExtent(0, 4096, 1, 0, 4096, 0, 4096, b""))


@pytest.mark.parametrize(
    ("error", "shape"),
    [
        (DifferenceError("x", *INLINE, ("files", None)),
         ["files", "length", "type 0, not 1", "ram_bytes", "disk_num_bytes"]),
        (DifferenceError("x", Stored(1, 4, 0), Stored(1, 0, 0), ("files", None)),
         ["files", "nbytes"]),
        (DifferenceError("x", None, INLINE[0], ("files", None)),
         ["files", "nothing, not StoredExtent"]),
        (DifferenceError("x", [], [], ("fsyncs", ("log", "none"))), ["fsyncs", "log, not none"]),
        (DifferenceError("x", "EPERM", "", ("calls", ("chattr", "EPERM", ""))),
         ["calls", "chattr", "EPERM, not nothing"]),
        (DifferenceError("x", "n", b"", ("log items", (ItemType.DIR_INDEX, False, True))),
         ["log items", "DIR_INDEX", "only the model has it"]),
        (DifferenceError("x", {"mode": 1, "size": 2}, {"mode": 1, "size": 3},
                         ("inodes", (None, True, True))), ["inodes", "size"]),
        (DifferenceError("x", 3, 4, ("amounts", "bytes")), ["amounts", "bytes"]),
        (DifferenceError("x", (0, b""), (0, b"btrfs"), ("streams", (0, 0))),
         ["streams", "a stream that ends early"]),
        (ValueError("x"), ["ValueError", ""]),
    ],
)  # fmt: skip
def test_shapes(error: Exception, shape: list[str]) -> None:
    assert shape_of(error) == shape


@pytest.fixture
def bench() -> Bench:
    """A bench whose kernel is 7.2.7, and whose model does as 6.18.44."""
    return Bench(SimpleNamespace(preset="v7.2.7"), chosen="v6.18.44")  # type: ignore[arg-type]


def without(bench: Bench, *wanted: str) -> Exception | None:
    """Differ as long as the model lacks a toggle."""
    there = Behaviour.parse(bench.behaviour)
    return None if all(one in there for one in wanted) else ValueError("it differs")


def test_toggles_that_the_kernel_has_are_tried_first(bench: Bench) -> None:
    tried: list[str] = []

    def differs() -> Exception | None:
        tried.append(bench.behaviour)
        return without(bench, "inline-first")

    assert toggles(bench, differs, 60)[0] == ["+ inline-first"]
    own = Behaviour.parse("v7.2.7").patches ^ Behaviour.parse("v6.18.44").patches
    assert {one.rpartition(" ")[2] for one in tried[: len(own)]} == {str(one) for one in own}
    assert toggles(bench, differs, 0) == ([], 0)


@pytest.mark.claim("`radar` makes one difference of each cause short; others of it only count.")
def test_a_cause_that_is_known_is_not_looked_for_again(bench: Bench) -> None:
    first = outcome("data", ["+ inline-first"], ["files", "nbytes"])
    told = outcome("log", [], ["fsyncs"])
    assert not is_known(bench, told, lambda: without(bench, "inline-first"))
    remember(bench, first)
    assert is_known(bench, told, lambda: without(bench, "inline-first"))
    assert told.toggles == ["+ inline-first"]
    remember(bench, outcome("data", ["+ merge-holes"], []))
    remember(bench, outcome("data", ["+ socket-xattrs"], []))
    assert is_known(bench, told, lambda: without(bench, "inline-first", "merge-holes"))
    assert told.toggles == ["+ inline-first + merge-holes"]
    # nothing takes it away, but it looks like one of before
    assert not is_known(bench, told, lambda: ValueError("x"))
    remember(bench, outcome("log", [], ["ValueError", ""]))
    told = outcome("log", [], ["another one, with what is known"])
    assert is_known(bench, told, lambda: ValueError("x"))
    assert (told.toggles, told.shape) == ([], ["ValueError", ""])
    assert bench.chosen == "v6.18.44"
    with changed(bench, []):
        assert bench.chosen == "v6.18.44"


FOUND = [
    outcome("data", ["+ inline-first", "- nocow-no-inline"], ["files", "nbytes"], case="1",
            scenario=[*SCENARIO, ["sync"]]),
    outcome("log", ["+ inline-first"], ["log items", "EXTENT_DATA"], case="2", scenario=SCENARIO),
    outcome("log", ["+ inline-first + log-new-name-unsynced"], ["fsyncs"], case="3"),
    outcome("send", [], ["streams", "rmdir"], case="4", by_kernel="x" * 9000),
    outcome("send", [], ["streams", "rmdir"], case="5"),
    outcome("send", [], ["streams", "write"], case="6"),
    Outcome("sid", "7.2.7", "send", "7", compared={"streams": 3}),
]  # fmt: skip


def test_differences_are_grouped_by_cause() -> None:
    groups = grouped(FOUND)
    assert [(one.name, one.counted.total()) for one in groups] == [
        ("+ inline-first", 3), ("send: streams; rmdir", 2), ("+ log-new-name-unsynced", 1),
        ("send: streams; write", 1),
    ]  # fmt: skip
    assert groups[0].counted == Counter({("7.2.7", "log"): 2, ("7.2.7", "data"): 1})
    assert groups[0].example.case == "2"
    assert groups[0].shape == ["log items", "EXTENT_DATA"]


def test_since_when() -> None:
    assert since(None, "7.2.7", {}) == "in 7.2.7 or before"
    asked = {"6.1.176": True, "6.12.113": False, "6.18.44": True, "7.3.4": False}
    assert since(None, "7.2.7", asked) == "after 6.12.113, up to 6.18.44"
    told = since(Patch.LOG_NEW_NAME_UNSYNCED, "7.2.7", {})
    assert told.endswith("judged: v5.10.223 without it, v6.1.176 with it")


# -------------------------------------------------------------------------------------- titles --


@pytest.mark.claim("The list of commits has every toggle since 6.1, and ids of one form.")
def test_the_list_of_commits() -> None:
    found = titles()
    assert [version(one.release) for one in found] == sorted(version(one.release) for one in found)
    assert {one.release for one in found} >= {"6.1", "6.18", "7.0", "7.1", "7.2", "7.3"}
    known = {one.commit for one in found}
    for one in found:
        assert re.fullmatch(r"([0-9a-f]{12})?", one.commit)
        assert one.title == one.title.strip() != ""
    for patch in Patch:
        assert not patch.release or version(patch.release) < (6, 1) or patch.commit in known
    packed = Path(look.__file__).parents[3] / "data/titles.tsv.gz"
    assert packed.stat().st_size < 150_000


def test_titles_with_rare_words_come_first() -> None:
    commits = [Title("7.1", "", title) for title in
               ("btrfs: use inlined helpers", "btrfs: fix inline extents", "btrfs: fix extents",
                "btrfs: rename a label", "btrfs: fix extents again")]  # fmt: skip
    found = ranked({"inline": 2, "extent": 1}, commits)
    assert [(one.title[7:], words) for one, words in found] == [
        ("fix inline extents", ["inline", "extent"]), ("use inlined helpers", ["inline"]),
    ]  # fmt: skip
    assert not ranked({"orphan": 2}, commits)


def test_a_commit_is_found_by_what_it_changes() -> None:
    shape = ["files", "nbytes"]
    group = Group("", shape, outcome("data", [], shape, scenario=SCENARIO))
    set_beside(group, between("v6.18.44", "7.2.7"))
    assert "3eaf5f082c4c" in [one.commit for one, _ in group.titles]
    group = Group("+ inline-first", shape, outcome("data", [], shape, scenario=SCENARIO))
    set_beside(group, between("v6.18.44", "7.2.7"))
    assert group.titles[0][0].commit == "3eaf5f082c4c"
    assert len({one.title for one, _ in group.titles}) == len(group.titles)


# ---------------------------------------------------------------------------------------- page --


class Tags(HTMLParser):
    """Every element that is opened is closed in turn; what is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "at_hand", list)
    radar = look._gathered(FOUND, "v6.18.44", lambda text: None)
    text = page(radar, "0")
    tags = Tags()
    tags.feed(text)
    assert not tags.open
    assert "http" not in re.sub(r'lang="en"', "", text)
    for shown in ("+ inline-first", "3eaf5f082c4c", "2 of 2 log", "(9,000 characters)",
                  "suggestions", "those of 6.19 to 7.3"):  # fmt: skip
        assert shown in tags.text
    assert "Nothing differed" in page(Radar(""), "0")
    rows = list(rows_of(radar))
    assert rows[0]["commit"] == "3eaf5f082c4c"
    assert rows[0]["often"] == [
        {"kernel": "7.2.7", "kind": "data", "differ": 1, "of": 1},
        {"kernel": "7.2.7", "kind": "log", "differ": 2, "of": 2},
    ]


def test_releases_between_judged_kernels() -> None:
    assert look._releases("", "7.3.4") == ("v7.2.7", "7.3.4")
    assert look._releases("", "7.2.7") == ("v6.18.44", "7.2.7")
    assert look._releases("v6.1.176 + merge-holes", "7.2.7") == ("v6.1.176", "7.2.7")


@pytest.mark.parametrize(
    ("words", "why"),
    [(["nosuch"], "nosuch is no kind"), (["--behaviour", "v1"], "unknown kernel 'v1'"),
     (["--corpus", "/nowhere"], "/nowhere"), (["--minutes", "0"], "0.0")],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(words: list[str], why: str) -> None:
    ran = CliRunner().invoke(cli, ["radar", *words])
    assert ran.exit_code
    assert why in f"{ran.output}{ran.exception}"
