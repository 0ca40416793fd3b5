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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from btrfs_model.backref.api import logical_ino
    from btrfs_model.base.counters import Work, counting
    from btrfs_model.base.errors import (
        BehaviourWarning,
        BtrfsModelError,
        CorruptImageError,
        ReceiveError,
        StreamError,
        UnsupportedError,
    )
    from btrfs_model.base.samples import sample, samples
    from btrfs_model.behaviour import Behaviour
    from btrfs_model.behaviour import table as toggles
    from btrfs_model.cost.receiver import receiver_calls
    from btrfs_model.experiments.replay import build, replay
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.native.choice import select as use_kernels
    from btrfs_model.questions.check import check
    from btrfs_model.questions.dumptree.statistics import tree_stats
    from btrfs_model.questions.fiemap.api import fiemap
    from btrfs_model.questions.logreplay import replay_log
    from btrfs_model.questions.reads.walk import reads
    from btrfs_model.questions.receive.api import receive
    from btrfs_model.questions.send.ioctl import SendResult, send
    from btrfs_model.questions.usage.files import extent_references, extents
    from btrfs_model.questions.usage.space import du
    from btrfs_model.stream.reader import Command, read_stream
    from btrfs_model.stream.writer import StreamWriter
    from btrfs_model.volume.filesystem import Filesystem

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
    "Behaviour": "behaviour:Behaviour",
    "BehaviourWarning": "base.errors:BehaviourWarning",
    "BtrfsModelError": "base.errors:BtrfsModelError",
    "Command": "stream.reader:Command",
    "CorruptImageError": "base.errors:CorruptImageError",
    "Filesystem": "volume.filesystem:Filesystem",
    "ReceiveError": "base.errors:ReceiveError",
    "SendResult": "questions.send.ioctl:SendResult",
    "StreamError": "base.errors:StreamError",
    "StreamWriter": "stream.writer:StreamWriter",
    "UnsupportedError": "base.errors:UnsupportedError",
    "Work": "base.counters:Work",
    "WritableFilesystem": "mount.writable:WritableFilesystem",
    "build": "experiments.replay:build",
    "check": "questions.check:check",
    "counting": "base.counters:counting",
    "create": "mount.writable:WritableFilesystem.mkfs",
    "du": "questions.usage.space:du",
    "extent_references": "questions.usage.files:extent_references",
    "extents": "questions.usage.files:extents",
    "fiemap": "questions.fiemap.api:fiemap",
    "logical_ino": "backref.api:logical_ino",
    "open": "volume.filesystem:Filesystem.open",
    "read_stream": "stream.reader:read_stream",
    "reads": "questions.reads.walk:reads",
    "receive": "questions.receive.api:receive",
    "receiver_calls": "cost.receiver:receiver_calls",
    "replay": "experiments.replay:replay",
    "replay_log": "questions.logreplay:replay_log",
    "sample": "base.samples:sample",
    "samples": "base.samples:samples",
    "send": "questions.send.ioctl:send",
    "toggles": "behaviour:table",
    "tree_stats": "questions.dumptree.statistics:tree_stats",
    "use_kernels": "native.choice:select",
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
