# SPDX-License-Identifier: GPL-2.0-only
"""A new shell: what compiles each construct of bash, and its builtins, are put together here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from btrfs_model.shell import compound  # noqa: F401 - each adds what it compiles
from btrfs_model.shell.builtins import BUILTINS
from btrfs_model.shell.expansion import parameters  # noqa: F401 - each adds what it compiles
from btrfs_model.shell.expansion.arithmetic import evaluate
from btrfs_model.shell.state import Shell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from btrfs_model.shell.state import World
    from btrfs_model.shell.streams import Stream


def bash(world: World, files: Mapping[int, Stream], name: str = "bash") -> Shell:
    """Return a shell in which nothing ran.

    Parameters
    ----------
    world : World
        What its commands act on.
    files : mapping
        Open files by number.
    name : str
        ``$0``.
    """
    return Shell(world, files, name, BUILTINS, evaluate)
