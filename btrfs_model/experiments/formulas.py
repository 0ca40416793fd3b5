# SPDX-License-Identifier: GPL-2.0-only
"""Closed formulas of work: counts that are a polynomial in the size of a workload.

A formula is found from the smallest sizes alone, and checked exactly on all the others, up to the
full scale. Much work has none: it depends on where leaves begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from btrfs_model.experiments.workloads import Outcome
from btrfs_model.experiments.workloads.timed import SECONDS

_DEGREES: Final = (0, 1, 2)
_CHECKS: Final = 2
"""Sizes at least that a formula has to hold for besides those that it was found from."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A polynomial in N.

    Attributes
    ----------
    terms : tuple of Fraction
        What 1, N, N squared are multiplied with.
    sizes : tuple of int
        What it was found from.
    checked : tuple of int
        Other sizes that it holds for exactly.
    """

    terms: tuple[Fraction, ...]
    sizes: tuple[int, ...]
    checked: tuple[int, ...]

    def at(self, size: int) -> Fraction:
        """Return its value."""
        return sum((term * size**power for power, term in enumerate(self.terms)), Fraction(0))

    def __str__(self) -> str:
        """Write it as people do: ``N²/4 + 3 N/2 + 1``."""
        text = ""
        for power, term in reversed(list(enumerate(self.terms))):
            if not term and (power or text):
                continue
            words = _term(abs(term), power)
            sign = "- " if term < 0 else ("+ " if text else "")
            text += f" {sign}{words}" if text else f"{sign}{words}"
        return text


def _term(factor: Fraction, power: int) -> str:
    over = f"/{factor.denominator}" if factor.denominator != 1 else ""
    if not power:
        return f"{factor.numerator:,}{over}"
    unit = "N" if power == 1 else "N²"
    return f"{unit}{over}" if factor.numerator == 1 else f"{factor.numerator:,} {unit}{over}"


def find(counts: Mapping[int, int]) -> Formula | None:
    """Find the polynomial of the least degree that counts by size are.

    Returns
    -------
    Formula or None
        None where no polynomial of degree 2 or less holds for all, or too few sizes tell.
    """
    sizes = tuple(sorted(counts))
    for degree in _DEGREES:
        known, others = sizes[: degree + 1], sizes[degree + 1 :]
        if len(others) < _CHECKS:
            return None
        formula = Formula(_through({size: counts[size] for size in known}), known, others)
        if all(formula.at(size) == counts[size] for size in others):
            return formula
    return None


def _through(points: Mapping[int, int]) -> tuple[Fraction, ...]:
    """Return the polynomial through some points (Lagrange)."""
    total = [Fraction(0)] * len(points)
    for size, count in points.items():
        terms, scale = [Fraction(1)], Fraction(count)
        for other in points:
            if other != size:
                lower = [-other * term for term in terms] + [Fraction(0)]
                terms = [a + b for a, b in zip(lower, [Fraction(0), *terms], strict=True)]
                scale /= size - other
        total = [a + scale * b for a, b in zip(total, terms, strict=True)]
    return tuple(total)


def formulas(
    outcome: Outcome, parameters: Mapping[str, int], size: str
) -> dict[tuple[str, str, str], Formula | None]:
    """Look for a formula of each quantity that was counted at several sizes.

    Parameters
    ----------
    outcome : Outcome
        With figures at small sizes besides.
    parameters : mapping
        Of the input, for figures that say no size.
    size : str
        The parameter that is N.

    Returns
    -------
    dict
        By quantity, what else the quantity depends on, and side; None where there is no formula.
    """
    counts: dict[tuple[str, str, str], dict[int, int]] = {}
    for figure in (*outcome.small, *outcome.figures):
        if figure.modelled is None or figure.unit in SECONDS:
            continue
        known = {
            name: value for name, value in figure.case.items() if name not in (size, "deletes")
        }
        key = figure.quantity, ", ".join(f"{a} {b}" for a, b in known.items()), figure.side
        files = int(figure.case.get(size, parameters[size]))
        counts.setdefault(key, {})[files] = int(figure.modelled)
    return {
        key: find(of_one) for key, of_one in counts.items() if len(of_one) > _CHECKS + _DEGREES[1]
    }
