# SPDX-License-Identifier: GPL-2.0-only
"""Finding scripts in text: in a script itself, in a mail, a patch or a commit message."""

from __future__ import annotations

import email
import email.policy
import re
from dataclasses import dataclass
from typing import Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.shell.parse import ShellSyntaxError, parse

DEVICE: Final = re.compile(
    r"/dev/(?:sd[a-z]+|vd[a-z]+|xvd[a-z]+|hd[a-z]+|nvme\d+n\d+|nullb\d+|loop\d+|ram\d+|pmem\d+|"
    r"mapper/[\w.-]+|md\d+|zram\d+|test\w*|scratch\w*|disk\w*|(?!fd/|shm/|pts/)[\w.-]+/[\w.-]+)"
    r"(?:p?\d+)?"
)
"""A device that comes into being when it is named."""
_MOUNT: Final = re.compile(r"/mnt(?:/[\w.-]+)*")
_SHEBANG: Final = re.compile(r"^(\s*)#!\s*/\S*\b(?:ba|da)?sh\b")
_PROMPT: Final = re.compile(r"^(\s*)(?:\[?[\w.-]+@[\w.-]+[^$#]*\]?\s?)?[$#]\s+(\S.*)$")
_POWER: Final = re.compile(
    r"^\s*<\s*(?:power\s*(?:failure|fail|cut|loss)|crash|fail power)[^>]*>\s*$", re.I
)
_DIFF: Final = re.compile(r"^(?:---$|diff --git |--- a/|Index: )")
_BEGINS: Final = re.compile(r"\b(?:mkfs\.btrfs|mkfs\s+-t\s*btrfs|_scratch_mkfs)\b")
_MAKES: Final = re.compile(
    r"(?:^|[;&|({!]|\b(?:do|then|else|if|sudo)\b)\s*(?:\w+=\S*\s+)*(?:[\w./$-]*/)?"
    r"(?:mkfs\.btrfs|mkfs\s+-t\s*btrfs|_scratch_mkfs)(?:\s|$)",
    re.M,
)
"""A command that makes a filesystem, and no sentence about one."""
_RUN: Final = re.compile(r"(?:sudo\s+)?(?:\./|(?:ba)?sh\s+)\S*\.sh\b|\./\S+")
_SHOWS: Final = re.compile(r"cat\s+\S+\s*$")
_COMMAND: Final = re.compile(
    r"(?:sudo |\./|/)?(?:mkfs|mount|umount|btrfs|xfs_io|cd|dd|mkdir|touch|echo|sync|cat|fallocate|"
    r"truncate|cp|rm|mv|ln|filefrag|wipefs|losetup|for|chattr)\b"
)
_PRINTED: Final = re.compile(r"(?:At (?:subvol|snapshot) |ERROR: |WARNING: |Create (?:a |subvol))")
"""What btrfs prints, where it stands between commands without a prompt."""
_PROSE: Final = re.compile(r"[A-Z][a-z]* [a-z]+ [a-z]+ ")
_COMMENT_ONLY: Final = re.compile(r"^\s*(?:#(?!!).*)?$")


@dataclass(frozen=True)
class Found:
    """A script that was found.

    Attributes
    ----------
    text : str
        What bash is to run.
    line : int
        Where it begins in the file, from 1.
    printed : tuple of str
        Lines that its author shows as its output.
    """

    text: str
    line: int
    printed: tuple[str, ...] = ()


def scripts_in(text: str, *, is_script: bool = False) -> list[Found]:
    """Find all scripts in a text that make a filesystem; a script itself is one.

    Parameters
    ----------
    text : str
        A script, a mail, a patch or a message.
    is_script : bool
        It is known to be a script, whatever it looks like.

    Raises
    ------
    BtrfsModelError
        When there is none.
    """
    if is_script or text.startswith("#!") or _is_script(text):
        return [Found(_with_power(text), 1)]
    lines = message(text).split("\n")
    found = [*_shebangs(lines), *_prompts(lines)]
    if not found:
        found = _paragraphs(lines)
    chosen = [one for one in found if _BEGINS.search(one.text)] or found
    if not chosen:
        raise BtrfsModelError("there is no script in it: no #!, no lines behind a prompt, no "
                              "indented commands that make a filesystem")  # fmt: skip
    return sorted(chosen, key=lambda one: one.line)


