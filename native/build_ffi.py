# SPDX-License-Identifier: GPL-2.0-only
"""Build the extension module ``btrfs_model._native`` from the C kernels.

``kernels.h``, ``ondisk.h`` and ``toggles.h``, which is written anew from the table of toggles, are
the only declarations: cffi reads the same text as the compiler, less the lines of the preprocessor.
In API mode the compiler then checks what cffi understood.
"""

import os
import runpy
from pathlib import Path

from cffi import FFI

NATIVE = Path(__file__).resolve().parent
SOURCES = sorted(
    str(path.relative_to(NATIVE)) for path in NATIVE.rglob("*.c") if "tests" not in path.parts
)


def declarations(header: str) -> str:
    """Text of a header without its preprocessor lines (and their continuations)."""
    lines = (NATIVE / header).read_text().splitlines()
    return "\n".join("" if line.startswith("#") else line for line in lines)


runpy.run_path(str(NATIVE / "toggles.py"))["write"]()

ffibuilder = FFI()
ffibuilder.cdef(declarations("ondisk.h"), packed=True)
ffibuilder.cdef(declarations("toggles.h"))
ffibuilder.cdef(declarations("kernels.h"))
# The callbacks through which a kernel asks Python for something, by name.
ffibuilder.cdef("""extern "Python" {
    int bm_python_write(void *context, const uint8_t *data, size_t size);
    int bm_python_decompress(void *context, int compression, const uint8_t *data, size_t size,
                             uint8_t *out, size_t out_size);
    int bm_python_poll(void);
}""")
ffibuilder.set_source(
    "btrfs_model._native",
    '#include "kernels.h"',
    # setuptools wants paths relative to the project
    sources=[f"native/{name}" for name in SOURCES],
    include_dirs=["native"],
    depends=[f"native/{path.relative_to(NATIVE)}" for path in NATIVE.rglob("*.h")],
    extra_compile_args=["-std=c11", "-O3", *os.environ.get("BTRFS_MODEL_CFLAGS", "").split()],
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
