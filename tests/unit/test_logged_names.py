# SPDX-License-Identifier: GPL-2.0-only
"""An inode with many new names is logged for each of them before Linux 6.1: the work of it."""

from __future__ import annotations

import pytest

from btrfs_model.base.counters import apart, counting, current, function, repeated
from btrfs_model.mount.log.v5_10 import log_parents
from btrfs_model.scripts.answer import whole
from btrfs_model.scripts.run import script

NAMES = """
mkfs.btrfs -q -f -n 4096 /dev/sdb
mount /dev/sdb /mnt
name=$(printf 'x%.0s' {1..180})
touch /mnt/foo
for ((i = 1; i <= 44; i++)); do ln /mnt/foo /mnt/$name$i; done
sync
for ((i = 1; i <= 44; i++)); do rm /mnt/$name$i; done
for ((i = 20; i <= 50; i++)); do ln /mnt/foo /mnt/$name$i; done
"""


@pytest.mark.parametrize("behaviour", ["v5.15", "3aa5bd367fa5^"])
def test_the_rest_is_as_the_last(behaviour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def counts() -> list[dict[str, int]]:
        result = script(NAMES, behaviour=behaviour)
        result.close()
        every = whole(result)
        assert every is not None
        parts = [every.work, *(work for one in result.calls for work in one.functions.values())]
        # which leaves of a log a cache has is an estimate
        return [{name: count for name, count in work.items() if "uncached" not in name}
                for work in parts]  # fmt: skip

    short = counts()
    monkeypatch.setattr(log_parents, "_LOGGED", 1 << 30)
    assert short == counts()
    assert short[0]["btrfs_log_inode"] > 500


def test_work_counts_as_often_as_it_is_said() -> None:
    with counting() as work, apart() as parts:
        with function("btrfs_log_inode"):
            current().count("changed_cb", 2)
        with repeated(3):
            current().count("changed_cb")
            with function("btrfs_log_inode"):
                current().count("changed_cb", 2)
    assert dict(work) == {"btrfs_log_inode": 4, "changed_cb": 11}
    assert dict(parts["btrfs_log_inode"]) == {"btrfs_log_inode": 4, "changed_cb": 8}
