# SPDX-License-Identifier: GPL-2.0-only
"""The images that come with the project: compressed, restored when they are asked for."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import struct
import tempfile
import tomllib
from pathlib import Path

import zstandard

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.whole_file import naming, whole_file, write_at

_ENDS = ("/image.zst", ".img.zst", ".device.zst")  # files of samples; one of several devices
_BLOCK = 1 << 16
_FRAME_HEADER = 18  # bytes, at most (RFC 8878)
# Superblock: magic, and total_bytes of its dev_item, from the start of the device.
_MAGIC_AT, _MAGIC = 0x10040, b"_BHRfS_M"
_DEVICE_SIZE_AT = 0x100D1


def data_folder() -> Path:
    """Return the folder ``data`` of the project.

    It is beside the package in a clone, inside it where it is installed, or where
    ``BTRFS_MODEL_DATA`` says. An installed package has small samples, of 2.5 MB together.

    Raises BtrfsModelError: when there is none.
    """
    package = Path(__file__).resolve().parents[1]
    inside = package / "data"
    named = os.environ.get("BTRFS_MODEL_DATA")
    folder = Path(named or (inside if inside.is_dir() else package.parent / "data"))
    if not folder.is_dir():
        raise BtrfsModelError(
            f"{folder}: no such folder; set BTRFS_MODEL_DATA to the folder 'data' of a clone"
        )
    return folder


def notebooks_folder() -> Path:
    """Return the folder with the notebooks: inside the package, or beside it in a clone.

    Raises BtrfsModelError: when there is none.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "notebooks", package.parent / "notebooks"):
        if folder.is_dir():
            return folder
    raise BtrfsModelError(f"{package}: there are no notebooks in it, nor beside it")


def samples() -> list[str]:
    """Names of all samples, in order."""
    folder = data_folder()
    return sorted(
        str(path.relative_to(folder)).removesuffix(end)
        for end in _ENDS
        for path in folder.rglob(f"*{end}".replace("*/", ""))
    )


def described() -> list[tuple[str, str]]:
    """Return the samples with what each shows, as ``samples.toml`` says it."""
    told = tomllib.loads((data_folder() / "samples.toml").read_text(encoding="utf-8"))
    return [
        (name, next((text for one, text in told.items() if fnmatch.fnmatchcase(name, one)), ""))
        for name in samples()
    ]


def has_sample(name: str) -> bool:
    """Whether there is a sample of exactly this name."""
    return _packed(name) is not None


def _packed(name: str) -> Path | None:
    folder = data_folder()
    paths = (folder / f"{name}{end}" for end in _ENDS)
    return next((path for path in paths if path.is_file()), None)


def packed_sample(name: str) -> Path:
    """Return the compressed image of a sample.

    `name`: one of :func:`samples`, e.g. ``kernel/send/send-truncate/n500``, or the end of one where
    there is only one such: ``zstd``.
    Raises BtrfsModelError: when there is no such sample, or there are several.
    """
    known = samples()
    ends = [one for one in known if one.endswith(f"/{name}")]
    path = _packed(ends[0] if len(ends) == 1 else name)
    if path is not None:
        return path
    why = f"; it may be {', '.join(ends[:4])}" if ends else did_you_mean(name, known)
    raise BtrfsModelError(f"{data_folder()}: no sample named {name}{why}")


@checked
def write_sample(name: str, to: str | os.PathLike[str]) -> None:
    """Write the image of a sample to a file of your own, which may be written to.

    Parameters
    ----------
    name : str
        As for :func:`packed_sample`.
    to : str or os.PathLike
        Where; what was there before is replaced.

    Raises
    ------
    BtrfsModelError
        As :func:`sample`.
    OSError
        When it cannot be written.
    """
    packed = packed_sample(name)
    with whole_file(to) as file:
        restore(packed, file.fileno())


@checked
def sample(name: str) -> Path:
    """Restore a sample into the cache and return the image; at once when it is there already.

    The cache is ``btrfs-model`` in ``XDG_CACHE_HOME`` (``~/.cache``). Images are sparse files and
    can be deleted at any time.

    Parameters
    ----------
    name : str
        As for :func:`packed_sample`.

    Returns
    -------
    pathlib.Path
        The image; do not write to it.

    Raises
    ------
    BtrfsModelError
        When there is no such sample, or its compressed bytes are broken.
    """
    packed = packed_sample(name)
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()[:12]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    target = Path(base) / "btrfs-model" / f"{name.replace('/', '-')}-{digest}.img"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, partial_name = tempfile.mkstemp(dir=target.parent, prefix=".restoring-")
        partial = Path(partial_name)
        try:
            with naming(target):
                restore(packed, handle)
            partial.chmod(0o444)
            partial.replace(target)
        except BaseException:
            partial.unlink()
            raise
        finally:
            os.close(handle)
    return target


def restore(packed: Path, sink: int) -> None:
    """Decompress an image; runs of zeros become holes, the file gets the size of the device."""
    decoder = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    zeros = bytes(_BLOCK)
    end = 0
    try:
        with packed.open("rb") as source:
            whole = zstandard.frame_content_size(source.read(_FRAME_HEADER))
            source.seek(0)
            for block in decoder.read_to_iter(source, write_size=_BLOCK):
                if block != zeros[: len(block)]:
                    write_at(sink, block, end)
                end += len(block)
    except zstandard.ZstdError as error:
        raise BtrfsModelError(f"{packed}: {error}") from None
    if whole >= 0 and end != whole:
        raise BtrfsModelError(f"{packed}: ends after {end} of {whole} bytes of the image")
    os.ftruncate(sink, max(end, _device_size(sink)))


def _device_size(image: int) -> int:
    """Size of the device by its superblock, 0 without one: only its beginning may be stored."""
    if os.pread(image, len(_MAGIC), _MAGIC_AT) != _MAGIC:
        return 0
    (size,) = struct.unpack("<Q", os.pread(image, 8, _DEVICE_SIZE_AT))
    return int(size)
