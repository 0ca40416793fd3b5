# SPDX-License-Identifier: GPL-2.0-only
"""Arguments and options that commands share, each defined once.

The definition of an option is what the parser, ``--help``, the completion of shells and the man
page (:mod:`btrfs_model.cli.man`) are made of. One thing has one word: ``-o``, ``--out`` is where
what a command makes goes. A word of before is taken for one release, and a note names the new one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.sizes import size
from btrfs_model.cli.common import TOLD, note
from btrfs_model.patches import KERNEL

if TYPE_CHECKING:
    from btrfs_model.volume.filesystem import Filesystem

F = TypeVar("F", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def offers(words: Callable[[], Iterable[str]]) -> Complete:
    """Return what completes an argument: those of the words that begin as it does."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in words() if word.startswith(begun)]

    return complete


def _behaviours() -> Iterable[str]:
    from btrfs_model.behaviour import PRESETS

    return PRESETS


def _machines() -> Iterable[str]:
    from btrfs_model.cost.machine import names

    return names()


def _devices() -> Iterable[str]:
    from btrfs_model.cost.device import names

    return names()


def _limit_names() -> Iterable[str]:
    from btrfs_model.limits import NAMES

    return (f"{name}=" for name in NAMES)


class Flag(click.Option):
    """An option that had other words before.

    Parameters
    ----------
    param_decls : sequence of str
        Its words, and the name of the argument.
    was : sequence of str
        Words that are taken for one release, with a note that names the new one.
    **attributes
        As for :class:`click.Option`.
    """

    def __init__(
        self, param_decls: Sequence[str], *, was: Sequence[str] = (), **attributes: Any
    ) -> None:
        super().__init__(param_decls, **attributes)
        self.was = was


def _set_quiet(_: click.Context, __: click.Parameter, wanted: bool) -> None:
    TOLD.quiet |= wanted


def _set_verbose(_: click.Context, __: click.Parameter, wanted: bool) -> None:
    TOLD.verbose |= wanted


def told_options() -> list[click.Parameter]:
    """Return ``-q`` and ``-v``, which each command has, and the program before its command."""
    common: dict[str, Any] = {"is_flag": True, "expose_value": False, "is_eager": True}
    return [
        Flag(["-q", "--quiet"], callback=_set_quiet, **common,
             help="No progress, notes and warnings, only errors."),
        Flag(["-v", "--verbose"], callback=_set_verbose, **common,
             help="Say what runs and how long it took; show where an error comes from."),
    ]  # fmt: skip


