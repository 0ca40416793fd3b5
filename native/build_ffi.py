# SPDX-License-Identifier: GPL-2.0-only
"""Build the extension module ``btrfs_model.native._native`` from the C kernels.

``kernels.h`` and what it includes are the only declarations: cffi reads the same text in the same
order as the compiler, less the lines of the preprocessor. In API mode the compiler then checks what
cffi understood. One of them, ``toggles.h``, is written anew from the table
of toggles, ``btrfs_model/patches.py``. The module carries a digest of all of them, so that the
import can tell it from one that was built of others.
"""

import os
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cffi import FFI

NATIVE = Path(__file__).resolve().parent
SOURCES = sorted(
    str(path.relative_to(NATIVE)) for path in NATIVE.rglob("*.c") if "tests" not in path.parts
)


def headers(name: str, seen: set[str]) -> Iterator[str]:
    """Names of a header and of those of the project that it includes, what is needed first."""
    if name in seen:
        return
    seen.add(name)
    for included in re.findall(r'^#include "(.+)"$', (NATIVE / name).read_text(), re.MULTILINE):
        yield from headers(included, seen)
    yield name


def declarations(header: str) -> str:
    """Text of a header without its preprocessor lines."""
    return re.sub(r"^#.*", "", (NATIVE / header).read_text(), flags=re.MULTILINE)


def of_package(module: str) -> dict[str, Any]:
    """Run a module of the package that needs nothing of it; return its names."""
    return runpy.run_path(str(NATIVE.parent / "btrfs_model" / module))


def toggles_header() -> str:
    """Text of ``toggles.h``: a bit for each toggle that a C kernel asks for."""
    table = of_package("patches.py")["Patch"]
    toggles = "".join(f"\tBM_TOGGLE_{one.name},\n" for one in table if one.asked == "C")
    return f"""/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a kernel does where kernels differ: bits of a behaviour. Written by build_ffi.py from
 * btrfs_model/patches.py, which tells the commit of each; only those that C asks for stand here.
 */
#ifndef BTRFS_MODEL_TOGGLES_H
#define BTRFS_MODEL_TOGGLES_H

enum bm_toggle {{
{toggles}}};

#endif
"""


if (NATIVE / "toggles.h").read_text() != toggles_header():
    (NATIVE / "toggles.h").write_text(toggles_header())

ffibuilder = FFI()
for header in headers("kernels.h", set()):
    ffibuilder.cdef(declarations(header), packed=header == "ondisk.h")
# The callbacks through which a kernel asks Python for something, by name.
ffibuilder.cdef("""extern "Python" {
    int bm_python_write(void *context, const uint8_t *data, size_t size);
    int bm_python_decompress(void *context, int compression, const uint8_t *data, size_t size,
                             uint8_t *out, size_t out_size);
    int bm_python_poll(void);
}""")
DIGEST = of_package("native/built.py")["digest"](NATIVE)
ffibuilder.cdef("static const uint64_t BM_SOURCES;")
ffibuilder.cdef("const char *bm_compiler(void); int bm_has_assertions(void);")
BUILD = f"""#include "kernels.h"
#define BM_SOURCES {DIGEST}ULL

static const char *bm_compiler(void)
{{
#ifdef __clang__
	return "clang " __clang_version__;
#else
	return "gcc " __VERSION__;
#endif
}}

static int bm_has_assertions(void)
{{
#ifdef BM_ASSERTIONS
	return 1;
#else
	return 0;
#endif
}}
"""
ffibuilder.set_source(
    "btrfs_model.native._native",
    BUILD,
    # setuptools wants paths relative to the project
    sources=[f"native/{name}" for name in SOURCES],
    include_dirs=["native"],
    depends=[f"native/{path.relative_to(NATIVE)}" for path in NATIVE.rglob("*.h")],
    # nobody but Python looks for a name, so a call need not ask whose function it is
    extra_compile_args=[
        "-std=c11",
        "-O3",
        "-fvisibility=hidden",
        *os.environ.get("BTRFS_MODEL_CFLAGS", "").split(),
    ],
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
