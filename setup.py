# SPDX-License-Identifier: GPL-2.0-only
"""What pyproject.toml cannot declare: the C kernels, and which Pythons a wheel of them serves.

A wheel also has ``btrfs_model/data``: devices, machines, what was measured of the workloads, and
samples of 2 MB at most.
"""

import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DATA = [
    "samples.toml",
    "commits/*.toml",
    "devices/*.toml",
    "machines/*.toml",
    "workloads/**/*.json",
    "kernel/counts/W[23]/*/image.zst",
    "kernel/features/*/image.zst",
    "kernel/log/scenarios/dir_new_subdirs/6.18/crash1.img.zst",
    "kernel/log/nd/nd_20_5/5.10/committed1.img.zst",
    "kernel/log/nd/nd_20_5/6.1/crash2.img.zst",
    "kernel/log/nd/nd_20_5/6.1/replayed2.img.zst",
    "kernel/log/nd/nd_20_5/6.12/committed1.img.zst",
    "kernel/log/nd/nd_20_5/6.12/crash1.img.zst",
    "kernel/reada/r5k/image.zst",
    "kernel/send/send-*/*/image.zst",
]


class BuildWithData(build_py):
    """Copies the data beside the modules; in a clone they stay where they are."""

    def run(self) -> None:
        """Build, and copy for a wheel."""
        super().run()
        if self.editable_mode:
            return
        for source in sorted({path for pattern in DATA for path in Path("data").glob(pattern)}):
            if source.is_file():
                target = Path(self.build_lib, "btrfs_model", source)
                self.mkpath(str(target.parent))
                self.copy_file(str(source), str(target))


# cffi keeps to the stable ABI, which builds without a GIL do not have.
abi = {} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"py_limited_api": "cp311"}

setup(
    cffi_modules=["native/build_ffi.py:ffibuilder"],
    cmdclass={"build_py": BuildWithData},
    options={"bdist_wheel": abi},
)
