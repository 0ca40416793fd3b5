# SPDX-License-Identifier: GPL-2.0-only
"""Shell scripts run by bash on this machine's kernel: they print what was recorded of them."""

import judges
import pytest
import shell_scripts


@judges.MARKS["machine"]
@pytest.mark.parametrize("name", shell_scripts.NAMES)
def test_recorded_scripts(name: str) -> None:
    if missing := shell_scripts.missing(name):
        pytest.skip(f"there is no {', '.join(missing)} of fstests")
    recorded = shell_scripts.recorded(name)
    # sync(2) wakes flushers; on a busy machine they may come second
    runs = (shell_scripts.on_kernel(name) for _ in range(3))
    printed = next((one for one in runs if one == recorded), None)
    assert (printed or shell_scripts.on_kernel(name)) == recorded
