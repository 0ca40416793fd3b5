# SPDX-License-Identifier: GPL-2.0-only
"""Devices by name: the parameters in ``data/devices/*.toml``, and what the models make of them.

A file holds the figures as they were published (milliseconds, megabytes per second, revolutions per
minute) and, in its table ``provenance``, where each of them comes from. The models count whole
nanoseconds; :func:`load` turns the one into the other.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.samples import data_folder
from btrfs_model.cost.seek import seek_times

_MS = 1_000_000
_US = 1000
_MOST = 2**32
_LONGEST = 10**12
"""Nanoseconds: no single time of a device is longer."""
_SLOWEST_MB_S = 0.001
_MOST_SEGMENTS = 1 << 16
"""As the C kernel has it."""
_PLACES = 1 << 20
"""Most places of a queue, and most dies, that the C kernel takes."""
_GENERAL = {"title", "kind", "provenance", "published", "unpublished"}
_QUEUE = {
    "queue_depth": 32,
    "elevator": "mq-deadline",
    "fifo_batch": 16,
    "read_expire_ms": 500,
    "max_request_kib": 1280,
}
"""Keys that any device may have, with what Linux does."""
_DISK = {
    "heads", "sector_size", "rpm", "zones", "seek", "head_switch_ms", "write_settle_ms",
    "miss_overhead_ms", "hit_overhead_ms", "write_overhead_ms", "completion_ms", "reselect_ms",
    "link_mb_s", "watermark", "segments", "segment_sectors", "read_ahead_sectors", "order",
}  # fmt: skip
_FLASH = {
    "capacity_gb", "channels", "dies", "page_size", "command_us", "overhead_us", "sense_us",
    "channel_mb_s", "link_mb_s",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Zone:
    """Cylinders with the same number of sectors on a track; ``struct bm_disk_zone``."""

    first_sector: int
    sectors: int
    first_cylinder: int
    cylinders: int
    first_track: int
    sectors_per_track: int
    track_skew: int
    cylinder_skew: int


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk drive; ``struct bm_disk``, times in nanoseconds."""

    zones: tuple[Zone, ...]
    seek_time: tuple[int, ...]
    heads: int
    sector_size: int
    revolution: int
    head_switch: int
    write_settle: int
    miss_overhead: int
    hit_overhead: int
    write_overhead: int
    completion: int
    reselect: int
    link_sector: int
    watermark: int
    segments: int
    segment_size: int
    read_ahead: int
    shortest_first: bool


@dataclass(frozen=True, slots=True)
class Flash:
    """Flash packages behind channels; ``struct bm_flash``, times in nanoseconds.

    ``channel_byte`` and ``link_byte`` are picoseconds.
    """

    channels: int
    dies: int
    page_size: int
    command: int
    overhead: int
    sense: int
    channel_byte: int
    link_byte: int


@dataclass(frozen=True, slots=True)
class Device:
    """A device and the queues before it; ``struct bm_device``.

    Attributes
    ----------
    name : str
        What was asked for.
    model : Disk or Flash
        How long its requests take.
    capacity : int
        Bytes.
    queue_depth : int
        Requests that it takes at once; the others wait in the elevator.
    elevator : str
        ``"none"`` or ``"mq-deadline"``.
    fifo_batch, read_expire, max_request : int
        Of mq-deadline: requests of a sweep, nanoseconds until the oldest goes first, bytes that
        merging stops at.
    """

    name: str
    model: Disk | Flash
    capacity: int
    queue_depth: int
    elevator: str
    fifo_batch: int
    read_expire: int
    max_request: int


def names() -> list[str]:
    """Names of the devices that there are files of."""
    return sorted(path.stem for path in (data_folder() / "devices").glob("*.toml"))


def read_file(name: str) -> dict[str, Any]:
    """Return the file of a device as it stands: one of :func:`names`, or the path ``*.toml``.

    Raises
    ------
    BtrfsModelError
        When there is none, or it is no TOML with a title.
    OSError
        When the file of a path cannot be read.
    """
    if name.endswith(".toml") or "/" in name:
        path = Path(name)
    elif name in names():
        path = data_folder() / "devices" / f"{name}.toml"
    else:
        near = did_you_mean(name, names())
        raise BtrfsModelError(
            f"no device {name!r}: there is {', '.join(names())}, "
            f"or the path of a file NAME.toml{near}"
        )
    table = read_toml(path)
    if not isinstance(table.get("title"), str):
        raise BtrfsModelError(f"{path}: there is no title")
    return table


