# SPDX-License-Identifier: GPL-2.0-only
"""What files keep for nothing, which snapshots to delete, how files are compressed."""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import corpus
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.cli import run
from btrfs_model.questions.usage import smallest
from btrfs_model.questions.usage.references import Keepers, References

KIB, MIB = 1 << 10, 1 << 20
TEXT = b"".join(f"{n} green bottles\n".encode() for n in range(60_000))


@pytest.fixture(scope="module")
def wasted() -> Iterator[bm.WritableFilesystem]:
    """Bookends of one file, of a clone, of a snapshot, and small pieces side by side."""
    with bm.create("1G", max_inline=0) as fs:
        for name in ("alone", "cloned", "kept"):
            fs.create(name)
            fs.write(name, 0, b"x" * MIB)
        fs.sync()
        fs.mkdir("d")
        fs.create("d/clone")
        fs.clone_range("cloned", "d/clone", 512 * KIB, 0, 4 * KIB)
        for name in ("alone", "cloned"):
            fs.write(name, 4 * KIB, b"y" * (1020 * KIB))
        fs.sync()
        fs.snapshot("", "snap")
        fs.set_read_only("snap", True)
        fs.write("kept", 4 * KIB, b"z" * (1020 * KIB))
        fs.create("pieces")
        for at in range(0, 64 * KIB, 4 * KIB):
            fs.write("pieces", at, b"p" * (4 * KIB))
            fs.sync()
        fs.create("between")
        yield fs


def test_by_hand(wasted: bm.WritableFilesystem) -> None:
    """4 KiB of an extent keep 1 MiB of it."""
    table = bm.waste(wasted).set_index("path")
    names = ["extents", "referenced", "disk", "unreferenced", "frees", "writes", "unshares"]
    rest = 1020 * KIB
    expected = {
        # a snapshot has "alone" too: nothing is freed, and all is written beside it
        "alone": [2, MIB, MIB + rest, rest, 0, MIB, MIB],
        "cloned": [2, MIB, MIB + rest, rest - 4 * KIB, 0, MIB, MIB],
        "d/clone": [1, 4 * KIB, MIB, rest - 4 * KIB, 0, 4 * KIB, 4 * KIB],
        "kept": [2, MIB, MIB + rest, 0, rest, MIB, 4 * KIB],
        "pieces": [16, 64 * KIB, 64 * KIB, 0, 64 * KIB, 64 * KIB, 0],
    }
    assert {name: table.loc[name, names].tolist() for name in expected} == expected
    assert set(table.index) == set(expected) and set(table["subvolume"]) == {5}
    assert (table["saves"] == table["frees"].astype(int) - table["writes"].astype(int)).all()
    below = bm.waste(wasted, 5, "d")
    assert below["path"].tolist() == ["d/clone"]
    assert bm.waste(wasted, "snap", "kept")["frees"].tolist() == [0]


def test_what_is_deleted_keeps_nothing() -> None:
    """A snapshot that waits to be freed keeps no extent and no block."""
    with bm.create("1G", max_inline=0) as fs:
        fs.create("f")
        fs.write("f", 0, b"x" * MIB)
        fs.sync()
        fs.write("f", 4 * KIB, b"y" * (1020 * KIB))
        fs.snapshot("", "old")
        fs.snapshot("", "new")
        for names, frees in ((("old",), 0), (("new",), MIB + 1020 * KIB)):
            (row,) = bm.waste(fs, 5).itertuples()
            assert (row.frees, row.writes, row.saves) == (0, MIB, -MIB)
            for name in names:
                fs.delete_subvolume(name)
            fs.commit()
            (row,) = bm.waste(fs, 5).itertuples()
            assert (row.frees, row.saves) == (frees, frees - MIB)


def test_a_threshold_takes_what_defragmentation_takes(wasted: bm.WritableFilesystem) -> None:
    table = bm.waste(wasted, threshold=32 * MIB).set_index("path")
    # an extent alone is left; two side by side are joined
    assert table.loc["d/clone", "writes"] == 0
    assert table.loc["pieces", ["frees", "writes"]].tolist() == [64 * KIB, 64 * KIB]
    assert bm.waste(wasted, threshold=4 * KIB)["writes"].sum() == 0


def test_fragments_and_references(wasted: bm.WritableFilesystem) -> None:
    table = bm.waste(wasted, by="fragments")
    assert (table["fragments"].astype(int).diff().dropna() <= 0).all()
    extents = bm.waste(wasted, by="references")
    assert (extents["references"].astype(int).diff().dropna() <= 0).all()
    for row in extents.itertuples():
        found = bm.logical_ino(wasted, row.disk_bytenr, ignore_offset=True)
        assert len(found) == row.references
    clone = bm.waste(wasted, 5, "d/clone", by="references")
    assert clone["references"].tolist() == [4] and clone["path"].tolist() == ["d/clone"]


