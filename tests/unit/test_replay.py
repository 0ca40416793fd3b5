# SPDX-License-Identifier: GPL-2.0-only
"""Replays: the figures are right, the same every time, and what is written is whole."""

import hashlib
import json
import math
import os
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import corpus
import pandas as pd
import pytest
from figures import value
from progs import btrfs_check

import btrfs_model as bm
from btrfs_model.base.samples import packed_sample, samples
from btrfs_model.experiments import commits, report
from btrfs_model.experiments.numbers import number, percent
from btrfs_model.experiments.replay import run
from btrfs_model.experiments.results import frame
from btrfs_model.experiments.workloads import NAMES, Figure, load
from btrfs_model.experiments.workloads.knobs import Knobs

DATA = corpus.PROJECT / "data"
RECORDED = json.loads((DATA / "workloads/send-truncate/full.json").read_text())
CALLS = json.loads((corpus.TEST_DATA / "receiver_calls.json").read_text())
FILES = [
    "results.csv", "results.parquet", "speedups.csv", "messages.csv", "report.html",
    "send-truncate.png", "send-truncate.svg", "send-truncate-time.png", "send-truncate-time.svg",
]  # fmt: skip


# ------------------------------------------------------------------------------- full scale --


@pytest.fixture(scope="module")
def full() -> Path:
    return bm.sample("workloads/send-truncate/full")


def test_the_image_is_the_recorded_one(full: Path) -> None:
    assert full.stat().st_size == RECORDED["image"]["raw_bytes"]
    digest = hashlib.sha256()
    with full.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    assert digest.hexdigest() == RECORDED["image"]["raw_sha256"]


@pytest.mark.parametrize("kernel", RECORDED["sent"])
def test_the_stream_is_the_kernels(full: Path, kernel: str) -> None:
    record = RECORDED["sent"][kernel]
    with bm.open(full) as fs:
        sent = bm.send(fs, "snap1", behaviour=f"v{kernel}")
    assert sent.commands == record["commands"]
    assert sent.size == record["bytes"]
    assert hashlib.sha256(sent.data).hexdigest() == record["sha256"]


def test_the_commit_takes_away_truncates_and_nothing_else() -> None:
    """For every snapshot of a few random filesystems, by the rule of the commit message."""
    for seed in range(6):
        with bm.open(corpus.image(f"send/random/seed-{seed:03}")) as fs:
            for name in fs.subvolumes().query("read_only").path:
                before = bm.send(fs, name, behaviour="v4.16").data
                after = bm.send(fs, name, behaviour="v4.16 + send-skip-truncate").data
                assert without_needless_truncates(before) == raw_commands(after)


def raw_commands(stream: bytes) -> list[bytes]:
    """The bytes of each command."""
    starts = [command.offset for command in bm.read_stream(stream)] + [len(stream)]
    return [stream[start:end] for start, end in pairwise(starts)]


def without_needless_truncates(stream: bytes) -> list[bytes]:
    """All but the truncates to where the last write or clone of the file ended."""
    kept, end = [], 0
    for command, raw in zip(bm.read_stream(stream), raw_commands(stream), strict=True):
        if command.name == "truncate" and command["size"] == end:
            continue
        if command.name == "mkfile":
            end = 0
        elif command.name == "write":
            end = command["file_offset"] + len(command["data"])
        elif command.name == "clone":
            end = command["file_offset"] + command["clone_len"]
        elif command.name == "utimes" and command["path"]:
            end = 0  # the last command of a file
        kept.append(raw)
    return kept


# ------------------------------------------------------------------------------- the receiver --


@pytest.mark.parametrize("name", CALLS["streams"])
def test_receiver_calls_are_those_of_btrfs_receive(name: str) -> None:
    """All but a fixed number for the program and the subvolume; clones look up their source."""
    real = CALLS["streams"][name]
    commands = list(bm.read_stream(corpus.stream(*name.rsplit("/", 1))))
    modelled = bm.receiver_calls(commands)
    snapshot = commands[0].name == "snapshot"
    once = {"read": 10, "openat": 14 + snapshot, "close": 14 + snapshot}
    for call in {*real, *modelled} - {"ioctl"}:
        assert real.get(call, 0) - modelled[call] == once.get(call, 0), call
    assert real["ioctl"] - modelled["ioctl"] in ((9, 13) if snapshot else (5,))


