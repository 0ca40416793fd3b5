# SPDX-License-Identifier: GPL-2.0-only
"""Which chunks a balance moves (``should_balance_chunk()``, Linux 6.18)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntFlag
from typing import Final

from btrfs_model.ondisk.chunks import PROFILES, TYPES, Chunk
from btrfs_model.ondisk.keys import U64_MAX
from btrfs_model.ondisk.structs import DiskBalanceArgs

_U32_MAX: Final = 2**32 - 1
SINGLE: Final = 1 << 48
"""BTRFS_AVAIL_ALLOC_BIT_SINGLE: the profile single among those of a filter."""
_PROFILE_BITS: Final = {bit or SINGLE: bit for bit in PROFILES}
_NAMES: Final = {PROFILES[bit].name.lower(): mask for mask, bit in _PROFILE_BITS.items()}


class ArgsFlag(IntFlag):
    """Which filters are set (``BTRFS_BALANCE_ARGS_...``)."""

    PROFILES = 1 << 0
    USAGE = 1 << 1
    DEVID = 1 << 2
    DRANGE = 1 << 3
    VRANGE = 1 << 4
    LIMIT = 1 << 5
    LIMIT_RANGE = 1 << 6
    STRIPES_RANGE = 1 << 7
    CONVERT = 1 << 8
    SOFT = 1 << 9
    USAGE_RANGE = 1 << 10


@dataclass(frozen=True)
class Filters:
    """The filters for one kind of chunk (``struct btrfs_balance_args``).

    Of numbers that are none of a filter, `flags` has no bit.

    `profiles`, `target`: bits of block group flags, :data:`SINGLE` for single.
    `usage`: percent, or with USAGE_RANGE `usage_min` and `usage_max`.
    `devid`; `pstart`, `pend`: bytes of the device; `vstart`, `vend`: logical addresses.
    `limit`: number of chunks, or with LIMIT_RANGE `limit_min` and `limit_max`.
    `stripes_min`, `stripes_max`: number of stripes.
    """

    flags: int = 0
    profiles: int = 0
    usage: int = 0
    usage_min: int = 0
    usage_max: int = 0
    devid: int = 0
    pstart: int = 0
    pend: int = 0
    vstart: int = 0
    vend: int = 0
    target: int = 0
    limit: int = 0
    limit_min: int = 0
    limit_max: int = 0
    stripes_min: int = 0
    stripes_max: int = 0

    @classmethod
    def parse(cls, text: str) -> Filters:
        """Read filters as ``btrfs balance start -d`` takes them, such as ``usage=50,limit=2``.

        Raises ValueError: for what is none.
        """
        found = cls()
        for one in filter(None, text.split(",")):
            name, equals, value = one.partition("=")
            found = found._with(name, value if equals else None)
        if found.flags & ArgsFlag.DRANGE and not found.flags & ArgsFlag.DEVID:
            raise ValueError("drange filter must be used with devid filter")
        if found.flags & ArgsFlag.SOFT and not found.flags & ArgsFlag.CONVERT:
            raise ValueError("'soft' option can be used only when converting profiles")
        return found

    def _with(self, name: str, value: str | None) -> Filters:
        """Add one filter (``parse_filters()`` of btrfs-progs)."""
        if name == "soft" and value is None:
            return self._set(ArgsFlag.SOFT)
        if value is None or name not in _FILTERS:
            known = name in _FILTERS
            raise ValueError(f"the {name} filter requires an argument" if known
                             else f"unrecognized balance option: {name}")  # fmt: skip
        match name:
            case "profiles":
                bits = [_profile("profiles", one) for one in value.split("|")]
                return self._set(ArgsFlag.PROFILES, profiles=sum(set(bits)))
            case "convert":
                return self._set(ArgsFlag.CONVERT, target=_profile("convert", value))
            case "devid":
                return self._set(ArgsFlag.DEVID, devid=_number("devid", value, low=1))
            case "usage" | "limit":
                return self._number_or_range(name, value)
            case _:
                low, high = _range(name, value)
                first, last = {"drange": ("pstart", "pend"), "vrange": ("vstart", "vend"),
                               "stripes": ("stripes_min", "stripes_max")}[name]  # fmt: skip
                flag = ArgsFlag["STRIPES_RANGE" if name == "stripes" else name.upper()]
                most = _U32_MAX if name == "stripes" else U64_MAX
                return self._set(flag, **{first: low, last: min(high, most)})

    def _number_or_range(self, name: str, value: str) -> Filters:
        flag = ArgsFlag[name.upper()]
        if ".." not in value:
            return self._set(flag, **{name: _number(name, value, most=100 * (name == "usage"))})
        low, high = _range(name, value)
        if name == "usage" and high == U64_MAX:
            high = 100
        if name == "usage" and (low > 100 or high > 100):
            raise ValueError(f"invalid usage argument: {value}")
        ranged = ArgsFlag[f"{name.upper()}_RANGE"]
        return self._set(ranged, **{f"{name}_min": low, f"{name}_max": min(high, _U32_MAX)})

    def _set(self, flag: ArgsFlag, **values: int) -> Filters:
        return replace(self, flags=self.flags | flag, **values)

    @property
    def disk(self) -> DiskBalanceArgs:
        """As the balance item has them (``btrfs_cpu_balance_args_to_disk()``)."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in ("usage", "limit"):
            if (number := own.pop(name)) or self.flags & ArgsFlag[name.upper()]:
                own |= {f"{name}_min": number & _U32_MAX, f"{name}_max": number >> 32}
        return DiskBalanceArgs(**own, unused=(0,) * 6)

    def wants(self, chunk: Chunk, used: int, devid: int) -> bool:
        """Whether a chunk passes all filters but those of how many.

        `used`: bytes that extents take of it.
        `devid`: the device that it is on.
        """
        flags = self.flags
        own = _profile_bits(chunk.type)
        starts = chunk.stripes
        size = chunk.length
        return not (
            (flags & ArgsFlag.PROFILES and not own & self.profiles)
            or (flags & ArgsFlag.USAGE and used >= _share(size, self.usage))
            or (flags & ArgsFlag.USAGE_RANGE and not self._in_usage(size, used))
            or (flags & ArgsFlag.DEVID and devid != self.devid)
            or (flags & ArgsFlag.DRANGE
                and not any(at < self.pend and at + size > self.pstart for at in starts))
            or (flags & ArgsFlag.VRANGE
                and not (chunk.logical < self.vend and chunk.end > self.vstart))
            or (flags & ArgsFlag.STRIPES_RANGE
                and not self.stripes_min <= len(starts) <= self.stripes_max)
            or (flags & ArgsFlag.SOFT and own == self.target)
        )  # fmt: skip

    def _in_usage(self, size: int, used: int) -> bool:
        """``chunk_usage_range_filter()``."""
        low = size * self.usage_min // 100
        return low <= used < _share(size, self.usage_max)

    @property
    def most(self) -> int | None:
        """How many chunks may be moved; None: any."""
        if self.flags & ArgsFlag.LIMIT:
            return self.limit
        return self.limit_max if self.flags & ArgsFlag.LIMIT_RANGE else None


