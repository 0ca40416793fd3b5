# SPDX-License-Identifier: GPL-2.0-only
"""What real kernels did: images, streams and answers that tests are judged by.

Two places hold them in the same layout: ``data/kernel``, part of the project, and the folder that
``BTRFS_MODEL_ORACLE`` names, which may hold more. A *case* is a folder with a ``case.json``, named
by its path below the root (``send/random/seed-003``); its files may lie in either place.

Images are stored compressed. :func:`image` restores one, sparse, into ``tests/.cache`` under a name
that follows its content, so that a restored image is never stale and is shared by test processes.
Tests must not write to it; :func:`scratch_copy` makes a sparse copy that they may break. Who may
not write to the project has a cache below the folder of temporary files.
"""

import fcntl
import functools
import hashlib
import json
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import zstandard

PROJECT = Path(__file__).resolve().parents[2]
KERNEL_DATA = PROJECT / "data" / "kernel"
CACHE = PROJECT / "tests" / ".cache"
TEST_DATA = PROJECT / "tests" / "data"
if not os.access(CACHE if CACHE.exists() else CACHE.parent, os.W_OK):
    CACHE = Path(tempfile.gettempdir(), f"btrfs-model-tests-{os.geteuid()}")

_oracle = os.environ.get("BTRFS_MODEL_ORACLE", "")
ORACLE = Path(_oracle).resolve() if _oracle else None
if ORACLE is not None and not ORACLE.is_dir():
    raise NotADirectoryError(f"BTRFS_MODEL_ORACLE names no folder: {ORACLE}")

have_oracle = ORACLE is not None
# Look at everything, whatever it takes: make test-long.
LONG = os.environ.get("BTRFS_MODEL_TESTS") == "long"
# Look at more of the same: other seeds, other parts of a corpus. `make test` looks at a part where
# the larger corpus is not at hand. A test that does so is marked `more`, those by Hypothesis are
# without a mark: when they have passed with a part, they run again in the later run of .ci/run. Of
# the cases of a test that is marked `one_of(number)` one of so many runs; the others are skipped.
MORE = LONG or have_oracle
SEVERAL_DEVICES = {"features/raid1-two-devices"}
"""Images of one device of several, which are not opened by themselves."""
_roots = [root for root in (ORACLE, KERNEL_DATA) if root is not None]

# zstd --long=27 wrote some files; a decoder refuses such a window unless it is allowed.
_decoder = functools.partial(zstandard.ZstdDecompressor, max_window_size=1 << 27)

_CHUNK = 1 << 16
_ZEROS = bytes(_CHUNK)
_SUPER_OFFSET = 65536
_SUPER_MAGIC = (_SUPER_OFFSET + 0x40, b"_BHRfS_M")
_SUPER_DEVICE_SIZE = _SUPER_OFFSET + 0xD1


def cases(family: str = "") -> list[str]:
    """Names of the cases below `family` (all of them without one), in order."""
    found = {
        str(file.parent.relative_to(root))
        for root in _roots
        for file in (root / family).rglob("case.json")
    }
    return sorted(found)


@functools.lru_cache(maxsize=256)
def case(name: str) -> dict[str, Any]:
    """The case's ``case.json``."""
    parsed: dict[str, Any] = json.loads(path(name, "case.json").read_text())
    return parsed


def has(name: str, file: str) -> bool:
    """Whether a file of a case is at hand."""
    return any((root / name / file).is_file() for root in _roots)


def path(name: str, file: str) -> Path:
    """Where a file of a case lies."""
    for root in _roots:
        if (root / name / file).is_file():
            return root / name / file
    raise FileNotFoundError(f"{name}/{file} is neither in data/kernel nor in the oracle")


def files(name: str, pattern: str = "*") -> list[str]:
    """Names of the files below a folder that match `pattern`, relative to it, in order."""
    found = {
        str(file.relative_to(root / name))
        for root in _roots
        for file in (root / name).rglob(pattern)
        if file.is_file()
    }
    return sorted(found)


def images(family: str = "") -> list[str]:
    """Every name below `family` that :func:`image` takes.

    A folder that holds an ``image.zst`` is named by itself, other images by their file
    (``log/scenarios/chmod_only/6.18/crash1.img.zst``).
    """
    whole = [file.removesuffix("image.zst").rstrip("/") for file in files(family, "image.zst")]
    names = whole + files(family, "*.img.zst")
    return sorted(f"{family}/{name}".strip("/") for name in names)


