# SPDX-License-Identifier: GPL-2.0-only
"""A kernel beside the model: how answers are compared, and which differences are of one kind."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from btrfs_model.base.errors import BtrfsModelError, KernelFailedError
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.kernels.inside.mounts import Place
from btrfs_model.kernels.session import Kernel


class DifferenceError(BtrfsModelError):
    """A kernel and the model do not agree.

    Attributes
    ----------
    kernel, model : object
        What they say.
    kind : tuple
        Equal for differences of one kind: what was compared, and how it differs.
    scenario : Scenario, optional
        What shows it alone, a part of what was compared.
    """

    scenario: Scenario | None = None

    def __init__(self, what: str, kernel: Any, model: Any, kind: tuple[Hashable, ...] = ()) -> None:
        self.what, self.kernel, self.model, self.kind = what, kernel, model, kind
        super().__init__(f"kernel and model differ: {what}")


def kind_of(error: Exception) -> tuple[Hashable, ...]:
    """Return what is equal for differences of one kind.

    Of what is no :class:`DifferenceError`: its type and what raised it; of a kernel's also how its
    message begins.
    """
    if isinstance(error, DifferenceError):
        return error.kind
    if isinstance(error, KernelFailedError):
        return type(error).__name__, str(error).partition("'")[0]
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__, *((frames[-1].filename, frames[-1].name) if frames else ())


def first_that_differs(kernel: Sequence[Any], model: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the first pair that differs; None stands for what one side does not have."""
    return next((pair for pair in zip_longest(kernel, model) if pair[0] != pair[1]), None)


@dataclass
class Bench:
    """A kernel beside the model.

    Attributes
    ----------
    compared : Counter
        How much was compared, by unit.
    seen : callable
        Gets what differs, before it is made short.
    chosen : str
        What the model does, in place of the kernel's preset.
    known : list of str
        Changes of toggles that took earlier differences away.
    shapes : list of tuple
        Kinds of comparison and shapes of earlier differences that no change takes away.
    """

    kernel: Kernel
    compared: Counter[str] = field(default_factory=Counter)
    seen: Callable[[Any], None] = lambda found: None
    chosen: str = ""
    known: list[str] = field(default_factory=list)
    shapes: list[tuple[str, list[str]]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def behaviour(self) -> str:
        """What the model does: the kernel's preset, where nothing else is chosen."""
        return self.chosen or self.kernel.preset

    @contextmanager
    def new_image(self) -> Iterator[Path]:
        """Make up a name for an image, which goes in the end."""
        path = self.kernel.images / f"image-{next(self._numbers)}"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def looked_at(self, image: Path) -> Iterator[Place]:
        """Attach an image, to be read."""
        with self.kernel.attached(image, read_only=True) as source:
            yield Place(source=source, top=self.kernel.top, options="ro")

    def same(
        self, unit: str, what: str, kernel: Any, model: Any, amount: int = 1, how: Hashable = None
    ) -> None:
        """Compare.

        Parameters
        ----------
        unit : str
            What is counted of what is alike.
        what : str
            Which one it is.
        kernel, model : object
            What they say.
        amount : int
            How many units it is.
        how : hashable
            Differences of a unit are of one kind when this is equal.

        Raises
        ------
        DifferenceError
            When they differ.
        """
        if kernel != model:
            raise DifferenceError(what, kernel, model, (unit, how))
        self.compared[unit] += amount

    def same_members(self, unit: str, what: str, kernel: Any, model: Any) -> None:
        """Compare mappings; the first member that differs is named.

        Of items differences are of one kind when their type and who has none of them is the same.
        """
        for key in sorted(kernel.keys() | model.keys(), key=repr):
            sort = key[1] if isinstance(key, tuple) else None
            how = sort, key in kernel, key in model
            theirs, ours = kernel.get(key, "nothing"), model.get(key, "nothing")
            self.same(unit, f"{what}{key!r}", theirs, ours, how=how)

    def same_ends(self, scenario: Scenario, kernel: Sequence[str], model: Sequence[str]) -> None:
        """Compare how the operations after the mount ended."""
        for step, theirs, ours in zip(scenario.steps[2:], kernel, model, strict=False):
            what = f"how this ended: {step.number} {step}"
            self.same("calls", what, theirs, ours, how=(step.name, theirs, ours))
