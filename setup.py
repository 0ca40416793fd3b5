# SPDX-License-Identifier: GPL-2.0-only
"""What pyproject.toml cannot declare: the C kernels, and which Pythons a wheel of them serves.

A wheel also has ``btrfs_model/data``: devices, machines, what was measured of the workloads, and
samples of 2.5 MB at most; ``btrfs_model/notebooks``; and a man page, made from the options of the
commands.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DATA = [
    "samples.toml",
    "titles.tsv.gz",
    "atlas/**/*.toml",
    "commits/*.toml",
    "devices/*.toml",
    "machines/*.toml",
    "workloads/**/*.json",
    "kernel/counts/W[23]/*/image.zst",
    "kernel/devices/single/*.device.zst",
    "kernel/features/*/image.zst",
    "kernel/log/scenarios/dir_new_subdirs/6.18/crash1.img.zst",
    "kernel/log/nd/nd_20_5/5.10/committed[12].img.zst",
    "kernel/log/nd/nd_20_5/6.1/crash2.img.zst",
    "kernel/log/nd/nd_20_5/6.1/replayed2.img.zst",
    "kernel/log/nd/nd_20_5/6.12/committed1.img.zst",
    "kernel/log/nd/nd_20_5/6.12/crash1.img.zst",
    "kernel/reada/r5k/image.zst",
    "kernel/send/send-*/*/image.zst",
]


MAN_PAGE = Path("build", "man", "btrfs-model.1")


class BuildWithData(build_py):
    """Copies data and notebooks into the package, and makes the man page: a clone needs neither."""

    def run(self) -> None:
        """Build, and copy for a wheel."""
        super().run()
        if self.editable_mode:
            return
        MAN_PAGE.parent.mkdir(parents=True, exist_ok=True)
        with MAN_PAGE.open("w") as page:
            subprocess.run(
                [sys.executable, "-m", "btrfs_model.cli.man"], check=True, stdout=page,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip
        data = {path for pattern in DATA for path in Path("data").glob(pattern)}
        notebooks = {path for path in Path("notebooks").rglob("*") if "/." not in str(path)}
        for source in sorted(data | notebooks):
            if source.is_file():
                target = Path(self.build_lib, "btrfs_model", source)
                self.mkpath(str(target.parent))
                self.copy_file(str(source), str(target))


# cffi keeps to the stable ABI, which builds without a GIL do not have.
abi = {} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"py_limited_api": "cp311"}

setup(
    cffi_modules=["native/build_ffi.py:ffibuilder"],
    cmdclass={"build_py": BuildWithData},
    data_files=[("share/man/man1", [str(MAN_PAGE)])],
    options={"bdist_wheel": abi},
)
