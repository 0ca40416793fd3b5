# SPDX-License-Identifier: GPL-2.0-only
"""A solution of the assignment "smaller"."""

PAGE = 4096


def save(fs, path, content):
    old = fs.read_file("", path)
    for at in range(0, len(content), PAGE):
        page = content[at : at + PAGE]
        if old[at : at + PAGE] != page:
            fs.write(path, at, page)
    fs.truncate(path, len(content))
