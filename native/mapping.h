/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What an image asks about the mapping that it lies in. Not part of the interface.
 */
#ifndef BTRFS_MODEL_MAPPING_H
#define BTRFS_MODEL_MAPPING_H

#include "internal.h"

/* The mapping by bm_map_file() in which an address lies; NULL: none. Valid as long as it is mapped. */
const struct bm_mapping *bm_mapping_of(const uint8_t *address);
/* 0, or BM_FILE_CHANGED where some of it could not be read; `mapping` may be NULL. */
int bm_mapping_is_whole(const struct bm_mapping *mapping, struct bm_fault *fault);

#endif
