# SPDX-License-Identifier: GPL-2.0-only
"""An executable model of btrfs: real images in, the kernel's own send streams out.

::

    import btrfs_model as bm

    fs = bm.open(bm.sample("kernel/send/send-truncate/n500"))
    stream = bm.send(fs, "snap", behaviour="v4.16").data
    for command in bm.read_stream(stream):
        print(command.name, command.attributes)

The names in ``__all__`` are the public interface. Each is imported when it is first used, so that
importing the package costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from btrfs_model.backref import logical_ino
    from btrfs_model.check import check
    from btrfs_model.cost.receiver import receiver_calls
    from btrfs_model.counters import Work, counting
    from btrfs_model.errors import (
        BehaviourWarning,
        BtrfsModelError,
        CorruptImageError,
        ReceiveError,
        StreamError,
        UnsupportedError,
    )
    from btrfs_model.fiemap import fiemap
    from btrfs_model.filesystem import Filesystem
    from btrfs_model.filesystem.writable import WritableFilesystem
    from btrfs_model.kernels import select as use_kernels
    from btrfs_model.patches import Behaviour
    from btrfs_model.patches import table as toggles
    from btrfs_model.reads import reads
    from btrfs_model.receive import receive
    from btrfs_model.replay import build, replay
    from btrfs_model.samples import sample, samples
    from btrfs_model.send import SendResult, send
    from btrfs_model.stats import tree_stats
    from btrfs_model.stream import Command, StreamWriter, read_stream
    from btrfs_model.treelog.replay import replay_log
    from btrfs_model.usage import du, extent_references, extents

    open = Filesystem.open  # noqa: A001
    create = WritableFilesystem.mkfs

__all__ = [
    "Behaviour",
    "BehaviourWarning",
    "BtrfsModelError",
    "Command",
    "CorruptImageError",
    "Filesystem",
    "ReceiveError",
    "SendResult",
    "StreamError",
    "StreamWriter",
    "UnsupportedError",
    "Work",
    "WritableFilesystem",
    "build",
    "check",
    "counting",
    "create",
    "du",
    "extent_references",
    "extents",
    "fiemap",
    "logical_ino",
    "open",
    "read_stream",
    "reads",
    "receive",
    "receiver_calls",
    "replay",
    "replay_log",
    "sample",
    "samples",
    "send",
    "toggles",
    "tree_stats",
    "use_kernels",
]

# Where each name comes from.
_HOMES = {
    "Behaviour": "patches:Behaviour",
    "BehaviourWarning": "errors:BehaviourWarning",
    "BtrfsModelError": "errors:BtrfsModelError",
    "Command": "stream:Command",
    "CorruptImageError": "errors:CorruptImageError",
    "Filesystem": "filesystem:Filesystem",
    "ReceiveError": "errors:ReceiveError",
    "SendResult": "send:SendResult",
    "StreamError": "errors:StreamError",
    "StreamWriter": "stream:StreamWriter",
    "UnsupportedError": "errors:UnsupportedError",
    "Work": "counters:Work",
    "WritableFilesystem": "filesystem.writable:WritableFilesystem",
    "build": "replay:build",
    "check": "check:check",
    "counting": "counters:counting",
    "create": "filesystem.writable:WritableFilesystem.mkfs",
    "du": "usage:du",
    "extent_references": "usage:extent_references",
    "extents": "usage:extents",
    "fiemap": "fiemap:fiemap",
    "logical_ino": "backref:logical_ino",
    "open": "filesystem:Filesystem.open",
    "read_stream": "stream:read_stream",
    "reads": "reads:reads",
    "receive": "receive:receive",
    "receiver_calls": "cost.receiver:receiver_calls",
    "replay": "replay:replay",
    "replay_log": "treelog.replay:replay_log",
    "sample": "samples:sample",
    "samples": "samples:samples",
    "send": "send:send",
    "toggles": "patches:table",
    "tree_stats": "stats:tree_stats",
    "use_kernels": "kernels:select",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, path = _HOMES[name].partition(":")
    value: Any = import_module(f"{__name__}.{module}")
    for part in path.split("."):
        value = getattr(value, part)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package as a module in which public names win over submodules of the same name.

    Importing ``btrfs_model.send`` would make ``bm.send`` that module; it is to be the function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
