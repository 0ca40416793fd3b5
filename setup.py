# SPDX-License-Identifier: GPL-2.0-only
"""The C kernels are the one thing that pyproject.toml cannot declare."""

from setuptools import setup

setup(cffi_modules=["native/build_ffi.py:ffibuilder"])
