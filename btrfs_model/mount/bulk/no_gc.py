# SPDX-License-Identifier: GPL-2.0-only
"""Python's collector of cycles, kept out of calls that handle very many objects, none in cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_gc() -> Iterator[None]:
    """Look for cycles when this has ended, not again and again while objects come or go."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