def shared(seed: int) -> bm.WritableFilesystem:
    """Snapshots that share with each other."""
    choice = random.Random(seed)
    fs = bm.create("512M", nodesize=4096, max_inline=0)
    for number in range(7):
        for _ in range(8):
            name = f"f{choice.randrange(12)}"
            if not fs.file(name).exists():
                fs.create(name)
            place, count = 4 * KIB * choice.randrange(40), choice.randrange(1, 60_000)
            fs.write(name, place, choice.randbytes(count))
        fs.snapshot("", f"s{number}")
        fs.set_read_only(f"s{number}", True)
    fs.sync()
    return fs


@pytest.mark.claim(
    "What the deletion of any set of snapshots frees is what is then gone, and no smaller set "
    "frees as many bytes as the one that is found."
)
def test_sets_of_snapshots(tmp_path: Path) -> None:
    shared(1).save(tmp_path / "disk.img")
    names = [f"s{number}" for number in range(7)]
    with bm.open(tmp_path / "disk.img") as fs:
        frees = {
            chosen: int(bm.freed(fs, *chosen)["freed"].iloc[-1])
            for count in (1, 2, 3) for chosen in itertools.combinations(names, count)
        }  # fmt: skip
        for wanted in sorted(set(frees.values()))[::4]:
            found = bm.freed(fs, at_least=wanted)
            fewest = min(len(chosen) for chosen, bytes_ in frees.items() if bytes_ >= wanted)
            assert len(found) == found["fewest"].iloc[0] == fewest
            assert found["freed"].iloc[-1] >= wanted
    for chosen in random.Random(2).sample(sorted(frees), 4):
        fs = bm.load(tmp_path / "disk.img")
        before, blocks = data_bytes(fs), tree_blocks(fs)
        told = bm.freed(fs, *chosen).iloc[-1]
        for name in chosen:
            fs.delete_subvolume(name)
        fs.sync()
        fs.clean_subvolumes()
        fs.sync()
        assert before - data_bytes(fs) == told["data"]
        assert blocks - tree_blocks(fs) == told["metadata"]


def data_bytes(fs: bm.Filesystem) -> int:
    return int(References(fs).extents.length.sum())


def tree_blocks(fs: bm.Filesystem) -> int:
    return fs.image.nodesize * sum(len(bits) for bits in Keepers(References(fs)).blocks)


@st.composite
def parts(draw: st.DrawFn) -> tuple[smallest.Members, smallest.Bytes, int]:
    count = draw(st.integers(1, 6))
    rows = draw(st.lists(st.integers(1, 2**count - 1), min_size=1, max_size=12))
    weights = draw(st.lists(st.integers(1, 50), min_size=len(rows), max_size=len(rows)))
    members = np.array([[row >> bit & 1 for bit in range(count)] for row in rows], np.bool_)
    return members, np.array(weights, np.int64), draw(st.integers(1, sum(weights)))


@settings(deadline=None, max_examples=60)
@given(parts())
def test_a_search_is_bounded(of: tuple[smallest.Members, smallest.Bytes, int]) -> None:
    """The exact set, the one that a search finds and the bound stand in this order."""
    members, weights, wanted = of
    lines = np.zeros(members.shape[1], np.intp)
    exact = smallest.smallest_set(members, weights, wanted, lines)
    greedy = smallest._without_needless(
        members, weights, wanted, smallest._greedily(members, weights, wanted)
    )
    assert exact is not None
    bound = smallest._fewest(members, weights, wanted)
    assert bound <= len(exact.chosen) == exact.fewest <= len(greedy)
    runs = smallest._by_runs(members, weights, wanted)
    assert runs is None or len(runs) == exact.fewest
    for chosen in (exact.chosen, greedy, *([] if runs is None else [runs])):
        inside = np.isin(np.arange(members.shape[1]), chosen)
        assert int(smallest.freed_by(members, weights, inside[None])[0]) >= wanted
    assert smallest.smallest_set(members, weights, int(weights.sum()) + 1, lines) is None


