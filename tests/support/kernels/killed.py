# SPDX-License-Identifier: GPL-2.0-only
"""What is left of a kernel when the process that started it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_PROGRAM = """if True:
    import sys
    from called import busy, doubled
    {imports}
    kernel = {kernel}
    kernel.call(doubled, b"it runs")
    print(kernel.folder, kernel.images, f"/proc/{{kernel._process.pid}}", flush=True)
    if {busy}:
        kernel.call(busy, str(kernel.folder / "busy"), 1.0)
    sys.stdin.read()
"""


def left_behind(imports: str, kernel: str, folder: Path, *, busy: bool = False) -> list[Path]:
    """Start a kernel in a process and kill that; return folders and processes that remain.

    `kernel` is an expression, for which `imports` finds names, also in a folder. One that is busy
    answers a call, and hears only later that nobody asks any more.
    """
    path = ":".join([str(folder), str(Path(__file__).parent)])
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(imports=imports, kernel=kernel, busy=busy)],
        env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    left = list(map(Path, process.stdout.readline().split()))
    assert len(left) == 3
    assert all(one.exists() for one in left)
    end = time.monotonic() + 600
    while busy and not (left[0] / "busy").exists() and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    end = time.monotonic() + 600
    while any(one.exists() for one in left) and time.monotonic() < end:
        time.sleep(0.01)
    return [one for one in left if one.exists()]
