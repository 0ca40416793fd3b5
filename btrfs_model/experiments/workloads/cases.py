# SPDX-License-Identifier: GPL-2.0-only
"""What figures depend on: columns of the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Column:
    """What a column of the results holds.

    Attributes
    ----------
    dtype : str
        Its type in a table of pandas.
    unit : str
        Of its values; ``see unit`` where the column `unit` says it, empty for names.
    meaning : str
        In a sentence.
    words : str
        How a value reads in the label of a figure, as a format; empty for what labels leave out.
    """

    dtype: str
    unit: str
    meaning: str
    words: str = ""


PARAMETERS: Final = {
    "files": Column("Int64", "files", "Files that the workload makes.", "{:,} files"),
    "deletes": Column("Int64", "files", "Files that are deleted before the second fsync."),
    "file_bytes": Column("Int64", "bytes", "Size of each file."),
    "jobs": Column("Int64", "jobs", "Jobs that make the files side by side."),
    "extents": Column("Int64", "extents", "Extents of the file that is mapped."),
    "rewritten": Column(
        "Int64", "extents", "Extents of the file that were written again before the call.",
        "written again",
    ),
    "nodesize": Column("Int64", "bytes", "Size of a tree block."),
    "device": Column("string", "", "Device that is waited for, by the name of its file.", "{}"),
    "pipe": Column("string", "", "Whether the stream of a time goes through a pipe: yes, no."),
    "worker": Column(
        "string", "", "Whether a worker runs delayed items before the commit: yes, no.",
    ),
    "cache": Column(
        "string", "", "Whether the metadata are in memory when the call begins: cold, cached.",
        "{}",
    ),
    "fsync": Column("Int64", "", "Which fsync of the directory: 1, 2.", "fsync {}"),
    "lines": Column("string", "", "Lines of a script, between two readings of the clock.",
                    "lines {}"),
    "turn": Column("Int64", "", "Which time these lines are come to: 1, 2.", "turn {}"),
}  # fmt: skip
"""What figures depend on, in the order of the columns; a table has those that it has values of."""

_VARIABLE: Final = Column("Int64", "", "Number of a variable of a script.", "{:,}")


def column_of(name: str) -> Column:
    """Return what a parameter holds; what is none of :data:`PARAMETERS` is a script's variable."""
    return PARAMETERS.get(name, _VARIABLE)


def case_words(where: Mapping[str, int | str]) -> list[str]:
    """Name what a figure depends on: ``60,000 files``, ``NUM_FILES 1,000``, ``cold``."""
    words = []
    for name, value in where.items():
        told = column_of(name).words
        if told and value:
            words.append((f"{name} " if name not in PARAMETERS else "") + told.format(value))
    return words
