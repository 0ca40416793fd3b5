# SPDX-License-Identifier: GPL-2.0-only
"""The site: ``make docs`` makes it in ``out/site``.

The source folder is the top of the clone, so papers and notebooks are pages where they lie, and
the links between them are those that a reader of the clone follows. `pages` in this folder makes
what is not written: parts of README, tables, links into the kernel's git.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

project = "btrfs_model"
author = "The btrfs_model developers"
copyright = author  # noqa: A001

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc", "sphinx_click", "pages"]
root_doc = "docs/index"
include_patterns = [
    "docs/**", "notebooks/**", "tests/README.md", "bench/README.md", "data/kernel/README.md",
    "CHANGELOG.md", "CONTRIBUTING.md",
]  # fmt: skip
# folders of a clone without a page are not walked through
exclude_patterns = [
    ".*", "out", "build", "btrfs_model", "native", "docs/site", "**/*.py", "**/.ipynb_checkpoints",
]  # fmt: skip
default_role = "code"
nitpicky = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "out" / "notebooks")
# the studies are shown as they are saved, at full scale
nb_execution_excludepatterns = ["notebooks/studies/*", "notebooks/trade-offs.ipynb"]
nb_execution_timeout = 600
nb_execution_raise_on_error = True
# sliders are plain HTML, see sliders.py
nb_ipywidgets_js = {}

html_theme = "pydata_sphinx_theme"
html_title = "btrfs_model"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [(name, {"defer": "defer"}) for name in ("sliders.js", "tables.js")]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "btrfs_model"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 3,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
