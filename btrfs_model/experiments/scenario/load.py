# SPDX-License-Identifier: GPL-2.0-only
"""Reading scenarios from files, and writing their operations."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from btrfs_model.experiments.scenario.operations import ScenarioError, Step, parse_step

_MEMBERS = {"name": str, "doc": str, "ops": list, "hex_values": bool}
_KINDS = {str: "a string", list: "a list", bool: "true or false"}


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
    if not text.strip():
        raise ScenarioError(name, 0, "there is no operation in it")
    if not text.lstrip().startswith("["):
        return _of_object(name, text)
    return Scenario(name, _steps(name, _lines(name, text), hex_values=True), hex_values=True)


def lines_of(scenario: Scenario) -> list[Any]:
    """Write operations as they are read, with values of extended attributes in hexadecimal."""

    def plain(step: Step, name: str, value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode("utf-8", "surrogateescape")
        text = step.name == "setxattr" and name == "value" and not scenario.hex_values
        return value.encode().hex() if text else value

    return [
        [step.name, *(plain(step, *one) for one in step.arguments.items() if one[1] is not None)]
        for step in scenario.steps
    ]


def _of_object(name: str, text: str) -> Scenario:
    try:
        whole = _parse(text)
    except ValueError as error:
        raise ScenarioError(name, 0, f"not JSON: {error}") from None
    if not isinstance(whole, dict) or not isinstance(whole.get("ops"), list):
        raise ScenarioError(name, 0, "a scenario is an object with a list 'ops', or JSON lines")
    for member, value in whole.items():
        kind = _MEMBERS.get(member)
        if kind is None:
            raise ScenarioError(name, 0, f"unknown member {member!r}")
        if not isinstance(value, kind):
            raise ScenarioError(name, 0, f"{member} must be {_KINDS[kind]}")
    hex_values = whole.get("hex_values", False)
    return Scenario(name, _steps(name, whole["ops"], hex_values=hex_values), hex_values)


def _parse(text: str) -> Any:
    """Read JSON, in which no object has two members of one name.

    Raises
    ------
    ValueError
        For anything else; the message says where.
    """
    try:
        return json.loads(text, object_pairs_hook=_members)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"member {twice!r} is there twice")
    return members


def _decompress(data: bytes) -> bytes:
    """All frames of a zstd file, one behind the other."""
    import zstandard

    pieces = []
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        pieces.append(frame.decompress(data))
        if not frame.eof:
            raise ValueError("it ends too early")
        data = frame.unused_data
    return b"".join(pieces)


def _text(name: str) -> str:
    data = Path(name).read_bytes()
    if name.endswith(".zst"):
        import zstandard

        try:
            data = _decompress(data)
        except (zstandard.ZstdError, ValueError) as error:
            raise ScenarioError(name, 0, f"cannot be decompressed: {error}") from None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ScenarioError(name, 0, f"byte {error.start} is not UTF-8") from None


def _lines(name: str, text: str) -> list[Any]:
    lines = []
    # a string may hold what str.splitlines() takes for the end of a line
    for number, line in enumerate(filter(str.strip, text.split("\n")), 1):
        try:
            lines.append(_parse(line))
        except ValueError as error:
            raise ScenarioError(name, number, f"not JSON: {error}") from None
    return lines


def _steps(name: str, lines: list[Any], *, hex_values: bool) -> list[Step]:
    return [
        parse_step(name, number, line, hex_values=hex_values)
        for number, line in enumerate(lines, 1)
    ]
