# SPDX-License-Identifier: GPL-2.0-only
"""What ``verify`` makes of quotas and of rotted sectors, and what it takes for a difference."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from btrfs_model.experiments.scenario.operations import ScenarioError, parse_step
from btrfs_model.experiments.verify import data, quotas
from btrfs_model.experiments.verify.bench import Bench, DifferenceError
from btrfs_model.experiments.verify.sides import in_the_model
from btrfs_model.volume.quotas import StatusFlag


def test_random_scenarios_come_to_all_states() -> None:
    states, ends = Counter[int](), Counter[str]()
    for seed in range(8):
        with in_the_model(quotas.random_quotas(f"quotas {seed}"), "v6.18.44") as (fs, ran):
            numbers = quotas.quota_numbers(fs)
            states.update(value[0] for key, value in numbers.items() if key[1] == 240)
            ends.update(ran.ended)
    assert {StatusFlag.ON, StatusFlag.ON | StatusFlag.INCONSISTENT} <= states.keys()
    assert ends["EDQUOT"]
    assert ends[""] * 3 > ends.total()


@pytest.mark.parametrize("group", ["1/0", 1 << 48])
def test_a_group_is_named_by_level_and_id_or_by_its_number(group: object) -> None:
    assert parse_step("", 1, ["qgroup_create", group]).arguments["group"] == 1 << 48


@pytest.mark.parametrize("operation", [
    ["qgroup_create", "x/0"], ["qgroup_create", True], ["qgroup_create", -1],
    ["qgroup_limit", "0/5", -2, -1], ["subvol_create", "s", ["1"], 2], ["subvol_create", "s", "1"],
])  # fmt: skip
def test_what_is_no_group_is_refused(operation: list[Any]) -> None:
    with pytest.raises(ScenarioError):
        parse_step("", 1, operation)


SAID = [("8941f998", "d4d27de9")]


@pytest.mark.parametrize(
    ("words", "agree"),
    [
        ("bad data checksum: csum 0x8941f998 expected csum 0xd4d27de9", True),
        ("bad data checksum: csum 0xd4d27de9 expected csum 0x8941f998", False),
        ("bad data checksum: csum 0x98f94189 expected csum 0xe97dd2d4", False),
        ("Input/output error", False),
        ("", False),
    ],
)
def test_sums_are_those_of_the_log(words: str, agree: bool) -> None:
    bench = Bench(cast("Any", SimpleNamespace()))
    if agree:
        data._same_sums(bench, "f", SAID, words)
        assert bench.compared == {"sums": 1}
    else:
        with pytest.raises(DifferenceError):
            data._same_sums(bench, "f", SAID, words)
