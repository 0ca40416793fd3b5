# SPDX-License-Identifier: GPL-2.0-only
"""Small sequences of operations that show toggles of the log, each alone."""

import pytest
from shown import TOGGLES, showing

from btrfs_model.experiments.small.sequences import Steps
from btrfs_model.experiments.small.vocabulary import ALL
from btrfs_model.patches import Patch

POINTS = ("sync", "fsync", "fdatasync")
SHOWN: dict[str, Steps] = {
    "log-sub-trans": [["rename", "A/bar", "B/new"], ["fsync", "B"], ["chmod", "A/foo", 0o600],
                      ["fsync", "B/new"]],
    "log-dir-index-only": [["mknod", "A/new", 0o10644], ["fsync", "A"]],
    "log-skip-old-dir-items": [["mknod", "A/new", 0o10644], ["fsync", "A"]],
    "log-conflict-list": [["exchange", "A", "B"], ["fsync", "A"]],
    "log-delayed-items": [["exchange", "A/foo", "A/bar"], ["fsync", "B/foo"]],
    "log-no-links": [["mkdir", "A/new"], ["fsync", "A"], ["rename", "A/foo", "A/bar"],
                     ["fsync", "A/bar"]],
    "log-commit-error": [["rename", "A/bar", "A/foo"], ["fsync", "A/foo"],
                         ["exchange", "A/foo", "B/D"], ["fsync", "B/D"]],
    "log-otime": [["fallocate", "A/bar", 0, 0, 8192], ["fsync", "A/bar"]],
    "log-replay-dir-times": [["exchange", "A", "B"], ["fsync", "A"]],
    "log-new-name-refs": [["symlink", "foo", "A/new"], ["fsync", "A"],
                          ["rename", "A/new", "A/foo"], ["fsync", "A"]],
    "log-new-name-unsynced": [["mkdir", "A/new"], ["chmod", "A/foo", 0o600], ["fsync", "A/foo"],
                              ["link", "A/foo", "A/new/new"], ["fsync", "A"]],
    "log-moved-conflicts": [["exchange", "A", "B"], ["rename", "A/foo", "B/new"],
                            ["fsync", "B/foo"]],
    "log-old-conflicts": [["exchange", "A", "B"], ["fsync", "A"]],
    "log-exists-size": [["exchange", "A/foo", "A/bar"], ["fsync", "B/foo"]],
}  # fmt: skip
"""Found by ``tests/support/shown.py``."""


@pytest.mark.claim(
    "Each of 14 toggles of the log, from 5.13 to 7.0, is shown by a sequence of at most three "
    "operations of `verify sequences`: the model without it has another log, or another outcome "
    "of an fsync or replay."
)
@pytest.mark.parametrize("name", SHOWN)
def test_a_sequence_shows_a_toggle(name: str) -> None:
    steps = SHOWN[name]
    operations = [step for step in steps if step[0] not in POINTS]
    assert len(operations) <= 3
    assert all(step in ALL for step in operations)
    assert showing([steps], [Patch(name)]) == [steps]


def test_toggles_of_the_log_are_known() -> None:
    assert {*SHOWN} <= {*map(str, TOGGLES)}
