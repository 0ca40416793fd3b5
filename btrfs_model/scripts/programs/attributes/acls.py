# SPDX-License-Identifier: GPL-2.0-only
"""getfacl and setfacl, as the acl tools 2.3 have them."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from btrfs_model.scripts.files import Stat
from btrfs_model.scripts.program import Program, options, reason, say, without_root
from btrfs_model.scripts.programs.attributes.xattrs import on_mount, xattrs
from btrfs_model.scripts.programs.find.walk import walk
from btrfs_model.scripts.programs.names import GROUPS, USERS
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_ACCESS: Final = "system.posix_acl_access"
_DEFAULT: Final = "system.posix_acl_default"
_ENTRY: Final = struct.Struct("<HHI")
_VERSION: Final = struct.pack("<I", 2)
_TAGS: Final = {"user": (0x01, 0x02), "group": (0x04, 0x08), "mask": (0x10, 0x10),
                "other": (0x20, 0x20)}  # fmt: skip
"""Tags of entries without and with a name."""
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_NO_ID: Final = 2**32 - 1
_NAMES: Final = {tag: name for name, tags in _TAGS.items() for tag in tags}
_MASKED: Final = (_USER, _GROUP_OBJ, _GROUP)

_Acl = dict[tuple[int, int], int]
"""Permissions by tag and id."""


def _read(value: bytes) -> _Acl:
    return {(tag, number): perm for tag, perm, number in _ENTRY.iter_unpack(value[4:])}


def _packed(acl: _Acl) -> bytes:
    return _VERSION + b"".join(_ENTRY.pack(tag, perm, number)
                               for (tag, number), perm in sorted(acl.items()))  # fmt: skip


def _of_mode(mode: int) -> _Acl:
    return {(_USER_OBJ, _NO_ID): mode >> 6 & 7, (_GROUP_OBJ, _NO_ID): mode >> 3 & 7,
            (_OTHER, _NO_ID): mode & 7}  # fmt: skip


def _both(computer: Computer, path: str, seen: Stat) -> tuple[_Acl, _Acl]:
    """Return the access and the default ACL of a file; the first follows from its mode."""
    place = computer.place(computer.absolute(path))
    found = {} if place is None else xattrs(place[0], place[1])
    access = _read(found[_ACCESS]) if _ACCESS in found else _of_mode(seen.mode)
    return access, _read(found[_DEFAULT]) if _DEFAULT in found else {}


def _below(
    computer: Computer, path: str, seen: Stat, *, recursive: bool
) -> Iterator[tuple[str, Stat]]:
    if not recursive:
        yield path, seen
        return
    for one, found, _ in walk(computer, path, seen, 0, 1 << 30, False):
        if not found.is_link:
            yield one, found


# --------------------------------------------------------------------------------------- shown --


_GETFACL: Final = {
    "access": "a", "default": "d", "omit-header": "c", "all-effective": "e", "no-effective": "E",
    "skip-base": "s", "recursive": "R", "numeric": "n", "absolute-names": "p",
}  # fmt: skip


def _getfacl(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "adceEsRnp", long=tuple(_GETFACL), program_name="getfacl")
    chosen = {_GETFACL.get(one, one) for one in given}
    status = 0
    told = False
    for path in paths:
        seen = computer.stat(path)
        if seen is None:
            say(shell, f"getfacl: {path}: No such file or directory\n")
            status = 1
            continue
        if path.startswith("/") and not told and "p" not in chosen and "c" not in chosen:
            told = True
            say(shell, "getfacl: Removing leading '/' from absolute path names\n")
        for one, found in _below(computer, path, seen, recursive="R" in chosen):
            shell.write(_shown(computer, one, found, chosen))
    return status


def _shown(computer: Computer, path: str, seen: Stat, given: set[str]) -> str:
    access, default = _both(computer, path, seen)
    if "s" in given and len(access) == 3 and not default:
        return ""
    text = ""
    if "c" not in given:
        name = path if "p" in given else without_root(path)
        text = (f"# file: {name}\n# owner: {_name(seen.uid, USERS, given)}\n"
                f"# group: {_name(seen.gid, GROUPS, given)}\n")  # fmt: skip
        if seen.mode & 0o7000:
            flags = zip("sst", (0o4000, 0o2000, 0o1000), strict=True)
            text += "# flags: " + "".join(one if seen.mode & bit else "-" for one, bit in flags)
            text += "\n"
    if "d" not in given or "a" in given:
        text += _lines(access, given, "")
    if "a" not in given or "d" in given:
        text += _lines(default, given, "" if "d" in given and "a" not in given else "default:")
    return text + "\n"


def _name(number: int, known: dict[str, int], given: set[str]) -> str:
    named = {each: name for name, each in known.items()} if "n" not in given else {}
    return named.get(number, str(number))


def _lines(acl: _Acl, given: set[str], before: str) -> str:
    mask = acl.get((_MASK, _NO_ID), 7)
    text = ""
    for (tag, number), perm in sorted(acl.items()):
        known = USERS if tag == _USER else GROUPS
        who = _name(number, known, given) if tag in (_USER, _GROUP) else ""
        line = f"{before}{_NAMES[tag]}:{who}:{_letters(perm)}"
        hidden = perm & ~mask if tag in _MASKED else 0
        shows_all = "e" in given and tag in _MASKED and (_MASK, _NO_ID) in acl
        if (hidden or shows_all) and "E" not in given:
            line += f"\t#effective:{_letters(perm & mask)}"
        text += line + "\n"
    return text


def _letters(perm: int) -> str:
    return "".join(one if perm & bit else "-" for one, bit in (("r", 4), ("w", 2), ("x", 1)))


# ------------------------------------------------------------------------------------- changed --


class _Entry(NamedTuple):
    """An entry that is told: of the default ACL, its tag, id, and permissions where it has them."""

    default: bool
    tag: int
    id: int
    perm: int | None
    if_executable: bool


class _WrongEntryError(Exception):
    """An entry is none; the number is that of its letter."""


def _entries(text: str, *, default: bool) -> list[_Entry]:
    found = []
    at = 1
    for one in text.split(","):
        if one.strip():
            found.append(_entry(one, at, default=default))
        at += len(one) + 1
    return found


def _entry(text: str, at: int, *, default: bool) -> _Entry:
    words = text.strip().split(":")
    if len(words) > 1 and words[0] and "default".startswith(words[0]):
        default = True
        at += len(words.pop(0)) + 1
    kind = next((name for name in _TAGS if words[0] and name.startswith(words[0])), "")
    if kind:
        at += len(words.pop(0)) + 1
    else:
        kind = "user"
    who = ""
    if kind in ("user", "group"):
        if not words:
            raise _WrongEntryError(str(at - len(text)))
        who = words.pop(0)
    elif len(words) > 1 or (words and not words[0]):
        words.pop(0)
    known = USERS if kind == "user" else GROUPS
    number = _NO_ID if not who else int(who) if who.isdigit() else known.get(who)
    if number is None:
        raise _WrongEntryError(str(at))
    perm, if_executable = None, False
    if words and words[0]:
        if not re.fullmatch(r"[rwxX-]{1,4}|[0-7]", words[0]):
            good = re.match(r"[rwxX-]{0,3}", words[0])
            raise _WrongEntryError(str(at + len(who) + 1 + (good.end() if good else 0)))
        if_executable = "X" in words[0]
        perm = int(words[0]) if words[0].isdigit() else sum(
            bit for one, bit in (("r", 4), ("w", 2), ("x", 1)) if one in words[0])  # fmt: skip
    return _Entry(default, _TAGS[kind][bool(who)], number, perm, if_executable)


class _Change:
    """What setfacl is told to do."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, list[_Entry]]] = []
        self.keeps_mask = False
        self.recursive = False

    def of(self, access: _Acl, default: _Acl, seen: Stat) -> tuple[_Acl, _Acl]:
        """Return both ACLs of a file as they are to be."""
        is_mask_told = {False: False, True: False}
        for what, entries in self.steps:
            if what == "b":
                access, default = _base(access), {}
            elif what == "k":
                default = {}
            elif what == "set":
                acl = {one.default for one in entries}
                access = {} if False in acl else access
                default = {} if True in acl else default
            for one in entries:
                acl_of = default if one.default else access
                is_mask_told[one.default] |= one.tag == _MASK
                if what == "x":
                    acl_of.pop((one.tag, one.id), None)
                    continue
                perm = one.perm or 0
                if one.if_executable and (seen.is_dir or any(p & 1 for p in acl_of.values())):
                    perm |= 1
                acl_of[one.tag, one.id] = perm
        if default:
            for key, perm in _of_mode(0).items():
                default.setdefault(key, access.get(key, perm))
        for acl_of, is_told in ((access, is_mask_told[False]), (default, is_mask_told[True])):
            if acl_of and not is_told:
                self._calculate_mask(acl_of)
        return access, default

    def _calculate_mask(self, acl: _Acl) -> None:
        key = (_MASK, _NO_ID)
        named = any(tag in (_USER, _GROUP) for tag, _ in acl)
        if (key not in acl and not named) or (self.keeps_mask and key in acl):
            return
        mask = 0
        for (tag, _), perm in acl.items():
            mask |= perm if tag in _MASKED else 0
        acl[key] = mask


