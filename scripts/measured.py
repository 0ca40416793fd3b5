# SPDX-License-Identifier: GPL-2.0-only
"""Writing ``data/workloads/*/measured.json``, a line for each row."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from btrfs_model.experiments.verify.times import taken

__all__ = ["taken", "write"]


def write(
    target: Path,
    sources: Mapping[str, Mapping[str, object]],
    rows: Sequence[Mapping[str, object]],
) -> None:
    """Write what was measured, and where it is from: a text for each side."""
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(
        f'{{"sources": {json.dumps(sources, indent=1)},\n "rows": [\n  {lines}\n]}}\n'
    )