def devices_in(text: str) -> list[str]:
    """Return the devices that a script names, the first first."""
    return list(dict.fromkeys(DEVICE.findall(text)))


def mounts_in(text: str) -> list[str]:
    """Return the folders that a script may mount on: those that it names below ``/mnt``."""
    return list(dict.fromkeys(_MOUNT.findall(text)))


def _is_script(text: str) -> bool:
    """Whether a text without ``#!`` is commands from its first line on."""
    first = next((one for one in text.split("\n") if not _COMMENT_ONLY.match(one)), "")
    if re.match(r"[A-Z][\w-]*:\s", first) or first.startswith(
        ("commit ", "From ", " ", "\t", "$ ")
    ):
        return False
    try:
        parse(_with_power(text))
    except ShellSyntaxError:
        return False
    if re.search(r"(?m)^(?:---|diff --git|\s+\$ )", text):
        return False
    return re.match(r"[\w./-]+(?:=|\s|$)", first) is not None and _words_are_commands(text)


def _words_are_commands(text: str) -> bool:
    """Whether most lines begin as commands do, in small letters or with an assignment."""
    lines = [one.strip() for one in text.split("\n") if not _COMMENT_ONLY.match(one)]
    like = sum(bool(re.match(r"(?:[a-z_./$({\[}<]|[A-Z_]+\+?=|\w+\(\))", one)) for one in lines)
    return like >= len(lines) * 0.8


def message(text: str) -> str:
    """Return the message of a mail, decoded, up to its diff."""
    if re.match(r"(?:From |[\w-]+: )", text) and re.search(
        r"(?mi)^(?:from|subject|message-id|date):", text
    ):
        mail = email.message_from_string(text, policy=email.policy.default)
        body = mail.get_body(("plain",)) if mail.is_multipart() else mail
        if body is not None:
            try:
                text = body.get_content()
            except (KeyError, LookupError):
                text = str(body.get_payload())
    kept = []
    for line in text.replace("\r\n", "\n").split("\n"):
        if _DIFF.match(line):
            break
        kept.append(line)
    return "\n".join(kept)


def _with_power(text: str) -> str:
    return "\n".join("power_failure" if _POWER.match(one) else one for one in text.split("\n"))


def _indent(line: str) -> int:
    expanded = line.expandtabs(8)
    return len(expanded) - len(expanded.lstrip())


def _shebangs(lines: list[str]) -> list[Found]:
    found = []
    at = 0
    while at < len(lines):
        begins = _SHEBANG.match(lines[at])
        if not begins:
            at += 1
            continue
        before = begins[1]
        depth = _indent(lines[at])
        end = at + 1
        while end < len(lines):
            line = lines[end]
            if line.strip() and _indent(line) < depth:
                break
            if line.lstrip().startswith("$ ") and _indent(line) <= depth:
                break
            end += 1
        body = [line.removeprefix(before) for line in lines[at:end]]
        body = _parsed_prefix(body)
        found.append(
            Found(_with_power("\n".join(body)) + "\n", at + 1, _output_after(lines, at + len(body)))
        )
        at += max(len(body), 1)
    return found


def _parsed_prefix(body: list[str]) -> list[str]:
    """Return the longest beginning that bash takes, cut where prose follows."""
    ends = [len(body), *[at for at in range(len(body) - 1, 0, -1)
                         if not body[at].strip() or _PROSE.match(body[at])]]  # fmt: skip
    for end in ends:
        try:
            tree = parse(_with_power("\n".join(body[:end])))
        except ShellSyntaxError:
            continue
        if tree.get("Stmts"):
            while end > 1 and not body[end - 1].strip():
                end -= 1
            return body[:end]
    return body


