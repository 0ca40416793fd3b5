# SPDX-License-Identifier: GPL-2.0-only
"""What figures depend on: columns of the results."""

from __future__ import annotations

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
}  # fmt: skip
"""What figures depend on, in the order of the columns; a table has those that it has values of."""
