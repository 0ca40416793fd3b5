# SPDX-License-Identifier: GPL-2.0-only
"""How a structure lies on disk, made from the annotations of a NamedTuple.

The annotations of this module are fields: ``U64`` is an unsigned little-endian number of 64 bits,
``Uuid`` are 16 bytes; another NamedTuple is a nested structure, ``Annotated[tuple[U64, ...], 4]``
an array of 4. Fields are packed in the order of declaration.

A payload shorter than its structure is a :exc:`PayloadError`, which becomes the error that the user
sees once the place of the item is added (:meth:`PayloadError.at`).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import cache
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault

Payload = bytes | bytearray | memoryview
"""What a payload may be given as."""

U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
Uuid = Annotated[bytes, "16s"]
Csum = Annotated[bytes, "32s"]

T = TypeVar("T")


class PayloadError(ValueError):
    """A payload that does not hold what its type needs; the caller adds where it lies.

    `code` (int): one of ``enum bm_code``: ``BM_BAD_ITEM_SIZE`` or ``BM_BAD_VALUE``.
    `found`, `wanted` (int): as in :class:`btrfs_model.base.errors.Fault`.
    """

    def __init__(self, code: int, found: int, wanted: int = 0) -> None:
        self.code = code
        self.found = found
        self.wanted = wanted
        super().__init__(f"fault {code}: found {found}, wanted {wanted}")

    @classmethod
    def too_short(cls, found: int, wanted: int) -> PayloadError:
        """Error for a payload of `found` bytes where at least `wanted` are needed."""
        return cls(Code.BAD_ITEM_SIZE, found, wanted)

    @classmethod
    def bad_value(cls, found: int) -> PayloadError:
        """Error for a field that holds what no kernel writes."""
        return cls(Code.BAD_VALUE, found)

    def at(
        self,
        path: str | os.PathLike[str],
        *,
        tree: int = 0,
        block: int = 0,
        slot: int = 0,
        offset: int = 0,
    ) -> CorruptImageError:
        """Return the error for the user: this one with its place in the image `path`."""
        fault = Fault(self.code, tree, block, slot, offset, self.found, self.wanted)
        return CorruptImageError(path, fault)


class Layout(Generic[T]):
    """How a structure lies on disk.

    `name`: the kernel's name of the structure, as in ``native/ondisk.h``.
    `record`: the NamedTuple class that declares it.
    `dtype` (numpy.dtype): packed and little endian; nested structures are nested dtypes.
    `size` (int): in bytes.
    `struct` (struct.Struct): unpacks the numbers of :meth:`flat` without any check.
    `places` (dict of str to slice): where each field stands in the tuple of :meth:`flat`;
    ``mtime.sec`` is a field of a field.
    """

    def __init__(self, name: str, record: Callable[..., T]) -> None:
        self.name = name
        self.record = record
        codes: list[str] = []
        fields: list[tuple[Any, ...]] = []
        # how to gather the flat numbers of a nested structure or array
        self._parts: list[tuple[int, int, Callable[[tuple[Any, ...]], Any] | None]] = []
        # parts that have parts, the last first
        self._inner: list[tuple[int, Callable[[Any], list[Any]]]] = []
        self.places: dict[str, slice] = {}
        at = 0
        for field, hint in get_type_hints(record, include_extras=True).items():
            code, numpy_type, gather, flatten = _field(hint)
            count = _numbers(code)
            codes.append(code)
            fields.append((field, *numpy_type))
            self._parts.append((at, at + count, gather))
            self.places[field] = slice(at, at + count)
            if hasattr(hint, "_fields"):
                self.places |= {
                    f"{field}.{part}": slice(at + place.start, at + place.stop)
                    for part, place in _part(hint).places.items()
                }
            if flatten is not None:
                self._inner.insert(0, (len(codes) - 1, flatten))
            at += count
        self.code = "".join(codes)
        self.struct = struct.Struct(f"<{self.code}")
        self.size = self.struct.size
        self.dtype = np.dtype(fields)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.size} bytes>"

    def flat(self, payload: Payload, offset: int = 0) -> tuple[Any, ...]:
        """Return the numbers of the structure at `offset`, nested structures flattened.

        Raises PayloadError: when the payload ends before the structure.
        """
        try:
            return self.struct.unpack_from(payload, offset)
        except struct.error:
            raise PayloadError.too_short(len(payload), offset + self.size) from None

    def unpack(self, payload: Payload, offset: int = 0) -> T:
        """Return the structure at `offset` of `payload`.

        Raises PayloadError: when the payload ends before the structure.
        """
        return self.gather(self.flat(payload, offset))

    def gather(self, flat: tuple[Any, ...]) -> T:
        """Make the record out of its flat numbers."""
        if not self._inner:
            return self.record(*flat)
        parts = [flat[start] if gather is None else gather(flat[start:end])
                 for start, end, gather in self._parts]  # fmt: skip
        return self.record(*parts)

    def flatten(self, record: Any) -> list[Any]:
        """Return the flat numbers of a record: the reverse of :meth:`gather`."""
        flat = list(record)
        for at, inner in self._inner:
            flat[at : at + 1] = inner(flat[at])
        return flat

    def pack(self, record: T) -> bytes:
        """Return the bytes of a structure: the reverse of :meth:`unpack`.

        Raises OverflowError: when a number does not fit into its field.
        """
        try:
            return self.struct.pack(*self.flatten(record))
        except struct.error as error:
            raise OverflowError(f"{self.name}: {error}") from None

    def view(self, payload: Payload, count: int = 1, offset: int = 0) -> np.ndarray[Any, Any]:
        """View `count` consecutive structures as a structured array, without copying.

        Raises PayloadError: when the payload ends before them.
        """
        if len(payload) < offset + count * self.size:
            raise PayloadError.too_short(len(payload), offset + count * self.size)
        return np.frombuffer(payload, self.dtype, count, offset)


@cache
def _part(record: Callable[..., T]) -> Layout[T]:
    """Return the layout of a structure that others have as a field."""
    return Layout("", record)


class _Field(NamedTuple):
    """How a field lies on disk: code of struct, type of numpy; None of what has no parts.

    `gather`: makes a value of flat numbers.
    `flatten`: makes flat numbers of a value.
    """

    code: str
    numpy_type: tuple[Any, ...]
    gather: Callable[[tuple[Any, ...]], Any] | None = None
    flatten: Callable[[Any], list[Any]] | None = None


def _field(hint: Any) -> _Field:
    """Return how a field lies on disk, from its annotation."""
    if get_origin(hint) is not Annotated:
        layout = _part(hint)
        if layout._inner:
            return _Field(layout.code, (layout.dtype,), layout.gather, layout.flatten)
        return _Field(layout.code, (layout.dtype,), hint._make, list)
    base, what = get_args(hint)[:2]
    if get_origin(base) is tuple:
        return _array_field(get_args(base)[0], what)
    if what.endswith("s"):
        return _Field(what, ("u1", (int(what[:-1]),)))
    return _Field(what, (np.dtype(f"<{what}"),))


def _array_field(element: Any, count: int) -> _Field:
    code, numpy_type, gather, flatten = _field(element)
    numpy_type = (numpy_type[0], (count,))
    if gather is None or flatten is None:
        return _Field(code * count, numpy_type, tuple, list)
    one, parts, step = gather, flatten, _numbers(code)

    def gather_all(flat: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([one(flat[at : at + step]) for at in range(0, len(flat), step)])

    def flatten_all(values: Any) -> list[Any]:
        return [number for value in values for number in parts(value)]

    return _Field(code * count, numpy_type, gather_all, flatten_all)


def _numbers(code: str) -> int:
    """Return how many numbers a code of struct has."""
    return len(struct.unpack(f"<{code}", bytes(struct.calcsize(f"<{code}"))))
