# SPDX-License-Identifier: GPL-2.0-only
"""How much there is of what is small, and how much of it was compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from btrfs_model.experiments.small.sequences import enumerated
from btrfs_model.experiments.small.vocabulary import ALL
from btrfs_model.experiments.verify.logs import ENDS
from btrfs_model.experiments.verify.pairs import firsts, seconds
from btrfs_model.experiments.verify.sequences import cases

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.experiments.verify.run import Outcome

_SAMPLED = "3, sampled"
_CAME = ("log", "commit", "none")


def cases_of(kind: str) -> int:
    """Return how many cases it takes to go through all there is."""
    return sum(cases()) if kind == "sequences" else len(firsts())


def rate(found: Sequence[Outcome], elapsed: float) -> str:
    """Return how much was compared in so many seconds."""
    unit = found[0].kind if found else ""
    amount = sum(one.compared.get(unit, 0) for one in found)
    return f"{amount:,} {unit}, {amount / max(elapsed, 1):.0f} a second"


def enumeration(found: Sequence[Outcome]) -> pd.DataFrame:
    """Return what there is and what was compared: a row for each kernel and number of operations.

    Seconds are those of all processes together.
    """
    import pandas as pd

    parts: dict[tuple[str, str, str], list[Outcome]] = {}
    for one in found:
        parts.setdefault((one.release, one.kind, _length(one)), []).append(one)
    return pd.DataFrame([_row(*key, outcomes) for key, outcomes in sorted(parts.items())])


def _length(outcome: Outcome) -> str:
    """Return how many operations the sequences of a case have."""
    if outcome.kind == "pairs":
        return "1 and 2"
    single, double = cases()
    case = int(outcome.case)
    return "1" if case < single else "2" if case < single + double else _SAMPLED


def _row(kernel: str, kind: str, length: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    units: Counter[str] = Counter()
    for one in outcomes:
        units.update(one.compared)
    took = sum(one.seconds for one in outcomes)
    there, left = _there(kind, length)
    return {
        "kernel": kernel, "kind": kind, "operations": len(ALL), "in a row": length,
        "there are": there, "left out": left, "compared": units[kind],
        **{name: units[f"fsyncs: {name}"] for name in _CAME},
        "log items": units["log items"], "streams": units["streams"],
        **{name: units[name] for name in ENDS},
        "by chance": units["differ by chance"], "differ": units["differ"], "seconds": round(took),
        "a second": round(units[kind] / max(took, 0.1), 1),
    }  # fmt: skip


def _there(kind: str, length: str) -> tuple[int | None, int | None]:
    """Return how many sequences or pairs there are, and how many were left out."""
    if kind == "pairs":
        return sum(1 + len(seconds(first)) for first in firsts()), 0
    if length == _SAMPLED:
        return None, None
    sequences, left = enumerated(int(length))
    return len(sequences), left.total()