def data(name: str, file: str) -> bytes:
    """Content of a file of a case; what ends in ``.zst`` is decompressed."""
    raw = path(name, file).read_bytes()
    if not file.endswith(".zst"):
        return raw
    with _decoder().stream_reader(raw) as reader:
        return reader.read()


def stream(name: str, file: str) -> bytes:
    """A send stream of a case, as ``case.json`` names it in ``file``."""
    return data(name, file)


def text(name: str, file: str) -> str:
    """A text file of a case; bytes that are not UTF-8 become surrogates."""
    return data(name, file).decode("utf-8", "surrogateescape")


def records(name: str) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """What each kernel did in each send of a case of ``send``: (send, kernel, record).

    A record has ``bytes``, ``sha256`` and, where the stream was stored, ``file``; a kernel that
    sent the same as 6.18 gets 6.18's record.
    """
    for send in case(name).get("sends", []):
        native = dict(send["native"], file=send.get("file")) if "native" in send else None
        if native is not None:
            yield send, "6.18", native
        for kernel, record in send.get("kernels", {}).items():
            yield send, kernel, native if record.get("same_as_native") else record


def image(name: str) -> Path:
    """A restored image: of a case with an ``image.zst``, or of the ``*.img.zst`` that is named."""
    folder, _, file = name.rpartition("/") if name.endswith(".zst") else (name, "", "image.zst")
    packed = path(folder, file)
    label = name.removesuffix(".img.zst").replace("/", "-")
    target = CACHE / f"{label}-{_digest(packed)[:12]}.img"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                partial = target.with_suffix(f".{os.getpid()}")
                restore(packed, partial)
                partial.replace(target)
    return target


def scratch_copy(name: str, target: Path) -> Path:
    """A sparse copy of a restored image, for a test to break."""
    copy_sparse(image(name), target)
    return target


def copy_sparse(source: Path, target: Path) -> None:
    """Copy an image; the copy may be written to."""
    command = ["cp", "--sparse=always", "--no-preserve=mode", str(source), str(target)]
    subprocess.run(command, check=True)


def content(image: Path) -> dict[int, bytes]:
    """What a sparse file holds: pieces that are not all zeros, by offset; and its size, with none.

    To read what is no more than a hole takes a tenth of a second for each 128 MiB.
    """
    found, at = {image.stat().st_size: b""}, 0
    with image.open("rb") as file, suppress(OSError):  # ENXIO: nothing follows
        while True:
            at = os.lseek(file.fileno(), at, os.SEEK_DATA) // _CHUNK * _CHUNK
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            for start in range(at, end, _CHUNK):
                piece = os.pread(file.fileno(), _CHUNK, start)
                if piece != _ZEROS[: len(piece)]:
                    found[start] = piece
            at = max(end, at + _CHUNK)
    return found


def restore(packed: Path, target: Path) -> None:
    """Decompress an image, leave its runs of zeros as holes and give it the size of its device."""
    with packed.open("rb") as source, target.open("wb") as sink:
        end = 0
        for piece in _decoder().read_to_iter(source, read_size=1 << 20, write_size=_CHUNK):
            if piece != _ZEROS[: len(piece)]:
                sink.seek(end)
                sink.write(piece)
            end += len(piece)
        sink.truncate(max(end, _device_size(target, sink)))


def _device_size(target: Path, sink: Any) -> int:
    """Size of the device of an image by its superblock; 0 when it has none."""
    sink.flush()
    with target.open("rb") as image_file:
        place, magic = _SUPER_MAGIC
        image_file.seek(place)
        if image_file.read(len(magic)) != magic:
            return 0
        image_file.seek(_SUPER_DEVICE_SIZE)
        (size,) = struct.unpack("<Q", image_file.read(8))
        return int(size)


@functools.lru_cache(maxsize=1024)
def _digest(packed: Path) -> str:
    """Name of a packed image's content; its place does not matter."""
    return hashlib.sha256(packed.read_bytes()).hexdigest()


if __name__ == "__main__":
    import sys

    print(image(sys.argv[1]))
