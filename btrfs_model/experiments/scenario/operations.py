# SPDX-License-Identifier: GPL-2.0-only
"""The vocabulary of scenarios: each operation, its arguments, and what they may be.

An operation is a JSON list, the name first::

    ["mkdir", "d"]   ["create", "d/f", 420]   ["write", "d/f", 0, 8192, ["pat", "a"]]   ["sync"]

Arguments at the end of the list may be left out where they have a default. An object as the last
element says how the call ended when the scenario was recorded: ``{"err": "EEXIST"}``; the model has
to fail the same way then.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.mount.calls.quotas import group_id


class ScenarioError(BtrfsModelError):
    """A scenario that is not well formed, or a step of it that did not end as it should.

    Attributes
    ----------
    path : str
        The scenario's file.
    step : int
        Number of the operation, from 1; 0 for the scenario as a whole.
    """

    def __init__(self, path: str, step: int, message: str) -> None:
        self.path = path
        self.step = step
        super().__init__(f"{path}: step {step}: {message}" if step else f"{path}: {message}")


_MISSING = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument of an operation: its name, what it must be, and what it is when left out."""

    name: str
    check: Callable[[Any], Any]
    default: Any = _MISSING


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation: its name, its arguments, and one line about it."""

    name: str
    parameters: tuple[Parameter, ...]
    what: str


@dataclass(frozen=True, slots=True)
class Step:
    """An operation with its arguments.

    Attributes
    ----------
    number : int
        From 1.
    name : str
        Of the operation.
    arguments : mapping
        By the names of the parameters.
    ended : mapping
        What was recorded of the call: ``err``, the name of an errno.
    """

    number: int
    name: str
    arguments: Mapping[str, Any]
    ended: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = [_shown(value) for value in self.arguments.values() if value is not None]
        return " ".join([self.name, *given])


def _shown(value: object) -> str:
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---------------------------------------------------------------------------- kinds of arguments --


def _path(value: Any) -> bytes:
    """Return a path from the top of the filesystem; lone surrogates are bytes, not UTF-8."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("a path (a string without a zero byte)")
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError("a path (its bytes that are no UTF-8 as U+DC80 to U+DCFF)") from None