@pytest.mark.parametrize(
    ("written", "size", "path", "fixed", "waits"),
    [
        (5000, 5000, b"f", False, 1),
        (5000, 5000, b"f", True, 0),
        (8192, 8192, b"f", False, 0),  # whole sectors
        (5000, 4000, b"f", False, 0),  # another size: a real truncate
        (5000, 5000, b"g", False, 0),  # another file: not written by this stream
    ],
)
def test_waits_for_the_last_page(
    written: int, size: int, path: bytes, fixed: bool, waits: int
) -> None:
    writer = bm.StreamWriter()
    stream = (
        writer.header()
        + writer.command("write", path=b"f", file_offset=0, data=bytes(written))
        + writer.command("truncate", path=path, size=size)
        + writer.end()
    )
    calls = bm.receiver_calls(bm.read_stream(stream), truncate_same_size=fixed)
    assert calls["wait for last page"] == waits
    assert calls["truncate"] == calls["pwrite64"] == 1
    assert calls["read"] == 2 + 2 * 2 + 1


# --------------------------------------------------------------------------------- the figures --


@pytest.fixture(scope="module")
def quick() -> pd.DataFrame:
    return bm.replay("send-truncate", "quick")


def test_figures_of_the_sides(quick: pd.DataFrame) -> None:
    before, fixed, after = "before", "before + fix", "after"
    assert value(quick, before, "command truncate") == 500
    assert value(quick, fixed, "command truncate") == 500
    assert value(quick, after, "command truncate") == 0
    assert value(quick, before, "receiver: waits for the last page") == 500
    assert value(quick, fixed, "receiver: waits for the last page") == 0
    assert value(quick, after, "receiver: waits for the last page") == 0
    assert value(quick, after, "saved: system calls") == 3 * 500
    size = value(quick, before, "stream size") - value(quick, after, "stream size")
    assert value(quick, after, "saved: stream size") == size
    kinds = quick[quick.quantity.str.startswith("command ") & (quick.side == before)]
    assert kinds.modelled.sum() == value(quick, before, "commands")


def test_measured_figures_agree(quick: pd.DataFrame) -> None:
    both = quick.dropna(subset=["modelled", "measured"])
    exact = both[both.quantity.str.startswith(("command", "stream"))]
    assert len(exact) >= 10
    assert (exact.error == 0).all()
    calls = both[both.quantity.str.startswith("receiver")]
    assert len(calls) >= 20
    assert ((calls.measured - calls.modelled).between(0, 14)).all()


def test_measured_calls_of_the_sender_agree(quick: pd.DataFrame) -> None:
    measured = quick[quick.quantity.str.startswith("sender")].dropna(subset=["measured"])
    assert len(measured) >= 30
    # measured on 5.10.46
    after = ("send-skip-truncate", "send-orphanize-first", "send-caps-last", "send-clone-parts")
    behaviour_after = " + ".join(("v4.16", *after))
    table = bm.replay("send-truncate", "quick", behaviour_after=behaviour_after)
    for row in measured.itertuples():
        assert value(table, row.side, row.quantity) == row.measured, row.quantity


def test_times_are_reported_for_the_full_scale(quick: pd.DataFrame) -> None:
    assert quick.reported.isna().all()
    full = bm.replay("send-truncate")
    times = full[full.quantity == "receive time"].set_index("side")
    assert times.reported.to_dict() == {"before": 26.49, "before + fix": 12.51, "after": 10.02}
    assert times.measured["before + fix"] > times.measured["after"]
    stream = full[full.quantity.str.startswith(("command", "stream")) & full.measured.notna()]
    assert len(stream) >= 10 and (stream.error == 0).all()


def test_other_kernels() -> None:
    table = bm.replay("send-truncate", "quick", behaviour_before="v5.10", behaviour_after="v6.12")
    assert set(table.side) == {"before", "after"}
    assert table.reported.isna().all()
    assert table.measured.isna().all()
    assert value(table, "before", "command utimes") == 1001
    assert value(table, "after", "command utimes") == 501


@pytest.mark.parametrize(
    ("modelled", "measured", "reported", "error"),
    [(11, 10, 20, 0.1), (11, None, 10, 0.1), (0, 0, None, 0), (1, 0, None, math.inf),
     (None, 1, 1, None), (1, None, None, None)],
)  # fmt: skip
def test_error_of_a_figure(modelled, measured, reported, error) -> None:
    figure = Figure("s", "q", "u", reported=reported, modelled=modelled, measured=measured)
    assert figure.error == (None if error is None else pytest.approx(error))


