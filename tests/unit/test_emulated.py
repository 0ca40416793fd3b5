# SPDX-License-Identifier: GPL-2.0-only
"""Kernels for an emulation: lists of packages, modules, what a guest has in memory at first."""

import gzip
import lzma
import os
from pathlib import Path

import pytest

from btrfs_model.base.errors import KernelMissingError
from btrfs_model.kernels import choice, debian, initramfs, modules, packages, qemu
from btrfs_model.kernels.build import shelf
from btrfs_model.kernels.inside import boot

LIST = """\
Package: linux-image-6.17.8+deb13-amd64
Version: 6.17.8-1~bpo13+1
Depends: kmod, initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool

Package: linux-image-6.17.13+deb13-amd64
Version: 6.17.13-1~bpo13+1
Description: Linux
 for PCs

Package: linux-image-6.17.13+deb13-amd64-unsigned
Version: 6.17.13-1~bpo13+1

Package: linux-image-6.17.13+deb13-cloud-amd64
Version: 6.17.13-1~bpo13+1

Package: linux-image-6.1.0-50-amd64
Version: 6.1.176-1

Package: linux-image-7.0.13+deb13-amd64
Version: 7.0.13-1~bpo13+1
Depends: linux-base-7.0.13+deb13-amd64 (= 7.0.13-1), linux-binary-7.0.13+deb13-amd64 (= 7.0.13-1), linux-modules-7.0.13+deb13-amd64 (= 7.0.13-1)

Package: linux-binary-7.0.13+deb13-amd64
Version: 7.0.13-1~bpo13+1

Package: linux-image-7.3-amd64
Version: 7.3~rc7-1~exp1
Depends: linux-binary-7.3-amd64 (= 7.3~rc7-1~exp1), linux-modules-7.3-amd64 (= 7.3~rc7-1~exp1)

Package: linux-binary-7.3-amd64
Version: 7.3~rc7-1~exp1

Package: linux-modules-7.3-amd64
Version: 7.3~rc7-1~exp1
"""  # noqa: E501
APT = """\
#!/bin/sh
for word; do
  case $word in *Dir=*) folder=${word#*=};; esac
  last=$word
done
case $last in
update) cp "$LISTED" "$folder/var/lib/apt/lists/x_Packages";;
*) : > one.deb;;
esac
"""
DPKG = """\
#!/bin/sh
mkdir -p "$3/boot" "$3/usr/lib/modules"
: > "$3/boot/vmlinuz-6.17.13"
cp -r "$TREE" "$3/usr/lib/modules/6.17.13"
"""