def _base(acl: _Acl) -> _Acl:
    mask = acl.get((_MASK, _NO_ID), 7)
    return {key: perm & mask if key[0] == _GROUP_OBJ else perm
            for key, perm in acl.items() if key in _of_mode(0)}  # fmt: skip


def _setfacl(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    change, paths = _Change(), []
    words = list(arguments)
    default = any(re.fullmatch(r"-[a-zA-Z]*d[a-zA-Z]*", one) for one in words) or (
        "--default" in words)  # fmt: skip
    while words:
        word = words.pop(0)
        name = _LONG.get(word.split("=")[0], word)
        if not word.startswith("-") or word == "-":
            paths.append(word)
            continue
        if name == word and not re.fullmatch(r"-[bkndRPmxM]+", word):
            raise UnknownError(f"setfacl: {word}: this option is not known")
        for letter in name.removeprefix("-") if name != "set" else ["set"]:
            if letter in ("m", "x", "M", "set"):
                _, equals, told = word.partition("=")
                told = told if equals and word.startswith("--") else words.pop(0) if words else ""
                try:
                    text = _text(computer, shell, told) if letter == "M" else told
                    change.steps.append((letter.lower(), _entries(text, default=default)))
                except _WrongEntryError as wrong:
                    say(shell, f"setfacl: Option -{letter if letter != 'set' else '-set'}: "
                               f"Invalid argument near character {wrong}\n")  # fmt: skip
                    return 2
            elif letter in "bk":
                change.steps.append((letter, []))
            change.keeps_mask |= letter == "n"
            change.recursive |= letter == "R"
    if not paths or not change.steps:
        say(shell, "Usage: setfacl [-bkndRLP] { -m|-M|-x|-X ... } file ...\n"
                   "Try `setfacl --help' for more information.\n")  # fmt: skip
        return 2
    return max(_changed(computer, shell, path, change) for path in paths)


_LONG: Final = {
    "--modify": "m", "--remove": "x", "--modify-file": "M", "--remove-all": "b", "--set": "set",
    "--remove-default": "k", "--no-mask": "n", "--default": "d", "--recursive": "R",
}  # fmt: skip


def _text(computer: Computer, shell: Shell, path: str) -> str:
    """Return the entries of a file, as getfacl writes them."""
    data = shell.files[0].read() if path == "-" else computer.read(path)
    lines = (line.partition("#")[0].strip() for line in data.decode().splitlines())
    return ",".join(line for line in lines if line)


def _changed(computer: Computer, shell: Shell, path: str, change: _Change) -> int:
    top = computer.stat(path)
    if top is None:
        say(shell, f"setfacl: {path}: No such file or directory\n")
        return 1
    status = 0
    for one, seen in _below(computer, path, top, recursive=change.recursive):
        before = _both(computer, one, seen)
        access, default = change.of(dict(before[0]), dict(before[1]), seen)
        if default and not seen.is_dir:
            if change.recursive:
                default = {}
            else:
                say(shell, f"setfacl: {one}: Only directories can have default ACLs\n")
                status = 1
                continue
        wrong = next(((kind, acl) for kind, acl in (("access", access), ("default", default))
                      if _is_wrong(acl)), None)  # fmt: skip
        if wrong is not None:
            kind, acl = wrong
            short = ",".join(_lines(acl, {"E", "n"}, "").splitlines())
            say(shell, f"setfacl: {one}: Malformed {kind} ACL `{short}': Missing or wrong entry at "
                       f"entry {len(acl)}\n")  # fmt: skip
            status = 1
            continue
        try:
            _put(computer, one, before, access, default)
        except OSError as error:
            say(shell, f"setfacl: {one}: {reason(error)}\n")
            status = 1
    return status


def _is_wrong(acl: _Acl) -> bool:
    """Whether an entry is missing that an ACL must have."""
    tags = {tag for tag, _ in acl}
    return bool(acl) and (not {_USER_OBJ, _GROUP_OBJ, _OTHER} <= tags
                          or (bool({_USER, _GROUP} & tags) and _MASK not in tags))  # fmt: skip


def _put(
    computer: Computer, path: str, before: tuple[_Acl, _Acl], access: _Acl, default: _Acl
) -> None:
    mounted, inside = on_mount(computer, path)
    if access != before[0]:
        mounted.may_write(path)
        with computer.timed("setxattr"):
            mounted.fs.setxattr(inside, _ACCESS, _packed(access))
    if default != before[1]:
        mounted.may_write(path)
        with computer.timed("setxattr"):
            if default:
                mounted.fs.setxattr(inside, _DEFAULT, _packed(default))
            else:
                mounted.fs.removexattr(inside, _DEFAULT)


PROGRAMS: Final[dict[str, Program]] = {"getfacl": _getfacl, "setfacl": _setfacl}
