# SPDX-License-Identifier: GPL-2.0-only
"""What pyproject.toml cannot declare: the C kernels, and which Pythons a wheel of them serves."""

import sysconfig

from setuptools import setup

# cffi keeps to the stable ABI, which builds without a GIL do not have.
abi = {} if sysconfig.get_config_var("Py_GIL_DISABLED") else {"py_limited_api": "cp311"}

setup(cffi_modules=["native/build_ffi.py:ffibuilder"], options={"bdist_wheel": abi})
