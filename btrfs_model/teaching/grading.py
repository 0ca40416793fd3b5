# SPDX-License-Identifier: GPL-2.0-only
"""What an answer is worth: parts with points, each of which says what is wrong."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from btrfs_model.base.errors import BtrfsModelError

if TYPE_CHECKING:
    import pandas as pd

    Check = Callable[["Answers", random.Random], str | None]

ASSIGNMENTS = ("recover", "log", "smaller", "toggle")
"""A module of this package each, with its ``PARTS``, and a notebook each."""


class NoAnswerError(Exception):
    """There is nothing to check yet."""


@dataclass
class Answers:
    """What a student's notebook has defined, by name."""

    names: Mapping[str, Any]

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the notebook."""
        found: Callable[..., Any] | None = self.names.get(name)
        if not callable(found):
            raise NoAnswerError(f"there is no function {name}")
        return found

    def __call__(self, name: str, *arguments: object) -> Any:
        """Return what a function returns; it has to be something."""
        if (said := self.function(name)(*arguments)) is None:
            raise NoAnswerError("it returns nothing")
        return said


@dataclass
class Parts:
    """The parts of an assignment, in order."""

    rows: list[tuple[str, int, Check]] = field(default_factory=list)

    def part(self, points: int) -> Callable[[Check], Check]:
        """Add a part of this many points; what the check returns is what is wrong."""

        def add(check: Check) -> Check:
            self.rows.append((check.__name__, points, check))
            return check

        return add


def grade(assignment: str, names: Mapping[str, Any], seed: int = 0) -> pd.DataFrame:
    """Grade the answers to an assignment.

    Parameters
    ----------
    assignment : str
        One of :data:`ASSIGNMENTS`.
    names : mapping
        What the notebook has defined: ``globals()``.
    seed : int
        Of the filesystems that the answers are tried on. A student has 0; answers that fit only
        these have fewer points with another.

    Returns
    -------
    pandas.DataFrame
        A row a part: ``part``, ``points``, ``of``, and the ``problem`` for which points lack.

    Raises
    ------
    BtrfsModelError
        When there is no such assignment.
    """
    import pandas as pd

    if assignment not in ASSIGNMENTS:
        raise BtrfsModelError(f"no assignment {assignment!r}: there are {', '.join(ASSIGNMENTS)}")
    parts: Parts = importlib.import_module(f"btrfs_model.teaching.{assignment}").PARTS
    rows = []
    for name, points, check in parts.rows:
        try:
            problem = check(Answers(names), random.Random(f"{assignment} {name} {seed}"))
        except NoAnswerError as nothing:
            problem = str(nothing)
        except Exception as error:  # an answer may end in anything
            problem = f"it ends with {type(error).__name__}: {error}"
        rows.append((name, 0 if problem else points, points, problem or ""))
    return pd.DataFrame(rows, columns=["part", "points", "of", "problem"])
