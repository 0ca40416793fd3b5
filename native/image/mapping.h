/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What an image asks about the mapping that it lies in. Not part of the interface.
 */
#ifndef BTRFS_MODEL_MAPPING_H
#define BTRFS_MODEL_MAPPING_H

#include "image/internal.h"

/* The mapping by bm_map_files() in which an address lies; NULL: none. Valid as long as it is mapped. */
struct bm_mapping *bm_mapping_of(const uint8_t *address);
/*
 * Copy bytes of a file, all of which are mapped, without a fault for each page of the mapping;
 * zeros for those that cannot be read.
 */
void bm_mapping_read(struct bm_mapping *mapping, uint64_t offset, uint8_t *out, size_t size);

/*
 * Memory of the same size in which copies of the files' bytes lie, each at its place. In windows
 * of it a file itself may be shown in place of copies.
 */
enum { BM_WINDOW = BM_DEVICE_ALIGN };
void bm_mapping_set_copies(struct bm_mapping *mapping, const uint8_t *copies);
int bm_mapping_show(struct bm_mapping *mapping, uint64_t offset);
/* There are no copies: the files are used as they are. */
void bm_mapping_show_all(struct bm_mapping *mapping);

/*
 * 0, or BM_FILE_CHANGED where some of it could not be read, or where it was written to while parts
 * of it were shown; `mapping` may be NULL.
 */
int bm_mapping_is_whole(struct bm_mapping *mapping, struct bm_fault *fault);

#endif
