# SPDX-License-Identifier: GPL-2.0-only
"""Which cells a sweep has: all of a grid, those of a list, or samples of ranges.

A plan of 100,000 cells is an array of numbers: which value of each knob. A cell's key is the hash
of what its values are.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from btrfs_model.base.arguments import warn_renamed
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.experiments.sweep.target import (
    FLIPPED,
    FLIPS,
    RENAMED,
    Scenario,
    Target,
    Workloads,
    refuse,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLERS: Final = ("grid", "list", "random", "latin", "saltelli", "morris")
_SAMPLES: Final = {"saltelli": 64, "morris": 10}
_MOST_CELLS: Final = 10_000_000
_RANGE: Final = {"from", "to", "log"}


@dataclass(frozen=True, slots=True)
class Range:
    """A knob that is sampled between two ends, both of them in it; on a logarithmic scale or not.

    Between whole numbers there are whole numbers.
    """

    low: float
    high: float
    log: bool

    def at(self, share: NDArray[np.float64]) -> list[Any]:
        """Return the values that lie a share of the way from one end to the other."""
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        # each whole number has the same part of the range
        low, high = (self.low - 0.5, self.high + 0.5) if whole else (self.low, self.high)
        if self.log:
            low = max(low, self.low / 2)
            found = low * (high / low) ** share
        else:
            found = low + (high - low) * share
        if not whole:
            return [float(one) for one in found]
        return [int(one) for one in np.clip(np.rint(found), self.low, self.high)]


def _knob(name: str, given: Any, sampler: str) -> Range | tuple[Any, ...]:
    """Read a knob: a range, a list of values, or one value."""
    if name == FLIPPED and given == "*":
        return FLIPS
    given = plain(given)
    if isinstance(given, Mapping):
        if unknown := set(given) - _RANGE:
            near = did_you_mean(min(unknown), _RANGE)
            raise refuse(name, dict(given), f"a range has from, to and log{near}")
        low, high = (_end(name, given, end) for end in ("from", "to"))
        log = given.get("log", False)
        if low >= high or (log and low <= 0):
            raise refuse(name, dict(given), "a range goes up, and with log from more than 0")
        if sampler in ("grid", "list"):
            raise refuse(name, dict(given), f"a {sampler} has lists of values, and no ranges")
        return Range(low, high, bool(log))
    values = (
        tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    )
    if not values:
        raise refuse(name, given, "there is no value")
    values = tuple(map(plain, values))
    for one in values:
        if not isinstance(one, str | bool | int | float | None):
            raise refuse(name, one, "a value is a number, a text, true or false")
    return values


def plain(value: Any) -> Any:
    """Return a value as Python has it, of numpy's and pandas' numbers and arrays too."""
    if isinstance(value, np.generic):
        return value.item()
    return value.tolist() if isinstance(value, np.ndarray | pd.Series | pd.Index) else value


def _end(name: str, given: Mapping[str, Any], end: str) -> float:
    value = plain(given.get(end))
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise refuse(name, dict(given), "a range goes from a number to a number")
    return value


@dataclass(eq=False)
class Plan:
    """The cells of a sweep.

    Attributes
    ----------
    names : tuple of str
        Knobs, in the order of the columns.
    values : tuple of tuple
        The values that each of them takes.
    codes : numpy.ndarray
        A row for each cell, with the place of its value for each knob; no two are alike.
    sampled : numpy.ndarray
        For each sample in turn the cell that it is; many may be the same.
    shares : numpy.ndarray
        For each sample where it lies in the unit cube of the knobs that vary.
    varied : tuple of str
        These knobs.
    """

    names: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    codes: NDArray[np.int32]
    sampled: NDArray[np.int64]
    shares: NDArray[np.float64]
    varied: tuple[str, ...]
    parts: list[list[str]] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        return len(self.codes)

    def params(self, cell: int) -> dict[str, Any]:
        """Return the values of a cell by knob."""
        found = zip(self.names, self.values, self.codes[cell].tolist(), strict=True)
        return {name: values[code] for name, values, code in found}

    @cached_property
    def keys(self) -> list[str]:
        """The key of each cell."""
        order = sorted(range(len(self.names)), key=lambda place: self.names[place])
        parts = [self.parts[place] for place in order]
        texts = (
            ",".join([of_knob[code] for of_knob, code in zip(parts, row, strict=True)])
            for row in self.codes[:, order].tolist()
        )
        return [hashlib.sha256(text.encode()).hexdigest()[:32] for text in texts]


def _name(target: Target, knob: str) -> str:
    """Return the name that a knob has now."""
    if not isinstance(target, Workloads) or knob not in RENAMED:
        return knob
    warn_renamed(f"knob {knob!r}", repr(RENAMED[knob]))
    return RENAMED[knob]


def plan(
    target: Target,
    knobs: Mapping[str, Any],
    sampler: str = "grid",
    samples: int | None = None,
    seed: int = 0,
) -> Plan:
    """Plan the cells of a sweep; arguments are those of :func:`.api.sweep`.

    Raises
    ------
    BtrfsModelError
        For a knob or value that there is not, or a sampler that is none or not installed.
    """
    if sampler not in SAMPLERS:
        near = did_you_mean(sampler, SAMPLERS)
        raise BtrfsModelError(f"sweep: no sampler {sampler!r}: {', '.join(SAMPLERS)}{near}")
    named = {_name(target, str(name)): given for name, given in knobs.items()}
    read = {name: _knob(name, given, sampler) for name, given in named.items()}
    for name, one in read.items():
        target.check(name, (one.low, one.high) if isinstance(one, Range) else one)
    fixed = _fixed(target)
    read = {**{name: one for name, one in fixed.items() if name not in read}, **read}
    samples = samples or _SAMPLES.get(sampler, 100)
    codes, values, shares, varied = _codes(read, sampler, samples, seed)
    for name, of_knob in zip(read, values, strict=True):
        if isinstance(read[name], Range):
            target.check(name, of_knob)
    unique, sampled = _distinct(codes)
    parts = [
        [json.dumps([name, target.identity(name, one)], sort_keys=True) for one in of_knob]
        for name, of_knob in zip(read, values, strict=True)
    ]
    return Plan(tuple(read), tuple(values), unique, sampled, shares, varied, parts)


def _fixed(target: Target) -> dict[str, Range | tuple[Any, ...]]:
    """Return the knob that says what is measured."""
    if isinstance(target, Workloads):
        return {"workload": tuple(target.workloads)}
    return {"scenario" if isinstance(target, Scenario) else "function": (target.name,)}


def _distinct(codes: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the rows without repetitions, in the order in which they come first, and which is."""
    _, first, inverse = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return codes[np.sort(first)], rank[inverse.ravel()]


