# SPDX-License-Identifier: GPL-2.0-only
"""Arguments of a wrong type: one line that names them, from every public name."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import corpus
import numpy as np
import pytest

import btrfs_model as bm
from btrfs_model.base.counters import Work
from btrfs_model.volume.device.memory import Memory

FS = object()
NOTHING = bm.SendResult(None, 0, {}, Work())
# What each public name is called with; arguments are then replaced by a wrong one, in turn.
CALLS: dict[str, tuple[Any, ...]] = {
    "Behaviour.parse": ("v6.18",),
    "Filesystem": (),
    "Filesystem.open": ("disk.img",),
    "StreamWriter": (1,),
    "WritableFilesystem": (Memory(1 << 28),),
    "WritableFilesystem.load": ("disk.img",),
    "balance_plan": ("disk.img",),
    "build": ("send-truncate", 0.01),
    "check": ("disk.img",),
    "commit": (FS,),
    "compression": (FS, "snap"),
    "create": ("1G",),
    "dedupe_plan": ("disk.img",),
    "defragment_plan": ("disk.img",),
    "device_lost": (FS, 1),
    "diff": (FS, "snap", "snap"),
    "draw": (FS,),
    "du": (FS, "snap"),
    "explain_log": (FS,),
    "image_diff": (FS, FS),
    "extent_references": (FS, "snap", "f"),
    "extents": (FS, "snap", "f"),
    "fiemap": (FS, "snap", "f"),
    "fiemap_mounted": (FS, "f"),
    "freed": (FS, "snap"),
    "crashes": ("true",),
    "fsync": (FS, "f"),
    "heal": ("disk.img",),
    "load": ("disk.img",),
    "logical_ino": (FS, 0),
    "mount_reads": (FS,),
    "open": ("disk.img",),
    "plan": (FS, "snap"),
    "ratio": (NOTHING, NOTHING),
    "read_stream": (b"",),
    "readdir_reads": (FS, "snap"),
    "reads": (FS, "snap"),
    "receive": (FS, b""),
    "receiver_calls": ((),),
    "replay": ("send-truncate", 0.01),
    "replay_log": (FS,),
    "rescue": ("disk.img",),
    "rescue_roots": ("disk.img",),
    "sample": ("name",),
    "send": (FS, "snap"),
    "stored_streams": (b"",),
    "tree_stats": ("disk.img",),
    "waste": (FS, "snap"),
    "workload": ("mine", print, print, ["send-utimes-cache"]),
    "write_tar": (FS, "snap", "snap.tar"),
}
# What takes nothing, what only the model makes, and what is no call.
OTHERS = {
    "BtrfsModelError", "Device", "Limits", "Machine", "Reads", "SendResult", "counting",
    "enumerate_crashes", "errors", "script", "sweep", "toggles", "use_code",
}  # fmt: skip


def called(name: str) -> Callable[..., Any]:
    first, _, rest = name.partition(".")
    return getattr(getattr(bm, first), rest) if rest else getattr(bm, first)


def wrong_arguments() -> Iterator[tuple[str, str]]:
    for name in CALLS:
        for parameter in inspect.signature(called(name)).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                yield name, parameter.name


@pytest.fixture(scope="module")
def fs() -> Iterator[bm.Filesystem]:
    with bm.open(corpus.image("send/send-truncate/n500")) as opened:
        yield opened


def test_every_public_name_is_looked_at() -> None:
    assert {name.partition(".")[0] for name in CALLS} | OTHERS == set(bm.__all__)


@pytest.mark.claim("An argument of a wrong type is refused in one line that names it.")
@pytest.mark.parametrize("wrong", [object(), [object()]], ids=["object", "list"])
@pytest.mark.parametrize(("name", "parameter"), list(wrong_arguments()))
def test_a_wrong_type_is_named(name: str, parameter: str, wrong: Any, fs: bm.Filesystem) -> None:
    function = called(name)
    signature = inspect.signature(function)
    given = signature.bind_partial(*(fs if one is FS else one for one in CALLS[name])).arguments
    given[parameter] = wrong
    if signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL:
        given[parameter] = (wrong,)
    positional = [
        one for one in given if signature.parameters[one].kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    if name in ("receive", "fiemap_mounted", "fsync", "commit") and parameter != "fs":
        given["fs"] = bm.create("256M")
    bound = inspect.BoundArguments(signature, {one: given[one] for one in [*positional, *given]})
    with pytest.raises(TypeError) as error:
        function(*bound.args, **bound.kwargs)
    message = str(error.value)
    assert f"{parameter} is " in message and "\n" not in message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("bm.Behaviour.parse(5)", "Behaviour.parse(): text is a str or Behaviour, not int"),
        ("bm.logical_ino(fs, 'f')", "logical_ino(): logical is an int, not str"),
        ("bm.send(fs, 'snap', clone_sources=[5.5])",
         "send(): clone_sources is an iterable of str or bytes or int or Subvolume or None, not "
         "[5.5]"),
        ("bm.reads(fs, 'snap', limits={'near': 'far'})",
         "reads(): limits is a Limits, mapping of str to int or None, not {'near': 'far'}"),
        ("bm.reads(fs, 'snap', limits={'nearr': 5})",
         "Limits(): got an unexpected keyword argument 'nearr'; did you mean 'near'?"),
        ("bm.create('1G', labl='x')",
         "Format(): got an unexpected keyword argument 'labl'; did you mean 'label'?"),
        ("bm.send(fs, 'snap', behavior='v6.1')",
         "send(): got an unexpected keyword argument 'behavior'; did you mean 'behaviour'?"),
        ("bm.send(fs)", "send(): missing a required argument: 'snapshot'"),
    ],
)  # fmt: skip
def test_what_is_said(call: str, message: str, fs: bm.Filesystem) -> None:
    with pytest.raises(TypeError) as error:
        eval(call, {"bm": bm, "fs": fs})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("call", "end"),
    [
        ("bm.Behaviour.parse('v6.12+send-utimes-cache')",
         "; a sign has spaces around it: 'v6.12 + send-utimes-cache'"),
        ("bm.Behaviour.parse('v6.12- send-utimes-cache')",
         "; a sign has spaces around it: 'v6.12 - send-utimes-cache'"),
        ("bm.Behaviour.parse('v6.12 - send-utimes-cach')", "; did you mean 'send-utimes-cache'?"),
        ("bm.Behaviour.parse('v6.122')", "; did you mean 'v6.12'?"),
        ("bm.replay('send-truncat')", "; did you mean 'send-truncate'?"),
        ("bm.reads(fs, 'snap').on('deskstar')", "; did you mean 'deskstar-7k500'?"),
        ("bm.sample('kernel/send/send-truncate/n50')",
         "; did you mean 'kernel/send/send-truncate/n500'?"),
        ("bm.send(fs, 'snapp')", "there is no subvolume 'snapp'; did you mean 'snap'?"),
        ("bm.snd", "; did you mean 'send'?"),
    ],
)  # fmt: skip
def test_a_name_that_is_near_is_suggested(call: str, end: str, fs: bm.Filesystem) -> None:
    with pytest.raises((bm.BtrfsModelError, AttributeError)) as error:
        eval(call, {"bm": bm, "fs": fs})
    assert str(error.value).endswith(end) and "\n" not in str(error.value)


def test_numbers_of_numpy_are_numbers(fs: bm.Filesystem) -> None:
    number = np.uint64(fs.subvolume("snap").id)
    sent = bm.send(fs, number, proto=np.int8(1), no_file_data=np.True_)
    assert sent.data == bm.send(fs, "snap", no_file_data=True).data


def test_there_are_two_kinds_of_kernels() -> None:
    refused = pytest.raises(ValueError, match=r"choice is 'c' or 'python', not 'rust'$")
    with refused, bm.use_code("rust"):  # type: ignore[arg-type]
        pass
