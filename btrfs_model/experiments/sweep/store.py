# SPDX-License-Identifier: GPL-2.0-only
"""A folder that remembers the cells of sweeps.

``cells/BUILD/*.parquet`` has what was measured: a file for each batch, which takes its place when
it is complete and names the cells in it. A file with one cell has its key as its name. BUILD is the
model that measured. ``failed/BUILD/KEY.json`` has the parameters and the error of a cell that
failed. ``images/BUILD`` can be deleted at any time.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.whole_file import naming, whole_file
from btrfs_model.experiments.sweep.target import Row

_FORMAT: Final = 1
_ABOUT: Final = "sweep.json"
_KEY: Final = 32
_NAMES: Final = pa.dictionary(pa.int32(), pa.string())
SCHEMA: Final = pa.schema(
    [
        ("cell", _NAMES), ("case", _NAMES), ("side", _NAMES), ("quantity", _NAMES),
        ("unit", _NAMES), ("value", pa.float64()), ("low", pa.float64()), ("high", pa.float64()),
    ]
)  # fmt: skip
"""The columns of a file of cells; ``case`` is JSON."""


@cache
def build() -> str:
    """Return what tells this model from any other: a hash of all its code."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[2]
    for file in sorted((*package.rglob("*.py"), *package.glob("*.so"))):
        digest.update(f"{file.relative_to(package)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(slots=True)
class Batch:
    """What came of some cells.

    Attributes
    ----------
    part : bytes
        A Parquet file with the figures of those that did not fail; empty where all did.
    keys : list of str
        These cells.
    errors : dict
        The others, each with its error.
    seconds : float
        What all of them took.
    """

    part: bytes = b""
    keys: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def part_of(
    found: Sequence[tuple[str, Mapping[str, Any], list[Row]]], seconds: float
) -> bytes:  # fmt: skip
    """Return the Parquet file of cells: keys, parameters and rows."""
    rows = [(key, row) for key, _, of_cell in found for row in of_cell]
    columns: dict[str, list[Any]] = {
        "cell": [key for key, _ in rows],
        "case": [json.dumps(dict(row.case)) for _, row in rows],
        **{name: [getattr(row, name) for _, row in rows] for name in SCHEMA.names[2:]},
    }
    about = {
        "keys": " ".join(key for key, _, _ in found),
        "params": json.dumps([dict(params) for _, params, _ in found]),
        "seconds": str(seconds),
    }
    arrays = [
        pa.array(columns[one.name], pa.string()).dictionary_encode()
        if one.type == _NAMES else pa.array(columns[one.name], one.type)
        for one in SCHEMA
    ]  # fmt: skip
    buffer = io.BytesIO()
    parquet.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA.with_metadata(about)), buffer)
    return buffer.getvalue()


