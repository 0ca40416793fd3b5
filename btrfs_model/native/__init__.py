# SPDX-License-Identifier: GPL-2.0-only
"""The C kernels as Python sees them: one module for each folder of ``native/``.

A binding takes and returns values of Python and numpy, or handles that say nothing to whoever holds
them. It holds the lease of the image meanwhile (:mod:`.lease`) and raises what went wrong
(:mod:`.door`). Nothing else imports :mod:`.door`, behind which the compiled module is. Where
``reference`` has the same in Python, :func:`.choice.twin` says so at the function that calls C.
"""
