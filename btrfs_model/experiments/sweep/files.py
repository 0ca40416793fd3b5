# SPDX-License-Identifier: GPL-2.0-only
"""Tables of sweeps as files, which say what the columns hold and where it all comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pandas as pd

from btrfs_model.experiments import provenance
from btrfs_model.experiments.results import COLUMNS, to_csv, to_parquet
from btrfs_model.experiments.sweep.plan import Plan
from btrfs_model.experiments.sweep.spec import Spec
from btrfs_model.experiments.sweep.store import build
from btrfs_model.experiments.workloads.cases import Column

_KNOB: Final = Column("", "", "Knob of the sweep, or what a figure depends on besides.")
_COLUMNS: Final = {
    **COLUMNS,
    "value": replace(COLUMNS["modelled"], meaning="The figure."),
    "side": Column("string", "", "Side of the commit; empty where the kernel is a knob."),
    "of": Column("string", "", "Quantity or conclusion that is analysed."),
    "knob": Column("string", "", "Knob that the index is of."),
    "index": Column("string", "", "mu* and sigma of Morris; S1 and ST of Sobol."),
    "decides": Column("bool", "", "Whether the lower end of the interval is above 0."),
}


def packed(table: pd.DataFrame, spec: Spec, planned: Plan, path: Path) -> bytes:
    """Return a table as the file of a name has it: CSV, or Parquet with its provenance."""
    if path.suffix == ".csv":
        return to_csv(table)
    about: dict[str, Any] = {
        "software": {**provenance.software(), "build": build()},
        "machine": provenance.machine(),
        "sweep": {
            "spec": provenance.input_file(Path(spec.path)),
            "target": spec.target.name,
            "knobs": spec.knobs,
            "sampler": spec.sampler,
            "samples": spec.samples,
            "seed": spec.seed,
            "cells": len(planned),
        },
    }
    return to_parquet(table, lambda name: _COLUMNS.get(name, _KNOB), about)
