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
from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

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
        self._nested = False
        self.places: dict[str, slice] = {}
        at = 0
        for field, hint in get_type_hints(record, include_extras=True).items():
            code, numpy_type, gather = _field(hint)
            count = len(struct.unpack(f"<{code}", bytes(struct.calcsize(f"<{code}"))))
            codes.append(code)
            fields.append((field, *numpy_type))
            self._parts.append((at, at + count, gather))
            self.places[field] = slice(at, at + count)
            if hasattr(hint, "_fields"):
                self.places |= {
                    f"{field}.{part}": slice(at + place.start, at + place.stop)
                    for part, place in _part(hint).places.items()
                }
            self._nested |= gather is not None
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
        if not self._nested:
            return self.record(*flat)
        return self.record(
            *(
                flat[start] if gather is None else gather(flat[start:end])
                for start, end, gather in self._parts
            )
        )

    def pack(self, record: T) -> bytes:
        """Return the bytes of a structure: the reverse of :meth:`unpack`.

        Raises OverflowError: when a number does not fit into its field.
        """
        try:
            return self.struct.pack(*_flatten(record))
        except struct.error as error:
            raise OverflowError(f"{self.name}: {error}") from None

    def view(self, payload: Payload, count: int = 1, offset: int = 0) -> np.ndarray[Any, Any]:
        """View `count` consecutive structures as a structured array, without copying.

        Raises PayloadError: when the payload ends before them.
        """
        if len(payload) < offset + count * self.size:
            raise PayloadError.too_short(len(payload), offset + count * self.size)
        return np.frombuffer(payload, self.dtype, count, offset)


def _flatten(record: Any) -> Iterator[Any]:
    """Numbers and bytes of a record, those of its parts among them."""
    for value in record:
        if isinstance(value, tuple):
            yield from _flatten(value)
        else:
            yield value


@cache
def _part(record: Callable[..., T]) -> Layout[T]:
    """Return the layout of a structure that others have as a field."""
    return Layout("", record)


def _field(
    hint: Any,
) -> tuple[str, tuple[Any, ...], Callable[[tuple[Any, ...]], Any] | None]:
    """Struct code, numpy type and gatherer of a field from its annotation."""
    if get_origin(hint) is not Annotated:
        layout = _part(hint)
        return layout.code, (layout.dtype,), layout.gather
    base, what = get_args(hint)[:2]
    if get_origin(base) is tuple:
        return _array_field(get_args(base)[0], what)
    if what.endswith("s"):
        return what, ("u1", (int(what[:-1]),)), None
    return what, (np.dtype(f"<{what}"),), None


def _array_field(
    element: Any, count: int
) -> tuple[str, tuple[Any, ...], Callable[[tuple[Any, ...]], Any]]:
    code, numpy_type, gather = _field(element)

    def gather_all(flat: tuple[Any, ...]) -> tuple[Any, ...]:
        if gather is None:
            return flat
        step = len(flat) // count
        return tuple(gather(flat[at : at + step]) for at in range(0, len(flat), step))

    return code * count, (numpy_type[0], (count,)), gather_all
