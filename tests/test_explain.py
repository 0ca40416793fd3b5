# SPDX-License-Identifier: GPL-2.0-only
"""Why commands were sent: both twins, every command, the cases that are known."""

from typing import Any

import corpus
import pandas as pd
import pytest

from btrfs_model.filesystem import Filesystem
from btrfs_model.kernels import lib, select
from btrfs_model.ondisk.stream import COMMAND_HEADER, STREAM_HEADER
from btrfs_model.send import send
from btrfs_model.send.causes import CAUSES, CAUSES_BY_NAME
from btrfs_model.send.explain import ROW, summaries
from btrfs_model.stream import read_stream

KERNELS = {"5.10": "v5.10.46", "6.1": "v6.1.176", "6.12": "v6.12.101", "6.18": "v6.18.44"}
RANDOM = [f"send/random/seed-{seed:03}" for seed in (1, 3, 7, 11)]
RANDOM = [name for name in RANDOM if name in corpus.cases("send/random")]


def sends(name: str) -> list[tuple[dict[str, Any], str]]:
    return [(ask, kernel) for ask, kernel, record in corpus.records(name) if "errno" not in record]


def arguments(ask: dict[str, Any], kernel: str) -> dict[str, Any]:
    flags = ask["flags"]
    return {
        "snapshot": ask["snap"],
        "parent": ask["parent"],
        "clone_sources": ask["clones"],
        "behaviour": KERNELS.get(kernel, kernel),
        "proto": ask["proto"] or 1,
        "no_file_data": bool(flags & 1),
        "omit_header": bool(flags & 2),
        "omit_end": bool(flags & 4),
        "compressed": bool(flags & 16),
    }


def test_the_table_is_the_enum() -> None:
    names = [f"BM_SEND_{cause.name.upper().replace('-', '_')}" for cause in CAUSES]
    assert [getattr(lib, name) for name in names] == list(range(lib.BM_SEND_CAUSES))
    assert len(CAUSES_BY_NAME) == len(CAUSES)


@pytest.mark.parametrize("name", RANDOM)
def test_every_command_has_its_cause(name: str) -> None:
    """By a rule that sends such commands; where it stands, and its path, is what the stream has."""
    commands = {cause.name: cause.commands for cause in CAUSES}
    functions = {cause.name: cause.function for cause in CAUSES}
    with Filesystem.open(corpus.image(name)) as fs:
        for ask, kernel in sends(name):
            where = f"{name} {ask.get('id', '')} {kernel}"
            asked = arguments(ask, kernel)
            result, plain = send(fs, **asked, explain=True), send(fs, **asked)
            assert (result.data, result.commands) == (plain.data, plain.commands), where
            assert dict(result.work) == dict(plain.work), where
            assert plain.causes is None
            causes = result.causes
            assert causes is not None
            header = 0 if asked["omit_header"] else STREAM_HEADER.size
            assert header + causes["length"].sum() == result.size, where
            sent = list(
                read_stream(result.data, header=bool(header), version=asked["proto"])
            )
            paths = [bytes(c.attributes.get("path", b"")) for c in sent]  # type: ignore[arg-type]
            assert causes["offset"].tolist() == [c.offset for c in sent], where
            assert causes["command"].tolist() == [c.name for c in sent], where
            shown = [path.encode("utf-8", "surrogateescape") for path in causes["path"]]
            assert shown == paths, where
            for command, cause, function in zip(
                causes["command"], causes["cause"], causes["function"], strict=True
            ):
                assert command in commands[cause], where
                assert function == functions[cause], where


@pytest.mark.parametrize("kernel", ["5.10", "6.1", "6.18"])
@pytest.mark.parametrize("name", RANDOM[:2])
def test_twins_are_equal(name: str, kernel: str) -> None:
    with Filesystem.open(corpus.image(name)) as fs:
        for ask, recorded in sends(name):
            if recorded != kernel:
                continue
            native = send(fs, **arguments(ask, kernel), explain=True).causes
            with select("python"):
                twin = send(fs, **arguments(ask, kernel), explain=True).causes
            pd.testing.assert_frame_equal(native, twin)
