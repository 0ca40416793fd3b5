# SPDX-License-Identifier: GPL-2.0-only
"""Kernels that judge images: the machine's own (as root) and that of a guest."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mounts import one_at_a_time

from btrfs_model.kernels import native, uml
from btrfs_model.kernels.inside import used as use_of_images
from btrfs_model.kernels.inside.listing import Listing
from btrfs_model.kernels.native import Native
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.uml import Uml

UML = Path(os.environ.get("BTRFS_MODEL_UML", uml.DEBIAN))
MARKS = {
    "machine": pytest.mark.skipif(bool(native.why_not()), reason=native.why_not()),
    "uml": pytest.mark.skipif(bool(uml.why_not(UML)), reason=uml.why_not(UML)),
}
"""Of tests with a kernel, by its name here."""
STARTED: dict[str, Callable[[], Kernel]] = {"machine": Native, "uml": lambda: Uml(UML)}


@dataclass
class Answer:
    """What a kernel made of an image.

    Attributes
    ----------
    failed : str
        Why it could not be mounted or read; empty where it could.
    listing : dict
        What is in each subvolume that was asked for.
    scrub : str
        What ``btrfs scrub`` said.
    used : dict
        What the kernel sent and counted, see :func:`~btrfs_model.kernels.inside.used.use`.
    messages : list of str
        What the kernel logged about it, each line with its level in front.
    """

    failed: str = ""
    listing: Listing | None = None
    scrub: str = ""
    used: dict[str, Any] | None = None
    messages: tuple[str, ...] = ()

    @property
    def alarms(self) -> list[str]:
        """Messages of the level of a warning and above; that a format is old is none."""
        return [line for line in self.messages if line[1] <= "4" and "deprecated" not in line]


def alone(kernel: Kernel) -> AbstractContextManager[None]:
    """Keep other processes of these tests from mounting where that is the kernel that is asked."""
    return one_at_a_time() if isinstance(kernel, Native) else nullcontext()


def ask(
    kernel: Kernel,
    image: Path,
    *,
    options: str = "rw,noatime",
    subvolumes: list[str] | None = None,
    write: dict[str, str] | None = None,
    snapshots: dict[str, str] | None = None,
    send_data: bool = True,
    scrub: bool = False,
) -> Answer:
    """Mount an image, list subvolumes, write files at the top, use it, scrub, unmount.

    Where `snapshots` are given it is used as :func:`~btrfs_model.kernels.inside.used.use` says,
    which sends what is in files where `send_data` says so. Streams are then in the kernel's folder.
    """
    job = use_of_images.Job(
        image=str(image), options=options, subvolumes=subvolumes, write=write or {},
        snapshots=snapshots, send_data=send_data, scrub=scrub, streams=str(kernel.folder),
    )  # fmt: skip
    with alone(kernel):
        return Answer(**kernel.call(use_of_images.answer_to, job, kernel.top))
