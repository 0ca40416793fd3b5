# SPDX-License-Identifier: GPL-2.0-only
"""Kernels by name."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from btrfs_model.base.errors import KernelMissingError
from btrfs_model.behaviour import version
from btrfs_model.kernels import debian, native, uml
from btrfs_model.kernels.native import Native
from btrfs_model.kernels.qemu import Qemu
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.uml import Uml


class AtHand(NamedTuple):
    """A kernel that is here.

    Attributes
    ----------
    name : str
        What ``--kernel`` takes.
    release : str
        Of Linux.
    """

    name: str
    release: str


def at_hand(*, slow: bool = False) -> list[AtHand]:
    """Return the kernels that are here, in the order of releases; `slow`: emulated ones, too."""
    emulated = (AtHand(one.name, one.release) for one in debian.emulated() if slow)
    return sorted([*_at_hand(), *emulated], key=lambda one: version(one.release))


def _at_hand() -> Iterator[AtHand]:
    if not native.why_not():
        yield AtHand("native", platform.release())
    if not uml.why_not():
        said = subprocess.run([str(uml.DEBIAN), "--version"], capture_output=True, text=True)
        yield AtHand("uml", said.stdout.strip())
    for one in debian.unpacked():
        yield AtHand(one.name, one.release)


def start(which: str = "native", *, memory: int = 2 << 30, limit: float = 1800) -> Kernel:
    """Find a kernel: ``native``, ``uml`` (Debian's package), a suite, or a ``linux.uml``'s path.

    A suite is one that :func:`btrfs_model.kernels.debian.get` has unpacked. ``qemu:RELEASE`` is
    what :func:`btrfs_model.kernels.debian.get_release` has.

    `memory` and `limit`, and what is raised, are those of :class:`~btrfs_model.kernels.uml.Uml`.
    """
    if which == "native":
        return Native(limit)
    if place := debian.emulated_of(which):
        return Qemu(place, memory=memory, limit=limit)
    binary = uml.DEBIAN if which == "uml" else debian.binary_of(which) or Path(which)
    if debian.is_suite(which) and not binary.exists():
        raise KernelMissingError(f"{which} is not here: `btrfs-model kernel get {which}`")
    return Uml(binary, memory=memory, limit=limit)
