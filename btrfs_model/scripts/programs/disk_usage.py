# SPDX-License-Identifier: GPL-2.0-only
"""How much space there is, and who takes it: df, du."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.files import Stat
from btrfs_model.scripts.program import Program, human_size, options, say, size_of
from btrfs_model.scripts.programs.find.walk import walk
from btrfs_model.scripts.programs.statfs import BLOCK, statfs
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.scripts.mounted import Mounted
    from btrfs_model.shell.state import Shell


def _df(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "TPkhmai", "Btx", long=("block-size=", "type="),
                           program_name="df")  # fmt: skip
    if "i" in given:
        raise UnknownError("df: -i is not known")
    status, found = 0, [] if paths else list(computer.mounts.values())
    for path in paths:
        seen = computer.stat(path)
        mounted = computer.mounted_at(path)
        place = computer.place(computer.absolute(path))
        if seen is None:
            say(shell, f"df: {path}: No such file or directory\n")
            status = 1
        elif mounted is not None or place is not None:
            found.append(mounted or place[0])  # type: ignore[index]
    if not found:
        if not status:
            say(shell, "df: no file systems processed\n")
        return 1
    unit = 1 << 20 if "m" in given else size_of(given.get("B", given.get("block-size", "1K")))
    head = "Size" if "h" in given else "1M-blocks" if unit == 1 << 20 else (
        "1024-blocks" if "P" in given else "1K-blocks")  # fmt: skip
    full = "Avail" if "h" in given else "Available"
    rows = [["Filesystem", "Type", head, "Used", full,
             "Capacity" if "P" in given else "Use%", "Mounted on"]]  # fmt: skip
    rows += [_row(one, unit, "h" in given) for one in found]
    widths = [max(least, *(len(row[at]) for row in rows))
              for at, least in enumerate((14, 4, 5, 5, 5, 4, 0))]  # fmt: skip
    for row in rows:
        told = [one.ljust(width) if at in (0, 1, 6) else one.rjust(width)
                for at, (one, width) in enumerate(zip(row, widths, strict=True))
                if at != 1 or "T" in given]  # fmt: skip
        shell.write(" ".join(told).rstrip() + "\n")
    return status


def _row(mounted: Mounted, unit: int, human: bool) -> list[str]:
    seen = statfs(mounted.fs)
    used = seen.blocks - seen.free
    whole = used + seen.available
    share = -(-100 * used // whole) if whole else 0

    def told(blocks: int) -> str:
        return human_size(blocks * BLOCK) if human else str(-(-blocks * BLOCK // unit))

    return [mounted.source, "btrfs", told(seen.blocks), told(used), told(seen.available),
            f"{share}%", mounted.where]  # fmt: skip


def _du(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "sakmcbh", "dB",
                           long=("apparent-size", "block-size=", "max-depth="),
                           program_name="du")  # fmt: skip
    unit = 1 << 20 if "m" in given else size_of(given.get("B", given.get("block-size", "1K")))
    unit = 1 if "b" in given else unit
    apparent = bool({"b", "apparent-size"} & set(given))
    if "h" in given:
        raise UnknownError("du: -h is not known")
    deepest = 0 if "s" in given else int(given.get("d", given.get("max-depth", 1 << 30)))
    status = total = 0
    met: set[tuple[int, int]] = set()
    for path in paths or ["."]:
        seen = computer.stat(path, follow=False)
        if seen is None:
            say(shell, f"du: cannot access '{path}': No such file or directory\n")
            status = 1
            continue
        sums: dict[str, int] = {}
        for place, one, level in walk(computer, path, seen, 0, 1 << 30, True):
            if one.same in met:
                continue
            met.add(one.same)
            size = sums.pop(place, 0) + _size(one, apparent)
            if level:
                above = posixpath.dirname(place)
                sums[above] = sums.get(above, 0) + size
            else:
                total += size
            if not level or (level <= deepest and (one.is_dir or "a" in given)):
                shell.write(f"{-(-size // unit)}\t{place}\n")
    if "c" in given:
        shell.write(f"{-(-total // unit)}\ttotal\n")
    return status


def _size(seen: Stat, apparent: bool) -> int:
    return seen.size if apparent else seen.blocks * 512


PROGRAMS: Final[dict[str, Program]] = {"df": _df, "du": _du}
