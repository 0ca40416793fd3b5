# SPDX-License-Identifier: GPL-2.0-only
"""Why each command of a stream was sent: put together while it is sent.

The senders note, command by command, the rule, the inode and the item that differed; where the
command stands and which path it names is read from the stream itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from btrfs_model.ondisk.keys import ItemType
from btrfs_model.ondisk.stream import ATTRIBUTES_BY_NAME, COMMAND_HEADER, COMMANDS
from btrfs_model.questions.send.causes import CAUSES, PLACE, ROW
from btrfs_model.questions.send.sources import by_source
from btrfs_model.stream.index import read_batches
from btrfs_model.volume.compare import Change

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from numpy.typing import NDArray

    from btrfs_model.ondisk.layout import Payload

_PIECE = 1 << 20
_PATH = ATTRIBUTES_BY_NAME["path"].number
_TYPES = {int(kind): kind.name for kind in ItemType}


class Explanation:
    """Gathers what one send was caused by.

    `version`: of the stream.
    """

    def __init__(self, version: int) -> None:
        self.version = version
        self.rows: NDArray[Any] = np.zeros(0, ROW)
        self.places: NDArray[Any] = np.zeros(0, PLACE)
        self._offset = 0
        self._pending: list[bytes] = []
        self._size = 0
        self._columns: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self._paths: list[str] = []

    def watch(
        self, write: Callable[[Payload], object], header: bool
    ) -> Callable[[Payload], object]:
        """Return a `write` that reads along; the first piece is the header, where there is one."""
        skip = header

        def both(data: Payload) -> object:
            nonlocal skip
            if skip:
                self._offset, skip = len(data), False
            else:
                self._take(bytes(data))
            return write(data)

        return both

    def _take(self, data: bytes) -> None:
        self._pending.append(data)
        self._size += len(data)
        if self._size >= _PIECE:
            self._read()

    def _read(self) -> None:
        """Take apart the whole commands that were written since the last time."""
        for batch in read_batches(b"".join(self._pending), header=False, version=self.version):
            self._columns.append((
                batch.offset + np.uint64(self._offset + batch.base),
                batch.length + np.uint32(COMMAND_HEADER.size),
                batch.type,
            ))  # fmt: skip
            at = np.flatnonzero(batch.attribute_type == _PATH)
            first = np.searchsorted(at, batch.first)
            starts, sizes = batch.attribute_offset[at].tolist(), batch.attribute_length[at].tolist()
            for row, after in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
                path = b""
                if row < after:
                    path = bytes(batch.data[starts[row] : starts[row] + sizes[row]])
                self._paths.append(path.decode("utf-8", "surrogateescape"))
        self._offset += self._size
        self._pending, self._size = [], 0

    def table(self) -> pd.DataFrame:
        """Return a row for each command, see :attr:`.SendResult.causes`."""
        import pandas as pd

        self._read()
        offset, length, command = (
            np.concatenate(column) for column in zip(*self._columns, strict=True)
        )
        rows = self.rows
        assert len(rows) == len(offset)
        has_item = rows["objectid"] != 0
        types = np.where(has_item, rows["type"].astype("i2"), -1)
        changes = np.where(has_item, rows["change"].astype("i2"), -1)
        return pd.DataFrame({
            "offset": offset,
            "length": length,
            "command": _named(command, {n: command.name for n, command in COMMANDS.items()}),
            "path": pd.Series(self._paths, dtype="object"),
            "inode": rows["inode"],
            "cause": _named(rows["cause"], {n: cause.name for n, cause in enumerate(CAUSES)}),
            "function": _named(
                rows["cause"], {n: cause.function for n, cause in enumerate(CAUSES)}
            ),
            "item_objectid": rows["objectid"],
            "item_type": _named(types, _TYPES),
            "item_offset": rows["offset"],
            "change": _named(changes, {int(c): c.name.lower() for c in Change}),
        })  # fmt: skip


def _named(numbers: NDArray[Any], names: dict[int, str]) -> pd.Categorical[str]:
    """Return names for numbers; what has none is empty."""
    import pandas as pd

    found, places = np.unique(numbers, return_inverse=True)
    labels = [names.get(int(number), "") for number in found]
    categories = list(dict.fromkeys(labels))
    codes = np.array([categories.index(label) for label in labels], np.intp)
    kind: pd.CategoricalDtype[str] = pd.CategoricalDtype(categories)
    return pd.Categorical.from_codes(codes[places], dtype=kind)


def summaries(
    causes: pd.DataFrame, largest: int = 20, sources: pd.DataFrame | None = None
) -> dict[str, pd.DataFrame]:
    """Add up the commands and bytes of a send, in four ways.

    Parameters
    ----------
    causes, sources : pandas.DataFrame
        See :attr:`.SendResult.causes` and :attr:`.SendResult.sources`.
    largest : int
        Rows of the table by directory at most.

    Returns
    -------
    dict of str to pandas.DataFrame
        By title: the key, ``commands``, ``bytes`` and ``share`` of the bytes in percent, the most
        bytes first; by cause with what it means. With `sources` also the places of extents by their
        subvolumes, where there is one.
    """
    directories = [path.rpartition("/")[0] or "/" for path in causes["path"]]
    by = {} if sources is None or sources.empty else {"by clone source": by_source(sources)}
    return {
        "by cause": by_cause(causes),
        "by kernel function": _sums(causes, "function", causes["function"]),
        "by command": _sums(causes, "command", causes["command"]),
        "by directory": _sums(causes, "directory", directories).head(largest),
        **by,
    }


def by_cause(causes: pd.DataFrame) -> pd.DataFrame:
    """Add up the commands and bytes of a send by cause, as :func:`summaries`."""
    texts = {cause.name: cause.text for cause in CAUSES}
    table = _sums(causes, "cause", causes["cause"])
    table["why"] = [texts[name] for name in table["cause"]]
    return table


def _sums(causes: pd.DataFrame, name: str, keys: Any) -> pd.DataFrame:
    import pandas as pd

    numbers, found = pd.factorize(np.asarray(keys, dtype=object), sort=True)
    table = pd.DataFrame({
        # paths may be no UTF-8, so they stay Python's strings
        name: pd.Series(found, dtype="object"),
        "commands": np.bincount(numbers, minlength=len(found)),
        "bytes": causes["length"].groupby(numbers, sort=True).sum().to_numpy(),
    })  # fmt: skip
    table["share"] = (100 * table["bytes"] / max(int(table["bytes"].sum()), 1)).round(1)
    return table.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)
