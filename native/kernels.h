/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * kernels.h - everything that the C kernels of btrfs_model offer: `api.h` of each folder.
 *
 * The kernels know nothing of Python: they take memory (an image mapped into the address space,
 * arrays to fill) and give back numbers. Python decides what is done; the kernels do what touches
 * bytes of tree blocks in a loop. cffi reads these very files, so they hold declarations only: no
 * macros, no inline functions. All other headers are what the kernels share among themselves.
 *
 * Conventions
 *   - A function returns 0 or a count on success and a negative `enum bm_code` on failure; the
 *     place of the failure is written to `struct bm_fault *fault`, whose `code` is the same number.
 *   - Out-parameters come last; the last of all is `fault`, which must not be NULL.
 *   - Nothing in an image is trusted. A tree block is verified as a whole (checksum, address,
 *     level, generation, order of keys, every item inside the leaf) before a byte of it is used;
 *     payloads are checked against their item's size where they are read.
 *   - `_create`/`_destroy` allocate and free; `_init` fills memory of the caller.
 */
#ifndef BTRFS_MODEL_KERNELS_H
#define BTRFS_MODEL_KERNELS_H

#include "ondisk.h"

#include "base/fault.h"
#include "toggles.h"
#include "base/work.h"

#include "image/api.h"
#include "tree/api.h"

#include "backref/api.h"
#include "fiemap/api.h"

#include "stream/api.h"
#include "text/api.h"
#include "send/api.h"

#include "writer/api.h"
#include "writer/btree/api.h"
#include "writer/space/api.h"
#include "bulk/api.h"

#include "compress/api.h"
#include "device/api.h"

#endif