def test_numbers_for_people() -> None:
    assert number(106605941.0) == "106,605,941"
    assert number(2.3293) == "2.329"
    assert number(17758.791) == "17,759"
    assert number(None) == number(math.nan) == percent(None) == ""
    assert percent(0.0) == "exact"
    assert percent(-0.0123) == "-1.23%"
    assert percent(-3.1e-5) == "-0.0031%"


def test_scales() -> None:
    workload = load("send-truncate")
    assert workload.input("quick").parameters["files"] == 500
    assert workload.input("full") == workload.input(1.0)
    assert workload.input(0.025) == workload.input("quick")
    assert workload.input(0.3).parameters["files"] == 6000
    with pytest.raises(bm.BtrfsModelError, match=r"no scale 'quik': .*; did you mean 'quick'\?"):
        workload.input("quik")
    for scale in (0, -1, math.nan, math.inf, 1e7, 1e308):
        with pytest.raises(
            bm.BtrfsModelError, match="a scale is greater than 0 and at most 1,000, not"
        ):
            workload.input(scale)
    with pytest.raises(bm.BtrfsModelError, match="no workload 'x'"):
        load("x")


def test_what_is_built_is_sent_as_what_a_kernel_made(tmp_path: Path) -> None:
    workload = load("send-truncate")
    source = workload.scaled(0.025)
    with (
        workload.open(source, Knobs()) as built,
        bm.open(bm.sample("kernel/counts/W2/N500")) as kernels,
    ):
        for behaviour in ("v4.16", "v4.16 + send-skip-truncate"):
            ours, theirs = (bm.send(fs, "snap1", behaviour=behaviour) for fs in (built, kernels))
            assert ours.commands == theirs.commands
            # each name before the rename has the generation in it, and stands in two commands
            digits = [
                fs.listing("snap1", content=False)["generation"]
                .iloc[1:]
                .astype(str)
                .str.len()
                .sum()
                for fs in (built, kernels)
            ]
            assert ours.size - 2 * digits[0] == theirs.size - 2 * digits[1]
        built.save(tmp_path / "image")  # type: ignore[attr-defined]
    table = bm.replay("send-truncate", 0.01)
    assert set(table["side"]) == {"before", "before + fix", "after"}
    assert table["measured"].isna().all()
    assert btrfs_check(tmp_path / "image", data=False) == ""


# ---------------------------------------------------------------------------------- the files --


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two replays by programs of their own, in folders of their own."""
    folders = [tmp_path_factory.mktemp("out") / "results" for _ in range(2)]
    for seed, folder in enumerate(folders):
        subprocess.run(
            [sys.executable, "-m", "btrfs_model.cli", "replay", "send-truncate", "--scale",
             "quick", "--out", str(folder)],
            check=True, capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed + 1), "TZ": f"UTC{seed}"},
        )  # fmt: skip
    return folders


def test_same_input_same_bytes(twice: list[Path]) -> None:
    first, second = twice
    assert {file.name for file in first.iterdir()} == {*FILES, "provenance.json"}
    for name in FILES:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    records = [json.loads((folder / "provenance.json").read_text()) for folder in twice]
    for record in records:
        times = record["workloads"]["send-truncate"].pop("time")
        assert set(times) == {"started", "seconds"}
    assert records[0] == records[1]


def test_tables_hold_the_figures(twice: list[Path], quick: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(pd.read_parquet(twice[0] / "results.parquet"), quick)
    pd.testing.assert_frame_equal(
        pd.read_csv(twice[0] / "results.csv", dtype=quick.dtypes.to_dict()), quick,
        check_exact=True,
    )  # fmt: skip


def test_provenance_names_the_input(twice: list[Path]) -> None:
    record = json.loads((twice[0] / "provenance.json").read_text())
    workload = record["workloads"]["send-truncate"]
    packed = (DATA / "kernel/counts/W2/N500/image.zst").read_bytes()
    assert workload["image"]["sha256"] == hashlib.sha256(packed).hexdigest()
    assert "send-skip-truncate" not in workload["sides"]["before"]["toggles"]
    assert "send-skip-truncate" in workload["sides"]["after"]["toggles"]
    assert record["software"]["libraries"]["numpy"]
    assert record["machine"]["processors"] == os.cpu_count()


class Links(HTMLParser):
    """Gathers what a page wants from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, target in attrs:
            if name in ("src", "href", "xlink:href", "data", "srcset"):
                self.links.append(target or "")


