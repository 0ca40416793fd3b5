# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model ab`` where no kernel is needed: changes, builds of trees that are small, rows."""

import base64
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.base.errors import KernelFailedError, KernelMissingError
from btrfs_model.experiments.ab import compare as ab
from btrfs_model.experiments.ab.rows import differing, row_of
from btrfs_model.experiments.ab.script import numbers, script_of
from btrfs_model.experiments.commits import load as load_message
from btrfs_model.experiments.report.ab import page
from btrfs_model.experiments.verify.times import Taken
from btrfs_model.experiments.workloads import NAMES, load
from btrfs_model.kernels import build, scripts
from btrfs_model.kernels.build import build_both
from btrfs_model.kernels.change import Change, change_of
from btrfs_model.patches import Patch

TITLE = "btrfs: say it in one more word"
MAKEFILE = """\
.PHONY: allnoconfig linux
allnoconfig:
\t@test -f $(KCONFIG_ALLCONFIG)
linux:
\t@echo "  CC      fs/btrfs/send.o"
\t@! grep -n 'error' fs/btrfs/send.c || { echo "fs/btrfs/send.c:1:1: error: no"; exit 1; }
\t@if grep -q slow fs/btrfs/send.c; then sleep 6000; fi
\t@cat fs/btrfs/send.c fs/btrfs/Makefile kernel/gcov/gcc_base.c > linux
\t@touch fs/btrfs/send.gcno
"""
"""Of a tree that "compiles" in no time."""


@pytest.fixture(autouse=True)
def _programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel needs to be built, and these trees do not, need not be here."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("flex", "bison", "bc"):
        (folder / name).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{folder}")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What looks like the tree of a kernel."""
    place = tmp_path / "tree"
    for name, text in {
        "Makefile": MAKEFILE, "fs/btrfs/Makefile": "obj-y := send.o\n", "fs/btrfs/send.c": "one\n",
        "fs/btrfs/left.o": "of another build", "include/generated/left.h": "of another build",
        "kernel/gcov/gcc_base.c": '\tpr_info("version magic: 0x%x\\n", version);\n',
    }.items():  # fmt: skip
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def git(tree: Path, *arguments: str) -> bytes:
    who = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=tree, check=True, capture_output=True
    ).stdout


def committed(tree: Path, text: str = "one\ntwo\n") -> str:
    """Make a git tree of it, with a commit that changes send.c; return the id of that."""
    git(tree, "init")
    git(tree, "add", ".")
    git(tree, "commit", "-m", "before")
    (tree / "fs/btrfs/send.c").write_text(text)
    git(tree, "commit", "-am", f"{TITLE}\n\nFor a reason.")
    return git(tree, "rev-parse", "HEAD").decode().strip()


# ------------------------------------------------------------------------------------ changes --


def test_a_change_is_a_commit_or_a_file_of_many_forms(tree: Path, tmp_path: Path) -> None:
    commit = committed(tree)
    of_tree = change_of(tree, "main")
    assert (of_tree.titles, of_tree.commit) == ((TITLE,), commit)
    assert of_tree.parent == git(tree, "rev-parse", "HEAD^").decode().strip()
    mail = git(tree, "format-patch", "-1", "--stdout")
    head, _, body = mail.partition(b"\n\n")
    encoded = base64.encodebytes(body).decode()
    forms = {
        "show": (git(tree, "show"), (TITLE,), commit),
        "diff": (git(tree, "diff", "HEAD^", "HEAD"), (), ""),
        "mail": (mail, (TITLE,), commit),
        "raw": (head.partition(b"\n")[2] + b"\n\n" + body, (TITLE,), ""),
        "encoded": (head + b"\nContent-Transfer-Encoding: base64\n\n" + encoded.encode(),
                    (TITLE,), commit),
        "series": (mail.replace(b"[PATCH]", b"[PATCH v2 1/2]") + mail, (TITLE, TITLE), ""),
    }  # fmt: skip
    for name, (text, titles, known) in forms.items():
        path = tmp_path / name
        path.write_bytes(text)
        change = change_of(tree, str(path))
        assert (change.titles, change.commit, change.parent) == (titles, known, ""), name
        assert b"\n+two\n" in change.diff


