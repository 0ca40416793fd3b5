# SPDX-License-Identifier: GPL-2.0-only
"""setcap and getcap of libcap 2.66."""

from __future__ import annotations

import errno
import re
import struct
from collections import Counter
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.program import Program, options, reason, say
from btrfs_model.scripts.programs.attributes.xattrs import file_xattrs, on_mount
from btrfs_model.scripts.programs.find.walk import walk
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_XATTR: Final = "security.capability"
_LAYOUT: Final = struct.Struct("<5I")
_REVISION: Final = 2 << 24
_TOLD: Final = """
    chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable
    net_bind_service net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio
    sys_chroot sys_ptrace sys_pacct sys_admin sys_boot sys_nice sys_resource sys_time
    sys_tty_config mknod lease audit_write audit_control setfcap mac_override mac_admin syslog
    wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore
"""
_NAMES: Final = tuple(_TOLD.split())
"""Capabilities, by their numbers."""
_EFFECTIVE, _PERMITTED, _INHERITABLE = 1, 2, 4
_LETTERS: Final = {"e": _EFFECTIVE, "i": _INHERITABLE, "p": _PERMITTED}

_Sets = list[int]
"""Of each capability the sets that it is in."""


class _NoCapabilitiesError(Exception):
    """A text says no capabilities."""


def _parsed(text: str) -> _Sets:
    """Read what setcap is told, as cap_from_text() does."""
    sets = [0] * len(_NAMES)
    for clause in text.split():
        found = re.fullmatch(r"([\w,]*)((?:[-+=][eip]*)+)", clause)
        if found is None:
            raise _NoCapabilitiesError
        chosen = [_number(one) for one in found[1].split(",")] if found[1] else []
        if not found[1] and found[2][0] != "=":
            raise _NoCapabilitiesError
        for sign, letters in re.findall("([-+=])([eip]*)", found[2]):
            bits = sum(_LETTERS[one] for one in set(letters))
            for at in range(len(sets)):
                if chosen and at not in chosen and -1 not in chosen:
                    continue
                sets[at] = {"=": bits, "+": sets[at] | bits, "-": sets[at] & ~bits}[sign]
    if not text.split():
        raise _NoCapabilitiesError
    return sets


def _number(name: str) -> int:
    """Return the number of a capability; -1 for all."""
    name = name.lower()
    if name == "all":
        return -1
    if name.isdigit() and int(name) < len(_NAMES):
        return int(name)
    if name.removeprefix("cap_") not in _NAMES or not name.startswith("cap_"):
        raise _NoCapabilitiesError
    return _NAMES.index(name.removeprefix("cap_"))


def _text(sets: _Sets) -> str:
    """Write sets as cap_to_text() does: what most have, then those that differ."""
    base = max(Counter(sets).items(), key=lambda one: (one[1], -one[0]))[0]
    parts = ["=" + _flags(base)] if base else []
    for bits in range(7, -1, -1):
        names = ",".join(f"cap_{name}" for name, one in zip(_NAMES, sets, strict=True)
                         if one == bits)  # fmt: skip
        if bits == base or not names:
            continue
        more, less = _flags(bits & ~base), _flags(base & ~bits)
        sign = "+" if parts else "="
        parts.append(names + (sign + more) * bool(more) + f"-{less}" * bool(less))
    return " ".join(parts) or "="


def _flags(bits: int) -> str:
    return "".join(letter for letter, bit in _LETTERS.items() if bits & bit)


def _packed(sets: _Sets) -> bytes | None:
    """Return the bytes of the xattr; None where a file cannot have these."""
    effective = any(one & _EFFECTIVE for one in sets)
    if effective and any(one & (_PERMITTED | _INHERITABLE) and not one & _EFFECTIVE
                         for one in sets):  # fmt: skip
        return None
    permitted, inheritable = (sum(1 << at for at, one in enumerate(sets) if one & bit)
                              for bit in (_PERMITTED, _INHERITABLE))  # fmt: skip
    low = (1 << 32) - 1
    return _LAYOUT.pack(_REVISION | effective, permitted & low, inheritable & low,
                        permitted >> 32, inheritable >> 32)  # fmt: skip


