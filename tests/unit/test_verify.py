# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model verify`` where no kernel is needed: scenarios, shrinking, what is told."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from corpus import PROJECT
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import btrfs_model as bm
import btrfs_model.experiments.verify.run as verify_run
import btrfs_model.mount.mount as mount
from btrfs_model.base.errors import KernelFailedError
from btrfs_model.behaviour import Behaviour
from btrfs_model.cli import cli
from btrfs_model.experiments.scenario.load import Scenario, lines_of, load_scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify import causes
from btrfs_model.experiments.verify.bench import Bench, DifferenceError
from btrfs_model.experiments.verify.kinds import KINDS, Kind, choice_of
from btrfs_model.experiments.verify.logs import comparable_logs, without_ranges
from btrfs_model.experiments.verify.maps import comparable_maps
from btrfs_model.experiments.verify.random.steer import (
    Function,
    Reach,
    corpus,
    keep,
    mutated,
    unreachable,
)
from btrfs_model.experiments.verify.run import Outcome, Task, files_of
from btrfs_model.experiments.verify.shrink import shrunk
from btrfs_model.experiments.verify.sides import in_the_model, operations_of
from btrfs_model.kernels import gcov
from btrfs_model.kernels.inside.operations import Mapped
from btrfs_model.mount.machine import Machine
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.patches import Asked, Patch
from btrfs_model.questions.logreplay import replay_log


def scenario_of(numbers: list[int]) -> Scenario:
    lines = [["mkfs"], ["mount"], *(["mkdir", str(number)] for number in numbers)]
    return Scenario("s", [parse_step("s", at, line) for at, line in enumerate(lines, 1)])


@given(st.lists(st.integers(0, 30), unique=True, min_size=3), st.data())
def test_what_is_shrunk_has_what_shows_it_and_no_more(
    numbers: list[int], data: st.DataObject
) -> None:
    needed = {str(one).encode() for one in data.draw(st.sets(st.sampled_from(numbers), min_size=1))}

    def shows(scenario: Scenario) -> bool:
        return needed <= {step.arguments["path"] for step in scenario.steps[2:]}

    short = shrunk(scenario_of(numbers), shows, most=10_000)
    assert [step.name for step in short.steps[:2]] == ["mkfs", "mount"]
    assert {step.arguments["path"] for step in short.steps[2:]} == needed


def made_short(
    compare: Callable[[list[int]], None], numbers: Iterable[int]
) -> tuple[list[int], str]:
    """Compare on a scenario; what is left of it, and what it shows."""

    def of_scenario(bench: Bench, scenario: Scenario) -> None:
        compare([int(step.arguments["path"]) for step in scenario.steps[2:]])

    task, kind = Task("none", ["numbers"], []), Kind(scenario_of, of_scenario)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, "numbers", kind)
        bench = Bench(SimpleNamespace(release="6.1"))  # type: ignore[arg-type]
        found = verify_run._of_scenario(bench, task, "numbers", "1", scenario_of([*numbers]))
    return [int(path) for _, path in found.scenario[2:]], found.difference


def test_what_is_shrunk_shows_what_the_whole_one_shows() -> None:
    """An error of another kind, or of another comparison, is something else."""

    def compare(numbers: list[int]) -> None:
        if {3, 7} <= {*numbers}:
            raise DifferenceError("both", "log", "none", ("fsyncs", ("log", "none")))
        if 3 in numbers:
            raise DifferenceError("one", "none", "log", ("fsyncs", ("none", "log")))
        if 7 in numbers:
            raise ValueError("none of them")

    assert made_short(compare, range(20)) == ([3, 7], "kernel and model differ: both")


def test_what_comes_by_chance_is_not_what_is_left() -> None:
    """Without 7 it differs five times of eight: three times in a row now and then."""
    chance = random.Random(1)

    def compare(numbers: list[int]) -> None:
        if 3 in numbers and (7 in numbers or chance.random() < 5 / 8):
            raise DifferenceError("both", "log", "none", ("fsyncs", None))

    assert {3, 7} <= {*made_short(compare, range(20))[0]}


def test_what_differs_now_and_then_in_something_else_is_not_made_short() -> None:
    kinds = cycle("abc")

    def compare(numbers: list[int]) -> None:
        raise DifferenceError("something", 1, 2, (next(kinds),))

    assert made_short(compare, range(20))[0] == [*range(20)]


