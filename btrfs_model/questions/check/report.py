# SPDX-License-Identifier: GPL-2.0-only
"""What a check found, one line each, with a limit to repetitions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from btrfs_model.base.errors import Fault, describe
from btrfs_model.native.items import Columns
from btrfs_model.ondisk.keys import Key


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with an image.

    Attributes
    ----------
    tree : int
        Objectid of the tree, 0 where it is in none.
    block, slot : int
        Logical address of the tree block and slot in it, 0 where it is in none.
    key : Key or None
        Of the item concerned.
    what : str
        What is wrong, with numbers.
    """

    tree: int
    block: int
    slot: int
    key: Key | None
    what: str

    def __str__(self) -> str:
        place = []
        if self.tree:
            place.append(f"tree {self.tree - 2**64 if self.tree >> 63 else self.tree}")
        if self.block:
            place += [f"block {self.block}", f"slot {self.slot}"]
        if self.key is not None:
            place.append(f"key {self.key}")
        return f"{', '.join(place)}: {self.what}" if place else self.what


class Report:
    """Gathers findings; of each kind in each tree only the first are kept, the others counted.

    `limit`: how many are kept.
    """

    def __init__(self, limit: int = 20) -> None:
        self.limit = limit
        self.findings: list[Finding] = []
        self._counts: Counter[tuple[int, str]] = Counter()

    @property
    def count(self) -> int:
        """How many findings there are so far, with those that were left out."""
        return self._counts.total()

    def add(
        self,
        kind: str,
        *,
        tree: int = 0,
        block: int = 0,
        slot: int = 0,
        key: Key | None = None,
        **values: Any,
    ) -> None:
        """Add a finding; `kind` is its text, with the names of `values` in braces."""
        self._counts[tree, kind] += 1
        if self._counts[tree, kind] <= self.limit:
            self.findings.append(Finding(tree, block, slot, key, kind.format(**values)))

    def add_fault(self, prefix: str, fault: Fault) -> None:
        """Add what made reading a block fail; `prefix` says what for."""
        place = Fault(fault.code, offset=fault.offset, found=fault.found, wanted=fault.wanted,
                      device=fault.device)  # fmt: skip
        self.add(
            f"{prefix}{{what}}",
            tree=fault.tree,
            block=fault.block,
            slot=fault.slot,
            what=describe(place),
        )

    def rows(
        self,
        kind: str,
        columns: Columns,
        rows: npt.NDArray[Any],
        tree: int | npt.NDArray[np.uint64],
        **values: npt.NDArray[Any],
    ) -> None:
        """Add a finding for each of some items.

        `kind`: text, with the names of `values` in braces.
        `columns`: all items looked at, as of :meth:`.Tree.scan`.
        `rows`: indexes of the bad ones, or a mask.
        `tree`: the tree that they are in, or that of each item.
        `**values`: numbers for the text, one for each item looked at.
        """
        for row in (np.flatnonzero(rows) if rows.dtype == np.bool_ else rows).tolist():
            self.add(
                kind,
                tree=tree if isinstance(tree, int) else int(tree[row]),
                block=int(columns["block"][row]),
                slot=int(columns["slot"][row]),
                key=key_of(columns, row),
                **{name: array[row] for name, array in values.items()},
            )

    def result(self) -> list[Finding]:
        """Return the findings, with a line for those of each kind that were left out."""
        more = [
            Finding(tree, 0, 0, None, f"{count - self.limit} more like this: {_plain(kind)}")
            for (tree, kind), count in self._counts.items()
            if count > self.limit
        ]
        return self.findings + more


def _plain(kind: str) -> str:
    """Text of a kind with dots for its numbers."""
    return "".join(part.split("}")[-1] if i else part for i, part in enumerate(kind.split("{")))


def key_of(columns: Columns, row: int) -> Key:
    """Return the key in a row of columns."""
    return Key(
        int(columns["objectid"][row]), int(columns["type"][row]), int(columns["offset"][row])
    )