def test_what_is_no_change_is_said(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no patch\n")
    with pytest.raises(KernelFailedError, match=r"text: no patch is in it$"):
        change_of(tree, str(tmp_path / "text"))
    with pytest.raises(KernelFailedError, match=r"^abc: no file, and no commit of .*tree that has"):
        change_of(tree, "abc")


# ------------------------------------------------------------------------------------- builds --


def built(tree: Path, change: Change, shelf: Path) -> list[str]:
    """Build both kernels; what each was made of, the timed ones first."""
    sides = build_both(tree, change, shelf, lambda text: None)
    return [(side / kind / "linux").read_text() for kind in ("timed", "counting") for side in sides]


@pytest.mark.claim(
    "`ab` builds the kernels before and after a commit of a git tree, and before and after a patch "
    "of a tree that lacks it or has it; it leaves the tree as it is, and nothing when interrupted."
)
def test_both_kernels_are_built_of_any_tree(tree: Path, tmp_path: Path) -> None:
    commit = committed(tree)
    patch = tmp_path / "patch"
    patch.write_bytes(git(tree, "show"))
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    bare = tmp_path / "bare"
    git(tree, "clone", "--bare", ".", str(bare))
    ways = [(tree, commit), (bare, commit), (tree, str(patch))]
    for where, name in ways:
        *timed, first, second = built(where, change_of(where, name), tmp_path / "shelf")
        for text, lines in zip(timed, ("one\n", "one\ntwo\n"), strict=True):
            assert text == f"{lines}obj-y := send.o\n\t(void)0;\n"
        assert first == "one\nobj-y := send.o\nGCOV_PROFILE := y\n\t(void)0;\n"
        assert second.startswith("one\ntwo\n")
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before
    git(tree, "checkout", "HEAD^")
    assert built(tree, change_of(tree, str(patch)), tmp_path / "shelf")[1].startswith("one\ntwo\n")
    assert all((one / "counting/gcov/send.gcno").exists() for one in (tmp_path / "shelf").iterdir())


@pytest.mark.parametrize("whole", [False, True])
def test_a_tree_of_links_is_left_as_it_is(tree: Path, tmp_path: Path, whole: bool) -> None:
    """As `cp -rs` and lndir make them: of files, or of a whole folder; absolute or not."""
    (tree / "include/kept.h").symlink_to("../fs/btrfs/send.c")
    farm = tmp_path / "farm"
    if whole:
        farm.mkdir()
        for one in tree.iterdir():
            (farm / one.name).symlink_to(Path("..", "tree", one.name))
    else:
        subprocess.run(["cp", "-rs", str(tree), str(farm)], check=True)
    (farm / "dangling").symlink_to("nowhere")
    (farm / "loop").symlink_to("/proc/self/cwd/loop" if whole else farm / "loop")
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    build.build(farm, tmp_path / "output", lambda text: None)
    assert (tmp_path / "output/linux").read_text().endswith("GCOV_PROFILE := y\n\t(void)0;\n")
    patch = tmp_path / "patch"
    patch.write_text("--- a/fs/btrfs/send.c\n+++ b/fs/btrfs/send.c\n@@ -1 +1,2 @@\n one\n+two\n")
    timed = built(farm, change_of(farm, str(patch)), tmp_path / "shelf")[:2]
    assert [text.partition("obj")[0] for text in timed] == ["one\n", "one\ntwo\n"]
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


def test_kernels_are_kept(tree: Path, tmp_path: Path) -> None:
    change = change_of(tree, committed(tree))
    said: list[str] = []
    first = build_both(tree, change, tmp_path / "shelf", said.append)
    assert any("make linux" in text for text in said)
    said.clear()
    assert build_both(tree, change, tmp_path / "shelf", said.append) == first
    assert not said
    (tree / "fs/btrfs/send.c").write_text("one\ntwo\nthree\n")
    git(tree, "commit", "-am", "another")
    assert build_both(tree, change_of(tree, "main"), tmp_path / "shelf", said.append) != first


def test_a_build_that_fails_says_where_the_compiler_says_why(tree: Path, tmp_path: Path) -> None:
    change = change_of(tree, committed(tree, "one\nan error\n"))
    with pytest.raises(KernelFailedError, match=r"^after, timed: make linux: .*error") as error:
        build_both(tree, change, tmp_path / "shelf", lambda text: None)
    log = Path(error.value.__notes__[-1].removeprefix("see "))
    assert "send.c:1:1: error: no" in log.read_text()
    kept = {one.name.rpartition("-")[2] for one in (tmp_path / "shelf").iterdir()}
    assert kept == {"before", "after.log"}
    with pytest.raises(KernelFailedError, match=r"make linux: .*error"):
        build.build(tree, tmp_path / "output", lambda text: None)
    assert not (tmp_path / "output").exists()
    assert "error: no" in (tmp_path / "output.log").read_text()


def test_a_patch_that_does_not_apply_is_named(tree: Path, tmp_path: Path) -> None:
    patch = tmp_path / "patch"
    patch.write_text("--- a/fs/btrfs/send.c\n+++ b/fs/btrfs/send.c\n@@ -1 +1 @@\n-two\n+three\n")
    with pytest.raises(KernelFailedError, match=r"neither applies nor is there already: .*send\.c"):
        build_both(tree, change_of(tree, str(patch)), tmp_path / "shelf", lambda text: None)
    assert not list((tmp_path / "shelf").iterdir())
    (tree / "fs/btrfs/Makefile").unlink()
    with pytest.raises(KernelMissingError, match="no tree of a kernel"):
        build_both(tree, change_of(tree, str(patch)), tmp_path / "shelf", lambda text: None)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_build_that_is_stopped(
    tree: Path, tmp_path: Path, how: signal.Signals
) -> None:
    """No process; of who is killed a folder, which the next one removes."""
    commit = committed(tree, "one\nslow\n")
    command = [sys.executable, "-m", "btrfs_model.cli", "ab", str(tree), commit]
    process = subprocess.Popen(
        command, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    shelf = tmp_path / "cache/btrfs-model/kernels"
    end = time.monotonic() + 600
    while not sleeping(shelf) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(how)
    assert process.wait(600) == (130 if how == signal.SIGINT else -how)
    assert process.stderr is not None
    process.stderr.close()
    while sleeping(shelf) and time.monotonic() < end:
        time.sleep(0.05)
    assert not sleeping(shelf)
    if how == signal.SIGKILL:
        assert list(shelf.iterdir())
        (tree / "fs/btrfs/send.c").write_text("one\ntwo\n")
        git(tree, "commit", "-am", "not slow", "--amend")
        build_both(tree, change_of(tree, "main"), shelf, lambda text: None)
    assert not list(shelf.glob("building-*"))


def sleeping(shelf: Path) -> list[str]:
    """Processes that work in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(process.joinpath("cwd").readlink()).startswith(str(shelf)):
                found.append(process.name)
        except OSError:
            continue
    return found


# --------------------------------------------------------------------------------------- rows --


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=9), st.floats(0.1, 10))
def test_a_ratio_lies_in_its_interval(values: list[float], factor: float) -> None:
    before, after = (Taken("time", "ms", values=[value * by for value in values])
                     for by in (1, factor))  # fmt: skip
    row = row_of("w", before, after, "time")
    assert row.before.low <= row.before.value <= row.before.high
    assert row.ratio is not None
    assert row.ratio.low <= row.ratio.value * (1 + 1e-9)
    assert row.ratio.value <= row.ratio.high * (1 + 1e-9)
    assert np.isclose(row.ratio.value * factor, 1)
    if len(values) == 1:
        assert row.before.low == row.before.high


def test_what_is_none_after_has_no_ratio() -> None:
    before, after = (Taken("calls", "calls", values=[value]) for value in (4.0, 0.0))
    row = row_of("w", before, after, "calls")
    assert row.ratio is None
    assert row.cells == ("calls (calls)", "", "", "", "4", "0")


@pytest.mark.parametrize(
    ("text", "command", "why"),
    [
        ("[[ $BASH_VERSION ]]\n", ["bash"], ""),
        ("#!/bin/sh -e\necho 1\n", ["sh", "-e"], ""),
        ("#! /usr/bin/env -S python3 -B\nprint(1)\n", ["env", "-S python3 -B"], ""),
        ("#!/bin/cat\nif no shell (\n", ["cat"], ""),
        ("echo 1\nif true; then\n", ["bash"], r"measure: line \d: syntax error"),
        ("#!/bin/sh\ncase\n", ["sh"], "measure: .*: Syntax error|syntax error"),
        ("#!/usr/bin/env python3\nprint(1\n", ["env", "python3"], "measure: line 2: SyntaxError: "),
        ("#!/usr/bin/env nowhere\n", ["env", "nowhere"], "env is to look for no program: "),
        ("#!/nowhere\n", None, "its first line names no program: #!/nowhere$"),
        ("#!\n", None, "its first line names no program: #!$"),
    ],
)  # fmt: skip
def test_a_script_is_read_by_its_interpreter_before_anything_is_built(
    tree: Path, tmp_path: Path, text: str, command: list[str] | None, why: str
) -> None:
    script, patch = tmp_path / "measure", tmp_path / "patch"
    script.write_text(text)
    if command is not None:
        program, *rest = scripts.command_of(script)
        assert [Path(program).name, *rest] == [*command, str(script)]
    if not why:
        scripts.check(script)
        return
    patch.write_bytes(b"--- a/fs/btrfs/send.c\n+++ b/fs/btrfs/send.c\n@@ -1 +1,2 @@\n one\n+two\n")
    with pytest.raises((KernelFailedError, KernelMissingError), match=why) as error:
        ab.compare(tree, str(patch), (), script, 1, None, lambda text: pytest.fail(text))
    assert "\n" not in str(error.value)


def test_a_script_is_found_in_a_mail(tmp_path: Path) -> None:
    """With the devices and folders that it names; of several nobody says which."""
    mail, place = tmp_path / "mail", tmp_path / "place"
    place.mkdir()
    lines = ["#!/bin/bash", "DEV=/dev/sdj", "MNT=/mnt/sdj", "mkfs.btrfs -f $DEV", "mount $DEV $MNT"]
    body = "\n".join(f"  {line}" for line in lines)
    mail.write_text(f"From: A <a@b>\nSubject: [PATCH] one\n\nRun this:\n\n{body}\n\nThat is all.\n")
    script = script_of(mail, place)
    assert (script.devices, script.mounts) == (["/dev/sdj"], ["/mnt/sdj"])
    assert script.text.splitlines() == lines
    assert Path(script.command[-1]).read_text() == script.text
    mail.write_text(f"{mail.read_text()}\nOr this:\n\n{body}\n\nAll.\n")
    with pytest.raises(bm.BtrfsModelError, match=r"mail: 2 scripts \(line \d+, line \d+\)"):
        script_of(mail, place)


def test_a_workload_that_there_is_not_is_named_before_anything_is_built(tree: Path) -> None:
    name = committed(tree)
    with pytest.raises(bm.BtrfsModelError, match=r"no workload 'log-dri'.*did you mean 'log-dir'"):
        ab.compare(tree, name, ("log-dri",), None, 1, None, lambda text: pytest.fail(text))


def test_counts_that_chance_explains_are_no_difference() -> None:
    """Of two runs each: a thread came once more, or the change calls it less often."""
    sides = [[Counter(by_chance=4, less=9, alone=1), Counter(by_chance=6, less=8)],
             [Counter(by_chance=5, less=7), Counter(by_chance=5, less=5)]]  # fmt: skip
    (row,) = differing("measure.sh", sides, None)
    assert (row.what, row.before.value, row.after.value) == ("less", 8.5, 6)


def test_numbers_that_a_script_says_are_found() -> None:
    text = "send took 18408 milliseconds\nround 1: 2.5 s\nround 2: 3 s\nfile_7 x2\nno number\n"
    assert [(one.quantity, one.values) for one in numbers(text)] == [
        ("send took # milliseconds", [18408.0]),
        ("round #: # s, number 1", [1.0]), ("round #: # s, number 2", [2.5]),
        ("round #: # s, number 1, line 2", [2.0]), ("round #: # s, number 2, line 2", [3.0]),
    ]  # fmt: skip


def comparison(patch: Patch, release: str = "6.1.192") -> ab.Comparison:
    change = Change((patch.subject,), "", b"--- a\n<b>\n")
    messages = {name: load_message(name) for name in NAMES
                if load_message(name).title == patch.subject}  # fmt: skip
    return ab.Comparison(change, [release, release], 3, [patch], messages)


@pytest.mark.parametrize("name", NAMES)
def test_the_commit_of_a_message_is_a_toggle(name: str) -> None:
    message = load_message(name)
    (patch,) = [one for one in Patch if one.subject == message.title]
    assert patch.commit == message.commit
    assert patch in load(name).toggles
    found = comparison(patch)
    assert list(found.messages) == [name]
    assert set(found.behaviours) == {"before", "after"}


def test_what_is_reported_is_of_the_side_that_is_most_like_the_kernel() -> None:
    """6.1 has the companion of send-skip-truncate: 12.51 s before, and not 26.49 s."""
    found = comparison(Patch.SEND_SKIP_TRUNCATE)
    said = ab._reported(found, load("send-truncate"), Taken("receive time", "ms"))
    assert said == "1.25x ± 0.14, 20,000 files"
    assert found.behaviours == {"before": "v6.1.192 - send-skip-truncate", "after": "v6.1.192"}
    found = comparison(Patch.SEND_SKIP_TRUNCATE, "4.16.0")
    assert found.behaviours["after"] == "v4.16 + send-skip-truncate"
    said = ab._reported(found, load("send-truncate"), Taken("receive time", "ms"))
    assert said == "2.64x ± 0.4, 20,000 files"
    found = comparison(Patch.LOG_DIR_INDEX_ONLY)
    second = Taken("time", "ms", {"files": 20_000, "deletes": 200, "fsync": 2})
    assert ab._reported(found, load("log-dir"), second).startswith("1.86x")


def test_a_page_says_it_all() -> None:
    found = comparison(Patch.SEND_SKIP_TRUNCATE)
    before, after = (Taken("stream size", "bytes", values=[value]) for value in (2000.0, 1000.0))
    found.settings["send-truncate"] = "2,000 files"
    found.rows = [row_of("send-truncate", before, after, "stream size", modelled=(2000.0, 999.0))]
    found.agreed["send-truncate"] = 12, 11
    text = page(found, "1.0")
    for words in ("<td", "2,000, then 999", "2x", "before: v6.1.192 - send-skip-truncate",
                  "&lt;b&gt;", "of 12 counts that the model has too, 11 are the same"):  # fmt: skip
        assert words in text