def test_what_is_written_is_compared_in_the_same_way() -> None:
    """Also of who does not write values in hexadecimal; what is chosen follows from mkfs, mount."""
    lines = [["mkfs", ["-n", "4096"]], ["mount", "noatime"], ["create", "f"],
             ["setxattr", "f", "user.a", "text"], ["crash"]]  # fmt: skip
    steps = [parse_step("s", number, line) for number, line in enumerate(lines, 1)]
    plain = Scenario("s", steps)
    written = lines_of(plain)
    assert written[3] == ["setxattr", "f", "user.a", b"text".hex()]
    read = verify_run._as_written(plain)
    assert lines_of(read) == written
    assert operations_of(read) == operations_of(plain)
    shorter = Scenario("/elsewhere/log-scenario.json", [*steps[:2], *steps[3:]])
    assert choice_of(shorter).random() == choice_of(plain).random()


def test_a_crash_stays() -> None:
    scenario = scenario_of([1, 2, 3])
    scenario.steps.append(parse_step("s", 6, ["crash"]))
    short = shrunk(scenario, lambda one: True)
    assert [step.name for step in short.steps] == ["mkfs", "mount", "crash"]


def test_both_sides_are_told_when_a_map_has_a_place_on_one_alone() -> None:
    """Of Linux 7.2 data wait that are in the tree already on 6.x: nobody refers to them there."""
    waits = Mapped(extents=[(0, 0, 4096, 0x307)], references=[])
    there = Mapped(extents=[(0, 13 << 20, 4096, 1)], references=[[[257, 0, 5]]])
    kernel, model = comparable_maps(waits, there, {5: 5})
    assert kernel != model
    assert (kernel[0][3], model[0][3]) == (False, True)


def test_who_failed_is_told_with_how() -> None:
    error = KernelFailedError("kernel 6.1: no space")
    error.add_note("Traceback of the kernel's side")
    kernel, model = verify_run._sides(error)
    assert "no space" in kernel
    assert "Traceback of the kernel's side" in kernel
    assert "the kernel failed" in model
    try:
        raise ValueError("wrong here")
    except ValueError as error:
        kernel, model = verify_run._sides(error)
    assert "the model failed" in kernel
    assert "test_verify.py" in model
    assert model.endswith("ValueError: wrong here")


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_a_scenario_that_can_be_run(kind: str, tmp_path: Path) -> None:
    """It is the same each time, most of it succeeds, and what is written is read again."""
    scenario = KINDS[kind].make("seed 1", 40)
    assert scenario == KINDS[kind].make("seed 1", 40) != KINDS[kind].make("seed 2", 40)
    with in_the_model(scenario, "v6.18") as (fs, ran):
        assert len(fs.subvolumes())
    ended = Counter(ran.ended)
    assert ended[""] > sum(ended.values()) / 3
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({"hex_values": True, "ops": lines_of(scenario)}))
    assert load_scenario(path).steps == scenario.steps


def test_sizes_go_from_ten_to_a_million() -> None:
    sizes = [files_of("send", seed, 1_000_000) for seed in range(2000)]
    assert min(sizes) == 10
    assert 500_000 < max(sizes) <= 1_000_000
    assert max(files_of("images", seed, 10_000) for seed in range(2000)) <= 10_000


def test_what_differs_is_named() -> None:
    bench = Bench(None)  # type: ignore[arg-type]
    bench.same_members("items", "tree 5: ", {1: b"a", 2: b"b"}, {1: b"a", 2: b"b"})
    assert bench.compared == {"items": 2}
    with pytest.raises(DifferenceError, match="tree 5: 2") as caught:
        bench.same_members("items", "tree 5: ", {1: b"a"}, {1: b"a", 2: b"b"})
    assert (caught.value.kernel, caught.value.model) == ("nothing", b"b")


def test_when_the_worker_came_is_no_difference_but_what_is_deleted_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """700 names of the last commit are deleted, and 140 that it did not have."""
    scenario = load_scenario(PROJECT / "data/verify/log-inc4.json")
    logs, names = [], []
    for lag in (0, 100):
        monkeypatch.setattr(mount, "Machine", partial(Machine, lag=lag))
        image = tmp_path / str(lag)
        with in_the_model(scenario, "v6.18.44", image) as (_, ran):
            assert ran.by_chance
        ((root, items),) = comparable_logs(image, scenario).items()
        logs.append(items)
        names.append(without_ranges(image, root, items))
    assert logs[0] != logs[1]
    assert names[0] == names[1]
    ((directory, deleted),) = names[0][1].items()
    assert deleted == list(range(2, 702))
    wrong = [key for key in items if key[:2] == (directory, ItemType.DIR_LOG_INDEX)]
    fewer = {key: value for key, value in items.items() if key != min(wrong)}
    assert without_ranges(image, root, fewer) != names[1]


