# SPDX-License-Identifier: GPL-2.0-only
"""Old spellings work for one release, and a warning names the new one."""

from collections.abc import Callable
from typing import Any

import corpus
import pandas as pd
import pytest

import btrfs_model as bm

READ = corpus.image("reada/r5k")


def swept(**knobs: object) -> pd.DataFrame:
    return bm.sweep("send-truncate", {"files": 20, **knobs}, quantities=["commands"], jobs=1)


OLD: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "replay(kernel_before=) is now behaviour_before=": (
        lambda: bm.replay("send-truncate", 0.01, kernel_before="v5.10"),  # type: ignore[call-arg]
        lambda: bm.replay("send-truncate", 0.01, behaviour_before="v5.10"),
    ),
    "replay(kernel_after=) is now behaviour_after=": (
        lambda: bm.replay("send-truncate", 0.01, kernel_after="v5.10"),  # type: ignore[call-arg]
        lambda: bm.replay("send-truncate", 0.01, behaviour_after="v5.10"),
    ),
    "knob 'before' is now 'behaviour_before'": (
        lambda: swept(before="v5.10"),
        lambda: swept(behaviour_before="v5.10"),
    ),
    "bm.use_kernels is now bm.use_code": (
        lambda: bm.use_kernels,  # type: ignore[attr-defined]
        lambda: bm.use_code,
    ),
    "WritableFilesystem.load(replay=) is now replay_behaviour=": (
        lambda: loaded(replay="v6.18"),
        lambda: loaded(replay_behaviour="v6.18"),
    ),
    "reads(device=) is now reads(...).on(device=)": (
        lambda: bm.reads(READ, "snap1", device="memory"),  # type: ignore[call-arg]
        lambda: bm.reads(READ, "snap1").on("memory"),
    ),
    "reads(readdir=) is now readdir_reads(directory=)": (
        lambda: bm.reads(READ, "snap1", behaviour="v5.12", readdir=""),  # type: ignore[call-arg]
        lambda: bm.readdir_reads(READ, "snap1"),
    ),
}


def loaded(**given: str) -> list[tuple[int, ...]]:
    with bm.load(corpus.image("send/send-truncate/n500"), **given) as fs:  # type: ignore[arg-type]
        return [tuple(item.key) for item in fs.tree(5).items()]


@pytest.mark.claim("Old spellings work for one release, and a warning names the new one.")
@pytest.mark.parametrize("said", OLD)
def test_an_old_spelling_warns_and_works(said: str) -> None:
    old, new = OLD[said]
    with pytest.warns(DeprecationWarning) as seen:
        found = old()
    (warned,) = [one for one in seen if one.category is DeprecationWarning]
    assert str(warned.message) == said and warned.filename == __file__
    expected = new()
    if isinstance(found, pd.DataFrame):
        pd.testing.assert_frame_equal(found, expected)
        assert found.attrs == expected.attrs
    else:
        assert found == expected


def test_old_and_new_together_are_refused() -> None:
    with pytest.raises(TypeError, match="kernel_before is now behaviour_before"):
        bm.replay("send-truncate", kernel_before="v5.10", behaviour_before="v5.10")  # type: ignore[call-arg]
    assert "use_kernels" not in dir(bm)
