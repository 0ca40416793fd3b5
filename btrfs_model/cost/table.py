# SPDX-License-Identifier: GPL-2.0-only
"""Answers that are tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import pandas as pd

from btrfs_model.cost.answer import Answer, Cold, Waits

if TYPE_CHECKING:
    from btrfs_model.cost.device import Device


class Table(Answer, pd.DataFrame):
    """Rows that say how long it takes to get them: a DataFrame with the answer's work and time.

    What is made of it, a selection or a copy, is a plain DataFrame.

    Attributes
    ----------
    table : pandas.DataFrame
        The rows alone.
    """

    _metadata = ["_work", "_again", "_asked"]  # noqa: RUF012 (as pandas wants it)
    _work: Callable[[], Mapping[str, int]]
    _again: Callable[[], tuple[Mapping[str, int], Cold]]
    _asked: tuple[Mapping[str, int], Cold] | None

    @classmethod
    def of(
        cls,
        rows: pd.DataFrame,
        work: Callable[[], Mapping[str, int]],
        again: Callable[[], tuple[Mapping[str, int], Cold]],
    ) -> Self:
        """Add to rows the work, and what asks for them again after a mount."""
        made: Self = cls._from_mgr(rows._mgr, rows.axes)  # type: ignore[attr-defined]
        # pandas looks for a column of the name first
        keep = object.__setattr__
        keep(made, "_work", work)
        keep(made, "_again", again)
        keep(made, "_asked", None)
        if rows.attrs:
            made.attrs = rows.attrs
        return made

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    @property
    def table(self) -> pd.DataFrame:
        """The rows alone."""
        return pd.DataFrame(self)

    @property
    def work(self) -> Mapping[str, int]:  # type: ignore[override]
        """How often each kernel function was called, by its name."""
        return self._work()

    def waiting(self, device: Device) -> tuple[Mapping[str, int], Waits]:
        """See :class:`Answer`."""
        if self._asked is None:
            self._asked = self._again()
        work, cold = self._asked
        return {**work, **cold.amounts}, cold.on(device).waits

    def __reduce__(self) -> Any:
        return self.table.__reduce__()
