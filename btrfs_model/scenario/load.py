# SPDX-License-Identifier: GPL-2.0-only
"""Reading scenarios from files."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from btrfs_model.scenario.operations import ScenarioError, Step, parse_step

__all__ = ["Scenario", "load_scenario"]

_MEMBERS = {"name", "doc", "ops", "hex_values"}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A list of operations.

    Attributes
    ----------
    path : str
        Where it comes from, for errors.
    steps : list of Step
        What is done.
    hex_values : bool
        The values of extended attributes are written in hexadecimal.
    """

    path: str
    steps: list[Step]
    hex_values: bool = False


def load_scenario(path: str | os.PathLike[str]) -> Scenario:
    """Read and validate a scenario.

    Parameters
    ----------
    path : str or os.PathLike
        A JSON object with ``ops`` (and perhaps ``name``, ``doc``, ``hex_values``), or JSON lines
        with an operation each, where values of extended attributes are hexadecimal. Either may be
        compressed with zstd (``.zst``).

    Raises
    ------
    ScenarioError
        When it is not well formed; the message names the step.
    OSError
        When it cannot be read.
    """
    name = os.fspath(path)
    text = _text(name)
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        return Scenario(name, _steps(name, _lines(name, text)), hex_values=True)
    if isinstance(whole, list) and whole and isinstance(whole[0], str):
        return Scenario(name, _steps(name, [whole]), hex_values=True)
    if not isinstance(whole, dict) or not isinstance(whole.get("ops"), list):
        raise ScenarioError(name, 0, "a scenario is an object with a list 'ops', or JSON lines")
    unknown = sorted(set(whole) - _MEMBERS)
    if unknown:
        raise ScenarioError(name, 0, f"unknown member {unknown[0]!r}")
    hex_values = whole.get("hex_values", False)
    if not isinstance(hex_values, bool):
        raise ScenarioError(name, 0, "hex_values must be true or false")
    return Scenario(name, _steps(name, whole["ops"]), hex_values)


def _text(name: str) -> str:
    data = Path(name).read_bytes()
    if name.endswith(".zst"):
        import zstandard

        try:
            data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        except zstandard.ZstdError as error:
            raise ScenarioError(name, 0, f"cannot be decompressed: {error}") from None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ScenarioError(name, 0, f"byte {error.start} is not UTF-8") from None


def _lines(name: str, text: str) -> list[Any]:
    lines = []
    for number, line in enumerate(filter(str.strip, text.splitlines()), 1):
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ScenarioError(name, number, f"not JSON: {error.msg}") from None
    if not lines:
        raise ScenarioError(name, 0, "there is no operation in it")
    return lines


def _steps(name: str, lines: list[Any]) -> list[Step]:
    return [parse_step(name, number, line) for number, line in enumerate(lines, 1)]