def test_a_difference_is_written_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(tasks: list[Task], step: object, seen: object) -> list[Outcome]:
        return [
            Outcome(task.kernel, "6.1.176", kind, str(seed), 10, 1.5, {"streams": 7})
            for task in tasks for kind in task.kinds for seed in task.seeds
        ] + [Outcome("uml", "6.1.176", "log", "9", 10, 1.5, {}, "what fsyncs come to", "'log'",
                     "'commit'", [["mkfs"], ["mount"], ["fsync", "a"]])]  # fmt: skip

    monkeypatch.setattr(verify_run, "verify", verify)
    monkeypatch.chdir(tmp_path)
    arguments = ["verify", "send", "--seeds", "3", "-o", "rows.parquet"]
    ran = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert ran.return_value == 1
    assert "6.1.176\tsend\t3\t21 streams\t10\t4\t0" in ran.stdout
    assert "6.1.176\tlog\t1\t\t10\t2\t1" in ran.stdout
    assert "uml: log 9: what fsyncs come to; see verify-differences/uml-log-9" in ran.stderr
    place = tmp_path / "verify-differences" / "uml-log-9"
    assert (place / "kernel.txt").read_text() == "'log'\n"
    assert (place / "model.txt").read_text() == "'commit'\n"
    assert [step.name for step in load_scenario(place / "log-scenario.json").steps][-1] == "fsync"
    assert (tmp_path / "rows.parquet").exists()


@pytest.mark.claim("Who interrupts `verify` is told what was compared until then.")
def test_what_was_compared_before_an_interrupt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(tasks: object, step: object, seen: object) -> Iterator[Outcome]:
        yield Outcome("uml", "6.1.176", "send", "0", 10, 1.5, {"streams": 7})
        raise KeyboardInterrupt

    monkeypatch.setattr(verify_run, "verify", verify)
    ran = CliRunner().invoke(cli, ["verify", "send"], standalone_mode=False)
    assert ran.return_value == 130
    assert "6.1.176\tsend\t1\t7 streams\t10\t2\t0" in ran.stdout
    assert "interrupted: " in ran.stderr


def test_what_was_reached_is_told_beside_what_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Function("send.c", "send", 10, 6, 4, 1, {"no memory": 2}, [3], []),
            Function("send.c", "other", 2, 2, 0, 0, {}, [], [21])]  # fmt: skip

    def verify(tasks: object, step: object, seen: object) -> list[Outcome]:
        # as a worker's line
        told = [json.loads(json.dumps(asdict(row))) for row in rows]
        compared = Outcome("linux", "6.1.192", "send", "a", compared={"streams": 1})
        return [compared, *(Outcome("linux", "6.1.192", "reach", "", reach=one) for one in told)]

    monkeypatch.setattr(verify_run, "verify", verify)
    ran = CliRunner().invoke(cli, ["verify", "send", "--seeds", "1"], standalone_mode=False)
    assert "send.c\t12\t8\t2\t4\t1\t80.0\t25.0" in ran.stdout
    assert "send.c\tno memory\t2" in ran.stdout
    assert "send.c: other: listed as unreachable, and ran: lines 21" in ran.stderr


