# SPDX-License-Identifier: GPL-2.0-only
"""The file of a machine: what :mod:`btrfs_model.cost.machine` reads."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from btrfs_model.cost.machine import UNITS
from btrfs_model.experiments.calibration import processor
from btrfs_model.experiments.calibration.costs import Term
from btrfs_model.experiments.calibration.fit import Fit, Row, amounts
from btrfs_model.experiments.calibration.measure import Measured

BUSY: Final = 0.10
"""A reference that spreads more says that the machine did other things, or its host did."""
_SHARE: Final = 0.2


def text(terms: tuple[Term, ...], found: Fit, measured: Measured, *, kernel: str, kind: str) -> str:
    """Return the file of a machine.

    Parameters
    ----------
    terms : tuple of Term
        The costs.
    found : Fit
        What they come to.
    measured : Measured
        From what.
    kernel, kind : str
        Preset of the kernel; ``native`` or ``uml``.
    """
    world = "User-Mode Linux" if kind == "uml" else "native"
    caches = processor.caches()
    spread = f"{measured.spread:.0%}"
    lines = [
        "# SPDX-License-Identifier: GPL-2.0-only",
        "# Made by btrfs-model calibrate.",
    ]
    if measured.spread > BUSY:
        lines.append(f"# The machine was busy, or its host was: equal runs spread by {spread}.")
    lines += [
        f"title = {_quoted(f'Linux {kernel[1:]}, {world}, on {processor.model()}')}",
        f"kernel = {_quoted(kernel)}",
        f"kind = {_quoted(kind)}",
        f"cache_mib = {processor.last_cache_mib():g}",
        f"measured = {_quoted(datetime.now(UTC).date().isoformat())}",
        "",
        "[measurement]",
        f"processor = {_quoted(processor.model())}",
        f"caches = {_quoted(', '.join(f'{level} {size}K' for level, size in caches.items()))}",
        f"microbenchmarks = {len(measured.rows)}",
        f"passes = {measured.passes}",
        f"reference_ms = {measured.reference * 1e3:.4g}",
        f"spread = {measured.spread:.3f}",
        f"busy = {str(measured.spread > BUSY).lower()}",
        "",
    ]
    for number, term in enumerate(terms):
        scale = UNITS[term.unit]
        counts = ", ".join(f"{name} = {weight:g}" for name, weight in term.counts.items())
        lines += [
            f"[cost.{term.name}]",
            f"value = {found.values[number] / scale:.6g}",
            f"low = {found.low[number] / scale:.6g}",
            f"high = {found.high[number] / scale:.6g}",
            f"unit = {_quoted(term.unit)}",
            f"counts = {{ {counts} }}",
            f"meaning = {_quoted(term.meaning)}",
            f"measured = {_quoted(_how(term, found, number, measured.rows))}",
            "",
        ]
    lines.append("[draws]")
    for number, term in enumerate(terms):
        drawn = found.draws[:, number] / UNITS[term.unit]
        lines.append(f"{term.name} = [{', '.join(f'{value:.5g}' for value in drawn)}]")
    lines += ["", "[residual]"]
    lines += [f"{name} = {value:.4f}" for name, value in found.residuals.items()]
    lines.append("")
    return "\n".join(lines)


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _how(term: Term, found: Fit, number: int, rows: list[Row]) -> str:
    """Name the microbenchmarks that spend most on a cost."""
    shares = {
        row.name: found.values[number] * amounts((term,), row.work)[0] / found.explained[row.name]
        for row in rows
    }
    most = sorted(shares, key=lambda name: -shares[name])[:3]
    named = [f"{name} ({shares[name]:.0%})" for name in most if shares[name]]
    if not named:
        return "least squares with all microbenchmarks; nothing is left for it"
    told = "" if shares[most[0]] >= _SHARE else "; none tells it well"
    return f"least squares with all microbenchmarks; most of it in: {', '.join(named)}{told}"
