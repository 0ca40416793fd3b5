# SPDX-License-Identifier: GPL-2.0-only
"""Shell scripts that ran on Linux 6.18, with its programs: the model prints the same."""

import pytest
import shell_scripts

import btrfs_model as bm
from btrfs_model.scripts.host import why_not


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.claim(
    "Scripts of mkfs.btrfs, mount, coreutils, xfs_io, filefrag and btrfs print what they print on "
    "Linux 6.18.",
    judge="recorded",
)
@pytest.mark.parametrize("name", shell_scripts.NAMES)
def test_prints_what_a_kernel_prints(name: str) -> None:
    result = bm.script((shell_scripts.FOLDER / f"{name}.sh").read_text(), behaviour="v6.18")
    outputs = (shell_scripts.without_times(one.decode()) for one in (result.stdout, result.stderr))
    assert shell_scripts.Printed(*outputs, result.status) == shell_scripts.recorded(name)
