# SPDX-License-Identifier: GPL-2.0-only
"""What a fault is, by number.

:class:`Code` is ``enum bm_code`` of ``native/base/fault.h``, held to it by a test.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Final

EUCLEAN: Final[int] = getattr(errno, "EUCLEAN", 117)
"""What the kernel answers to damage; Linux's number, where the system has none of this name."""


class Code(IntEnum):
    """The result of a C kernel; all but OK are faults."""

    OK = 0
    NOMEM = -1
    UNMAPPED = -2
    PAST_END = -3
    UNALIGNED = -4
    BAD_CSUM = -5
    BAD_BYTENR = -6
    BAD_FSID = -7
    BAD_LEVEL = -8
    BAD_GENERATION = -9
    BAD_NRITEMS = -10
    BAD_KEY_ORDER = -11
    BAD_ITEM_RANGE = -12
    BAD_BLOCKPTR = -13
    BAD_FIRST_KEY = -14
    BAD_OWNER = -15
    BAD_MAGIC = -16
    BAD_LAST_KEY = -17
    NO_DEVICE = -18
    BAD_ITEM_SIZE = -20
    BAD_VALUE = -21
    NOT_FOUND = -22
    LOOP = -23
    BAD_DATA = -30
    BAD_DATA_CSUM = -31
    STREAM_TRUNCATED = -40
    STREAM_BAD_MAGIC = -41
    STREAM_BAD_VERSION = -42
    STREAM_BAD_CRC = -43
    STREAM_BAD_COMMAND = -44
    STREAM_BAD_ATTRIBUTE = -45
    STREAM_BAD_LENGTH = -46
    STREAM_BAD_SIZE = -47
    STREAM_MISSING = -48
    STREAM_TWICE = -49
    STREAM_LONG_PATH = -60
    STREAM_BAD_TIME = -61
    ERRNO = -50
    CALLBACK = -51
    FILE_CHANGED = -52
