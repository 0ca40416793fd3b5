# SPDX-License-Identifier: GPL-2.0-only
"""The options of mkfs.btrfs and mount, as text, as far as they change what is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

_KINDS: Final = ("zlib", "lzo", "zstd")
_NO: Final = ("no", "none")
# What does not change a byte of what the model writes.
_IGNORED: Final = frozenset({
    "rw", "noatime", "relatime", "nodiscard", "discard", "discard=async", "nodatasum=0",
    "space_cache=v1", "space_cache=v2", "space_cache", "nospace_cache", "flushoncommit=0", "",
})  # fmt: skip
_MAX_INLINE: Final = 2048
_FEATURES: Final = {
    "extref": "extref",
    "skinny-metadata": "skinny_metadata",
    "no-holes": "no_holes",
    "free-space-tree": "free_space_tree",
    "block-group-tree": "block_group_tree",
}


@dataclass(frozen=True, slots=True)
class MountOptions:
    """Mount options.

    `compress`: ``zlib``, ``lzo`` or ``zstd``.
    `compress_force`: compress also what looks incompressible.
    `max_inline`: largest inline extent, bytes.
    `tree_log`: fsync writes a log (``treelog``, ``notreelog``).
    """

    compress: str | None = None
    compress_force: bool = False
    max_inline: int = _MAX_INLINE
    tree_log: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read options separated by commas.

        Raises ValueError: for an option that there is not, or that the model does not have.
        """
        values: dict[str, Any] = {}
        for option in text.split(","):
            name, _, value = option.partition("=")
            if name in ("compress", "compress-force"):
                kind = value.partition(":")[0] or "zlib"
                if kind not in (*_KINDS, *_NO):
                    raise ValueError(f"mount option {option!r}: no such compression")
                values["compress"] = None if kind in _NO else kind
                values["compress_force"] = name == "compress-force" and kind not in _NO
            elif name == "max_inline" and value.isdigit():
                values["max_inline"] = int(value)
            elif option in ("treelog", "notreelog"):
                values["tree_log"] = option == "treelog"
            elif option.startswith("commit=") or option in _IGNORED:
                continue
            else:
                raise ValueError(f"mount option {option!r} is not modelled")
        return cls(**values)


def parse_mkfs_options(words: list[str]) -> dict[str, Any]:
    """Options of mkfs.btrfs as keyword arguments of :meth:`.WritableFilesystem.mkfs`.

    Raises ValueError: for an option that there is not, or that the model does not have.
    """
    found: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        if word in ("-q", "-f"):
            continue
        value = next(left, None)
        if value is None:
            raise ValueError(f"mkfs option {word!r} needs a value, or is not modelled")
        if word in ("-n", "--nodesize") and value.isdigit():
            found["nodesize"] = int(value)
        elif word in ("-m", "--metadata") and value.lower() in ("single", "dup"):
            found["metadata"] = value.lower()
        elif word in ("-d", "--data") and value.lower() == "single":
            continue
        elif word in ("-O", "-R", "--features", "--runtime-features"):
            found |= _features(value)
        elif word == "--csum":
            found["csum"] = value
        elif word in ("-L", "--label"):
            found["label"] = value
        else:
            raise ValueError(f"mkfs option {word} {value} is not modelled")
    return found


def _features(text: str) -> dict[str, bool]:
    features = {}
    for word in text.split(","):
        name = word.removeprefix("^")
        if name not in _FEATURES:
            raise ValueError(f"feature {name!r} is not modelled")
        features[_FEATURES[name]] = not word.startswith("^")
    return features
