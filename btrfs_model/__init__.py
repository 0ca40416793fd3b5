# SPDX-License-Identifier: GPL-2.0-only
"""An executable model of btrfs: real images in, the kernel's own send streams out.

::

    import btrfs_model as bm

    fs = bm.open(bm.sample("kernel/send/send-truncate/n500"))
    stream = bm.send(fs, "snap", behaviour="v4.16").data
    for command in bm.read_stream(stream):
        print(command.name, command.attributes)

The block ``if TYPE_CHECKING`` below is the list of the public names. Each is imported when it is
first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from btrfs_model.backref.api import logical_ino as logical_ino
    from btrfs_model.base import errors as errors
    from btrfs_model.base.counters import counting as counting
    from btrfs_model.base.errors import BtrfsModelError as BtrfsModelError
    from btrfs_model.base.samples import sample as sample
    from btrfs_model.behaviour import Behaviour as Behaviour
    from btrfs_model.behaviour import table
    from btrfs_model.cost.receiver import receiver_calls as receiver_calls
    from btrfs_model.drawings.api import draw as draw
    from btrfs_model.experiments.replay import build as build
    from btrfs_model.experiments.replays import replay as replay
    from btrfs_model.experiments.sweep.api import sweep as sweep
    from btrfs_model.experiments.workloads.own import workload as workload
    from btrfs_model.mount.writable import WritableFilesystem as WritableFilesystem
    from btrfs_model.native.choice import select
    from btrfs_model.questions.check import check as check
    from btrfs_model.questions.dumptree.statistics import tree_stats as tree_stats
    from btrfs_model.questions.fiemap.api import fiemap as fiemap
    from btrfs_model.questions.logreplay import replay_log as replay_log
    from btrfs_model.questions.reads.walk import reads as reads
    from btrfs_model.questions.receive.api import receive as receive
    from btrfs_model.questions.send.ioctl import send as send
    from btrfs_model.questions.usage.files import extent_references as extent_references
    from btrfs_model.questions.usage.files import extents as extents
    from btrfs_model.questions.usage.space import du as du
    from btrfs_model.stream.reader import read_stream as read_stream
    from btrfs_model.stream.writer import StreamWriter as StreamWriter
    from btrfs_model.volume.filesystem import Filesystem as Filesystem

    open = Filesystem.open  # noqa: A001
    create = WritableFilesystem.mkfs
    toggles = table
    use_kernels = select

else:

    @cache
    def _homes() -> dict[str, tuple[str, str]]:
        """Return where each public name is: module, and name there."""
        import ast

        imported, public = {}, {}
        module = ast.parse(__loader__.get_source(__name__))
        (block,) = (node.body for node in module.body if isinstance(node, ast.If))
        for node in block:
            if isinstance(node, ast.ImportFrom):
                (name,) = node.names
                imported[name.name] = node.module
                if name.asname:
                    public[name.name] = (node.module, name.name)
            else:
                path = ast.unparse(node.value)
                public[node.targets[0].id] = (imported[path.split(".")[0]], path)
        return public

    def __getattr__(name: str) -> Any:
        from operator import attrgetter

        if name == "__all__":
            return sorted(_homes())
        if name.startswith("_") or name not in _homes():
            from btrfs_model.base.nearest import did_you_mean

            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}{did_you_mean(name, _homes())}"
            )
        module, path = _homes()[name]
        value = attrgetter(path)(__import__(module, fromlist=path.split(".")[:1]))
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted(_homes())