def test_an_image_has_no_logs_to_compare(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.touch()
    ran = CliRunner().invoke(cli, ["verify", "log", "--image", str(image)])
    assert ran.exit_code == 2
    assert "log is not compared on an image" in ran.output
    ran = CliRunner().invoke(cli, ["verify", "pairs", "--first", "70000"])
    assert ran.exit_code == 2
    assert "pairs has" in ran.output


@given(st.integers(0, 10**9), st.sampled_from(sorted(KINDS.keys() - {"full"})))  # takes long
@settings(max_examples=20)
def test_what_is_changed_is_a_scenario_still(seed: int, kind: str) -> None:
    """It begins with mkfs and mount, ends with the crash where there was one, and can be run."""
    lines = [lines_of(KINDS[kind].make(f"{seed} {one}", 10)) for one in (1, 2)]
    assume("-M" not in lines[0][0][1])  # the model makes no groups that mix
    choice = random.Random(seed)
    scenario = mutated(choice, *lines, "changed")
    assert lines_of(scenario)[:2] == lines[0][:2]
    assert [line for line in lines_of(scenario) if line == ["crash"]] == [
        line for line in lines[0] if line == ["crash"]
    ]
    with in_the_model(scenario, "v6.18") as (fs, _):
        assert len(fs.subvolumes())


def test_what_was_reached_before_is_not_new() -> None:
    reach = Reach()
    counts = gcov.Counts()
    counts.places.update(send=("send.c", 1, 9), fiemap=("extent_io.c", 20, 29),
                         other=("extent_io.c", 30, 39))  # fmt: skip
    counts.lines.update({("send.c", 2): 3, ("send.c", 3): 0, ("extent_io.c", 21): 1,
                         ("extent_io.c", 31): 1})  # fmt: skip
    counts.branches.update({("send.c", 2, 0): 3, ("send.c", 2, 1): 0})
    assert reach.add(counts) == {("send.c", 2), ("send.c", 2, 0), ("extent_io.c", 21)}
    assert not reach.add(counts)
    counts.lines["send.c", 3] = 1
    assert reach.add(counts) == {("send.c", 3)}
    assert list(reach.functions()) == [
        Function("extent_io.c", "fiemap", 1, 1, 0, 0, {}, [], []),
        Function("send.c", "send", 2, 2, 2, 1, {}, [], []),
    ]


def test_what_cannot_be_reached_is_told_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "unreachable-6.1.toml").write_text(
        'reasons = {memory = "no memory"}\n'
        '["send.c"]\n'
        'send = {lines = 9, memory = "1-2 5"}\n'
        'other = {lines = 4, memory = "0"}\n'
    )
    reach = Reach(listed=unreachable(tmp_path, "6.1.192"))
    counts = gcov.Counts(places={"send": ("send.c", 11, 19), "other": ("send.c", 21, 25)})
    counts.lines.update({("send.c", line): line == 13 for line in (11, 12, 13, 16, 21)})
    reach.add(counts)
    # line 13 is listed and ran; the second function has another length here
    assert list(reach.functions()) == [
        Function("send.c", "send", 4, 1, 0, 0, {"no memory": 2}, [11], [13]),
        Function("send.c", "other", 1, 0, 0, 0, {}, [21], []),
    ]
    assert unreachable(tmp_path / "nowhere", "6.1") == unreachable(tmp_path, "5.10") == {}
    (tmp_path / "unreachable-7.2.toml").write_text("reasons = {}\n")
    assert unreachable(tmp_path, "6.18.44") == unreachable(tmp_path, "6.1.192")
    assert unreachable(tmp_path, "7.2.13") == {}


def test_the_list_of_what_cannot_be_reached_names_lines_that_there_are() -> None:
    files = {"backref.c", "send.c", "tree-log.c"}
    for release, fiemap in (("6.1.192", "extent_io.c"), ("7.2.13", "fiemap.c")):
        listed = unreachable(PROJECT / "data/verify", release)
        assert {file for file, _, _ in listed} == {*files, fiemap}
        assert all(lines and max(lines) < count for (_, _, count), lines in listed.items())


def test_a_corpus_is_read_as_it_was_kept(tmp_path: Path) -> None:
    scenario = KINDS["log"].make("kept", 10)
    keep(tmp_path, "log", lines_of(scenario))
    keep(tmp_path, "send", lines_of(KINDS["send"].make("kept", 10)))
    (kind, read), (again, replayed), (other, _) = corpus(tmp_path)
    assert (kind, again, other) == ("log", "replay", "send")
    assert read.steps == replayed.steps == scenario.steps
    assert read.hex_values


def test_a_corpus_of_other_kinds_is_told(tmp_path: Path) -> None:
    """Nothing would be compared, and the end would be that of no difference."""
    lines = lines_of(KINDS["log"].make("kept", 10))
    keep(tmp_path, "sequences", lines)
    assert [kind for kind, _ in corpus(tmp_path)] == ["log", "replay"]
    ran = CliRunner().invoke(cli, ["verify", "send", "--corpus", str(tmp_path)])
    assert "no scenario of send; the name of one begins with its kind" in str(ran.exception)
    keep(tmp_path, "maps", lines)
    ran = CliRunner().invoke(cli, ["verify", "log", "--corpus", str(tmp_path), "--kernel", "none"])
    assert "maps: scenarios of no kind, which are not compared" in ran.stderr


