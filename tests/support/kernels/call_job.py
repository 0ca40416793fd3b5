# SPDX-License-Identifier: GPL-2.0-only
"""Calls on an image that a kernel mounts for them, as a function that runs in that kernel."""

from tempfile import TemporaryDirectory
from typing import Any

from btrfs_model.kernels.inside.calls import KernelCalls
from btrfs_model.kernels.inside.mounts import mounted


def run_calls(image: str, sequence: list[list[Any]]) -> list[int]:
    """Make calls; return the errno of each, 0 for success. Deleted subvolumes are freed at once."""
    answers = []
    with TemporaryDirectory() as top, mounted(image, top, "noatime,commit=9999") as folder:
        kernel = KernelCalls(folder)
        for name, *arguments in sequence:
            answers.append(0)
            try:
                getattr(kernel, name)(*arguments)
                if name in ("delete_subvolume", "rmdir"):
                    kernel.clean()
            except OSError as error:
                answers[-1] = error.errno or 0
    return answers
