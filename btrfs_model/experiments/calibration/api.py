# SPDX-License-Identifier: GPL-2.0-only
"""A machine measured from start to end."""

from __future__ import annotations

from typing import Final

from btrfs_model.experiments.calibration import fit, machine_file
from btrfs_model.experiments.calibration.costs import TERMS
from btrfs_model.experiments.calibration.measure import Measured, Step, measure
from btrfs_model.experiments.calibration.micro import microbenchmarks
from btrfs_model.kernels.choice import start

_PASSES: Final = 2
SECONDS: Final = 60.0
"""How long microbenchmarks are timed, after they were made."""


def calibrate(
    which: str, seconds: float = SECONDS, step: Step = lambda _: None
) -> tuple[str, Measured]:
    """Measure a machine.

    Parameters
    ----------
    which : str
        The kernel, as :func:`btrfs_model.kernels.choice.start` takes it.
    seconds : float
        How long microbenchmarks are timed; there are two passes at least.
    step : callable
        Is told what is done next.

    Returns
    -------
    str
        The file of the machine.
    Measured
        What it was made of.

    Raises
    ------
    BtrfsModelError
        When scipy or the kernel is missing.
    """
    fit.needs_scipy()
    with start(which) as kernel:
        measured = measure(kernel, microbenchmarks()[1:], seconds, _PASSES, step)
        found = fit.fit(TERMS, measured.rows)
        kind = "native" if which == "native" else "uml"
        made = machine_file.text(TERMS, found, measured, kernel=kernel.preset, kind=kind)
        return made, measured
