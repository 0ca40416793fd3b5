# SPDX-License-Identifier: GPL-2.0-only
"""Mount options: what a kernel takes, what it refuses, what ``/proc/mounts`` shows.

An option is one of three. It is *followed* here: ``compress``, ``compress-force``, ``max_inline``,
``nodatacow``, ``nodatasum``, ``ssd``, ``flushoncommit``, ``notreelog`` and their opposites, and
``commit`` where a script lets time go by. It is taken, shown and *without effect* here:
:data:`WITHOUT_EFFECT`. Or it changes what a kernel writes in a way that the model has not,
:data:`NOT_FOLLOWED`: then it is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Self

from btrfs_model.behaviour import Behaviour
from btrfs_model.mount.files.compress_levels import parse_compression
from btrfs_model.patches import KERNEL, Patch

MAX_INLINE: Final = 2048
"""``BTRFS_DEFAULT_MAX_INLINE``: largest inline extent, bytes."""

WITHOUT_EFFECT: Final = {
    "of the VFS, and not of what is written":
        "rw suid nosuid dev nodev exec noexec symfollow nosymfollow async defaults loop atime "
        "noatime relatime norelatime strictatime diratime nodiratime nolazytime silent loud",
    "nothing works beside the calls":
        "thread_pool autodefrag noautodefrag skip_balance rescan_uuid_tree",
    "what is free keeps its bytes": "discard nodiscard",
    "the device loses nothing and has all": "barrier nobarrier degraded device usebackuproot "
        "recovery rescue",
    "the caller is root": "user_subvol_rm_allowed",
    "of messages, and of what a kernel does after an error":
        "enospc_debug noenospc_debug fatal_errors",
    "kernels do not follow it any more": "inode_cache noinode_cache",
    "so it is anyway": "acl nossd_spread space_cache nospace_cache clear_cache subvol subvolid",
}  # fmt: skip
"""Options that change nothing of what the model writes, by the reason."""

NOT_FOLLOWED: Final = {
    "ro": "what is mounted here can be written to",
    "sync": "no call waits for the device",
    "dirsync": "no call waits for the device",
    "lazytime": "times are never late",
    "noacl": "there are always access control lists",
    "ssd_spread": "free space is looked for in another way",
    "metadata_ratio": "no block group is made for another's sake",
    "subvol": "paths begin at the top of the filesystem",
    "subvolid": "paths begin at the top of the filesystem",
    "space_cache": "a free space tree neither comes nor goes",
}
"""Options that kernels take and the model refuses, with why."""

_VFS: Final = next(iter(WITHOUT_EFFECT.values())).split()
_VFS_NOT_FOLLOWED: Final = ("ro", "sync", "dirsync", "lazytime")
_UNITS: Final = {unit: 1 << 10 * power for power, unit in enumerate("KMGTPE", 1)}
_NUMBER: Final = re.compile(r"0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9][0-9]*)")
_BASES: Final = (16, 8, 10)
_U32, _U64, _INT = 1 << 32, 1 << 64, 1 << 31
_COMMIT: Final = 30
_TOP: Final = 5
# names in show_options, in its order, around what has a value
_SHOWN_FIRST: Final = ("degraded", "nodatasum", "nodatacow", "nobarrier")
_SHOWN: Final = ("flushoncommit", "discard", "discard=async", "noacl")
_SHOWN_LAST: Final = (
    "rescan_uuid_tree", "user_subvol_rm_allowed", "enospc_debug", "autodefrag", "skip_balance",
)  # fmt: skip
# what an option sets, and what it clears
_FLAGS: Final = {
    "degraded": ("degraded", ""),
    "nodatasum": ("nodatasum", ""),
    "datasum": ("", "nodatasum nodatacow"),
    "nodatacow": ("nodatacow nodatasum", "compress compress-force"),
    "datacow": ("", "nodatacow"),
    "ssd": ("ssd", "nossd"),
    "nossd": ("nossd", "ssd ssd_spread"),
    "ssd_spread": ("ssd ssd_spread", "nossd"),
    "nossd_spread": ("", "ssd_spread"),
    "barrier": ("", "nobarrier"),
    "nobarrier": ("nobarrier", ""),
    "acl": ("", "noacl"),
    "noacl": ("noacl", ""),
    "treelog": ("", "notreelog"),
    "notreelog": ("notreelog", ""),
    "flushoncommit": ("flushoncommit", ""),
    "noflushoncommit": ("", "flushoncommit"),
    "discard": ("discard", "discard=async nodiscard"),
    "discard=sync": ("discard", "discard=async nodiscard"),
    "discard=async": ("discard=async", "discard nodiscard"),
    "nodiscard": ("nodiscard", "discard discard=async"),
    "space_cache": ("space_cache", "space_cache=v2"),
    "space_cache=v1": ("space_cache", "space_cache=v2"),
    "space_cache=v2": ("space_cache=v2", "space_cache"),
    "nospace_cache": ("", "space_cache space_cache=v2"),
    "clear_cache": ("clear_cache", ""),
    "rescan_uuid_tree": ("rescan_uuid_tree", ""),
    "user_subvol_rm_allowed": ("user_subvol_rm_allowed", ""),
    "enospc_debug": ("enospc_debug", ""),
    "noenospc_debug": ("", "enospc_debug"),
    "autodefrag": ("autodefrag", ""),
    "noautodefrag": ("", "autodefrag"),
    "skip_balance": ("skip_balance", ""),
    "fatal_errors=panic": ("fatal_errors=panic", ""),
    "fatal_errors=bug": ("", "fatal_errors=panic"),
    "usebackuproot": ("", ""),
    "rescue=usebackuproot": ("", ""),
}
_READ_ONLY: Final = ("rescue", "norecovery", "nologreplay")
"""Options that only a mount takes that does not write."""


class NotFollowedError(ValueError):
    """A kernel takes the option, and what it changes is not there."""


class _RefusedError(Exception):
    """A kernel refuses an option."""


def memparse(text: str) -> int:
    """Read a size as the kernel does (``memparse()``): what is none of it is left out."""
    found = _NUMBER.match(text)
    digits, base = next(
        ((one, base) for one, base in zip(found.groups(), _BASES, strict=True) if one is not None)
        if found else iter([("", 10)])
    )  # fmt: skip
    number = int(digits or "0", base)
    unit = text[found.end() if found else 0 :][:1].upper()
    return number * _UNITS.get(unit, 1) % _U64


def _number(text: str, limit: int) -> int:
    """Read a whole number below a limit, of any base (``kstrtouint()``)."""
    digits = text.removeprefix("+")
    found = _NUMBER.fullmatch(digits)
    if not found or not memparse(digits) < limit or len(digits) > len(str(_U64)):
        raise _RefusedError
    return memparse(digits)


@dataclass
class _Parser:
    """The options so far."""

    behaviour: Behaviour
    flags: set[str]
    compression: str = ""
    level: int = 0
    max_inline: int = MAX_INLINE
    numbers: dict[str, int] = field(default_factory=dict)
    refused_here: str = ""
    only_reads: bool = False

    def take(self, option: str) -> None:
        """Take one option (``btrfs_parse_param()``)."""
        name, equals, value = option.partition("=")
        typed = Patch.MOUNT_API in self.behaviour
        if name in ("compress", "compress-force"):
            self._compress(name, value if equals else None)
        elif option in _FLAGS:
            sets, clears = _FLAGS[option]
            self.flags = (self.flags - {*clears.split()}) | {*sets.split()}
        elif name == "max_inline" and value:
            self.max_inline = memparse(value)
        elif name in ("commit", "metadata_ratio", "thread_pool"):
            self.numbers[name] = _number(value, _U32 if typed else _INT)
            if name == "thread_pool" and not self.numbers[name]:
                raise _RefusedError
        elif name == "subvolid" and value:
            self._only_the_top(name, _number(value, _U64) in (0, _TOP))
        elif name == "subvol" and value:
            self._only_the_top(name, not value.strip("/"))
        elif (name == "device" and value) or (
            option in ("inode_cache", "noinode_cache", "recovery", "subvol=") and not typed
        ):
            return
        elif name in _READ_ONLY:
            self.only_reads = True
        elif option in _VFS_NOT_FOLLOWED:
            self.refused_here = self.refused_here or name
        elif option not in _VFS and not option.startswith(("x-", "X-")):
            raise _RefusedError

    def _only_the_top(self, name: str, is_top: bool) -> None:
        if not is_top:
            self.refused_here = name

    def _compress(self, name: str, value: str | None) -> None:
        try:
            kind, level = parse_compression(value, self.behaviour)
        except ValueError:
            raise _RefusedError from None
        self.compression, self.level = kind, level
        self.flags -= {"compress", "compress-force"}
        if kind:
            self.flags -= {"nodatacow", "nodatasum"}
            self.flags |= {"compress", name}

    def not_followed(self, free_space_tree: bool) -> str:
        """Return the name of an option that the model does not follow, empty for none."""
        if self.refused_here == "ro":
            return "ro"
        if self.only_reads:
            raise _RefusedError
        if free_space_tree and not self.flags & {"space_cache=v2", "clear_cache"}:
            raise _RefusedError
        if ("space_cache=v2" in self.flags) != free_space_tree:
            return "space_cache"
        for name in ("noacl", "ssd_spread"):
            if name in self.flags:
                return name
        return "metadata_ratio" if self.numbers.get("metadata_ratio") else self.refused_here


@dataclass(frozen=True, slots=True)
class MountOptions:
    """Mount options that are followed, and how all are shown.

    `compress`: ``zlib``, ``lzo`` or ``zstd``.
    `compress_force`: compress also what looks incompressible.
    `compress_level`: that of the mount, for each algorithm as far as it goes; 0: its own default.
    `max_inline`: largest inline extent, bytes.
    `tree_log`: fsync writes a log (``treelog``, ``notreelog``).
    `data_sum`, `data_cow`: whether new files have checksums, and are written to new places.
    `ssd`: the way of looking for free space; None: as the device is.
    `flush_on_commit`: a commit writes all data back.
    `commit_interval`: seconds after which a thread commits, where somebody lets time go by.
    `shown`: the options of btrfs as ``/proc/mounts`` shows them, without the subvolume.
    """

    compress: str | None = None
    compress_force: bool = False
    compress_level: int = 0
    max_inline: int = MAX_INLINE
    tree_log: bool = True
    data_sum: bool = True
    data_cow: bool = True
    ssd: bool | None = None
    flush_on_commit: bool = False
    commit_interval: int = _COMMIT
    shown: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls, text: str, behaviour: Behaviour | None = None, *, free_space_tree: bool = True,
        sectorsize: int = 4096,
    ) -> Self:  # fmt: skip
        """Read options separated by commas.

        `behaviour`: the kernel that mounts.
        `free_space_tree`, `sectorsize`: of the filesystem.
        Raises ValueError: for an option that this kernel refuses; NotFollowedError, which is one,
        for those that are not followed.
        """
        behaviour = behaviour or Behaviour.parse(KERNEL)
        cache = "space_cache=v2" if free_space_tree else "space_cache"
        parser, option = _Parser(behaviour, {cache}), text
        try:
            for option in filter(None, text.split(",")):
                parser.take(option)
            name = parser.not_followed(free_space_tree)
        except _RefusedError:
            raise ValueError(f"mount option {option!r}: a kernel refuses it") from None
        if name:
            raise NotFollowedError(f"mount option {name!r} is not modelled: {NOT_FOLLOWED[name]}")
        return cls._of(parser, sectorsize)

    @classmethod
    def _of(cls, parser: _Parser, sectorsize: int) -> Self:
        flags, inline = parser.flags, min(parser.max_inline, sectorsize)
        ssd = True if "ssd" in flags else False if "nossd" in flags else None
        return cls(
            parser.compression if "compress" in flags else None,
            "compress-force" in flags, parser.level, inline, "notreelog" not in flags,
            "nodatasum" not in flags, "nodatacow" not in flags, ssd, "flushoncommit" in flags,
            parser.numbers.get("commit") or _COMMIT, tuple(_shown(parser, inline)),
        )  # fmt: skip


def _shown(parser: _Parser, max_inline: int) -> list[str]:
    """Return what ``btrfs_show_options()`` shows."""
    flags, numbers = parser.flags, parser.numbers
    shown: list[str] = [name for name in _SHOWN_FIRST if name in flags]
    if max_inline != MAX_INLINE:
        shown.append(f"max_inline={max_inline}")
    if "thread_pool" in numbers:
        shown.append(f"thread_pool={numbers['thread_pool']}")
    if "compress" in flags:
        name = "compress-force" if "compress-force" in flags else "compress"
        level = f":{parser.level}" if parser.level and parser.compression != "lzo" else ""
        shown.append(f"{name}={parser.compression}{level}")
    shown += [name for name in ("nossd", "ssd", "notreelog", *_SHOWN) if name in flags]
    shown += sorted(name for name in flags if name.startswith("space_cache")) or ["nospace_cache"]
    shown += [name for name in _SHOWN_LAST if name in flags]
    if "fatal_errors=panic" in flags:
        shown.append("fatal_errors=panic")
    if numbers.get("commit", _COMMIT) not in (0, _COMMIT):
        shown.append(f"commit={numbers['commit']}")
    return shown