class Store:
    """The store in a folder, which is made where it is missing.

    Raises
    ------
    BtrfsModelError
        For a folder that is something else, or a store of another version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._cells, self._failed, self.images = (
            self.path / one / build() for one in ("cells", "failed", "images")
        )
        about = self.path / _ABOUT
        if about.exists():
            self._check(about)
        elif self.path.exists() and not _is_empty(self.path):
            raise BtrfsModelError(f"{self.path}: it is no store of sweeps, and not empty")
        self._files: dict[str, Path] = {}
        self._seconds: dict[str, float] = {}
        self._read()

    def _check(self, about: Path) -> None:
        try:
            found = json.loads(about.read_text())["format"]
        except (ValueError, KeyError, TypeError):
            raise BtrfsModelError(f"{about}: it is not what a store of sweeps has") from None
        if found != _FORMAT:
            raise BtrfsModelError(
                f"{self.path}: a store of version {found}, and this model has version {_FORMAT}"
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only sweep that adds to the store."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / _ABOUT).exists():
            with whole_file(self.path / _ABOUT) as file:
                file.write(json.dumps({"format": _FORMAT}).encode())
        for folder in (self._cells, self._failed, self.images):
            folder.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BtrfsModelError(f"{self.path}: another sweep is at work in it") from None
            # what a sweep that was killed was writing
            for folder in (self._cells, self._failed):
                for leftover in folder.glob(".*"):
                    leftover.unlink(missing_ok=True)
            self._read()
            yield

    def _read(self) -> None:
        self._files, self._seconds = _cells_of(self._cells)

    @property
    def done(self) -> Mapping[str, Path]:
        """The cells that exist, with their files."""
        return self._files

    def stale(self, keys: Sequence[str]) -> int:
        """Count the cells that another model measured, and this one did not."""
        folders = [one for one in self.path.glob("cells/*") if one.name != self._cells.name]
        there = {key for folder in folders for key in _cells_of(folder)[0]}
        return sum(1 for key in keys if key in there and key not in self._files)

    def failed(self) -> dict[str, dict[str, Any]]:
        """Return the cells that failed, and did not come out since."""
        found = {}
        for file in self._failed.glob("*.json"):
            if file.stem not in self._files:
                found[file.stem] = json.loads(file.read_text())
        return found

    def seconds(self, keys: Sequence[str]) -> float | None:
        """Return what a cell takes, by those of `keys` that are there."""
        times = [self._seconds[key] for key in keys if key in self._seconds]
        return sum(times) / len(times) if times else None

    def add(self, batch: Batch) -> None:
        """Remember the cells of a batch that did not fail."""
        if not batch.keys:
            return
        name = batch.keys[0]
        if len(batch.keys) > 1:
            name = f"{hashlib.sha256(''.join(batch.keys).encode()).hexdigest()[:_KEY]}-batch"
        file = self._cells / f"{name}.parquet"
        with whole_file(file) as out:
            out.write(batch.part)
        self._files.update(dict.fromkeys(batch.keys, file))

    def fail(self, key: str, params: Mapping[str, Any], error: str) -> None:
        """Remember that a cell failed."""
        with whole_file(self._failed / f"{key}.json") as out:
            out.write(json.dumps({"params": dict(params), "error": error}, indent=1).encode())

    def table(self, keys: Sequence[str], quantities: Sequence[str] | None = None) -> pa.Table:
        """Return what was measured in cells, in no order, with ``cell`` the place in `keys`."""
        place = {key: number for number, key in enumerate(keys)}
        files = dict.fromkeys(self._files[key] for key in keys if key in self._files)
        wanted = None if quantities is None else pa.array(quantities, pa.string())
        tables = [_part(file, place, wanted) for file in files]
        if not tables:
            return pa.table({one.name: pa.array([], one.type) for one in _PLACED})
        return pa.concat_tables(tables).unify_dictionaries()


def _is_empty(path: Path) -> bool:
    """Whether a folder has nothing but what a sweep that was killed had begun to write."""
    return path.is_dir() and all(one.name.startswith(".") for one in path.iterdir())


_PLACED: Final = SCHEMA.set(0, pa.field("cell", pa.int64()))


def _part(file: Path, place: Mapping[str, int], quantities: Any) -> pa.Table:
    """Read a file: the figures of the cells that have a place."""
    import pyarrow.compute as pc

    table = _whole(file)
    names, codes = coded(table["cell"])
    places = pa.array([place.get(key) for key in names], pa.int64())
    table = table.set_column(0, "cell", places.take(codes)).replace_schema_metadata(None)
    mask = pc.is_valid(table["cell"])
    if quantities is not None:
        of = table["quantity"].cast(pa.string())
        mask = pc.and_(mask, pc.is_in(of, value_set=quantities))
    return table.filter(mask)


def coded(column: Any) -> tuple[list[str], Any]:
    """Return the distinct texts of a column, and for each row which it is."""
    one = column.combine_chunks()
    if isinstance(one, pa.ChunkedArray):
        one = pa.array([], _NAMES) if not one.num_chunks else one.chunk(0)
    return one.dictionary.to_pylist(), one.indices


def _whole(file: Path) -> pa.Table:
    with naming(file):
        try:
            return parquet.ParquetFile(file).read(use_threads=False)
        except pa.ArrowInvalid as error:
            raise BtrfsModelError(f"{file}: {str(error).splitlines()[0]}") from None


def _cells_of(folder: Path) -> tuple[dict[str, Path], dict[str, float]]:
    """Return the cells that a folder has, with their files, and seconds where they are told."""
    files: dict[str, Path] = {}
    seconds: dict[str, float] = {}
    for entry in os.scandir(folder) if folder.is_dir() else ():
        stem, _, suffix = entry.name.rpartition(".")
        if suffix != "parquet" or stem.startswith("."):
            continue
        file = Path(entry.path)
        if len(stem) == _KEY:
            files[stem] = file
            continue
        with naming(file):
            try:
                about = parquet.read_schema(file).metadata
                keys = about[b"keys"].decode().split()
                each = float(about[b"seconds"]) / len(keys)
            except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
                raise BtrfsModelError(f"{file}: {str(error).splitlines()[0]}") from None
        files.update(dict.fromkeys(keys, file))
        seconds.update(dict.fromkeys(keys, each))
    return files, seconds
