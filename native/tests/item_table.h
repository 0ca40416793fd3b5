/* SPDX-License-Identifier: GPL-2.0-only */
/* Items of a tree, MAX_ITEMS of them at most: a file that wants them defines that first. */
#ifndef BTRFS_MODEL_ITEM_TABLE_H
#define BTRFS_MODEL_ITEM_TABLE_H

#include "kernels.h"

static const struct bm_key lowest, highest = {UINT64_MAX, UINT64_MAX, UINT8_MAX};

struct table {
	uint64_t objectid[MAX_ITEMS], offset[MAX_ITEMS], block[MAX_ITEMS], position[MAX_ITEMS];
	uint32_t size[MAX_ITEMS];
	uint16_t slot[MAX_ITEMS];
	uint8_t type[MAX_ITEMS];
};

static struct table table;
static const struct bm_columns columns = {table.objectid, table.type,	  table.offset, table.block,
					  table.slot,	  table.position, table.size};

#endif
