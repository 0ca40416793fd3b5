# SPDX-License-Identifier: GPL-2.0-only
"""Write ``toggles.h`` from the table of toggles, ``btrfs_model/patches.py``; every build does."""

import runpy
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
HEADER = NATIVE / "toggles.h"


def header() -> str:
    """Text of the header: a bit for each toggle that a C kernel asks for."""
    table = runpy.run_path(str(NATIVE.parent / "btrfs_model" / "patches.py"))["Patch"]
    toggles = "".join(f"\tBM_TOGGLE_{one.name},\n" for one in table if one.asked == "C")
    return f"""/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a kernel does where kernels differ: bits of a behaviour. Written by toggles.py from
 * btrfs_model/patches.py, which tells the commit of each; only those that C asks for stand here.
 */
#ifndef BTRFS_MODEL_TOGGLES_H
#define BTRFS_MODEL_TOGGLES_H

enum bm_toggle {{
{toggles}}};

#endif
"""


def write() -> None:
    """Write the header, if it is not what the table says."""
    text = header()
    if not HEADER.exists() or HEADER.read_text() != text:
        HEADER.write_text(text)


if __name__ == "__main__":
    write()
