# SPDX-License-Identifier: GPL-2.0-only
"""The options of mkfs.btrfs, as text, as far as they change what is written."""

from __future__ import annotations

from typing import Any, Final

_FEATURES: Final = {
    "extref": "extref",
    "skinny-metadata": "skinny_metadata",
    "no-holes": "no_holes",
    "free-space-tree": "free_space_tree",
    "fst": "free_space_tree",
    "block-group-tree": "block_group_tree",
    "bgt": "block_group_tree",
}


def parse_mkfs_options(words: list[str]) -> dict[str, Any]:
    """Options of mkfs.btrfs as keyword arguments of :meth:`.WritableFilesystem.mkfs`.

    Raises ValueError: for an option that does not exist, or that the model does not have.
    """
    found: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        if word in ("-q", "-f"):
            continue
        value = next(left, None)
        if value is None:
            raise ValueError(f"mkfs option {word!r} needs a value, or is not modelled")
        if word in ("-b", "--byte-count") and value.isdigit():
            found["size"] = int(value)
        elif word in ("-n", "--nodesize") and value.isdigit():
            found["nodesize"] = int(value)
        elif word in ("-m", "--metadata") and value.lower() in ("single", "dup"):
            found["metadata"] = value.lower()
        elif word in ("-d", "--data") and value.lower() == "single":
            continue
        elif word in ("-O", "-R", "--features", "--runtime-features"):
            found |= parse_features(value)
        elif word == "--csum":
            found["csum"] = value
        elif word in ("-L", "--label"):
            found["label"] = value
        else:
            raise ValueError(f"mkfs option {word} {value} is not modelled")
    return found


def parse_features(text: str) -> dict[str, bool]:
    """Features as ``-O`` has them, such as ``bgt,^no-holes``, as keyword arguments.

    Raises ValueError: for one that does not exist, or that the model does not have.
    """
    features = {}
    for word in text.split(","):
        name = word.removeprefix("^")
        if name not in _FEATURES:
            raise ValueError(f"unrecognized filesystem feature '{name}'")
        features[_FEATURES[name]] = not word.startswith("^")
    return features