def read_toml(path: Path) -> dict[str, Any]:
    """Return a file of TOML.

    Raises
    ------
    BtrfsModelError
        When it is none, with the file and the place.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BtrfsModelError(f"{path}: {error}") from None


def load(name: str, parameters: Mapping[str, object] | None = None) -> Device:
    """Return a device.

    Parameters
    ----------
    name : str
        One of :func:`names`, e.g. ``"deskstar-7k500"``, or the path of a file ``*.toml``.
    parameters : mapping, optional
        Parameters other than the file's, e.g. ``{"queue_depth": 1, "rpm": 5400}``.

    Raises
    ------
    BtrfsModelError
        For an unknown device or parameter, or values that make no device.
    """
    return build(name, read_file(name), parameters)


def ends(name: str) -> list[dict[str, object]]:
    """Return what else a device may be: parameters, each at an end of what no data sheet tells.

    They are the table ``unpublished`` of its file: two values for a parameter.

    Raises
    ------
    BtrfsModelError
        For an unknown device, or a table that says something else.
    """
    table = read_file(name).get("unpublished", {})
    found: list[dict[str, object]] = []
    for key, values in table.items() if isinstance(table, Mapping) else [("", table)]:
        if not isinstance(values, list) or len(values) != 2:
            raise BtrfsModelError(f"{name}: unpublished.{key} is {values!r}, not two values")
        found += [{key: value} for value in values]
    return found


def build(
    name: str, table: Mapping[str, Any], parameters: Mapping[str, object] | None = None
) -> Device:
    """Make a device of a table as it stands in a file; see :func:`load`."""
    kind = table.get("kind")
    if kind not in ("disk", "flash"):
        raise BtrfsModelError(f"{name}: kind is {kind!r}, not disk or flash")
    known = (_DISK if kind == "disk" else _FLASH) | set(_QUEUE)
    for key in [*(parameters or ()), *(set(table) - _GENERAL)]:
        if key not in known:
            raise BtrfsModelError(
                f"{name}: no parameter {key!r}: there is {', '.join(sorted(known))}"
                f"{did_you_mean(key, known)}"
            )
    values = {**_QUEUE, **table, **(parameters or {})}
    try:
        model, capacity = (_disk if kind == "disk" else _flash)(values)
        if capacity >= 2**62:
            raise ValueError(f"{capacity:,} bytes are more than any device has")
        device = Device(
            name=name,
            model=model,
            capacity=capacity,
            queue_depth=_count(values, "queue_depth", least=1, most=_PLACES),
            elevator=str(values["elevator"]),
            fifo_batch=_count(values, "fifo_batch", least=1),
            read_expire=_time(values, "read_expire_ms"),
            max_request=round(_number(values, "max_request_kib") * 1024),
        )
    except KeyError as error:
        raise BtrfsModelError(f"{name}: parameter {error} is missing") from None
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        raise BtrfsModelError(f"{name}: {error}") from None
    if device.elevator not in ("none", "mq-deadline"):
        raise BtrfsModelError(f"{name}: elevator is {device.elevator!r}, not none or mq-deadline")
    return device


def _number(values: Mapping[str, Any], name: str, *, above: float = -1) -> float:
    """Return a parameter that is a number beyond `above`, and not a huge one."""
    value = values[name]
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}, not a number") from None
    if not (number > above and 0 <= number < _MOST):
        least = "at least 0" if above < 0 else f"more than {above:g}"
        raise ValueError(f"{name} is {value}, which is not {least} and less than {_MOST:,}")
    return number


def _count(values: Mapping[str, Any], name: str, *, least: int = 0, most: int = _MOST - 1) -> int:
    """Return a parameter that is a whole number."""
    number = _number(values, name)
    if not least <= number <= most or number != round(number):
        raise ValueError(f"{name} is {values[name]}, not a whole number from {least} to {most}")
    return round(number)


def _time(values: Mapping[str, Any], name: str, unit: int = _MS) -> int:
    """Return a parameter that is a time, in nanoseconds."""
    time = round(_number(values, name) * unit)
    if time > _LONGEST:
        raise ValueError(f"{name} is {values[name]}, which is more than {_LONGEST // unit:,}")
    return time


def _per_byte(values: Mapping[str, Any], name: str) -> float:
    """Nanoseconds per byte at so many megabytes (10**6) a second."""
    return 1000.0 / _number(values, name, above=_SLOWEST_MB_S)


def _disk(values: Mapping[str, Any]) -> tuple[Disk, int]:
    heads, size = (
        _count(values, "heads", least=1),
        _count(values, "sector_size", least=1, most=1 << 16),
    )
    zones, cylinders = _zones(values["zones"], heads)
    if values["order"] not in ("oldest", "shortest"):
        raise ValueError(f"order is {values['order']!r}, not oldest or shortest")
    if not isinstance(values["seek"], Mapping):
        raise ValueError(f"seek is {values['seek']!r}, not a table")
    times = {
        name: _time(values, f"{name}_ms")
        for name in (
            "head_switch", "write_settle", "miss_overhead", "hit_overhead", "write_overhead",
            "completion", "reselect",
        )
    }  # fmt: skip
    disk = Disk(
        zones=zones,
        seek_time=tuple(seek_times(values["seek"], cylinders)),
        heads=heads,
        sector_size=size,
        revolution=round(60e9 / _number(values, "rpm", above=1)),
        link_sector=round(size * _per_byte(values, "link_mb_s")),
        watermark=round(_number(values, "watermark") * 1000),
        segments=_count(values, "segments", most=_MOST_SEGMENTS),
        segment_size=_count(values, "segment_sectors"),
        read_ahead=_count(values, "read_ahead_sectors"),
        shortest_first=values["order"] == "shortest",
        **times,
    )
    _check_disk(disk)
    return disk, size * sum(zone.sectors for zone in zones)


def _check_disk(disk: Disk) -> None:
    """Refuse what contradicts itself; the C kernel would, without a name."""
    if disk.watermark > 1000:
        raise ValueError(f"watermark is {disk.watermark / 1000:g}, which is more than 1")
    if disk.read_ahead > disk.segment_size:
        raise ValueError(
            f"read_ahead_sectors is {disk.read_ahead}, more than segment_sectors, which is "
            f"{disk.segment_size}"
        )
    longest = max(zone.sectors_per_track for zone in disk.zones)
    if disk.revolution < longest:
        raise ValueError(f"at that rpm {longest} sectors pass within {disk.revolution} ns")
    for before, after in pairwise(disk.zones):
        if after.first_cylinder < before.first_cylinder + before.cylinders:
            raise ValueError(f"the zones overlap at cylinder {after.first_cylinder}")


def _zones(rows: Any, heads: int) -> tuple[tuple[Zone, ...], int]:
    """Return the zones with their sectors numbered, and how many cylinders there are."""
    zones: list[Zone] = []
    sector = cylinders = 0
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError(f"zones is {rows!r}, not a list of tables")
    for row in rows:
        first, count = _count(row, "first_cylinder"), _count(row, "cylinders", least=1)
        on_track = _count(row, "sectors_per_track", least=1)
        spare = {"empty_tracks": 0, "spare_tracks": 0, **row}
        empty = _count(spare, "empty_tracks")
        tracks = count * heads - empty - _count(spare, "spare_tracks")
        if tracks < 1:
            raise ValueError(f"the zone at cylinder {first} has no tracks left")
        zones.append(
            Zone(
                sector, tracks * on_track, first, count, empty, on_track,
                _count(row, "track_skew"), _count(row, "cylinder_skew"),
            )
        )  # fmt: skip
        sector += tracks * on_track
        cylinders = max(cylinders, first + count)
    if not zones:
        raise ValueError("no zones")
    return tuple(zones), cylinders


def _flash(values: Mapping[str, Any]) -> tuple[Flash, int]:
    channels = _count(values, "channels", least=1, most=_PLACES)
    flash = Flash(
        channels=channels,
        dies=_count(values, "dies", least=1, most=_PLACES // channels),
        page_size=_count(values, "page_size", least=512),
        command=_time(values, "command_us", _US),
        overhead=_time(values, "overhead_us", _US),
        sense=_time(values, "sense_us", _US),
        channel_byte=round(_per_byte(values, "channel_mb_s") * 1000),
        link_byte=round(_per_byte(values, "link_mb_s") * 1000),
    )
    return flash, round(_number(values, "capacity_gb", above=0) * 10**9)
