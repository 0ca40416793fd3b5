# SPDX-License-Identifier: GPL-2.0-only
"""What-if knobs of the workloads: each changes what is replayed, and nothing measured is beside."""

from typing import Any

import pandas as pd
import pytest

import btrfs_model as bm
from btrfs_model.experiments.workloads import NAMES, load

SCALE = {"send-truncate": 0.01, "send-utimes": 0.002, "send-readahead": 0.002,
         "fiemap-shared": 0.005, "log-dir": 0.001}  # fmt: skip
# What is turned, and a figure that it changes.
TURNED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "send-truncate": [
        ({"device": "deskstar-7k500"}, "receive time"),
        ({"device": "deskstar-7k500", "parameters": {"rpm": 3600}}, "receive time"),
        ({"nodesize": 4096}, "sender: read_block_for_search"),
        ({"limits": {"always_leaves": 4096}}, "sender: btrfs_readahead_node_child"),
    ],
    "send-utimes": [
        ({"nodesize": 4096}, "sender: btrfs_search_slot"),
        ({"limits": {"dir_utimes_cache": 1}}, "command utimes"),
        ({"device": "deskstar-7k500"}, "time"),
        ({"device": "deskstar-7k500", "parameters": {"rpm": 3600}}, "time"),
    ],
    "send-readahead": [
        ({"device": "samsung-850-evo"}, "waiting"),
        ({"device": "deskstar-7k500", "parameters": {"queue_depth": 1}}, "waiting"),
        ({"nodesize": 4096}, "reads: all"),
        ({"limits": {"always_leaves": 4096}}, "reads: on demand"),
    ],
    "fiemap-shared": [
        ({"device": "samsung-970-evo"}, "waiting for reads"),
        ({"device": "deskstar-7k500", "parameters": {"rpm": 3600}}, "waiting for reads"),
        ({"nodesize": 4096}, "blocks read"),
        ({"limits": {"fiemap_entries": 8}}, "btrfs_search_slot"),
    ],
    "log-dir": [
        ({"device": "deskstar-7k500"}, "time"),
        ({"device": "deskstar-7k500", "parameters": {"rpm": 3600}}, "time"),
        ({"nodesize": 4096}, "leaves"),
    ],
}  # fmt: skip


# Only the old one waits for the device, only the new one reads ahead.
KERNELS = {
    "send-truncate": {"behaviour_before": "v4.16", "behaviour_after": "v6.12"},
}


def values(table: pd.DataFrame, quantity: str) -> list[float]:
    found: list[float] = table[table.quantity == quantity].modelled.dropna().tolist()
    assert found, quantity
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_knob_changes_what_it_is_about(name: str) -> None:
    kernels = KERNELS.get(name, {})
    plain = bm.replay(name, SCALE[name], **kernels)
    assert {knob for knobs, _ in TURNED[name] for knob in knobs} == set(load(name).knobs)
    before: dict[str, list[float]] = {}
    for knobs, quantity in TURNED[name]:
        table = bm.replay(name, SCALE[name], **knobs, **kernels)
        other = before.get(quantity, values(plain, quantity))
        assert values(table, quantity) != other, (knobs, quantity)
        before[quantity] = values(table, quantity)
        assert table.measured.isna().all() or set(knobs) == {"device"}
        if "nodesize" in knobs:
            assert set(table.nodesize) == {knobs["nodesize"]}
        for limit, value in knobs.get("limits", {}).items():
            assert set(table[f"limit_{limit}"]) == {value}
