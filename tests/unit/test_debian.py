# SPDX-License-Identifier: GPL-2.0-only
"""``kernel get``: by an apt and a dpkg-deb that only look so."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from btrfs_model.base.errors import KernelMissingError
from btrfs_model.cli import cli
from btrfs_model.kernels import choice, debian

APT = """\
#!/bin/sh
for word; do last=$word; done
case $last in
update) echo "$SAYS" >&2; exit ${STATUS:-0};;
libc6) : > user-mode-linux_7.2um1_amd64.deb; : > libc6_2.43-7_amd64.deb;;
esac
"""
DPKG = """\
#!/bin/sh
case $1 in
-x) mkdir -p "$3/usr/bin"; cp "$0" "$3/usr/bin/linux.uml";;
-f) echo "Built-Using: linux (= 7.2.7-1)"; echo "Version: 7.2um1";;
esac
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Debian whose mirror is never asked."""
    programs, sources = tmp_path / "bin", tmp_path / "apt"
    programs.mkdir()
    sources.mkdir()
    for name, text in (("apt-get", APT), ("dpkg-deb", DPKG)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (sources / "sources.list").write_text(
        "# deb http://old.example/debian bookworm main\n"
        "deb http://security.example/debian-security bookworm-security main\n"
        "deb [arch=amd64] http://mirror.example/debian bookworm main\n"
    )
    (tmp_path / "keyring").touch()
    monkeypatch.setattr(debian, "_KEYRING", tmp_path / "keyring")
    monkeypatch.setattr(debian, "_SOURCES", sources)
    monkeypatch.setattr("btrfs_model.kernels.uml.why_not", lambda binary: "")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.claim("`kernel get` unpacks the kernel of another suite, as an ordinary user.")
def test_a_suite_is_unpacked_into_the_cache(machine: Path) -> None:
    said: list[str] = []
    with pytest.raises(KernelMissingError, match="sid is not here: `btrfs-model kernel get sid`"):
        choice.start("sid")
    found = debian.get("sid", said.append)
    assert said[0] == "packages of sid, http://mirror.example/debian"
    assert found.release == "7.2.7"
    assert found.binary == machine / "cache/btrfs-model/kernels/debian/sid" / debian._BINARY
    assert [*debian.unpacked()] == [found] == [debian.get("sid", said.append)]
    assert [one.name for one in found.binary.parents[4].iterdir()] == ["sid"]


@pytest.mark.parametrize(
    ("suite", "says", "status", "why"),
    [
        ("sid", "W: Failed to fetch http://mirror.example/x  Could not connect", "0",
         "sid: Failed to fetch http://mirror.example/x  Could not connect"),
        ("nosuite", "E: The repository 'x nosuite Release' does not have a Release file.", "100",
         "nosuite: apt-get: The repository 'x nosuite Release' does not have a Release file."),
        ("a b", "", "0", "'a b' is no suite of Debian: sid, trixie, bookworm, bullseye"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_said_in_one_line(
    suite: str, says: str, status: str, why: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAYS", says)
    monkeypatch.setenv("STATUS", status)
    with pytest.raises(KernelMissingError) as error:
        debian.get(suite, lambda text: None)
    assert str(error.value) == why
    assert not [*debian.unpacked()]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["get", "sid", "-o", "there"], "kernel get: it has no -o"),
        (["build", "tree", "--json"], "kernel build: it has no --json"),
        (["build"], "kernel build: which tree?"),
        (["list", "sid"], "kernel list: sid is too much"),
    ],
)
def test_what_has_no_meaning_is_refused(words: list[str], why: str) -> None:
    ran = CliRunner().invoke(cli, ["kernel", *words])
    assert ran.exit_code == 2
    assert why in ran.output


def test_a_machine_that_is_no_debian(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        KernelMissingError, match="apt-get is not here: kernels are unpacked on Deb"
    ):
        debian.get("sid", lambda text: None)
    (machine / "apt/sources.list").unlink()
    with pytest.raises(KernelMissingError, match="no source names a mirror of Debian"):
        debian.get("sid", lambda text: None)
