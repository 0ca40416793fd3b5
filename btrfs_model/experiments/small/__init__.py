# SPDX-License-Identifier: GPL-2.0-only
"""Everything that is small: all sequences of a few operations on a small tree.

:mod:`.vocabulary` has the operations, :mod:`.sequences` puts them one after the other, with fsyncs
between. Nothing here asks a kernel or the model.
"""
