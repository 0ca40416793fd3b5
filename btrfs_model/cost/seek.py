# SPDX-License-Identifier: GPL-2.0-only
"""Seek curves: how long the arm of a disk takes, by distance.

Three forms are in use, and a file of ``data/devices`` has one of them:

``ruemmler-wilkes``
    ``short_ms = [a, b]``: a + b * sqrt(distance) below ``boundary`` cylinders (the arm speeds up
    and slows down), ``long_ms = [c, d]``: c + d * distance from there on (it coasts); the first
    distances may be given one by one in ``first_ms``. "An introduction to disk drive modeling"
    (1994), and Worthington, Ganger and Patt, "Scheduling for modern disk drives and non-random
    workloads" (1994), for the first distances.
``three-point``
    What data sheets print: ``single_ms``, ``average_ms``, ``full_ms``. The curve is
    single + b * sqrt(distance - 1) + c * (distance - 1), with b and c such that the mean over
    all pairs of cylinders and the longest seek are those. Lee and Katz, "An analytic performance
    model of disk arrays" (1993).
``table``
    Measured: ``distance`` and ``time_ms``, straight lines in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def seek_times(curve: Mapping[str, Any], cylinders: int) -> list[int]:
    """Return the time of a seek over 0, 1, ... cylinders.

    Parameters
    ----------
    curve : mapping
        As in the files, see above.
    cylinders : int
        How many there are.

    Returns
    -------
    list of int
        Nanoseconds.

    Raises
    ------
    ValueError
        For a curve that is none of these, or that goes below 0.
    """
    if not 1 <= cylinders <= 1 << 24:
        raise ValueError(f"{cylinders} cylinders")
    form = curve.get("form")
    if form not in _FORMS:
        raise ValueError(f"the seek curve has the form {form!r}, not {', '.join(_FORMS)}")
    distance = np.arange(1, cylinders, dtype=np.float64)
    milliseconds = _FORMS[form](curve, distance) if len(distance) else distance
    if not np.all((milliseconds >= 0) & (milliseconds < 1e6)):
        raise ValueError("the seek curve leaves [0, 1e6) ms")
    return [0, *np.rint(milliseconds * 1e6).astype(np.int64).tolist()]


def _ruemmler_wilkes(
    curve: Mapping[str, Any], distance: NDArray[np.float64]
) -> NDArray[np.float64]:
    (short, root), (long, slope) = curve["short_ms"], curve["long_ms"]
    times: NDArray[np.float64] = np.where(
        distance < float(curve["boundary"]),
        short + root * np.sqrt(distance),
        long + slope * distance,
    )
    first = list(curve.get("first_ms", ()))[: len(times)]
    times[: len(first)] = first
    return times


def _three_point(curve: Mapping[str, Any], distance: NDArray[np.float64]) -> NDArray[np.float64]:
    single, full = float(curve["single_ms"]), float(curve["full_ms"])
    beyond = distance - 1
    terms = np.stack([np.sqrt(beyond), beyond])
    # of all pairs of different cylinders, those so far apart
    share = distance[::-1] / distance.sum()
    matrix = np.stack([terms @ share, terms[:, -1]])
    wanted = np.array([float(curve["average_ms"]) - single, full - single])
    if len(distance) < 3:
        raise ValueError("a three-point curve wants four cylinders")
    solved: NDArray[np.float64] = single + np.linalg.solve(matrix, wanted) @ terms
    return solved


def _table(curve: Mapping[str, Any], distance: NDArray[np.float64]) -> NDArray[np.float64]:
    if sorted(set(curve["distance"])) != list(curve["distance"]):
        raise ValueError("the distances of the seek curve do not ascend")
    times: NDArray[np.float64] = np.interp(distance, curve["distance"], curve["time_ms"])
    return times


_FORMS = {"ruemmler-wilkes": _ruemmler_wilkes, "three-point": _three_point, "table": _table}
