# SPDX-License-Identifier: GPL-2.0-only
"""Machines: what a kernel takes for the work that is counted.

A machine is a file of ``data/machines``: at most twelve unit costs, each measured by experiments of
its own, with an interval. :mod:`btrfs_model.cost.prediction` has the times that follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from btrfs_model.base.errors import BtrfsModelError, UnknownBehaviourError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.samples import data_folder
from btrfs_model.behaviour import Behaviour
from btrfs_model.cost.caches import DEFAULT_MIB
from btrfs_model.cost.causes import OPERATIONS, QUANTITIES, operations
from btrfs_model.cost.device import read_toml

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_COSTS: Final = 12
"""More would fit anything."""
UNITS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}
"""Units of costs, in seconds."""
_KINDS: Final = ("native", "uml")
_ALL: Final = "relative"
"""Key of what is left unexplained of all microbenchmarks."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one of something takes.

    Attributes
    ----------
    name, meaning, measured : str
        What it is called and what it is; how it was measured.
    seconds, low, high : float
        Of one; the 90 % interval.
    counts : dict
        What it is paid for: quantities of work with their weights.
    """

    name: str
    seconds: float
    low: float
    high: float
    counts: dict[str, float]
    meaning: str
    measured: str


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Unit costs of a machine.

    Attributes
    ----------
    name, title : str
        Name of its file, and what it is.
    kernel : str
        Behaviour that the work of the measurements was counted by.
    kind : str
        ``native``, or ``uml`` (User-Mode Linux).
    measured : str
        When.
    cache_mib : float
        MiB of the last cache of its processor.
    costs : tuple of Cost
        At most :data:`MOST_COSTS`.
    draws : numpy.ndarray
        Seconds of each cost in each draw of the bootstrap: a row for each draw.
    residuals : dict of str to float
        Standard deviation of what the costs leave unexplained, of the logarithm of a time: of all
        microbenchmarks under ``relative``; of those of an operation under its name, one of
        :data:`btrfs_model.cost.causes.OPERATIONS`.
    """

    name: str
    title: str
    kernel: str
    kind: str
    measured: str
    cache_mib: float
    costs: tuple[Cost, ...]
    draws: NDArray[np.float64] = field(repr=False)
    residuals: dict[str, float]

    def residual(self, work: Mapping[str, float]) -> float:
        """Return what is left unexplained of an operation, by its work."""
        of = [self.residuals[name] for name in operations(work) if name in self.residuals]
        return max(of, default=self.residuals[_ALL])


def names() -> list[str]:
    """Names of the machines that there are files of."""
    return sorted(path.stem for path in (data_folder() / "machines").glob("*.toml"))


def default() -> Machine:
    """Return the machine that times are told for where none is named: the native one.

    Raises
    ------
    BtrfsModelError
        When there is none.
    """
    for machine in map(load, names()):
        if machine.kind == "native":
            return machine
    raise BtrfsModelError(f"{data_folder() / 'machines'}: there is no native machine")


@cache
def _read(path: Path) -> Machine:
    return build(path.stem, read_toml(path), str(path))


def load(name: str) -> Machine:
    """Return a machine.

    Parameters
    ----------
    name : str
        One of :func:`names`, or the path of a file ``*.toml``.

    Raises
    ------
    BtrfsModelError
        When there is none, or its file says what no machine is: with the file and the key.
    OSError
        When the file cannot be read.
    """
    if name.endswith(".toml") or "/" in name:
        return build(Path(name).stem, read_toml(Path(name)), name)
    if name not in names():
        near = did_you_mean(name, names())
        raise BtrfsModelError(
            f"no machine {name!r}: there is {', '.join(names()) or 'none'}, "
            f"or the path of a file NAME.toml{near}"
        )
    return _read(data_folder() / "machines" / f"{name}.toml")


def chosen(machine: str | Machine | None) -> Machine:
    """Return a machine by name or itself; :func:`default` for None."""
    if isinstance(machine, Machine):
        return machine
    return default() if machine is None else load(machine)


# --------------------------------------------------------------------------- what a file says --