def test_kernels_of_a_list_of_packages() -> None:
    """Those of other flavours, and those without modules, are none."""
    found = packages.kernels(LIST)
    assert found == {
        "6.17.8": ["linux-image-6.17.8+deb13-amd64"],
        "6.17.13": ["linux-image-6.17.13+deb13-amd64"],
        "6.1.176": ["linux-image-6.1.0-50-amd64"],
        "7.3-rc7": ["linux-binary-7.3-amd64", "linux-modules-7.3-amd64"],
    }
    assert packages.newest_of("6.17", found) == "6.17.13"
    assert packages.newest_of("6.17.8", found) == "6.17.8"
    assert packages.newest_of("7.0.13", found) is None


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Modules that say what they need, and nothing else."""
    place = tmp_path / "tree"
    for name, said in {
        "fs/btrfs": "depends=xor,raid6-pq;softdep=pre: crypto-crc32c;softdep=pre: sha256",
        "lib/xor": "depends=", "lib/raid6_pq": "depends=xor", "fs/9p": "depends=9pnet",
        "net/9pnet": "depends=", "net/9pnet_virtio": "depends=9pnet", "drivers/loop": "depends=",
        "crypto/crc32c-cryptoapi": "alias=crypto-crc32c;depends=", "crypto/other": "alias=other",
    }.items():  # fmt: skip
        path = place / "kernel" / f"{name}.ko.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(said.replace(";", "\0").encode() + b"\0"))
    return place


def test_modules_come_after_what_they_need(tree: Path) -> None:
    found = [modules.named(path) for path in modules.needed(tree)]
    assert found == ["xor", "raid6_pq", "crc32c_cryptoapi", "btrfs", "9pnet", "9p", "9pnet_virtio",
                     "loop"]  # fmt: skip
    (tree / "kernel/lib/xor.ko.xz").unlink()
    with pytest.raises(KernelMissingError, match="tree: there is no module xor"):
        modules.needed(tree)


@pytest.mark.claim("`kernel get VERSION` unpacks a kernel of Debian for an emulation.")
def test_a_release_is_unpacked_into_the_cache(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, sources = tmp_path / "bin", tmp_path / "apt"
    programs.mkdir()
    sources.mkdir()
    for name, text in (("apt-get", APT), ("dpkg-deb", DPKG)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (sources / "sources.list").write_text("deb http://mirror.example/debian bookworm main\n")
    (tmp_path / "Packages").write_text(LIST)
    monkeypatch.setattr(debian, "_KEYRING", tmp_path / "Packages")
    monkeypatch.setattr(debian, "_SOURCES", sources)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("TREE", str(tree))
    monkeypatch.setenv("LISTED", str(tmp_path / "Packages"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(qemu, "why_not", lambda: "qemu-system-x86_64 is not here")
    with pytest.raises(KernelMissingError, match=r"is not here: `btrfs-model kernel get 6.17.13`"):
        choice.start("qemu:6.17.13")
    found = debian.get_release("6.17", lambda text: None)
    assert found == ("qemu:6.17.13", "6.17.13", shelf() / "qemu/6.17.13/vmlinuz")
    assert [*debian.emulated()] == [found]
    kept = sorted(path.name for path in (shelf() / "qemu/6.17.13/modules").iterdir())
    assert kept[0] == "00-xor.ko"
    assert kept[-1] == "07-loop.ko"
    assert [path.name for path in (shelf() / "qemu").iterdir()] == ["6.17.13"]
    with pytest.raises(KernelMissingError, match=r"^kernel qemu:6.17.13: qemu-system-x86_64"):
        choice.start("qemu:6.17.13")
    with pytest.raises(KernelMissingError, match=r"there are 6.1.176, 6.17.8, 6.17.13, 7.3-rc7$"):
        debian.get_release("7.0", lambda text: None)


def members(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Mode and content of what is in an archive (newc), by name."""
    found, at = dict[str, tuple[int, bytes]](), 0
    while at < len(archive):
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * k : at + 14 + 8 * k], 16) for k in range(13)]
        name = archive[at + 110 : at + 110 + fields[11]]
        assert name[-1] == 0
        begin = at + (110 + fields[11] + 3) // 4 * 4
        found[os.fsdecode(name[:-1])] = fields[1], archive[begin : begin + fields[6]]
        at = begin + (fields[6] + 3) // 4 * 4
    return found


def test_what_a_guest_has_in_memory_at_first(tmp_path: Path) -> None:
    """Its Python has all that the program imports; a folder comes before what is in it."""
    (tmp_path / "00-xor.ko").write_bytes(b"xor")
    packed = initramfs.packed(tmp_path, ["/tmp/folder"], ["python", "-c", "x y"])
    found = members(gzip.decompress(packed))
    assert found["modules/00-xor.ko"] == (0o100755, b"xor")
    assert found["modules"][0] == 0o40755
    first, *rest = found["init"][1].decode().splitlines()
    assert first.removeprefix("#!/").split()[0] in found
    assert rest[-1] == "main(['/tmp/folder'], ['python', '-c', 'x y'])"
    assert found["program/boot.py"][1] == Path(boot.__file__).read_bytes()
    assert any("libffi.so." in name for name in found)
    seen: set[str] = set()
    for name in found:
        above = str(Path(name).parent)
        assert above in (".", name) or above in seen
        seen.add(name)