def _optional_path(value: Any) -> bytes | None:
    return None if value is None else _path(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value or not _is_unicode(value):
        raise ValueError("a string (of Unicode, without a zero byte)")
    return value


def _is_unicode(text: str) -> bool:
    """Whether there is no lone surrogate in a string."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _any_text(value: Any) -> str:
    """Return what an attribute shall be: any string, or hexadecimal digits."""
    if not isinstance(value, str) or not _is_unicode(value):
        raise ValueError("a string (of Unicode)")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("a whole number")
    return value


def _below(limit: int, shown: str) -> Callable[[Any], int]:
    """Numbers from 0 to `limit` - 1, and how the largest is written in errors."""

    def check(value: Any) -> int:
        if not 0 <= _whole(value) < limit:
            raise ValueError(f"a whole number from 0 to {shown}")
        return int(value)

    return check


_size = _below(2**63, "2^63 - 1")
_mode = _below(2**32, "2^32 - 1")
_major = _below(1 << 12, "4095")
_minor = _below(1 << 20, "2^20 - 1")
# MAX_RW_COUNT: one call writes no more
_written = _below(2**31 - 4096 + 1, "2^31 - 4096")


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _uuid(value: Any) -> str:
    try:
        return UUID(value).hex
    except (ValueError, AttributeError, TypeError):
        raise ValueError("a uuid") from None


def _group(value: Any) -> int:
    """Return the number of a quota group, which is also called level/id."""
    if not isinstance(value, bool):
        with suppress(ValueError):
            return group_id(value if isinstance(value, str) else _size(value))
    raise ValueError("a quota group (level/id)")


def _groups(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise ValueError("a list of quota groups")
    return [_group(one) for one in value]


def _limit(value: Any) -> int:
    if _whole(value) < -1:
        raise ValueError("a number of bytes, or -1 for no limit")
    return int(value)


def _words(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ValueError("a list of strings")
    return value


def _fill(value: Any) -> Any:
    """Return what is written: see :func:`~btrfs_model.kernels.inside.fill.data_of`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    words = value if isinstance(value, list) else []
    if all(isinstance(word, str) and _is_unicode(word) for word in words) and (
        words == ["zero"] or (len(words) == 2 and words[0] in ("pat", "rnd", "text", "mix"))
    ):
        return tuple(words)
    raise ValueError(
        'a number, ["zero"], ["pat", TAG], ["rnd", TAG], ["text", TAG] or ["mix", TAG]'
    )


# ------------------------------------------------------------------------------- the operations --

_P = Parameter


def _operation(name: str, what: str, *parameters: Parameter) -> Operation:
    return Operation(name, parameters, what)


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        _operation("mkfs", "a new filesystem; options of mkfs.btrfs", _P("options", _words, ())),
        _operation("mount", "mount it; options of mount", _P("options", _text, "rw")),
        _operation("remount", "unmount and mount: no inode stays in memory",
                   _P("options", _text, None)),
        _operation("mkdir", "mkdir(2)", _P("path", _path), _P("mode", _mode, None)),
        _operation("create", "open(2), O_CREAT|O_EXCL", _P("path", _path),
                   _P("mode", _mode, 0o644)),
        _operation("mknod", "mknod(2)", _P("path", _path), _P("mode", _mode),
                   _P("major", _major, 0), _P("minor", _minor, 0)),
        _operation("symlink", "symlink(2)", _P("target", _path), _P("path", _path)),
        _operation("link", "link(2)", _P("old", _path), _P("new", _path)),
        _operation("unlink", "unlink(2)", _P("path", _path)),
        _operation("rmdir", "rmdir(2)", _P("path", _path)),
        _operation("rename", "rename(2)", _P("old", _path), _P("new", _path)),
        _operation("exchange", "renameat2(2), RENAME_EXCHANGE", _P("old", _path),
                   _P("new", _path)),
        _operation("write", "pwrite(2)", _P("path", _path), _P("offset", _size),
                   _P("length", _written), _P("fill", _fill)),
        _operation("truncate", "truncate(2)", _P("path", _path), _P("size", _size)),
        _operation("fallocate", "fallocate(2)", _P("path", _path), _P("mode", _mode),
                   _P("offset", _size), _P("length", _size)),
        _operation("clone", "ioctl FICLONE", _P("source", _path), _P("target", _path)),
        _operation("clone_range", "ioctl FICLONERANGE", _P("source", _path),
                   _P("source_offset", _size), _P("length", _size), _P("target", _path),
                   _P("target_offset", _size)),
        _operation("dedupe", "ioctl FIDEDUPERANGE", _P("source", _path),
                   _P("source_offset", _size), _P("length", _size), _P("target", _path),
                   _P("target_offset", _size)),
        _operation("chmod", "chmod(2)", _P("path", _path), _P("mode", _mode)),
        _operation("chown", "lchown(2)", _P("path", _path), _P("uid", _whole), _P("gid", _whole)),
        _operation("utimes", "utimensat(2), nanoseconds", _P("path", _path), _P("atime", _whole),
                   _P("mtime", _whole)),
        _operation("setxattr", "lsetxattr(2)", _P("path", _path), _P("name", _text),
                   _P("value", _any_text)),
        _operation("removexattr", "lremovexattr(2)", _P("path", _path), _P("name", _text)),
        _operation("chattr", "ioctl FS_IOC_SETFLAGS: bits to set and to clear", _P("path", _path),
                   _P("set", _size), _P("clear", _size, 0)),
        _operation("subvol_create", "a new subvolume, in quota groups", _P("path", _path),
                   _P("groups", _groups, None)),
        _operation("subvol_delete", "delete a subvolume", _P("path", _path)),
        _operation("snapshot", "snapshot a subvolume", _P("source", _path), _P("path", _path),
                   _P("read_only", _flag, False), _P("groups", _groups, None)),
        _operation("set_read_only", "make a subvolume read-only, or writable", _P("path", _path),
                   _P("read_only", _flag, True)),
        _operation("set_received", "ioctl SET_RECEIVED_SUBVOL: what a subvolume was made from",
                   _P("path", _path), _P("uuid", _uuid), _P("transid", _size)),
        _operation("quota_enable", "btrfs quota enable, and count", _P("simple", _flag, False)),
        _operation("quota_disable", "btrfs quota disable"),
        _operation("quota_rescan", "btrfs quota rescan -w"),
        _operation("qgroup_create", "btrfs qgroup create", _P("group", _group)),
        _operation("qgroup_destroy", "btrfs qgroup destroy", _P("group", _group)),
        _operation("qgroup_assign", "btrfs qgroup assign --no-rescan", _P("member", _group),
                   _P("group", _group)),
        _operation("qgroup_remove", "btrfs qgroup remove --no-rescan", _P("member", _group),
                   _P("group", _group)),
        _operation("qgroup_limit", "btrfs qgroup limit: bytes referred to, bytes alone",
                   _P("group", _group), _P("max_rfer", _limit), _P("max_excl", _limit)),
        _operation("receive", "btrfs send [-p PARENT] SNAPSHOT | btrfs receive recv",
                   _P("snapshot", _path), _P("parent", _optional_path, None)),
        _operation("mkfiles", "create the empty files DIR/PREFIX<FIRST..LAST>",
                   _P("path", _path), _P("prefix", _text), _P("first", _size), _P("last", _size)),
        _operation("fillfiles", "create DIR/PREFIX<FIRST..LAST> with data, until it fails",
                   _P("path", _path), _P("prefix", _text), _P("first", _size), _P("last", _size),
                   _P("length", _written), _P("fill", _fill)),
        _operation("rmfiles", "unlink every STEPth of them", _P("path", _path),
                   _P("prefix", _text), _P("first", _size), _P("last", _size), _P("step", _size)),
        _operation("chmodfiles", "chmod every STEPth of them to 0600", _P("path", _path),
                   _P("prefix", _text), _P("first", _size), _P("last", _size), _P("step", _size)),
        _operation("fsync", "fsync(2)", _P("path", _path)),
        _operation("fdatasync", "fdatasync(2)", _P("path", _path)),
        _operation("fiemap", "ioctl FS_IOC_FIEMAP; data that wait may be written before",
                   _P("path", _path), _P("sync", _flag, False)),
        _operation("open", "open(2): what has no name any more stays while it is open",
                   _P("path", _path), _P("handle", _text)),
        _operation("fsyncfd", "fsync(2) of an open file", _P("handle", _text)),
        _operation("close", "close(2)", _P("handle", _text)),
        _operation("sync", "syncfs(2): a commit"),
        _operation("crash", "keep the device as it is now: the last commit and synced logs"),
    )
}  # fmt: skip
"""All operations by name, in the order in which they are described."""

