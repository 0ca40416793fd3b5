# SPDX-License-Identifier: GPL-2.0-only
"""C kernels again in plain Python, short and slow: what tests compare them with.

What `btrfs_model.reference` has is not here: that is to be read.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from btrfs_model.native import choice
from twins import device, stream_parse, stream_text

_TWINS = {
    "btrfs_model.cost.simulate.run": device.run,
    "btrfs_model.stream.index.index_commands": stream_parse.index_commands,
    "btrfs_model.stream.dump.TextLines": stream_text.TextLines,
}


@contextmanager
def select(which: choice.Choice) -> Iterator[None]:
    """Use C inside the ``with`` block, or Python for all that there is in Python."""
    with ExitStack() as stack:
        stack.enter_context(choice.select(which))
        for name, twin in _TWINS.items() if which == "python" else ():
            stack.enter_context(mock.patch(name, twin))
        yield
