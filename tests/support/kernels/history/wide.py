# SPDX-License-Identifier: GPL-2.0-only
"""Images of several devices, which are the files of a folder: attached and mounted in a kernel.

Of Python's library alone: this also runs in guests.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from btrfs_model.kernels.inside import mounts
from btrfs_model.kernels.inside.mounts import run


def files(image: Path) -> list[Path]:
    """The files of an image: itself, or what is in the folder."""
    return sorted(image.iterdir()) if image.is_dir() else [image]


def attach(file: Path) -> str:
    """Make a file a device."""
    return run("losetup", "--find", "--show", str(file)).strip()


def detach(*loops: str) -> None:
    """Let devices go; a kernel that remembers them would wait for them in a copy of the others.

    Of what is not mounted all is forgotten: a device that was missing has no name to be called by.
    """
    with suppress(OSError):
        run("btrfs", "device", "scan", "--forget")
    for loop in loops:
        run("losetup", "--detach", loop)


@contextmanager
def attached(image: Path) -> Iterator[list[str]]:
    """Make devices of the files of an image for a while."""
    loops: list[str] = []
    try:
        for file in files(image):
            loops.append(attach(file))
        yield loops
    finally:
        detach(*loops)


def option(loops: list[str]) -> str:
    """Mount options that name devices."""
    return "".join(f",device={loop}" for loop in loops)


@contextmanager
def mounted(image: str, top: str, options: str) -> Iterator[Path]:
    """Mount an image; yield the folder."""
    if Path(image).is_file():
        with mounts.mounted(image, top, options) as folder:
            yield folder
        return
    with (
        attached(Path(image)) as loops,
        mounts.mounted(loops[0], top, options + option(loops)) as folder,
    ):
        yield folder
