# SPDX-License-Identifier: GPL-2.0-only
"""Workloads replayed side by side."""

import os
from collections import Counter

import pandas as pd
import pytest

import btrfs_model as bm
from btrfs_model.experiments.replays import run_all
from btrfs_model.experiments.results import frame


def die(parent: int) -> dict[str, object]:
    """End this process, but not the one of the tests."""
    if os.getpid() != parent:
        os._exit(9)
    return {}


class Deadly:
    """What kills another process that unpickles it."""

    def __reduce__(self) -> tuple[object, ...]:
        return die, (os.getpid(),)


@pytest.mark.claim("Workloads replayed side by side give the figures of one after the other.")
def test_side_by_side() -> None:
    names = "log-dir", "send-utimes"
    told: list[str] = []
    alone, beside = (
        run_all(names, jobs, told.append, scale=0.005) for jobs in (1, 2)
    )  # fmt: skip
    pd.testing.assert_frame_equal(frame(alone), frame(beside))
    assert {one.workload.name for one in beside} == set(names)
    # each step was told twice
    assert all(count == 2 for count in Counter(told).values())
    assert any(text.startswith("log-dir: ") for text in told)


def test_a_process_that_is_killed() -> None:
    with pytest.raises(bm.BtrfsModelError, match="was killed"):
        run_all(("log-dir", "send-utimes"), 2, print, scale="quick", knobs=Deadly())
