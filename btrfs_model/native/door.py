# SPDX-License-Identifier: GPL-2.0-only
"""The compiled module, for the bindings beside it."""


class NotBuiltError(ImportError):
    """The C kernels were not compiled; what does not need them can be used."""


try:
    from btrfs_model._native import ffi as ffi
    from btrfs_model._native import lib as lib
except ModuleNotFoundError as error:
    if error.name != "btrfs_model._native":
        raise
    raise NotBuiltError(
        "the C kernels of btrfs_model are not built: run `make build` in its folder"
    ) from None