ERRNOS = {name: number for name, number in vars(errno).items() if name.startswith("E")}
"""Numbers of errors by name."""

ALIASES = {"subvol": "subvol_create", "subvoldel": "subvol_delete"}
"""Other names of operations."""


def parse_step(path: str, number: int, line: Any, *, hex_values: bool = False) -> Step:
    """Validate an operation.

    Parameters
    ----------
    path : str
        The scenario's file, for errors.
    number : int
        Of the operation, from 1.
    line : object
        The parsed JSON.
    hex_values : bool
        The values of extended attributes are written in hexadecimal.

    Raises
    ------
    ScenarioError
        When it is no operation, or an argument is missing, too many or of the wrong kind.
    """
    if not isinstance(line, list) or not line or not isinstance(line[0], str):
        raise ScenarioError(path, number, "an operation is a list that begins with its name")
    name = ALIASES.get(line[0], line[0])
    operation = OPERATIONS.get(name)
    if operation is None:
        near = did_you_mean(name, [*OPERATIONS, *ALIASES])
        raise ScenarioError(path, number, f"unknown operation {name!r}{near}")
    given = list(line[1:])
    ended = given.pop() if given and isinstance(given[-1], dict) else {}
    try:
        _check_end(name, ended)
        arguments = _arguments(operation, given)
        if name == "setxattr" and hex_values:
            _check_hex(arguments["value"])
    except ValueError as error:
        raise ScenarioError(path, number, f"{name}: {error}") from None
    return Step(number, name, arguments, ended)


def _check_end(name: str, ended: dict[str, Any]) -> None:
    """See that it is known what was recorded; ``rc`` and messages are those of ``receive``."""
    for member, value in ended.items():
        if member == "err" and isinstance(value, str):
            if value and name != "receive" and value not in ERRNOS:
                raise ValueError(f"unknown errno {value!r}")
        elif member != "rc" or name != "receive":
            raise ValueError(f"how it ended cannot be {member!r}: {value!r}")


def _check_hex(value: str) -> None:
    try:
        bytes.fromhex(value)
    except ValueError:
        raise ValueError("value must be hexadecimal") from None


def _arguments(operation: Operation, given: list[Any]) -> dict[str, Any]:
    """Return the arguments by name, those left out as what they are by default."""
    if len(given) > len(operation.parameters):
        raise ValueError(f"takes {len(operation.parameters)} arguments")
    arguments = {}
    for at, parameter in enumerate(operation.parameters):
        if at < len(given):
            try:
                arguments[parameter.name] = parameter.check(given[at])
            except ValueError as wanted:
                raise ValueError(f"{parameter.name} must be {wanted}") from None
        elif parameter.default is _MISSING:
            raise ValueError(f"{parameter.name} is missing")
        else:
            arguments[parameter.name] = parameter.default
    if "step" in arguments and not arguments["step"]:
        raise ValueError("step must not be 0")
    return arguments
