# SPDX-License-Identifier: GPL-2.0-only
"""User-Mode Linux of other suites of Debian: unpacked into the cache, nothing is installed.

Each suite has one: bullseye Linux 5.10, bookworm 6.1, trixie 6.12; sid has the newest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from btrfs_model.base.errors import KernelFailedError, KernelMissingError
from btrfs_model.kernels import uml
from btrfs_model.kernels.build import shelf

_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SOURCES: Final = Path("/etc/apt")
_PACKAGES: Final = ("user-mode-linux", "libc6")
"""The kernel, and the C library that it is linked against."""
_NEEDED: Final = ("apt-get", "dpkg-deb")
_BINARY: Final = Path("root/usr/bin/linux.uml")
_RELEASE: Final = "release"
_SUITE: Final = re.compile(r"[a-z][a-z0-9-]*")
_TIMEOUT: Final = "20"
"""Seconds that a mirror may say nothing for."""


class Unpacked(NamedTuple):
    """A kernel that is here.

    Attributes
    ----------
    name : str
        What ``--kernel`` takes.
    release : str
        Of Linux.
    binary : Path
        The program.
    """

    name: str
    release: str
    binary: Path


def is_suite(name: str) -> bool:
    """Whether a name may be that of a suite."""
    return bool(_SUITE.fullmatch(name))


def unpacked() -> Iterator[Unpacked]:
    """Return the suites whose kernel is here."""
    for place in sorted((shelf() / "debian").glob("*")):
        if (place / _BINARY).is_file():
            yield Unpacked(place.name, (place / _RELEASE).read_text().strip(), place / _BINARY)


def binary_of(name: str) -> Path | None:
    """Return the program of a suite that is here."""
    return next((one.binary for one in unpacked() if one.name == name), None)


def get(suite: str, step: Callable[[str], None]) -> Unpacked:
    """Unpack the User-Mode Linux of a suite, and its C library, into the cache.

    An ordinary user may do so, by an apt of its own. This machine's sources name the mirror.

    Parameters
    ----------
    suite : str
        Such as ``sid``.
    step : callable
        Told what is done.

    Raises
    ------
    KernelMissingError
        Where this is no Debian, there is no such suite, or the mirror cannot be reached.
    """
    if not is_suite(suite):
        raise KernelMissingError(
            f"{suite!r} is no suite of Debian: sid, trixie, bookworm, bullseye"
        )
    mirror = _mirror()
    for program in _NEEDED:
        if shutil.which(program) is None:
            raise KernelMissingError(f"{program} is not here: kernels are unpacked on Debian alone")
    if not _KEYRING.is_file():
        raise KernelMissingError(f"{_KEYRING} is not here (Debian: package debian-archive-keyring)")
    place = shelf() / "debian" / suite
    place.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place.parent, prefix=".") as temporary:
        folder = Path(temporary)
        options = _options(folder, f"deb [signed-by={_KEYRING}] {mirror} {suite} main\n")
        step(f"packages of {suite}, {mirror}")
        _apt(folder, options, suite, "update")
        step(f"{' and '.join(_PACKAGES)} of {suite}")
        _apt(folder, options, suite, "download", *_PACKAGES)
        whole = folder / "whole"
        (whole / "root").mkdir(parents=True)
        for package in sorted(folder.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(whole / "root")], folder)
        if why := uml.why_not(whole / _BINARY):
            raise KernelMissingError(why)
        (kernel,) = folder.glob("user-mode-linux_*.deb")
        (whole / _RELEASE).write_text(_release(kernel) + "\n")
        shutil.rmtree(place, ignore_errors=True)
        whole.rename(place)
    return next(one for one in unpacked() if one.name == suite)


def _mirror() -> str:
    """Return the mirror of Debian that this machine's sources name."""
    lists = [_SOURCES / "sources.list", *sorted((_SOURCES / "sources.list.d").glob("*"))]
    for path in lists:
        for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
            if re.match(r"(URIs:|deb\s)", line):
                for found in re.findall(r"https?://\S+", line):
                    if "security" not in found:
                        return str(found)
    raise KernelMissingError(f"{_SOURCES}: no source names a mirror of Debian")


def _options(folder: Path, source: str) -> list[str]:
    """Make the folders of an apt of its own; return how it is called."""
    apt = folder / "apt"
    for name in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial",
                 "var/cache/apt/archives/partial", "var/lib/dpkg"):  # fmt: skip
        (apt / name).mkdir(parents=True)
    status = apt / "var/lib/dpkg/status"
    status.touch()
    (apt / "etc/apt/sources.list").write_text(source)
    chosen = {
        "Dir": apt, "Dir::State::status": status, "APT::Sandbox::User": "root",
        "Acquire::Retries": "1", "Acquire::http::Timeout": _TIMEOUT,
        "Acquire::https::Timeout": _TIMEOUT, "Acquire::Languages": "none",
    }  # fmt: skip
    return [word for name, value in chosen.items() for word in ("-o", f"{name}={value}")]


def _apt(folder: Path, options: Sequence[str], suite: str, *what: str) -> None:
    try:
        said = _run(["apt-get", "-q", *options, *what], folder)
    except KernelFailedError as error:
        raise KernelMissingError(f"{suite}: {error}") from None
    # what cannot be fetched is a warning to it
    if found := re.search(r"^[WE]: (Failed to fetch .*)$", said, re.M):
        raise KernelMissingError(f"{suite}: {found[1]}")


def _run(command: Sequence[str], folder: Path) -> str:
    ran = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, errors="replace", env={**os.environ, "LC_ALL": "C"},
                         stdin=subprocess.DEVNULL)  # fmt: skip
    if ran.returncode:
        lines = [line for line in ran.stdout.splitlines() if line.startswith(("E:", "W:"))]
        said = (lines or ran.stdout.strip().splitlines() or [f"status {ran.returncode}"])[0]
        raise KernelFailedError(f"{command[0]}: {re.sub('^[EW]: ', '', said)}")
    return ran.stdout


def _release(package: Path) -> str:
    """Return the release of Linux in a package: that of the source that it was built from."""
    said = _run(["dpkg-deb", "-f", str(package), "Built-Using", "Version"], package.parent)
    found = re.search(r"\blinux \(= ([\d.]+)", said) or re.search(r"Version: ([\d.]+)", said)
    return found[1] if found else "unknown"
