# SPDX-License-Identifier: GPL-2.0-only
"""The decisions of an fsync as events, under the names and with the fields of Linux 7.2.

``with fs.trace() as trace:`` collects those of the calls inside. A function that the kernel enters
and leaves has two events, ``NAME_enter`` and ``NAME_exit``; ``ret`` of the latter is what it
returns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from btrfs_model.base.tables import html_table, plural

if TYPE_CHECKING:
    import pandas as pd

EVENTS: Final = (
    "btrfs_sync_file_enter", "btrfs_sync_file_exit",
    "btrfs_log_inode_parent_enter", "btrfs_log_inode_parent_exit",
    "btrfs_log_inode_enter", "btrfs_log_inode_exit",
    "btrfs_log_all_parents_enter", "btrfs_log_all_parents_exit",
    "btrfs_log_all_new_ancestors_enter", "btrfs_log_all_new_ancestors_exit",
    "btrfs_log_new_dir_dentries_enter", "btrfs_log_new_dir_dentries_exit",
    "btrfs_add_conflicting_inode_enter", "btrfs_add_conflicting_inode_exit",
    "btrfs_log_conflicting_inodes_enter", "btrfs_log_conflicting_inodes_exit",
    "btrfs_log_new_delayed_dentries_enter", "btrfs_log_new_delayed_dentries_exit",
    "btrfs_record_unlink_dir",
    "btrfs_log_new_name_enter", "btrfs_log_new_name_exit",
    "btrfs_sync_log_enter", "btrfs_sync_log_exit",
    "btrfs_transaction_commit",
)  # fmt: skip
"""Their names: tracepoints of ``include/trace/events/btrfs.h``."""
FORCE_COMMIT: Final = -4096
"""What functions return that make a commit necessary (``BTRFS_LOG_FORCE_COMMIT``)."""
NO_LOG_SYNC: Final = 256
"""What ``btrfs_log_inode_parent()`` returns where nothing is to be made last."""
LOG_INODE_ALL: Final = 0
LOG_INODE_EXISTS: Final = 1
_RETURNED: Final = {FORCE_COMMIT: "a commit is needed", NO_LOG_SYNC: "nothing to log"}
_MODES: Final = {LOG_INODE_ALL: "LOG_INODE_ALL", LOG_INODE_EXISTS: "LOG_INODE_EXISTS"}
_APART: Final = ("root_objectid", "ino", "transid", "ret")


class Event(NamedTuple):
    """A tracepoint that was passed: its name, and its fields by name."""

    name: str
    fields: dict[str, int]


@dataclass(eq=False, repr=False)
class Trace:
    """The events of some calls.

    Attributes
    ----------
    events : list of Event
        In the order in which they came.
    """

    events: list[Event] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Trace({plural(len(self.events), 'event')})"

    def _repr_html_(self) -> str:
        rows = self.table
        return html_table(repr(self), rows.columns.tolist(), rows.values.tolist(), len(rows))

    @property
    def table(self) -> pd.DataFrame:
        """A row for each event: ``event``, below which other it is, ``root``, ``ino``, ``fields``.

        Columns
        -------
        event : str
            Without ``btrfs_`` in front, two blanks deeper for each function that is entered.
        root, ino : int
            The subvolume and the inode; 0 where the tracepoint has none.
        ret : str
            What a function returns that is left.
        fields : str
            The other fields that are not zero.
        """
        import pandas as pd

        rows, inside = [], list[str]()
        for event, fields in self.events:
            name = event.removeprefix("btrfs_")
            function, _, way = name.rpartition("_")
            while way == "exit" and function in inside and inside.pop() != function:
                pass  # btrfs_sync_log() does not tell that it is left
            known: dict[str, int | str] = {**fields}
            if "log_mode" in fields:
                known["log_mode"] = _MODES[fields["log_mode"]]
            ret = fields.get("ret")
            told = " ".join(f"{key}={value}" for key, value in known.items()
                            if value and key not in _APART)  # fmt: skip
            rows.append((
                "  " * len(inside) + name, fields.get("root_objectid", 0),
                fields.get("ino", fields.get("ctx_ino", 0)),
                "" if ret is None else _RETURNED.get(ret, str(ret)), told,
            ))  # fmt: skip
            if way == "enter":
                inside.append(function)
        return pd.DataFrame(rows, columns=["event", "root", "ino", "ret", "fields"])


def tell(traces: list[Trace], name: str, fields: dict[str, int]) -> None:
    """Tell all who trace of an event; `name`: without ``btrfs_`` in front."""
    for trace in traces:
        trace.events.append(Event(f"btrfs_{name}", fields))
