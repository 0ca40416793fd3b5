# SPDX-License-Identifier: GPL-2.0-only
"""One definition of an option: its parser, --help, completion and the man page have the same."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import corpus
import pytest
from click.shell_completion import ShellComplete

import btrfs_model as bm
from btrfs_model.cli import cli, man, run
from btrfs_model.cli.flags import Flag

CONTEXT = click.Context(cli, info_name="btrfs-model", **cli.context_settings)
COMMANDS = {name: command for name in cli.list_commands(CONTEXT)
            if (command := cli.get_command(CONTEXT, name)) is not None}  # fmt: skip
NO_ROWS = {
    "cat": "bytes of a file",
    "draw": "a picture",
    "explore": "a page",
    "calibrate": "a file",
    "course": "notebooks",
    "receive": "an image",
    "replay-log": "an image",
    "mkfs": "an image",
    "mount": "a folder",
    "run": "an image",
    "tar": "an archive",
}
"""Commands that print no rows, and what they make."""


def options() -> Iterator[tuple[str, click.Option]]:
    """Every option of every command."""
    for name, command in COMMANDS.items():
        for option in command.get_params(click.Context(command, parent=CONTEXT, info_name=name)):
            if isinstance(option, click.Option):
                yield name, option


def completed(*words: str) -> set[str]:
    """What a shell offers after these words."""
    *before, begun = words
    shell = ShellComplete(cli, {}, "btrfs-model", "_BTRFS_MODEL_COMPLETE")
    return {item.value for item in shell.get_completions(list(before), begun)}


@pytest.mark.claim("The man page and the completion of shells have each option that --help has.")
def test_every_option_is_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    page = man.page().replace(r"\-", "-")
    for name in COMMANDS:
        section = page.partition(f".SS btrfs-model {name} ")[2].partition(".SS ")[0]
        assert run([name, "--help"]) == 0
        shown = capsys.readouterr().out
        offered = completed(name, "--")
        for option in (option for of, option in options() if of == name):
            assert option.help or option.name == "help", (name, option.opts)
            for word in option.opts:
                assert word in shown and word in section, (name, word)
            assert {word for word in option.opts if word.startswith("--")} <= offered


def test_the_man_page_is_one() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("there is no groff")
    done = subprocess.run(
        [groff, "-man", "-Tascii", "-ww", "-P-c"],
        input=man.page(),
        text=True,
        capture_output=True,
        check=True,
    )
    assert not done.stderr
    text = re.sub(r".\x08", "", done.stdout)
    assert "btrfs-model reads disk.img snap1 --readdir some/dir" in text


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("send", "--behaviour", "v4.1"), {"v4.16", "v4.17"}),
        (("reads", "--device", "hp"), {"hp97560"}),
        (("send", "--limits", "name_c"), {"name_cache=", "name_cache_kept="}),
        (("replay", "send-r"), {"send-readahead"}),
        (("sample", "kernel/features/mixed-d"), {"kernel/features/mixed-dup"}),
    ],
)
def test_values_are_completed(words: tuple[str, ...], offered: set[str]) -> None:
    assert offered <= completed(*words)


@pytest.mark.claim("Where a command prints rows, it has --json.")
def test_rows_are_json_too() -> None:
    with_json = {name for name, option in options() if "--json" in option.opts}
    assert set(COMMANDS) - with_json == set(NO_ROWS)


@pytest.mark.claim("Where what a command makes goes is -o or --out, in all of them.")
def test_one_word_for_where_to() -> None:
    makes = {name for name, option in options() if "--out" in option.opts}
    assert {"replay", "sweep", "send", "run", "sample", "reads", "dump-tree", "verify"} <= makes
    for name, option in options():
        if "-o" in option.opts:
            assert "--out" in option.opts, name
        assert not {"--output", "--parquet", "--file"} & set(option.opts) or name == "receive"


def old_words() -> list[tuple[str, str, str]]:
    return [(name, old, option.opts[-1]) for name, option in options()
            if isinstance(option, Flag) for old in option.was]  # fmt: skip


@pytest.mark.claim("An option's word of before is taken, with a note that names the new one.")
@pytest.mark.parametrize(("name", "old", "new"), old_words())
def test_an_old_word_is_taken(
    name: str, old: str, new: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert new in {word for of, option in options() if of == name for word in option.opts}
    assert old not in completed(name, "--")
    # the image is not there: the options were understood before that was seen
    rest = {"inode-resolve": ["1"], "extents": ["1", "f"], "fiemap": ["1", "f"], "diff": ["1", "2"]}
    value = "name_cache=1" if old == "--readahead" else str(tmp_path / "new")
    alone = ["no-such-file", *rest.get(name, ["1"])]
    arguments = {
        "replay": ["no-such-workload"],
        "image": ["diff", "no-such-file", "no-such-file"],
        "sample": ["no-such-sample"],
        "run": ["no-such-file"],
        "replay-log": ["no-such-file"],
        "devices": ["no-such-file"],
        "du": ["no-such-file"],
        "qgroups": ["no-such-file"],
        "dump-tree": ["no-such-file"],
        "draw": ["no-such-file"],
        "explore": ["no-such-file"],
    }.get(name, alone)
    for quiet in ((), ("-q",)):
        assert run([*quiet, name, *arguments, f"{old}={value}"]) == 1
        said = capsys.readouterr().err
        assert (f"btrfs-model: note: {old} is now {new}" in said) == (not quiet)
        assert "no-such" in said


@pytest.mark.claim("`-q` leaves errors alone; `-v` says what runs, how long, and where errors are.")
def test_quiet_and_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    image = str(corpus.image("send/send-utimes/n200"))
    assert run(["reads", image, "snap2", "-q", "--behaviour", "v5.12"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["-v", "subvolumes", image]) == 0
    said = capsys.readouterr().err
    assert f"btrfs-model {bm.__version__}\nC by " in said
    assert re.search(r"\d+\.\d\d s, [\d,]+ MiB at most$", said)
    assert run(["subvolumes", "no-such-file", "-v"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert run(["subvolumes", "no-such-file", "-q"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.claim("`--version` names the compiler and Python.")
def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"btrfs-model {bm.__version__}"
    assert re.match(r"C by (gcc|clang) \d+\.\d+.*; Python 3\.\d+\.\d+\w*, Linux \w+$", second)


def test_paths_and_causes_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    image = str(corpus.image("send/send-utimes/n200"))
    assert run(["inode-resolve", image, "snap1", "257", "--json"]) == 0
    assert list(json.loads(capfd.readouterr().out.splitlines()[0])) == ["path"]
    arguments = ["send", image, "snap2", "-p", "snap1", "-f", "/dev/null"]
    assert run([*arguments, "--explain", "commands", "--json"]) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {"command", "cause"} <= set(rows[0])
    assert run([*arguments, "--json"]) == 2
