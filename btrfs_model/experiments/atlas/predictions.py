# SPDX-License-Identifier: GPL-2.0-only
"""What was predicted of a row before its figures were entered, and by which model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.samples import data_folder
from btrfs_model.base.whole_file import whole_file
from btrfs_model.cost.device import read_toml
from btrfs_model.experiments.commits import wanted

_PACKAGE: Final = Path(__file__).resolve().parents[2]
_LICENCE: Final = "# SPDX-License-Identifier: GPL-2.0-only"
_NUMBERS: Final = ("before", "after", "ratio", "low", "high")


@dataclass(frozen=True, slots=True)
class Value:
    """What is predicted of a figure.

    Attributes
    ----------
    before, after : float or None
        Of each side: a count, or seconds.
    ratio, low, high : float or None
        Of two times: before over after, and the 90 % interval; none where it is not told.
    """

    before: float | None = None
    after: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Predicted:
    """What was predicted of a row.

    Attributes
    ----------
    date : date
        When.
    version, model, machine : str
        By which version of the package, with which :func:`model_hash`, for which machine.
    figures : mapping
        The values by the names of the figures.
    """

    date: date
    version: str
    model: str
    machine: str
    figures: Mapping[str, Value]


@cache
def model_hash() -> str:
    """Return twelve digits for what predictions follow from: the code, machines and devices.

    C counts where its source is, in a clone; the atlas and its pages do not.
    """
    places = [*_PACKAGE.rglob("*.py"), *(_PACKAGE.parent / "native").rglob("*.[ch]")]
    data = data_folder()
    places += [*(data / "machines").glob("*.toml"), *(data / "devices").glob("*.toml")]
    digest = hashlib.sha256()
    for path in sorted(places, key=lambda one: one.as_posix()):
        if not {"atlas", "report", "tests"} & set(path.parts[-4:]):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def predicted_rows(folder: Path) -> dict[str, Predicted]:
    """Return what is predicted in the files of a folder, by the names of rows.

    Raises
    ------
    BtrfsModelError
        For a file that is none of them, or when a row is in two, with the file and the key.
    """
    found: dict[str, Predicted] = {}
    for path in sorted(folder.glob("*.toml")):
        for name, one in read(path).items():
            if name in found:
                raise BtrfsModelError(f"{path}: {name}: predicted in another file, too")
            found[name] = one
    return found


def read(path: Path) -> dict[str, Predicted]:
    """Return what a file predicts, by the names of rows; see :func:`predicted_rows`."""
    return {name: _row(path, name, table) for name, table in read_toml(path).items()}


def _row(path: Path, name: str, table: Any) -> Predicted:
    if not isinstance(table, dict):
        raise BtrfsModelError(f"{path}: {name} is {table!r}, not a table")
    place = f"{name}: "
    values = {}
    for one, numbers in wanted(path, table, "figure", dict, place).items():
        told = {
            key: float(wanted(path, numbers, key, int | float, f"{place}{one}: "))
            for key in numbers
        }
        if not set(told) <= set(_NUMBERS):
            raise BtrfsModelError(f"{path}: {place}{one}: {', '.join(_NUMBERS)} are its keys")
        values[one] = Value(**told)
    version, model, machine = (
        wanted(path, table, key, str, place) for key in ("version", "model", "machine")
    )
    return Predicted(wanted(path, table, "date", date, place), version, model, machine, values)


def add(path: Path, predicted: Mapping[str, Predicted]) -> None:
    """Add predictions to a file, which is made when it is missing.

    Raises
    ------
    BtrfsModelError
        When a row is in it already: what was predicted stays.
    """
    before = read(path) if path.exists() else {}
    for name in predicted:
        if name in before:
            raise BtrfsModelError(f"{path}: {name}: it was predicted on {before[name].date}")
    text = path.read_text(encoding="utf-8") if before else f"{_LICENCE}\n"
    text += "".join("\n" + _text(name, one) for name, one in predicted.items())
    with whole_file(path) as file:
        file.write(text.encode())


def _text(name: str, one: Predicted) -> str:
    """Return a prediction as TOML."""
    lines = [f"[{name}]", f"date = {one.date}"]
    lines += [f'{key} = "{getattr(one, key)}"' for key in ("version", "model", "machine")]
    for figure, value in one.figures.items():
        lines += ["", f'[{name}.figure."{figure}"]']
        lines += [f"{key} = {_plain(number)}" for key in _NUMBERS
                  if (number := getattr(value, key)) is not None]  # fmt: skip
    return "\n".join(lines) + "\n"


def _plain(number: float) -> str:
    return f"{number:.0f}" if number.is_integer() else f"{number:.9g}"
