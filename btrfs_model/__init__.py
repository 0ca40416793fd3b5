# SPDX-License-Identifier: GPL-2.0-only
"""An executable model of btrfs: real images in, the kernel's own send streams out.

::

    import btrfs_model as bm

    fs = bm.open(bm.sample("kernel/send/send-truncate/n500"))
    stream = bm.send(fs, "snap", behaviour="v4.16").data
    for command in bm.read_stream(stream):
        print(command.name, command.attributes)

Each public name is imported when it is first used, so that importing the package costs nothing. The
block ``if TYPE_CHECKING`` tells type checkers the same as the table below it; a test compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from btrfs_model.backref.api import logical_ino as logical_ino
    from btrfs_model.base import errors as errors
    from btrfs_model.base.counters import counting as counting
    from btrfs_model.base.errors import BtrfsModelError as BtrfsModelError
    from btrfs_model.base.samples import sample as sample
    from btrfs_model.base.version import __version__ as __version__
    from btrfs_model.behaviour import Behaviour as Behaviour
    from btrfs_model.behaviour import table
    from btrfs_model.cost.answer import ratio as ratio
    from btrfs_model.cost.device import Device as Device
    from btrfs_model.cost.machine import Machine as Machine
    from btrfs_model.cost.receiver import receiver_calls as receiver_calls
    from btrfs_model.drawings.api import draw as draw
    from btrfs_model.experiments.crashes.api import crashes as crashes
    from btrfs_model.experiments.crashes.enumerate import enumerate_crashes as enumerate_crashes
    from btrfs_model.experiments.replay import build as build
    from btrfs_model.experiments.replays import replay as replay
    from btrfs_model.experiments.sweep.api import sweep as sweep
    from btrfs_model.experiments.workloads.own import workload as workload
    from btrfs_model.limits import Limits as Limits
    from btrfs_model.mount.writable import WritableFilesystem as WritableFilesystem
    from btrfs_model.native.choice import select
    from btrfs_model.questions.archive import write_tar as write_tar
    from btrfs_model.questions.check import check as check
    from btrfs_model.questions.diff import diff as diff
    from btrfs_model.questions.dumptree.statistics import tree_stats as tree_stats
    from btrfs_model.questions.fiemap.api import fiemap as fiemap
    from btrfs_model.questions.fiemap.mounted import fiemap_mounted as fiemap_mounted
    from btrfs_model.questions.fiemap.text import fiemap_text as _fiemap_text  # noqa: F401
    from btrfs_model.questions.imagediff import image_diff as image_diff
    from btrfs_model.questions.lasting import commit as commit
    from btrfs_model.questions.lasting import fsync as fsync
    from btrfs_model.questions.logexplain import explain_log as explain_log
    from btrfs_model.questions.logreplay import replay_log as replay_log
    from btrfs_model.questions.reads.mounting import mount_reads as mount_reads
    from btrfs_model.questions.reads.walk import Reads as Reads
    from btrfs_model.questions.reads.walk import readdir_reads as readdir_reads
    from btrfs_model.questions.reads.walk import reads as reads
    from btrfs_model.questions.receive.api import receive as receive
    from btrfs_model.questions.receive.stored import stored_streams as stored_streams
    from btrfs_model.questions.rescue.api import rescue as rescue
    from btrfs_model.questions.rescue.api import rescue_roots as rescue_roots
    from btrfs_model.questions.rescue.heal import heal as heal
    from btrfs_model.questions.send.ioctl import SendResult as SendResult
    from btrfs_model.questions.send.ioctl import send as send
    from btrfs_model.questions.send.plan import plan as plan
    from btrfs_model.questions.usage.balanced import balance_plan as balance_plan
    from btrfs_model.questions.usage.compressed import compression as compression
    from btrfs_model.questions.usage.files import extent_references as extent_references
    from btrfs_model.questions.usage.files import extents as extents
    from btrfs_model.questions.usage.freed import freed as freed
    from btrfs_model.questions.usage.lost import device_lost as device_lost
    from btrfs_model.questions.usage.rewritten import dedupe_plan as dedupe_plan
    from btrfs_model.questions.usage.rewritten import defragment_plan as defragment_plan
    from btrfs_model.questions.usage.space import du as du
    from btrfs_model.questions.usage.waste import waste as waste
    from btrfs_model.scripts.run import script as script
    from btrfs_model.stream.reader import read_stream as read_stream
    from btrfs_model.stream.writer import StreamWriter as StreamWriter
    from btrfs_model.volume.filesystem import Filesystem as Filesystem

    open = Filesystem.open  # noqa: A001
    create = WritableFilesystem.mkfs
    load = WritableFilesystem.load
    toggles = table
    use_code = select


_HOMES: Final = {
    "_fiemap_text": "questions.fiemap.text:fiemap_text",
    "Behaviour": "behaviour:Behaviour",
    "BtrfsModelError": "base.errors:BtrfsModelError",
    "Device": "cost.device:Device",
    "Filesystem": "volume.filesystem:Filesystem",
    "Limits": "limits:Limits",
    "Machine": "cost.machine:Machine",
    "Reads": "questions.reads.walk:Reads",
    "SendResult": "questions.send.ioctl:SendResult",
    "StreamWriter": "stream.writer:StreamWriter",
    "__version__": "base.version:__version__",
    "WritableFilesystem": "mount.writable:WritableFilesystem",
    "balance_plan": "questions.usage.balanced:balance_plan",
    "build": "experiments.replay:build",
    "check": "questions.check:check",
    "commit": "questions.lasting:commit",
    "compression": "questions.usage.compressed:compression",
    "counting": "base.counters:counting",
    "crashes": "experiments.crashes.api:crashes",
    "create": "mount.writable:WritableFilesystem.mkfs",
    "dedupe_plan": "questions.usage.rewritten:dedupe_plan",
    "defragment_plan": "questions.usage.rewritten:defragment_plan",
    "device_lost": "questions.usage.lost:device_lost",
    "diff": "questions.diff:diff",
    "draw": "drawings.api:draw",
    "du": "questions.usage.space:du",
    "enumerate_crashes": "experiments.crashes.enumerate:enumerate_crashes",
    "errors": "base:errors",
    "explain_log": "questions.logexplain:explain_log",
    "extent_references": "questions.usage.files:extent_references",
    "extents": "questions.usage.files:extents",
    "fiemap": "questions.fiemap.api:fiemap",
    "fiemap_mounted": "questions.fiemap.mounted:fiemap_mounted",
    "freed": "questions.usage.freed:freed",
    "fsync": "questions.lasting:fsync",
    "heal": "questions.rescue.heal:heal",
    "image_diff": "questions.imagediff:image_diff",
    "load": "mount.writable:WritableFilesystem.load",
    "logical_ino": "backref.api:logical_ino",
    "mount_reads": "questions.reads.mounting:mount_reads",
    "open": "volume.filesystem:Filesystem.open",
    "plan": "questions.send.plan:plan",
    "ratio": "cost.answer:ratio",
    "read_stream": "stream.reader:read_stream",
    "readdir_reads": "questions.reads.walk:readdir_reads",
    "reads": "questions.reads.walk:reads",
    "receive": "questions.receive.api:receive",
    "receiver_calls": "cost.receiver:receiver_calls",
    "replay": "experiments.replays:replay",
    "replay_log": "questions.logreplay:replay_log",
    "rescue": "questions.rescue.api:rescue",
    "rescue_roots": "questions.rescue.api:rescue_roots",
    "sample": "base.samples:sample",
    "script": "scripts.run:script",
    "send": "questions.send.ioctl:send",
    "stored_streams": "questions.receive.stored:stored_streams",
    "sweep": "experiments.sweep.api:sweep",
    "toggles": "behaviour:table",
    "tree_stats": "questions.dumptree.statistics:tree_stats",
    "use_code": "native.choice:select",
    "waste": "questions.usage.waste:waste",
    "workload": "experiments.workloads.own:workload",
    "write_tar": "questions.archive:write_tar",
}
"""Where each public name is: the module below this package, and its name there."""

_RENAMED: Final = {"use_kernels": "use_code"}
"""Old names, which stay for one release."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        from operator import attrgetter

        if name == "__all__":
            return sorted(name for name in _HOMES if not name.startswith("_"))
        if name in _RENAMED:
            from btrfs_model.base.arguments import warn_renamed

            warn_renamed(f"bm.{name}", f"bm.{_RENAMED[name]}")
            return __getattr__(_RENAMED[name])
        if name not in _HOMES:
            from btrfs_model.base.nearest import did_you_mean

            nearest = "" if name.startswith("_") else did_you_mean(name, _HOMES)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{nearest}")
        module, _, path = _HOMES[name].partition(":")
        first, *_ = path.split(".")
        value = attrgetter(path)(__import__(f"btrfs_model.{module}", fromlist=[first]))
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return __getattr__("__all__")