_FILTERS: Final = {"profiles", "usage", "devid", "drange", "vrange", "limit", "stripes", "convert"}


def _share(size: int, percent: int) -> int:
    """Bytes below which a chunk has to be used."""
    return size * percent // 100 if percent else 1


def _profile_bits(flags: int) -> int:
    """Return the profile of a chunk, single with a bit of its own (``chunk_to_extended()``)."""
    return flags & ~TYPES or SINGLE


def _profile(name: str, value: str) -> int:
    if value.lower() not in _NAMES:
        raise ValueError(f"unknown profile: {value}\nERROR: invalid {name} argument")
    return _NAMES[value.lower()]


def _number(name: str, value: str, *, low: int = 0, most: int = 0) -> int:
    is_number = value.isascii() and value.isdigit()
    if not is_number or not low <= int(value) <= (most or U64_MAX):
        shown = "Invalid" if name == "limit" else "invalid"
        raise ValueError(f"{shown} {name} argument: {value}")
    return int(value)


def _range(name: str, value: str) -> tuple[int, int]:
    """Read ``from..to``, of which one may be left out."""
    low, dots, high = value.partition("..")
    if not dots or not (low or high):
        raise ValueError(f"invalid {name} argument: {value}")
    first, last = _number(name, low or "0"), _number(name, high) if high else U64_MAX
    if first > last:
        raise ValueError(f"range {value} doesn't make sense\nERROR: invalid {name} argument")
    return first, last