def test_counts_want_a_kernel_that_counts(tmp_path: Path) -> None:
    ran = CliRunner().invoke(cli, ["verify", "counts", "--kernel", str(tmp_path / "linux")])
    assert "it does not count what it runs (btrfs-model kernel build TREE)" in str(ran.exception)


def test_a_kernel_is_built_of_a_tree(tmp_path: Path) -> None:
    ran = CliRunner().invoke(cli, ["kernel", "build", str(tmp_path), "-o", str(tmp_path / "o")])
    assert "no tree of a kernel" in str(ran.exception) or "is not here" in str(ran.exception)
    assert not (tmp_path / "o").exists()


def test_a_file_whose_data_is_in_memory_alone_keeps_its_checksums() -> None:
    """Found by ``verify images``: the size that calls see counts, not what the tree says."""
    with bm.create(128 << 20) as fs:
        fs.create("written")
        fs.create("empty")
        fs.write("written", 0, b"data")
        for name in ("written", "empty"):
            fs.chattr(name, 0x800000, 0)
        fs.sync()
        flags = {row["path"]: row["flags"] for row in fs.listing("").to_dict("records")}
    assert (flags["written"], flags["empty"]) == (0, 0x800000)


# -------------------------------------------------------------- names without room in an item --

SAME_HASH = ("ue2r43xy", "c54cvxdh")
LONG = "k" * 180


def _many_names(*then: list[object]) -> Scenario:
    """Give a file more names than an INODE_REF of a leaf of 4 KiB holds; the last one is small."""
    links = [["link", "d/f", f"d/{LONG}{number}"] for number in range(40)]
    links += [["link", "d/f", f"d/{name}"] for name in ("z" * 100, *SAME_HASH)]
    lines = [["mkfs", ["-m", "single", "-d", "single", "-n", "4096"]], ["mount", "noatime"],
             ["mkdir", "d"], ["create", "d/f"], *links, ["sync"], *then, ["crash"]]  # fmt: skip
    return Scenario("names", [parse_step("names", *one) for one in enumerate(lines, 1)])


def test_a_name_is_looked_for_where_the_others_are_before_it_goes(tmp_path: Path) -> None:
    """Found by the corpus on 6.1: that search copies the leaf, so an fsync logs what is in it."""
    last = f"d/{LONG}38"
    scenario = _many_names(["create", "d/o"], ["rename", "d/o", last], ["fsync", last])
    with in_the_model(scenario, "v6.1.192", tmp_path / "crash"):
        pass
    (log,) = comparable_logs(tmp_path / "crash", scenario).values()
    assert (258, ItemType.INODE_REF, 257) in log


def test_a_replay_keeps_a_name_of_the_same_hash(tmp_path: Path) -> None:
    """Found by the corpus on 6.1: the log has nothing of the item in which it was alone."""
    one, other = (f"d/{name}" for name in SAME_HASH)
    scenario = _many_names(["unlink", one], ["unlink", other], ["link", "d/f", one],
                           ["unlink", f"d/{LONG}33"], ["create", f"d/{LONG}33"],
                           ["fsync", f"d/{LONG}33"])  # fmt: skip
    with in_the_model(scenario, "v6.1.192", tmp_path / "crash"):
        pass
    with (
        bm.open(tmp_path / "crash") as crashed,
        replay_log(crashed, behaviour="v6.1.192") as replayed,
    ):
        assert {one, other} <= set(replayed.listing("")["path"])


def test_the_toggles_that_take_a_difference_away_are_named() -> None:
    """Each alone, whichever way; and the bench goes on with what it had."""
    bench = Bench(SimpleNamespace(preset="v6.12"))  # type: ignore[arg-type]

    def differs() -> Exception | None:
        there = Behaviour.parse(bench.behaviour)
        differs = Patch.INLINE_FIRST not in there and Patch.SEND_UTIMES_CACHE in there
        return DifferenceError("it", 1, 2) if differs else None

    found = causes.toggles(bench, differs, 60)
    asked = [patch for patch in Patch if patch.asked is not Asked.NOWHERE]
    assert found == (["+ inline-first", "- send-utimes-cache"], len(asked))
    assert bench.behaviour == "v6.12"
