# SPDX-License-Identifier: GPL-2.0-only
"""Shell scripts run by bash on this machine's kernel: they print what was recorded of them."""

import judges
import pytest
import shell_scripts


@judges.MARKS["machine"]
@pytest.mark.parametrize("name", shell_scripts.NAMES)
def test_recorded_scripts(name: str) -> None:
    printed = shell_scripts.on_kernel(name)
    assert printed == shell_scripts.recorded(name)
