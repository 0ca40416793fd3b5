# SPDX-License-Identifier: GPL-2.0-only
"""Kernels of Debian: unpacked into the cache, nothing is installed.

Each suite has a User-Mode Linux: bullseye 5.10, bookworm 6.1, trixie 6.12, sid the newest. Other
releases are there as kernels for machines, which :mod:`~btrfs_model.kernels.qemu` runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from btrfs_model.base.errors import KernelFailedError, KernelMissingError
from btrfs_model.behaviour import version
from btrfs_model.kernels import modules, packages, uml
from btrfs_model.kernels.build import shelf

_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SOURCES: Final = Path("/etc/apt")
_PACKAGES: Final = ("user-mode-linux", "libc6")
"""The kernel, and the C library that it is linked against."""
_NEEDED: Final = ("apt-get", "dpkg-deb")
_BINARY: Final = Path("root/usr/bin/linux.uml")
_RELEASE: Final = "release"
_SUITE: Final = re.compile(r"[a-z][a-z0-9-]*")
_WITH_KERNELS: Final = ("trixie-backports", "sid", "forky", "trixie", "bookworm-backports",
                        "bookworm", "experimental")  # fmt: skip
"""Suites in which other releases are looked for."""
_EMULATED: Final = "qemu:"
_IMAGE: Final = "vmlinuz"
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
        The program, or the kernel that an emulation loads.
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


def emulated() -> Iterator[Unpacked]:
    """Return the kernels for an emulation that are here."""
    places = (path.parent for path in (shelf() / "qemu").glob(f"*/{_IMAGE}"))
    for place in sorted(places, key=lambda one: version(one.name)):
        yield Unpacked(f"{_EMULATED}{place.name}", place.name, place / _IMAGE)


def emulated_of(name: str) -> Path | None:
    """Return the folder of a kernel for an emulation, by what ``--kernel`` takes.

    None where it is no such name.

    Raises
    ------
    KernelMissingError
        When it is not here.
    """
    if not name.startswith(_EMULATED):
        return None
    release = name.removeprefix(_EMULATED)
    for one in emulated():
        if release == one.release:
            return one.binary.parent
    raise KernelMissingError(f"{name} is not here: `btrfs-model kernel get {release}`")


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
    place = shelf() / "debian" / suite
    with _packages_of(suite, place.parent, step) as (folder, options):
        step(f"{' and '.join(_PACKAGES)} of {suite}")
        whole = folder / "whole"
        _unpack(folder, options, suite, _PACKAGES, whole / "root")
        if why := uml.why_not(whole / _BINARY):
            raise KernelMissingError(why)
        (kernel,) = folder.glob("user-mode-linux_*.deb")
        (whole / _RELEASE).write_text(_release(kernel) + "\n")
        shutil.rmtree(place, ignore_errors=True)
        whole.rename(place)
    return next(one for one in unpacked() if one.name == suite)


def get_release(wanted: str, step: Callable[[str], None]) -> Unpacked:
    """Unpack a release for an emulation into the cache: the kernel, and the modules it needs.

    Parameters
    ----------
    wanted : str
        A release, or a series of which the newest is meant: ``6.17.13``, ``6.17``.
    step : callable
        Told what is done.

    Raises
    ------
    KernelMissingError
        Where this is no Debian, the mirror cannot be reached, or it does not have the release.
    """
    shelved, there = shelf() / "qemu", set[str]()
    why: KernelMissingError | None = None
    for suite in _WITH_KERNELS:
        try:
            with _packages_of(suite, shelved, step) as (folder, options):
                listed = "\n".join(path.read_text() for path in folder.rglob("*_Packages"))
                known = packages.kernels(listed)
                there |= known.keys()
                if release := packages.newest_of(wanted, known):
                    step(f"Linux {release} of {suite}")
                    _unpack(folder, options, suite, known[release], folder / "root")
                    return _shelve(folder, shelved / release)
        except KernelMissingError as error:  # a mirror need not have every suite
            why = error
    if why is not None and not there:
        raise why
    listed = ", ".join(sorted(there, key=version))
    raise KernelMissingError(f"no suite has Linux {wanted} with its modules; there are {listed}")


def _shelve(folder: Path, place: Path) -> Unpacked:
    """Keep of a kernel what a guest needs."""
    whole, tree = folder / "whole", next((folder / "root").rglob("lib/modules/*"))
    (whole / "modules").mkdir(parents=True)
    for number, path in enumerate(modules.needed(tree)):
        name = f"{number:02}-{modules.named(path)}.ko"
        (whole / "modules" / name).write_bytes(modules.read(path))
    image = next((folder / "root").rglob("vmlinuz*"))
    shutil.copyfile(image, whole / _IMAGE)
    shutil.rmtree(place, ignore_errors=True)
    whole.rename(place)
    return next(one for one in emulated() if one.release == place.name)


@contextmanager
def _packages_of(
    suite: str, shelved: Path, step: Callable[[str], None]
) -> Iterator[tuple[Path, list[str]]]:
    """Read what a suite has, by an apt of its own; its folder, and how apt is called."""
    mirror = _mirror()
    for program in _NEEDED:
        if shutil.which(program) is None:
            raise KernelMissingError(f"{program} is not here: kernels are unpacked on Debian alone")
    if not _KEYRING.is_file():
        raise KernelMissingError(f"{_KEYRING} is not here (Debian: package debian-archive-keyring)")
    shelved.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=shelved, prefix=".") as temporary:
        folder = Path(temporary)
        options = _options(folder, f"deb [signed-by={_KEYRING}] {mirror} {suite} main\n")
        step(f"packages of {suite}, {mirror}")
        _apt(folder, options, suite, "update")
        yield folder, options


def _unpack(
    folder: Path, options: Sequence[str], suite: str, names: Sequence[str], root: Path
) -> None:
    """Download packages and unpack them."""
    _apt(folder, options, suite, "download", *names)
    root.mkdir(parents=True)
    for package in sorted(folder.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(root)], folder)


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
        "Acquire::GzipIndexes": "false",
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