class Command(click.Command):
    """A command whose help ends with examples.

    Parameters
    ----------
    examples : sequence of str
        Command lines.
    **attributes
        As for :class:`click.Command`.
    """

    def __init__(self, *, examples: Sequence[str], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.examples = examples
        self.params += told_options()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line, old words as new ones."""
        return super().parse_args(ctx, [*self._as_now(args)])

    def _as_now(self, args: Sequence[str]) -> Iterable[str]:
        """Yield the arguments with the words that options have now; a note tells of each."""
        now = {
            old: option.opts[-1]
            for option in self.params
            if isinstance(option, Flag)
            for old in option.was
        }
        for at, argument in enumerate(args):
            if argument == "--":
                yield from args[at:]
                return
            word, equals, value = argument.partition("=")
            if word in now:
                note(f"{word} is now {now[word]}; the old word goes with the next release")
            yield f"{now.get(word, word)}{equals}{value}"

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are, without wrapping them."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")


@dataclass(frozen=True)
class Images:
    """The devices of a filesystem, as they are named on the command line."""

    paths: tuple[str, ...]
    mounted: bool
    degraded: bool

    def open(self) -> Filesystem:
        """Open the filesystem."""
        from btrfs_model.volume.filesystem import Filesystem

        paths = self.paths[0] if len(self.paths) == 1 else self.paths
        return Filesystem.open(paths, mounted=self.mounted, degraded=self.degraded)

    def __str__(self) -> str:
        more = len(self.paths) - 1
        return f"{self.paths[0]} and {more} more" if more else self.paths[0]


FIRST_SAMPLE: Final = "kernel/send/send-utimes/n200"
"""The image to begin with: 200 files, half of them moved between two snapshots."""


def _first_sample(context: click.Context, _: click.Parameter, wanted: bool) -> bool:
    """Restore the sample, and take it for IMAGE."""
    from btrfs_model.base.samples import sample

    if wanted:
        context.meta[FIRST_SAMPLE] = str(sample(FIRST_SAMPLE))
    return wanted


sample_option = click.option(
    "--sample", "is_sample", is_flag=True, callback=_first_sample,
    help=f"Take an image to begin with, {FIRST_SAMPLE}, for IMAGE.",
)  # fmt: skip

_IMAGE_OPTIONS = (
    click.option("--degraded", is_flag=True,
                 help="Do without missing devices, where all profiles allow."),
    click.option("--mounted-read-only", is_flag=True,
                 help="Read a block device also while it is in use."),
)  # fmt: skip


def image_argument(command: F) -> F:
    """IMAGE, once or for each device, and how it is opened: an :class:`Images`.

    The one rule of all commands: what follows IMAGE are as many arguments as the command has, and
    all before them are devices. See :func:`images_before` for a command that has any number.
    """
    return _with_images(command, "IMAGE...")


def images_before(name: str, metavar: str) -> Callable[[F], F]:
    """IMAGE, and after it any number of arguments that the command gets as `name`.

    The first argument is a device, and each that follows as long as it is a file or block device
    with a superblock.
    """

    def decorate(command: F) -> F:
        @wraps(command)
        def split(*args: Any, image: Images, **kwargs: Any) -> Any:
            from btrfs_model.volume.device.devices import is_device

            paths = image.paths
            end = 1
            while end < len(paths) and is_device(Path(paths[end])):
                end += 1
            named = replace(image, paths=paths[:end])
            return command(*args, image=named, **kwargs, **{name: paths[end:]})

        return _with_images(cast(F, split), f"IMAGE... {metavar}")

    return decorate


def _with_images(command: F, metavar: str) -> F:
    @wraps(command)
    def call(
        *args: Any, image: tuple[str, ...], degraded: bool, mounted_read_only: bool, **kwargs: Any
    ) -> Any:
        context = click.get_current_context()
        if first := context.meta.get(FIRST_SAMPLE):
            image = (first, *image)
        if not image:
            # one argument alone is the last one, so the name of the first would mislead
            wanted = " ".join(context.command.collect_usage_pieces(context)[1:])
            raise click.UsageError(f"Missing argument: {wanted} is wanted", context)
        return command(*args, image=Images(image, mounted_read_only, degraded), **kwargs)

    wrapped = cast(F, call)
    for option in reversed(_IMAGE_OPTIONS):
        wrapped = option(wrapped)
    return click.argument("image", metavar=metavar, nargs=-1, type=click.Path())(wrapped)


written_image_argument = click.argument("image", type=click.Path(path_type=Path))
"""IMAGE that is changed, or made anew: one device."""
subvolume_argument = click.argument("subvolume", metavar="SUBVOL")
parent_option = click.option(
    "-p", "--parent", metavar="SUBVOL", help="Send the difference to this subvolume."
)
clones_option = click.option(
    "-c",
    "--clone-source",
    "clones",
    multiple=True,
    metavar="SUBVOL",
    help="Subvolume that the receiver has; data may be cloned from it. Repeatable.",
)


def json_option(text: str) -> Callable[[F], F]:
    """``--json``, with what it gives."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def tell_unjudged(
    ctx: click.Context, parameter: click.Parameter, behaviour: str | None
) -> str | None:
    """Say in a line on standard error that no kernel stands behind a behaviour that was asked for.

    The behaviour is looked at when the command runs; here a mistake in it is none.
    """
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.behaviour import Behaviour

    if (
        behaviour is None
        or ctx.get_parameter_source(parameter.name or "") != ParameterSource.COMMANDLINE
    ):
        return behaviour
    with suppress(BtrfsModelError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unjudged = Behaviour.parse(behaviour).unjudged
        if unjudged:
            note(f"behaviour '{behaviour}': {unjudged}")
    return behaviour


def behaviour_option() -> Callable[[F], F]:
    """``--behaviour``."""
    return click.option(
        "--behaviour", default=KERNEL, show_default=True, metavar="B", callback=tell_unjudged,
        shell_complete=offers(_behaviours),
        help="The kernel: a preset, or COMMIT or COMMIT^, with '+ TOGGLE' and '- TOGGLE'; see "
             "`btrfs-model patches`.",
    )  # fmt: skip


def output_option(
    text: str,
    metavar: str = "FILE",
    *,
    name: str = "output",
    was: Sequence[str] = (),
    **attributes: Any,
) -> Callable[[F], F]:
    """``-o``, ``--out``: where what a command makes goes."""
    return click.option(
        "-o", "--out", name, cls=Flag, was=was, type=click.Path(path_type=Path),
        metavar=metavar, help=text, **attributes,
    )  # fmt: skip


def table_option(text: str = "Write the table there instead of printing it") -> Callable[[F], F]:
    """``-o``, ``--out`` of a command that prints rows."""
    return output_option(f"{text}: Parquet, or CSV for a name in .csv.", was=("--parquet",))


def one_output(as_json: bool, output: Path | None) -> None:
    """Refuse ``--json`` beside a file for the table."""
    if as_json and output is not None:
        raise click.UsageError("--json and --out exclude each other")


def work_option(text: str) -> Callable[[F], F]:
    """``--work``, with what it writes."""
    return click.option("--work", type=click.Path(path_type=Path), metavar="FILE.json", help=text)


machine_option = click.option(
    "--machine",
    metavar="NAME|FILE",
    shell_complete=offers(_machines),
    help="Predict times on this machine: a name of data/machines, or a file NAME.toml.  "
    "[default: the native one]",
)


device_option = partial(
    click.option, "--device", metavar="NAME|FILE", shell_complete=offers(_devices)
)
"""``--device``; each command has its own help for it."""


def whole_number(text: str, least: int = -(2**63)) -> int:
    """Read a whole number of 64 bits, from `least` on: decimal, or after ``0x``.

    Raises
    ------
    click.BadParameter
        When it is none.
    """
    try:
        number = int(text, 0)
    except ValueError:
        raise click.BadParameter(f"'{text}' is not a number") from None
    if not least <= number < 2**64:
        raise click.BadParameter(f"{text} is not a number from {least} to {2**64 - 1}")
    return number


class Whole(click.ParamType):  # type: ignore[type-arg]
    """A whole number of 64 bits that is not negative, such as an address."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        return whole_number(str(value), 0)


def _pairs(option: str, values: tuple[str, ...]) -> list[tuple[str, str]]:
    """Split arguments NAME=VALUE."""
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise click.BadParameter(f"{name!r} is not NAME=VALUE", param_hint=option)
    return [(name, value) for name, _, value in pairs]


class _Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, perhaps with K, M, G or T behind it."""

    name = "size"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            return size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE: Final = _Size()


def _size(name: str, text: str) -> int:
    """Return a limit, of bytes or of entries."""
    try:
        return size(text)
    except ValueError as error:
        raise click.BadParameter(f"{name}: {error}", param_hint="--limits") from None


def _value(text: str) -> float | str:
    """Return a number where the text is one."""
    try:
        return float(text)
    except ValueError:
        return text


def _limits(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """Return the limits of a kernel that are named."""
    from btrfs_model.limits import NAMES, Limits

    limits = {name: _size(name, value) for name, value in _pairs("--limits", values)}
    for name in limits:
        if name not in NAMES:
            raise click.BadParameter(
                f"no limit {name!r}: there is {', '.join(NAMES)}{did_you_mean(name, NAMES)}",
                param_hint="--limits",
            )
    try:
        Limits(**limits)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--limits") from None
    return limits


def _parameters(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> dict[str, float | str]:
    """Return the parameters of a device that are named."""
    return {name: _value(value) for name, value in _pairs("--set", values)}


limits_option = click.option(
    "--limits",
    "limits",
    cls=Flag,
    was=("--readahead",),
    shell_complete=offers(_limit_names),
    multiple=True,
    callback=_limits,
    metavar="LIMIT=N",
    help="Change a limit of the kernel (K, M, G, T). Readahead, in bytes. Full send: "
    "always_leaves (its window), always_nodes (the same above leaves). Listing, and full send "
    "without the commit send-reada-always: distance, near. Send with a parent: compare_leaves, "
    "compare_nodes. Numbers: siblings (a search looks at one more of them); of a send name_cache, "
    "name_cache_kept, dir_created_cache, dir_utimes_cache, backref_cache, backref_cache_roots, "
    "clone_refs; of FIEMAP fiemap_entries, fiemap_prev_extents.",
)
parameters_option = click.option(
    "--set",
    "parameters",
    multiple=True,
    callback=_parameters,
    metavar="NAME=VALUE",
    help="Another parameter of the device, such as queue_depth=1, elevator=none or rpm=5400.",
)