def _read(value: bytes) -> _Sets:
    magic, low, low_inheritable, high, high_inheritable = _LAYOUT.unpack(value[: _LAYOUT.size])
    permitted, inheritable = high << 32 | low, high_inheritable << 32 | low_inheritable
    sets = []
    for at in range(len(_NAMES)):
        one = _PERMITTED * (permitted >> at & 1) | _INHERITABLE * (inheritable >> at & 1)
        sets.append(one | _EFFECTIVE if one and magic & 1 else one)
    return sets


def _setcap(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, words = options(arguments, "qvr", program_name="setcap")
    pairs = [("", path) for path in words] if "r" in given else list(
        zip(words[::2], words[1::2], strict=False))  # fmt: skip
    if not pairs or ("r" not in given and len(words) % 2):
        raise UnknownError("setcap: say capabilities and a file")
    for text, path in pairs:
        try:
            sets = _parsed(text) if text else None
        except _NoCapabilitiesError:
            raise UnknownError(f"setcap: {text}: these capabilities are not known") from None
        status = _verify(computer, shell, path, sets or []) if "v" in given else _set(
            computer, shell, path, sets)  # fmt: skip
        if status:
            return status
    return 0


def _set(computer: Computer, shell: Shell, path: str, sets: _Sets | None) -> int:
    seen = computer.stat(path, follow=False)
    value = None if sets is None else _packed(sets)
    if sets is not None and value is None:
        say(
            shell,
            "NOTE: Under Linux, effective file capabilities must either be empty, or\n"
            "      exactly match the union of selected permitted and inheritable bits.\n",
        )
    if seen is not None and (not seen.is_file or (sets is not None and value is None)):
        say(shell, f"Invalid file '{path}' for capability operation\n")
        return 1
    try:
        mounted, inside = on_mount(computer, path)
        mounted.may_write(path)
        with computer.timed("setxattr"):
            if value is None:
                mounted.fs.removexattr(inside, _XATTR)
            else:
                mounted.fs.setxattr(inside, _XATTR, value)
    except OSError as error:
        if error.errno == errno.ENODATA:
            say(shell, f"File '{path}' has no capablity to remove\n")  # codespell:ignore
        else:
            say(shell, f"Failed to set capabilities on file '{path}': {reason(error)}\n")
        return 1
    return 0


def _verify(computer: Computer, shell: Shell, path: str, sets: _Sets) -> int:
    value = file_xattrs(computer, path, follow=True).get(_XATTR)
    found = _read(value) if value is not None else [0] * len(_NAMES)
    differs = 0
    for one, other in zip(found, sets, strict=True):
        differs |= one ^ other
    letters = "".join(letter for letter in "pie" if differs & _LETTERS[letter])
    shell.write(f"{path} differs in [{letters}]\n" if differs else f"{path}: OK\n")
    return int(bool(differs))


def _getcap(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "rv", program_name="getcap")
    for path in paths:
        seen = computer.stat(path, follow=False)
        if seen is None:
            say(shell, f"{path} (No such file or directory)\n")
            continue
        below = walk(computer, path, seen, 0, 1 << 30, False)
        for one, found, _ in below if "r" in given else [(path, seen, 0)]:
            if not found.is_file:
                if "v" in given:
                    shell.write(f"{one} (Not a regular file)\n")
                continue
            value = file_xattrs(computer, one, follow=False).get(_XATTR)
            if value is not None:
                shell.write(f"{one} {_text(_read(value))}\n")
            elif "v" in given:
                shell.write(f"{one}\n")
    return 0


PROGRAMS: Final[dict[str, Program]] = {"setcap": _setcap, "getcap": _getcap}