def _codes(
    knobs: Mapping[str, Range | tuple[Any, ...]], sampler: str, samples: int, seed: int
) -> tuple[NDArray[np.int32], list[tuple[Any, ...]], NDArray[np.float64], tuple[str, ...]]:
    """Return which value of each knob a cell has, the values, and what was sampled."""
    nothing = np.empty((0, 0))
    if sampler in ("grid", "list"):
        lists = [one for one in knobs.values() if isinstance(one, tuple)]
        values = [tuple(dict.fromkeys(map(_typed, one))) for one in lists]
        lone = [tuple(one for _, one in of_knob) for of_knob in values]
        if sampler == "grid":
            if (total := math.prod(map(len, lone))) > _MOST_CELLS:
                raise BtrfsModelError(f"sweep: {total:,} cells are more than {_MOST_CELLS:,}")
            places = np.indices([len(one) for one in lone], np.int32)
            return places.reshape(len(lone), -1).T, lone, nothing, ()
        count = max(map(len, lists))
        if any(len(one) not in (1, count) for one in lists):
            sizes = ", ".join(f"{name} {len(one)}" for name, one in zip(knobs, lists, strict=True))
            raise BtrfsModelError(f"sweep: the knobs of a list have as many values each: {sizes}")
        columns = [
            np.resize([of_knob.index(_typed(one)) for one in given], count)
            for of_knob, given in zip(values, lists, strict=True)
        ]
        return np.array(columns, np.int32).T, lone, nothing, ()
    varied = tuple(name for name, one in knobs.items() if isinstance(one, Range) or len(one) > 1)
    if not varied:
        raise BtrfsModelError(f"sweep: no knob of a {sampler} sample varies")
    shares = _shares(varied, sampler, samples, seed)
    columns = []
    found: list[tuple[Any, ...]] = []
    for name, one in knobs.items():
        if name not in varied:
            assert isinstance(one, tuple)
            columns.append(np.zeros(len(shares), np.int32))
            found.append(one)
            continue
        share = shares[:, varied.index(name)]
        taken = (
            one.at(share) if isinstance(one, Range)
            else [one[min(int(part * len(one)), len(one) - 1)] for part in share.tolist()]
        )  # fmt: skip
        distinct = {each: place for place, each in enumerate(dict.fromkeys(map(_typed, taken)))}
        columns.append(np.array([distinct[_typed(each)] for each in taken], np.int32))
        found.append(tuple(each for _, each in distinct))
    return np.array(columns, np.int32).T, found, shares, varied


def _typed(value: Any) -> tuple[type, Any]:
    """Tell True from 1."""
    return type(value), value


def _shares(varied: Sequence[str], sampler: str, samples: int, seed: int) -> NDArray[np.float64]:
    """Return samples of the unit cube of the knobs that vary."""
    if samples < 1:
        raise BtrfsModelError(f"sweep: {samples} samples are none")
    if seed < 0:
        raise BtrfsModelError(f"sweep: seed {seed} is less than 0")
    count = len(varied)
    if sampler == "random":
        return np.random.default_rng(seed).random((samples, count))
    if sampler == "latin":
        cube = optional("scipy.stats").qmc.LatinHypercube(count, rng=seed)
        return np.asarray(cube.random(samples))
    salib = optional("SALib.sample.sobol" if sampler == "saltelli" else "SALib.sample.morris")
    if sampler == "saltelli":
        if samples & (samples - 1):
            raise BtrfsModelError(f"sweep: a saltelli sample has 2, 4, 8 ... points, not {samples}")
        return np.asarray(
            salib.sample(problem(varied), samples, calc_second_order=False, seed=seed)
        )
    return np.asarray(salib.sample(problem(varied), samples, seed=seed))


def problem(varied: Sequence[str]) -> dict[str, Any]:
    """Describe the unit cube as SALib has it."""
    return {"num_vars": len(varied), "names": list(varied), "bounds": [[0.0, 1.0]] * len(varied)}


def optional(module: str, extra: str = "analysis") -> Any:
    """Import what an extra of the package brings."""
    try:
        return import_module(module)
    except ImportError as error:
        raise BtrfsModelError(
            f"sweep: {error.name} is not installed; pip install 'btrfs-model[{extra}]' brings it"
        ) from None
