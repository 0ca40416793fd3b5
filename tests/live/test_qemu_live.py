# SPDX-License-Identifier: GPL-2.0-only
"""Kernels of Debian under qemu's emulation."""

import corpus
import pytest

from btrfs_model.experiments.verify import run
from btrfs_model.experiments.verify.run import Task
from btrfs_model.kernels import debian, qemu

EMULATED = [one.name for one in debian.emulated()]


@pytest.mark.skipif(not corpus.LONG, reason="takes minutes")
@pytest.mark.skipif(bool(qemu.why_not()), reason=qemu.why_not())
@pytest.mark.skipif(not EMULATED, reason="no kernel for qemu (btrfs-model kernel get 7.3)")
@pytest.mark.parametrize("kernel", EMULATED)
@pytest.mark.claim("What kernels under emulation do is what the model does as their releases.")
def test_no_difference_under_emulation(kernel: str) -> None:
    kinds = ["send", "log", "replay", "fiemap", "data"]
    found = list(run.verify([Task(kernel, kinds, [0, 1])], lambda text: None))
    assert [one.difference for one in found] == [""] * (2 * len(kinds))