def _output_after(lines: list[str], at: int) -> tuple[str, ...]:
    """Return what is shown behind the prompt that runs a script."""
    for start in range(at, min(at + 40, len(lines))):
        prompt = _PROMPT.match(lines[start])
        if prompt and _RUN.match(prompt[2]):
            depth = _indent(lines[start])
            shown = []
            for line in lines[start + 1 :]:
                if (line.strip() and _indent(line) < depth) or _PROMPT.match(line):
                    break
                shown.append(line.expandtabs(8)[depth:])
            while shown and not shown[-1].strip():
                shown.pop()
            return tuple(shown)
    return ()


def _prompts(lines: list[str]) -> list[Found]:
    """Find blocks of lines behind prompts, with their output between them."""
    found = []
    at = 0
    while at < len(lines):
        prompt = _PROMPT.match(lines[at])
        if not prompt or (lines[at].lstrip().startswith("#") and not _is_root_prompt(lines, at)):
            at += 1
            continue
        depth, start = _indent(lines[at]), at
        sign = lines[at].lstrip()[:1]
        commands: list[str] = []
        printed: list[str] = []
        while at < len(lines):
            line = lines[at]
            prompt = _PROMPT.match(line)
            if line.strip() and _indent(line) < depth:
                break
            if prompt and _indent(line) == depth and (sign != "$" or line.lstrip()[0] != "#"):
                command, at = _whole_command(lines, at, prompt[2])
                if _SHOWS.match(command) and at < len(lines) and _SHEBANG.match(lines[at]):
                    break
                commands.append(command)
                continue
            if _POWER.match(line):
                commands.append("power_failure")
            elif sign == "$" and _indent(line) <= depth and line.lstrip().startswith("#"):
                pass  # a comment, between commands
            elif line.strip() or printed:
                printed.append(line.expandtabs(8)[depth:])
            at += 1
        while printed and not printed[-1].strip():
            printed.pop()
        shown = tuple(one for one in printed if one.strip())
        if len(commands) > 1 or (commands and _MAKES.search(commands[0])):
            found.append(Found("\n".join(commands) + "\n", start + 1, shown))
    return found


def _is_root_prompt(lines: list[str], at: int) -> bool:
    """Whether ``# `` begins a command rather than a comment: the block makes a filesystem by it."""
    prompt = _PROMPT.match(lines[at])
    return prompt is not None and _COMMAND.match(prompt[2]) is not None


def _whole_command(lines: list[str], at: int, first: str) -> tuple[str, int]:
    """Return a command with the lines that continue it, and where the next line is."""
    command, at = first, at + 1
    for _ in range(30):
        try:
            parse(command)
            if not command.endswith("\\"):
                break
        except ShellSyntaxError:
            pass
        if at >= len(lines):
            break
        more = lines[at].strip()
        command += "\n" + more.removeprefix("> ")
        at += 1
    return command, at


def _paragraphs(lines: list[str]) -> list[Found]:
    """Find indented blocks that make a filesystem."""
    found = []
    at = 0
    while at < len(lines):
        if not lines[at].strip() or not _indent(lines[at]):
            at += 1
            continue
        start, depth = at, _indent(lines[at])
        while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) >= depth):
            at += 1
        body = [line.expandtabs(8)[depth:] for line in lines[start:at]]
        printed = [one for one in body if _PRINTED.match(one)]
        body = [one for one in body if one not in printed]
        text = _with_power("\n".join(body).rstrip()) + "\n"
        if _MAKES.search(text):
            try:
                parse(text)
            except ShellSyntaxError:
                continue
            found.append(Found(text, start + 1, tuple(printed)))
    return found
