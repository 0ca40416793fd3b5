# SPDX-License-Identifier: GPL-2.0-only
"""Which tree blocks of a filesystem are in memory while a script runs.

A mount leaves in memory what it has read itself, and ``drop_caches`` what is in use. What is
written later is in memory, and so is what a send or FIEMAP has read. Other calls are taken to find
their blocks there, and leave none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.cost.answer import Cold
from btrfs_model.questions.reads.cold import blocks_after_mount

if TYPE_CHECKING:
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.scripts.steps import Step


class Blocks:
    """Blocks that are in memory, of a filesystem that was mounted or whose caches were dropped.

    Parameters
    ----------
    generation : int
        Of the last commit before that: blocks of later ones are in memory.

    Attributes
    ----------
    addresses : set of int
        Those that were read since.
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.addresses: set[int] = set()

    @contextmanager
    def reading(self, fs: WritableFilesystem, subvolume: int, step: Step) -> Iterator[None]:
        """Note what a call on a subvolume reads, and that it is in memory then.

        What is new since the last commit is in memory, so nothing is noted of a subvolume that no
        commit has.
        """
        cached: set[int] = set()
        with suppress(BtrfsModelError):
            cached = blocks_after_mount(fs, [fs.subvolume(subvolume)], fs.behaviour)
        if not cached:
            yield
            return
        fs.image.start_cold(cached | self.addresses)
        try:
            yield
        finally:
            rows = fs.image.stop_cold()
        self.read(step, Cold.of(fs.image, rows))

    def read(self, step: Step, cold: Cold) -> None:
        """Note what a call has read: its thread waited for what was not in memory."""
        missing = cold.rows["generation"] <= self.generation
        self.addresses.update(cold.rows["logical"].tolist())
        if missing.any():
            # a read that goes to no device is not waited for
            there = None if cold.physical is None else np.where(missing, cold.physical, -1)
            step.cold = replace(cold, physical=there)
            step.work.update(step.cold.amounts)
