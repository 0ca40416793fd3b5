# SPDX-License-Identifier: GPL-2.0-only
"""Extents as ``filefrag -v`` (e2fsprogs 1.47) and ``xfs_io -c fiemap`` (6.1) show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import UnknownNameError
from btrfs_model.base.tables import plural
from btrfs_model.questions.fiemap.file import Flag

if TYPE_CHECKING:
    from pandas import DataFrame

_STYLES: Final = ("filefrag", "xfs_io", "xfs_io -l", "xfs_io -v")
_NAMES: Final = {flag: name.lower() for name, flag in Flag.__members__.items()} | {
    Flag.UNKNOWN: "unknown_loc", Flag.DATA_INLINE: "inline",
}  # fmt: skip
_LOGICAL, _PHYSICAL = 8, 10
_FILE, _BLOCKS, _TOTAL = 16, 16, 5
_SECTOR: Final = 512


@checked
def fiemap_text(
    rows: DataFrame, name: str, size: int, *, style: str = "filefrag", blocksize: int = 4096,
    start: int = 0, end: int | None = None,
) -> str:  # fmt: skip
    """Write the extents of a file as a program of the host does.

    Parameters
    ----------
    rows : pandas.DataFrame
        From ``bm.fiemap()`` of the whole file.
    name : str
        What the file is called.
    size : int
        Its size in bytes.
    style : str
        ``filefrag`` (``filefrag -v``, without the line of the filesystem's type), ``xfs_io``
        (``xfs_io -c fiemap``), ``xfs_io -l`` or ``xfs_io -v`` (``xfs_io -c "fiemap -v"``).
    blocksize : int
        Of the filesystem, for filefrag.
    start, end : int
        The range that xfs_io is asked for, bytes; without it all of the file.

    Returns
    -------
    str
        Lines, each with its end.

    Raises
    ------
    UnknownNameError
        For another style.
    """
    if style not in _STYLES:
        raise UnknownNameError("style", style, _STYLES)
    extents = list(
        zip(*(rows[column].tolist() for column in ("logical", "physical", "length", "flags")),
            strict=True)
    )  # fmt: skip
    if style == "filefrag":
        lines = _filefrag(extents, name, size, blocksize)
    else:
        within = extents if end is None else [one for one in extents if one[0] < end]
        last = size if end is None else min(size, end)
        lines = _xfs_io(within, name, (start, last), style)
    return "".join(f"{line}\n" for line in lines)


def _filefrag(
    extents: list[tuple[int, int, int, int]], name: str, size: int, blocksize: int
) -> list[str]:
    blocks = -(-size // blocksize)
    lines = [f"File size of {name} is {size} ({blocks} block{'' if blocks == 1 else 's'} of "
             f"{blocksize} bytes)"]  # fmt: skip
    logical_width, count, expected = max(_LOGICAL, len(str(blocks))), 0, 0
    if extents:
        lines.append(
            f" ext: {'logical_offset:':>{2 * logical_width + 3}} "
            f"{'physical_offset:':>{2 * _PHYSICAL + 3}} length: "
            f"{'expected:':>{_PHYSICAL + 1}} flags:"
        )
    before = 0
    for number, (logical, physical, length, flags) in enumerate(extents):
        unit = 1 if flags & Flag.DATA_INLINE else blocksize
        # a hole of the file may be one on the disk, or none
        dense, expected = expected, expected + logical - before
        breaks = logical != 0 and physical not in (expected, dense)
        count = count + 1 if breaks else max(count, 1)
        at, on, many = logical // unit, physical // unit, -(-length // unit)
        last, placed = at + many - 1, on + many - 1
        if flags & Flag.UNKNOWN:
            # it is nowhere yet
            placed = on = many = 0
            breaks = False
        shown = f"{expected // unit:{_PHYSICAL}}:" if breaks else " " * (_PHYSICAL + 1)
        names = [name for flag, name in _NAMES.items() if flags & flag]
        told = " " * bool(names) + ",".join(names) + ",eof" * (logical + length >= size)
        lines.append(
            f"{number:4}: {at:{logical_width}}..{last:{logical_width}}: "
            f"{on:{_PHYSICAL}}..{placed:{_PHYSICAL}}: {many:6}: {shown}{told}"
        )
        before, expected = logical + length, physical + length
    return [*lines, f"{name}: {plural(count, 'extent')} found".replace(",", "")]


def _xfs_io(
    extents: list[tuple[int, int, int, int]], name: str, within: tuple[int, int], style: str
) -> list[str]:
    rows: list[tuple[str, str, int, str]] = []
    end, size = within
    extents = [one for one in extents if one[0] + one[2] > end]
    if not extents:
        return [f"{name}:"]
    # extents may lie behind the end of the file
    for logical, physical, length, flags in [*extents, (size, -1, 0, 0)]:
        if logical > end:
            rows.append((_sectors(end, logical - end), "hole", logical - end, ""))
        if physical >= 0:
            place = _sectors(physical, length)
            rows.append((_sectors(logical, length), place, length, f"0x{flags:x}"))
        end = max(end, logical + length)
    if style != "xfs_io -v":
        long = style == "xfs_io -l"
        return [f"{name}:", *(f"\t{number}: [{file}]: {place}"
                              + f" {length // _SECTOR} blocks" * long
                              for number, (file, place, length, _) in enumerate(rows))]  # fmt: skip
    file_width = max([_FILE, *(len(file) + 3 for file, *_ in rows)])
    width = max([_BLOCKS, *(len(place) for _, place, *_ in rows)])
    head = (f"{'EXT':>4}: {'FILE-OFFSET':<{file_width}} {'BLOCK-RANGE':<{width}} "
            f"{'TOTAL':>{_TOTAL}} FLAGS")  # fmt: skip
    lines = [f"{name}:", head]
    for number, (file, place, length, flag) in enumerate(rows):
        line = (f"{number:4}: {f'[{file}]:':<{file_width}} {place:<{width}} "
                f"{length // _SECTOR:>{_TOTAL}}")  # fmt: skip
        lines.append(f"{line} {flag:>5}" if flag else line)
    return lines


def _sectors(start: int, length: int) -> str:
    return f"{start // _SECTOR}..{(start + length) // _SECTOR - 1}"
