# SPDX-License-Identifier: GPL-2.0-only
"""What can still be read of damaged images: never a wrong byte, nothing outside of the folder."""

import hashlib
import io
import json
import os
import random
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import corpus
import pytest
from click.testing import CliRunner
from damage import Broken

import btrfs_model as bm
from btrfs_model.cli import cli
from btrfs_model.ondisk.keys import ItemType
from btrfs_model.questions.rescue.api import Rescued
from btrfs_model.questions.rescue.image import DamagedImage
from btrfs_model.questions.rescue.names import Taken
from btrfs_model.questions.rescue.scan import ranges_of
from btrfs_model.volume.tree import Item

IMAGE = "features/csum-xxhash"
Damage = Callable[[Path], None]


def files(folder: Path) -> dict[str, str]:
    """Files of a folder by path, without devices, which an ordinary user cannot make: a digest."""
    found = {}
    for top, folders, names in os.walk(folder):
        for name in folders + names:
            path = Path(top, name)
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                continue
            content = os.fsencode(path.readlink()) if stat.S_ISLNK(mode) else b""
            content = path.read_bytes() if stat.S_ISREG(mode) else content
            found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def has_all(found: Rescued) -> bool:
    """Whether nothing is lost but device nodes, which an ordinary user cannot make."""
    rows = found.table
    made = rows[~rows["problem"].str.startswith("it cannot be made here")]
    return bool((made["kind"] == "attribute").all())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of the image before it is damaged."""
    folder = tmp_path_factory.mktemp("sound")
    assert has_all(bm.rescue(corpus.image(IMAGE), folder))
    return files(folder)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return corpus.scratch_copy(IMAGE, tmp_path / "disk.img")


def zero(path: Path, places: list[int], size: int) -> None:
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            file.write(bytes(size))


def wipe(*owners: int) -> Damage:
    """Take all blocks of trees away, those of older commits too."""

    def damage(path: Path) -> None:
        with DamagedImage.open(path) as image:
            rows = [int(row["place"]) for row in image.found if row["owner"] in owners]
        zero(path, rows, 16384)

    return damage


def no_superblock(path: Path) -> None:
    zero(path, [64 << 10, 64 << 20], 4096)


def both(path: Path) -> None:
    wipe(1, 3)(path)
    no_superblock(path)


@pytest.mark.claim("All files of a sound image are rescued as they are, into a folder and as tar.")
def test_of_a_sound_image_all_is_there(sound: dict[str, str], tmp_path: Path) -> None:
    out, kept = io.BytesIO(), tmp_path / "kept"
    bm.rescue(corpus.image(IMAGE), kept)
    assert bm.rescue(corpus.image(IMAGE), out).is_whole
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        names = {one.name.removeprefix("./"): one for one in archive
                 if not (one.isdir() or one.ischr() or one.isblk())}  # fmt: skip
        assert names.keys() == sound.keys()
        for name, one in names.items():
            if one.isreg() or one.islnk():
                content = archive.extractfile(one)
                assert content is not None
                assert hashlib.sha256(content.read()).hexdigest() == sound[name], name
    with bm.open(corpus.image(IMAGE)) as fs:
        for number in fs.subvolume_ids:
            path = fs.subvolume_path(number)
            rows = fs.listing(number).to_dict("records")
            there = (kept / path).stat()
            assert (there.st_mode, there.st_mtime_ns) == (rows[0]["mode"], rows[0]["mtime"])
            digests = {row["path"]: row["sha256"] for row in rows if row["sha256"]}
            for name, digest in digests.items():
                assert sound[f"{path}/{name}" if path else name] == digest


@pytest.mark.claim(
    "Without a superblock, a chunk tree or a tree of roots all files are found by a scan, with the "
    "same bytes."
)
@pytest.mark.parametrize("damage", [no_superblock, wipe(3), wipe(1), both])
def test_what_a_scan_finds(
    damage: Damage, disk: Path, tmp_path: Path, sound: dict[str, str]
) -> None:
    damage(disk)
    found = bm.rescue(disk, tmp_path / "out")
    assert not found.is_whole
    rescued = files(tmp_path / "out")
    # without names of subvolumes these have other places
    assert sorted(rescued.values()) == sorted(sound.values()), found.table.to_string()


@pytest.mark.claim(
    "Where a checksum exists, a rescue gives no wrong byte: another copy, or a hole that is listed."
)
@pytest.mark.parametrize("name", [IMAGE, "features/dup"])
def test_no_wrong_byte(name: str, tmp_path: Path) -> None:
    path = corpus.scratch_copy(name, tmp_path / "disk.img")
    with bm.open(path) as fs:
        first, last = fs.checksums.starts.tolist()[0], fs.checksums.ends.tolist()[-1]
        sectors = random.Random(1).sample(range(first, last, 4096), 6)
        copies = [fs.image.copies(sector) for sector in sectors]
    for number, places in enumerate(copies):
        # of two copies both are bad now and then
        for place in places if number % 3 == 0 else places[:1]:
            with path.open("r+b") as file:
                file.seek(place + 100 + number)
                file.write(b"rotten")
    found = bm.rescue(path, tmp_path / "out")
    assert has_all(bm.rescue(corpus.image(name), tmp_path / "sound"))
    rows = found.table[found.table["problem"].str.contains("bytes are lost")]
    lost = {row.path: row.where for row in rows.itertuples()}
    assert lost and not (tmp_path / "out/lost+found").exists()
    for file in files(tmp_path / "sound"):
        ours, theirs = (Path(tmp_path, top, file) for top in ("out", "sound"))
        if ours.is_symlink() or not ours.is_file() or ours.read_bytes() == theirs.read_bytes():
            continue
        assert any(ours.samefile(tmp_path / "out" / one) for one in lost)
        a, b = ours.read_bytes(), theirs.read_bytes()
        wrong = [at for at in range(0, len(b), 4096) if a[at : at + 4096] != b[at : at + 4096]]
        assert len(a) == len(b) and not any(any(a[at : at + 4096]) for at in wrong)


@pytest.mark.claim("A file whose directory is lost is in lost+found, by subvolume and inode.")
def test_without_directories(disk: Path, tmp_path: Path, sound: dict[str, str]) -> None:
    with bm.open(disk) as fs:
        number = fs.subvolume_ids[-1]
        tree = fs.tree(number)
        leaf = next(block for block in tree.blocks() if not block.level)
        places = fs.image.copies(leaf.logical)
    zero(disk, places, 16384)
    found = bm.rescue(disk, tmp_path / "out")
    assert not found.is_whole
    for path, digest in files(tmp_path / "out").items():
        assert digest in sound.values() or path in set(found.table["path"]), path
    assert "tree block" in set(found.table["kind"])


@pytest.mark.claim(
    "When the newest root cannot be used, an older one is, and which one is said; another can be "
    "named."
)
def test_an_older_root_is_taken(disk: Path, tmp_path: Path) -> None:
    with bm.open(disk) as fs:
        sb = fs.image.superblock
        places = fs.image.copies(sb.root)
    zero(disk, places, 16384)
    roots = bm.rescue_roots(disk)
    usable = roots[roots["state"] == "whole"]
    newest = int(usable["generation"].iloc[0])
    assert newest < sb.generation and len(roots) >= 4
    found = bm.rescue(disk)
    assert found.root.startswith(f"generation {newest},")
    assert f"generation {sb.generation} cannot be used" in found.table["problem"].iloc[0]
    oldest = int(usable["generation"].iloc[-1])
    assert bm.rescue(disk, root=oldest).root.startswith(f"generation {oldest},")
    with pytest.raises(bm.BtrfsModelError, match=r"no root 77; generations within reach: \d"):
        bm.rescue(disk, root=77)


@pytest.mark.claim("No name of an image leads out of the folder that files are rescued to.")
def test_names_stay_inside(tmp_path: Path) -> None:
    broken = Broken(corpus.image("features/no-holes-off"))
    with broken.fs() as fs:
        number = fs.subvolume_ids[-1]
        kinds = (ItemType.DIR_INDEX, ItemType.DIR_ITEM, ItemType.INODE_REF)
        items: list[Item] = [one for one in fs.tree(number).items() if one.key.type in kinds]
        for item in items:
            at = bytes(item.data).find(b"regular")
            if at >= 0:
                broken.write_item(item, at, b"../../x")
    path = tmp_path / "disk.img"
    with path.open("wb") as file:
        for start, end in ranges_of(str(corpus.image("features/no-holes-off")), 0, len(broken.map)):
            file.seek(start)
            file.write(broken.map[start:end])
        file.truncate(len(broken.map))
    found = bm.rescue(path, tmp_path / "in/out")
    assert {one.name for one in tmp_path.iterdir()} == {"disk.img", "in"}
    assert [one.name for one in (tmp_path / "in").iterdir()] == ["out"]
    assert any(one.endswith("..%2F..%2Fx") for one in found.table["path"])
    taken = Taken()
    names = [taken.take(name) for name in (b"..", b".", b"", b"a/b", b"a/b", b"n\0", b"x" * 300)]
    assert names[:6] == [b"%2E%2E", b"%2E", b"%", b"a%2Fb", b"a%2Fb~2", b"n%00"]
    assert len(names[6]) == 255


def test_a_folder_has_to_be_empty(disk: Path, tmp_path: Path) -> None:
    with pytest.raises(bm.BtrfsModelError, match="the folder is not empty"):
        bm.rescue(disk, tmp_path)
    with pytest.raises(bm.BtrfsModelError, match="what is written is"):
        bm.rescue(disk, tmp_path / "x.tar.gz")
    with pytest.raises(bm.errors.SubvolumeNotFoundError, match="no subvolume 'nothing'"):
        bm.rescue(disk, subvolume="nothing")
    nothing = tmp_path / "nothing"
    nothing.write_bytes(bytes(1 << 20))
    with pytest.raises(bm.errors.NotBtrfsError, match="there is no tree block in it"):
        bm.rescue(nothing)


@pytest.mark.claim("Of any damage a rescue makes rows or one line of error, and it ends.")
@pytest.mark.parametrize("seed", range(8))
def test_any_damage(seed: int, disk: Path) -> None:
    chance = random.Random(seed)
    with DamagedImage.open(disk) as image:
        places = [int(row["place"]) for row in image.found]
    with disk.open("r+b") as file:
        for _ in range(chance.choice([1, 5, 50])):
            file.seek(chance.choice(places) + chance.randrange(16384))
            file.write(chance.randbytes(chance.choice([1, 8, 4096])))
        if seed % 3 == 0:
            file.truncate(chance.randrange(6 << 20, 16 << 20))
    try:
        found = bm.rescue(disk)
    except bm.BtrfsModelError as error:
        assert "\n" not in str(error)
    else:
        assert found.table["problem"].str.len().all()


def test_the_command(disk: Path, tmp_path: Path) -> None:
    def run(*arguments: object, status: int = 0) -> str:
        result = CliRunner().invoke(cli, ["rescue", str(disk), *map(str, arguments)])
        assert result.exit_code == status, result.output
        return result.stdout

    assert run("-o", tmp_path / "all.tar", "--subvol", "snap") == ""
    zero(disk, [64 << 10], 4096)
    rows = [json.loads(line) for line in run("--roots", "--json").splitlines()]
    assert rows[0]["source"] == "superblock at 65536" and rows[0]["generation"] is None
    assert rows[1]["source"] == "superblock at 67108864" and rows[1]["state"] == "whole"
    wipe(7)(disk)
    shown = run(status=1)
    assert shown.splitlines()[0] == "path\tkind\tproblem\twhere"
    assert "bytes could not be checked" in shown
