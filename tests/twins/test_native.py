# SPDX-License-Identifier: GPL-2.0-only
"""The C kernels alone: their own tests, the sanitizers, and thousands of damaged images."""

import fcntl
import functools
import os
import shutil
import subprocess

import corpus
import pytest

NATIVE = corpus.PROJECT / "native"
pytestmark = pytest.mark.skipif(
    not os.access(NATIVE, os.W_OK), reason=f"{NATIVE} may not be written to"
)

# Small images that differ in what their trees hold: levels, backrefs, checksums, log trees.
DAMAGED = [
    ("features/nodesize-4096", 8000),
    ("features/mixed-dup", 1500),
    ("features/csum-xxhash", 1500),
    ("fiemap-random/s05", 2500),
    ("fiemap-random/s13", 1500),
    ("send/random/seed-005", 2500),
    ("log/nd/nd_20_5/6.18/crash2.img.zst", 1500),
]

WITHOUT_MEMORY = ["features/nodesize-4096", "fiemap-random/s13", "send/random/seed-005"]


@functools.cache
def in_place() -> list[str]:
    """Run a program at fixed addresses: with 32 random bits the sanitizers of GCC 12 may fail."""
    command = ["setarch", "--addr-no-randomize"]
    return [] if subprocess.run([*command, "true"], capture_output=True).returncode else command


def make(*words: str) -> str:
    """Run make in native/, one test process at a time; its output."""
    # Flags that a make around this one hands down are meant for it alone.
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
    (NATIVE / "build").mkdir(exist_ok=True)
    with (NATIVE / "build" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [*in_place(), "make", "--no-print-directory", "-C", str(NATIVE), *words],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.mark.claim(
    "The C kernels pass their own tests (`native/tests`) under AddressSanitizer and UBSan.",
    judge="unit",
)
@pytest.mark.parametrize("target", ["test", "sanitize"])
def test_kernels_alone(target: str) -> None:
    output = make(target)
    for name in NATIVE.glob("tests/unit/test_*.c"):
        what = name.stem.removeprefix("test_")
        assert any(
            line.startswith(f"{what}:") and line.endswith(" 0 failed")
            for line in output.splitlines()
        ), f"{name.name} did not report"


@pytest.mark.claim(
    "Threads that share a filesystem are free of races under ThreadSanitizer.",
    judge="unit",
)
def test_threads() -> None:
    """What threads do with images, counters and mapped files, under ThreadSanitizer."""
    program = "int main(void) { return 0; }"
    (NATIVE / "build").mkdir(exist_ok=True)
    probe = NATIVE / "build" / "has_tsan"
    command = ["gcc", "-fsanitize=thread", "-x", "c", "-", "-o", probe]
    if subprocess.run(command, input=program, text=True, capture_output=True).returncode:
        pytest.skip("gcc has no ThreadSanitizer")
    if subprocess.run([*in_place(), probe], capture_output=True).returncode:
        pytest.skip("ThreadSanitizer does not run here")
    assert "threads: " in make("threads")


@pytest.mark.claim(
    "Where an allocation fails, a C kernel says so, or is right without; nothing is lost or left "
    "half done: the same call is right afterwards.",
    judge="unit",
)
def test_every_allocation_fails_once() -> None:
    """Of the long kind all of them, else some of each kernel."""
    program = "build/sanitized/no_memory"
    make(program)
    images = [corpus.image(name) for name in WITHOUT_MEMORY]
    done = subprocess.run(
        [*in_place(), NATIVE / program, *(["0", *images] if corpus.LONG else ["15", images[0]])],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " 0 wrong" in done.stdout


@pytest.mark.claim("No damaged image crashes or hangs a C kernel.", judge="unit")
@pytest.mark.parametrize(("name", "cases"), DAMAGED)
def test_damaged_images(name: str, cases: int) -> None:
    program = "build/sanitized/mutate"
    make(program)
    cases //= 1 if corpus.LONG else 5
    done = subprocess.run(
        [*in_place(), NATIVE / program, corpus.image(name), str(cases), "1"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"{cases} cases, no crash and no hang" in done.stdout


@pytest.mark.skipif(not corpus.LONG, reason="it takes minutes: make test-long")
@pytest.mark.skipif(shutil.which("clang") is None, reason="there is no clang")
@pytest.mark.claim(
    "No bytes of a stream, of lzo, of items, of chunks or of damaged trees that change crash a C "
    "kernel or make it hang.",
    judge="unit",
)
@pytest.mark.parametrize("target", ["stream", "compress", "chunks", "text", "writer", "image"])
def test_bytes_of_any_kind(target: str) -> None:
    """Steered by coverage: libFuzzer."""
    image = corpus.image(DAMAGED[0][0])
    assert "Done" in make("fuzz", f"TARGET={target}", "SECONDS=60", f"IMAGE={image}")