def test_more_than_22_are_searched() -> None:
    alone = np.eye(30, dtype=np.bool_)
    lines = np.arange(30) % 2
    found = smallest.smallest_set(alone, np.arange(1, 31), 59, lines)
    assert found == smallest.Smallest([28, 29], 2)
    # neighbours of one line share much, and so do two that are none
    far = alone[3] | alone[20]
    near = alone[5] | alone[7]
    for shared, fewest in ((near, [5, 7]), (far, [3, 20])):
        members, weights = np.vstack([alone, shared]), np.append(np.ones(30, np.int64), 50)
        assert smallest.smallest_set(members, weights, 52, lines) == smallest.Smallest(fewest, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("bm.freed(fs, 5)", "subvolume 5 cannot be deleted: it is the top"),
        ("bm.freed(fs)", "name the subvolumes to delete"),
        ("bm.freed(fs, at_least=1 << 50)", "the subvolume frees"),
        ("bm.freed(fs, 'none')", "there is no subvolume 'none'"),
        ("bm.waste(fs, 5, 'none')", "none"),
        ("bm.waste(fs, path='kept')", "a path needs a subvolume"),
        ("bm.waste(fs, by='size')", "by is one of rewrite, fragments, references, not 'size'"),
        ("bm.waste(fs, by='references', threshold=1)", "references know none"),
        ("bm.compression(fs, 5, trials=['zip'])", "'zip' is no compression of this kernel"),
        ("bm.compression(fs, 5, by='kind')", "by is one of file, algorithm, extent, not 'kind'"),
        ("bm.compression(fs, 5, by='extent', levels=True)", "so by is file"),
    ],
)
def test_what_is_refused(call: str, message: str, wasted: bm.WritableFilesystem) -> None:
    with pytest.raises((bm.BtrfsModelError, ValueError)) as error:
        eval(call, {"bm": bm, "fs": wasted})
    assert message in str(error.value) and "\n" not in str(error.value)


def test_what_holds_others_stays() -> None:
    with bm.create("256M") as fs:
        fs.create_subvolume("above")
        inside = fs.create_subvolume("above/inside")
        fs.sync()
        with pytest.raises(bm.BtrfsModelError, match=f"subvolume {inside} is inside, and stays"):
            bm.freed(fs, "above")
        assert len(bm.freed(fs, "above", "above/inside")) == 2


@pytest.mark.claim(
    "Why data are not compressed, and the levels of those that are, is told from their bytes."
)
def test_compression() -> None:
    noise = random.Random(1).randbytes
    with bm.create("1G") as fs:
        fs.set_mount_options("compress=none")
        for name, data in (("later", TEXT), ("noise", noise(MIB)), ("small", TEXT[:4000])):
            fs.create(name)
            fs.write(name, 0, data)
        fs.create("no")
        fs.set_compression("no", "none")
        fs.write("no", 0, TEXT)
        fs.sync()
        for option in ("zstd:7", "zlib:9", "zlib:1"):
            fs.set_mount_options(f"compress={option}")
            fs.create(option)
            fs.write(option, 0, TEXT[: 300 * KIB])
            fs.sync()
        table = bm.compression(fs, 5, why=True, levels=True, trials=["zstd:7", "lzo"])
        table = table.set_index("path")
        assert table["why"].to_dict() == {
            "later": "not tried", "noise": "heuristic", "small": "small", "no": "nocompress",
            "zstd:7": "", "zlib:9": "", "zlib:1": "",
        }  # fmt: skip
        assert "7" in table.loc["zstd:7", "level"].split(",")
        assert "9" in table.loc["zlib:9", "level"].split(",")
        assert "1" in table.loc["zlib:1", "level"].split(",")
        assert "1" not in table.loc["zlib:9", "level"].split(",")
        assert table.loc["zstd:7", "zstd:7"] == table.loc["zstd:7", "disk"]
        assert table.loc["noise", "lzo"] == table.loc["noise", "raw"] == MIB
        assert table.loc["later", "zstd:7"] < table.loc["later", "lzo"] < table.loc["later", "disk"]
        by = bm.compression(fs, 5, by="algorithm").set_index("algorithm")
        assert by["disk"].sum() == table["disk"].sum()
        extents = bm.compression(fs, 5, "later", by="extent", why=True)
        assert (
            set(extents["why"]) == {"not tried"}
            and extents["disk"].sum() == table.loc["later", "disk"]
        )


def test_commands(capfd: pytest.CaptureFixture[str]) -> None:
    image = str(corpus.image("counts/W3/snap200"))

    def rows(*words: str) -> list[dict[str, object]]:
        assert run([*words, "--json"]) == 0
        return [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    assert {"frees", "saves"} <= set(rows("waste", image)[0])
    assert rows("waste", image, "snap1", "--by", "references")[0]["references"] == 2
    assert len(rows("du", image, "snap1", "--together")) == 1
    assert rows("du", image, "--free", "4K")[0]["fewest"] == 1
    assert "why" in rows("compression", image, "snap1", "--why", "--by", "extent")[0]
    for words, said in (
        (["du", image, "--together"], "--together wants the subvolumes"),
        (["du", image, "--free", "1", "--nested"], "--nested has no meaning"),
        (["waste", image, "snap1", "f", "g"], "'g' is a third word"),
        (["waste", image, "--by", "references", "--threshold", "1M"], "references know none"),
        (["compression", image], "SUBVOL [PATH] is wanted"),
        (["compression", image, "snap1", "--try", "zip"], "'zip' is no compression"),
    ):
        assert run(words) == 2
        assert said in capfd.readouterr().err
    assert run(["du", image, "--free", "1T"]) == 1
    assert "are wanted" in capfd.readouterr().err