def build(name: str, table: Mapping[str, Any], path: str) -> Machine:
    """Make a machine of a table as it stands in a file; `path` is what errors name."""
    try:
        costs = table.get("cost")
        if not isinstance(costs, Mapping) or not costs:
            raise ValueError("cost: there is none")
        if len(costs) > MOST_COSTS:
            raise ValueError(f"cost: {len(costs)} of them are more than {MOST_COSTS}")
        kind = _text(table, "kind")
        if kind not in _KINDS:
            raise ValueError(f"kind is {kind!r}, not {' or '.join(_KINDS)}")
        kernel = _text(table, "kernel")
        Behaviour.parse(kernel)
        made = tuple(_cost(one, of_one) for one, of_one in costs.items())
        units = [UNITS[of_one["unit"]] for of_one in costs.values()]
        return Machine(
            name, _text(table, "title"), kernel, kind, str(table.get("measured", "")),
            _cache(table.get("cache_mib", DEFAULT_MIB)), made,
            _draws(table.get("draws"), list(costs), units), _residuals(table.get("residual")),
        )  # fmt: skip
    except UnknownBehaviourError as error:
        raise BtrfsModelError(f"{path}: kernel: {error}") from None
    except ValueError as error:
        raise BtrfsModelError(f"{path}: {error}") from None


def _text(table: Mapping[str, Any], key: str, place: str = "") -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(
            f"{place}{key} is missing" if value is None else f"{place}{key} is no text"
        )
    return value


def _number(value: object, key: str) -> float:
    """Return a number that is not negative."""
    if value is None:
        raise ValueError(f"{key} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is {value!r}, not a number")
    if value < 0:
        raise ValueError(f"{key} is {value}, which is negative")
    return float(value)


def _cost(name: str, table: object) -> Cost:
    place = f"cost.{name}"
    if not isinstance(table, Mapping):
        raise ValueError(f"{place} is no table")
    unit = _text(table, "unit", f"{place}.")
    if unit not in UNITS:
        near = did_you_mean(unit, UNITS)
        raise ValueError(f"{place}.unit is {unit!r}, not {', '.join(UNITS)}{near}")
    value, low, high = (
        _number(table.get(key), f"{place}.{key}") for key in ("value", "low", "high")
    )
    if not low <= value <= high:
        raise ValueError(f"{place}.value is {value:g}, not between low and high")
    counts = table.get("counts")
    if not isinstance(counts, Mapping) or not counts:
        raise ValueError(f"{place}.counts is missing")
    for quantity in counts:
        if quantity not in QUANTITIES:
            near = did_you_mean(quantity, QUANTITIES)
            raise ValueError(f"{place}.counts: no counter {quantity!r}{near}")
    weights = {one: _number(weight, f"{place}.counts.{one}") for one, weight in counts.items()}
    scale = UNITS[unit]
    return Cost(
        name, value * scale, low * scale, high * scale, weights,
        _text(table, "meaning", f"{place}."), _text(table, "measured", f"{place}."),
    )  # fmt: skip


def _cache(value: object) -> float:
    mib = _number(value, "cache_mib")
    if not mib:
        raise ValueError("cache_mib is 0")
    return mib


def _draws(table: object, costs: list[str], units: list[float]) -> NDArray[np.float64]:
    if not isinstance(table, Mapping):
        raise ValueError("draws is missing")
    for name in table:
        if name not in costs:
            raise ValueError(f"draws.{name}: there is no such cost{did_you_mean(name, costs)}")
    columns: list[list[float]] = []
    for name, unit in zip(costs, units, strict=True):
        values = table.get(name)
        if not isinstance(values, list) or not values:
            raise ValueError(f"draws.{name} is missing")
        if columns and len(values) != len(columns[0]):
            raise ValueError(
                f"draws.{name} has {len(values)} draws, draws.{costs[0]} has {len(columns[0])}"
            )
        columns.append([_number(value, f"draws.{name}") * unit for value in values])
    return np.array(columns).T


def _residuals(table: object) -> dict[str, float]:
    if not isinstance(table, Mapping):
        raise ValueError("residual is missing")
    for name in table:
        if name not in (_ALL, *OPERATIONS):
            near = did_you_mean(name, OPERATIONS)
            raise ValueError(f"residual.{name}: there is no such operation{near}")
    found = {name: _number(value, f"residual.{name}") for name, value in table.items()}
    return {_ALL: _number(table.get(_ALL), f"residual.{_ALL}"), **found}
