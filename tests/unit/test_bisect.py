# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model kernel bisect`` where no kernel is needed."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from btrfs_model.base.errors import KernelMissingError
from btrfs_model.cli import cli
from btrfs_model.experiments.radar import bisect
from btrfs_model.experiments.radar.answers import first_difference, modelled
from btrfs_model.experiments.radar.bisect import bisected, kernels_between, told
from btrfs_model.experiments.scenario.load import Scenario, load_scenario
from btrfs_model.kernels.choice import AtHand

OPS = [["mkfs", []], ["mount", "noatime,nodatacow"], ["create", "f"],
       ["write", "f", 0, 100, ["text", "a"]]]  # fmt: skip
THERE = [AtHand("uml", "6.1.176"), AtHand("trixie", "6.12.113"), AtHand("qemu:6.16.12", "6.16.12"),
         AtHand("native", "6.18.44"), AtHand("sid", "7.2.7")]  # fmt: skip


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    (tmp_path / "s.json").write_text(json.dumps({"ops": OPS}))
    return load_scenario(tmp_path / "s.json")


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bisect, "at_hand", lambda slow: THERE)


def test_which_kernels_are_asked() -> None:
    assert kernels_between([], "", "") == THERE
    assert kernels_between([], "trixie", "6.18.44") == THERE[1:4]
    assert kernels_between(["uml", "7.2.7"], "", "") == [THERE[0], THERE[-1]]
    with pytest.raises(KernelMissingError, match=r"^7.3 is not here; there are uml \(6.1.176\), "):
        kernels_between([], "", "7.3")
    with pytest.raises(
        KernelMissingError, match=r"^two kernels at least are needed; there is sid$"
    ):
        kernels_between([], "sid", "")


@pytest.mark.claim("`kernel bisect` finds the first kernel with another answer, by few of them.")
def test_the_first_kernel_with_another_answer(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose answer is another by chance, in one run of three, answers alike."""
    runs = dict.fromkeys((one.name for one in THERE), 0)

    def done(kernel: SimpleNamespace, _: Scenario, kept: Path | None = None) -> dict[str, object]:
        runs[kernel.name] += 1
        if kept is not None:
            kept.touch()
        if kernel.name == "native" and runs["native"] < 3:
            return {"files": {"/f": "chance"}}
        return {"files": {"/f": "inline" if kernel.name == "sid" else "extent"}}

    monkeypatch.setattr(bisect, "start",
                        lambda name, memory: nullcontext(SimpleNamespace(name=name)))  # fmt: skip
    monkeypatch.setattr(bisect, "done", done)
    monkeypatch.setattr(bisect, "said", lambda *_: {"streams": {}})
    found = told(bisected(scenario, THERE, lambda text: None))
    assert [one["answer"] for one in found["kernels"]] == [
        "as the first", "not asked", "as the first", "as the first", "another",
    ]  # fmt: skip
    assert (found["before"], found["after"], found["where"]) == ("6.18.44", "7.2.7", "files; /f")
    assert found["toggles"][0] | {"title": ""} == {
        "toggle": "+ inline-first", "model": "changes, too", "commit": "3eaf5f082c4c", "title": "",
    }  # fmt: skip
    assert {one["model"] for one in found["toggles"][1:]} == {""}
    alike = told(bisected(scenario, THERE[:4], lambda text: None))
    assert not alike["after"]
    assert not alike["toggles"]


def test_where_answers_differ() -> None:
    old = {"calls": {3: ""}, "log items": {5: {(257, 1, 0): "a", (258, 1, 0): "b"}}}
    assert first_difference(old, old) is None
    new = {**old, "log items": {5: {(257, 1, 0): "a"}}}
    assert first_difference(old, new) == (
        ["log items", "5", "(258, 1, 0)", "str, not nothing"], "b", None
    )  # fmt: skip


def test_the_models_answer(scenario: Scenario, tmp_path: Path) -> None:
    answer = modelled(scenario, "v7.2.7", tmp_path)
    assert answer["calls"] == {3: "", 4: ""}
    assert answer["files"]["/f"][0].nbytes == 100
    assert [*answer["listings"][""]] == ["", "f"]


@pytest.mark.parametrize(
    ("words", "why"),
    [(["bisect"], "kernel bisect: which scenario?"), (["list", "--from", "x"], "it has no --from"),
     (["bisect", "s.json", "-o", "x"], "kernel bisect: it has no -o"),
     (["get", "sid", "--kernel", "x"], "kernel get: it has no --kernel")],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(words: list[str], why: str) -> None:
    ran = CliRunner().invoke(cli, ["kernel", *words])
    assert ran.exit_code == 2
    assert why in ran.output
