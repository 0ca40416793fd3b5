# SPDX-License-Identifier: GPL-2.0-only
"""What is behind differences: how each looks, and which toggles take it away.

A cause that is known need not be looked for again. A difference is of a known one when it goes away
with the toggles that took earlier ones away, or when it looks like one that no toggle takes away.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from btrfs_model.base.errors import BehaviourWarning, BtrfsModelError
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.verify.bench import Bench, DifferenceError, first_that_differs, kind_of
from btrfs_model.mount.live_inode import InodeFields
from btrfs_model.ondisk.items import file_extent
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.patches import Asked, Patch
from btrfs_model.stream.reader import read_stream

_MEMBER: Final = 3
"""Length of what :meth:`.Bench.same_members` says of a difference: type, who has it."""
_SIDES: Final = {(True, False): "only the kernel has it", (False, True): "only the model has it"}


class _Told(Protocol):
    """What is told of a difference: a part of :class:`.Outcome`."""

    kind: str
    shape: list[str]
    toggles: list[str]


# --------------------------------------------------------------------------------------- shapes --


def shape_of(error: Exception) -> list[str]:
    """Return how a difference looks: what was compared, the kind of item, which fields differ.

    Of what raised something else: its type and the function that raised it.
    """
    if not isinstance(error, DifferenceError):
        name, *place = map(str, kind_of(error))
        return [name, ".".join(Path(part).stem for part in place)]
    unit, how = (*error.kind, None, None)[:2]
    found = [str(unit)]
    kernel, model = error.kernel, error.model
    if isinstance(how, tuple) and len(how) == _MEMBER and isinstance(how[1], bool):
        found += _item(how[0])
        if how[1:] in _SIDES:
            return [*found, _SIDES[how[1:]]]
        kernel, model = (_unpacked(how[0], side) for side in (kernel, model))
    elif unit == "streams":
        return [*found, *_commands(kernel, model)]
    elif how is not None:
        if not isinstance(how, tuple):
            return [*found, str(how)]
        *which, theirs, ours = how
        return [*found, *map(str, which), f"{theirs or 'nothing'}, not {ours or 'nothing'}"]
    return [*found, *differing(kernel, model)]


def _item(kind: Any) -> list[str]:
    return [ItemType(kind).name] if kind in set(ItemType) else []


def _unpacked(kind: Any, data: Any) -> Any:
    """Return the fields of an item of which the bytes are compared."""
    if not isinstance(data, bytes):
        return data
    if kind == ItemType.INODE_ITEM:
        return InodeFields.unpack(data)
    return file_extent(data) if kind == ItemType.EXTENT_DATA else data


def differing(kernel: Any, model: Any) -> list[str]:
    """Name the fields that differ, in lists those of the first pair that differs."""
    if type(kernel) is not type(model):
        return [f"{_type(kernel)}, not {_type(model)}"]
    if isinstance(kernel, Mapping):
        return sorted(key for key in kernel.keys() | model.keys()
                      if isinstance(key, str) and kernel.get(key) != model.get(key))  # fmt: skip
    names = _names(kernel)
    if names:
        pairs = [(name, getattr(kernel, name), getattr(model, name)) for name in names]
        return [_field(name, *both) for name, *both in pairs if both[0] != both[1]]
    if isinstance(kernel, list | tuple):
        pair = first_that_differs(kernel, model)
        return [] if pair is None else differing(*pair)
    return []


def _names(value: Any) -> Sequence[str]:
    if is_dataclass(value):
        return [one.name for one in fields(value)]
    return getattr(value, "_fields", ())


def _field(name: str, kernel: Any, model: Any) -> str:
    """Name a field, and its values where it has few."""
    return f"{name} {kernel}, not {model}" if name in ("type", "compression") else name


def _type(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _commands(kernel: tuple[int, bytes], model: tuple[int, bytes]) -> list[str]:
    """Name the first commands of two streams that differ."""
    try:
        theirs, ours = ([*read_stream(side[1])] for side in (kernel, model))
    except BtrfsModelError:
        return ["a stream that ends early"]
    rows = [[(one.name, one.attributes) for one in side] for side in (theirs, ours)]
    pair = first_that_differs(*rows)
    if pair is None:
        return []
    names = [one[0] if one else "the end" for one in pair]
    return [", not ".join(dict.fromkeys(names))]


# -------------------------------------------------------------------------------------- toggles --


@contextmanager
def changed(bench: Bench, changes: Sequence[str]) -> Iterator[None]:
    """Let the model do what it does with some changes of toggles (``+ inline-first``)."""
    before = bench.chosen
    if changes:
        bench.chosen = " ".join([bench.behaviour, *changes])
    try:
        with warnings.catch_warnings(action="ignore", category=BehaviourWarning):
            yield
    finally:
        bench.chosen = before


def toggles(
    bench: Bench, differs: Callable[[], Exception | None], seconds: float
) -> tuple[list[str], int]:
    """Look for a while which toggles take a difference away, each alone; and at how many.

    The newest first, and before them those that the kernel's own preset has otherwise.
    """
    base, own = Behaviour.parse(bench.behaviour), Behaviour.parse(bench.kernel.preset)
    end, found, tried = time.monotonic() + seconds, list[str](), 0
    newest = [*reversed(Patch)]
    for patch in sorted(newest, key=lambda one: (one in base) == (one in own)):
        if time.monotonic() > end:
            break
        if patch.asked is Asked.NOWHERE:
            continue
        tried += 1
        change = f"{'-' if patch in base else '+'} {patch}"
        with changed(bench, [change]):
            if not differs():
                found.append(change)
    return found, tried


def is_known(bench: Bench, told: _Told, differs: Callable[[], Exception | None]) -> bool:
    """Whether a difference is of a known cause; what is told of it then names the toggles.

    Or it has the shape that is left with the known changes.
    """
    for changes in ([change] for change in bench.known):
        with changed(bench, changes):
            if not differs():
                told.toggles = changes
                return True
    with changed(bench, bench.known):
        error = differs()
    if error is None:
        told.toggles = [" ".join(_needed(bench, differs))]
        return True
    told.shape = shape_of(error)
    return (told.kind, told.shape) in bench.shapes


def _needed(bench: Bench, differs: Callable[[], Exception | None]) -> list[str]:
    """Return those of the known changes without which a difference stays."""
    needed = list(bench.known)
    for change in bench.known:
        rest = [one for one in needed if one != change]
        with changed(bench, rest):
            if not differs():
                needed = rest
    return needed


def remember(bench: Bench, told: _Told) -> None:
    """Take what is behind a difference for known."""
    if told.toggles:
        bench.known.append(told.toggles[0])
    else:
        bench.shapes.append((told.kind, told.shape))