def test_report_needs_nothing_else(twice: list[Path]) -> None:
    page = Links()
    page.feed((twice[0] / "report.html").read_text())
    assert "svg" in page.tags
    assert "script" not in page.tags and "link" not in page.tags
    # but for the commits, which are elsewhere
    elsewhere = {link for link in page.links if not link.startswith(("#", "data:"))}
    assert elsewhere == {commits.load("send-truncate").url}


def test_report_says_what_was_found(twice: list[Path]) -> None:
    text = (twice[0] / "report.html").read_text()
    for words in ("2,676,220", "2,659,328", "do not issue unnecessary truncate"):
        assert words in text
    # a unit stands where the name does not say it
    assert ">stream size (bytes)</th>" in text
    assert ">command truncate</th>" in text


def test_chart_is_a_picture(twice: list[Path]) -> None:
    from matplotlib.image import imread

    pixels = imread(twice[0] / "send-truncate.png")
    assert pixels.shape[0] > 1000 and pixels.shape[1] > 2000
    assert len({tuple(pixel) for pixel in pixels[::20, ::20].reshape(-1, 4)}) > 4


def test_results_are_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replays = [run("send-truncate", "quick", behaviour_after="v6.12")]
    report.write(replays, tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def fails(table: object) -> bytes:
        raise OSError("no space left")

    monkeypatch.setattr(report, "to_parquet", fails)
    with pytest.raises(OSError, match="no space left"):
        report.write(replays, tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert len(frame(replays)) > 20


# -------------------------------------------------------------------------------- the samples --


def test_every_sample_can_be_restored_by_name() -> None:
    assert {"kernel/send/send-truncate/n500", "workloads/send-truncate/full"} <= set(samples())
    for name in samples():
        assert packed_sample(name).is_file()
    restored = bm.sample("kernel/send/random/seed-003")
    assert restored.read_bytes() == corpus.image("send/random/seed-003").read_bytes()
    assert not restored.stat().st_mode & 0o222


def test_samples_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(bm.BtrfsModelError, match="no sample named nothing"):
        bm.sample("nothing")
    monkeypatch.setenv("BTRFS_MODEL_DATA", str(tmp_path / "missing"))
    with pytest.raises(bm.BtrfsModelError, match="set BTRFS_MODEL_DATA"):
        bm.sample("nothing")


def test_a_broken_sample_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = packed_sample("kernel/send/send-truncate/n500").read_bytes()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cut.img.zst").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "data" / "bad.img.zst").write_bytes(b"not zstd at all")
    monkeypatch.setenv("BTRFS_MODEL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("bad", "cut"):
        with pytest.raises(bm.BtrfsModelError, match=rf"{name}\.img\.zst"):
            bm.sample(name)
    assert list((tmp_path / "cache" / "btrfs-model").iterdir()) == []


# ----------------------------------------------------------------------------- the public names --


def test_public_names() -> None:
    assert dir(bm) == bm.__all__
    assert len(bm.__all__) <= 62
    for name in bm.__all__:
        assert getattr(bm, name).__doc__, name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = bm.no_such_name


def test_functions_win_over_modules_of_their_name() -> None:
    code = (
        "import btrfs_model.questions.send, btrfs_model.experiments.replay, btrfs_model as bm\n"
        "assert callable(bm.send) and callable(bm.replay)\n"
        "from btrfs_model.questions.send.ioctl import send\n"
        "assert bm.send is send"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_workloads_can_be_loaded() -> None:
    for name in NAMES:
        assert load(name).name == name


def test_strips_are_laid_beside_each_other() -> None:
    from btrfs_model.experiments.workloads.charts.send_truncate import _aligned

    before = [("mkfile", 1), ("write", 2), ("truncate", 3), ("utimes", 4)]
    after = [("mkfile", 1), ("utimes", 5), ("write", 2), ("utimes", 4)]
    assert _aligned(before, after) == [
        (before[0], after[0]),
        (None, after[1]),
        (before[1], after[2]),
        (before[2], None),
        (before[3], after[3]),
    ]
    assert _aligned(before, before) == list(zip(before, before, strict=True))
