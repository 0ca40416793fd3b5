/* SPDX-License-Identifier: GPL-2.0-only */
/* Damage to tree blocks, six bytes of a fuzzer's input each. */
#ifndef BTRFS_MODEL_EDIT_H
#define BTRFS_MODEL_EDIT_H

#include "ondisk.h"

#include <string.h>

struct edit {
	uint16_t block;
	uint16_t place;
	uint8_t how;
	uint8_t value;
};

enum how {
	IN_HEADER = 1,	   /* of the block, */
	IN_ITEMS = 2,	   /* in the headers of its items or its pointers, */
	IN_DATA = 3,	   /* in the payload of an item; 0: anywhere */
	REPLACE = 4,	   /* instead of exclusive or */
	EXTREME = 8,	   /* eight bytes of 0x00 or 0xff; with IN_ITEMS see redirect() */
	LEAVE_CSUM = 0x70, /* all three bits: the checksum stays wrong */
};

/* Byte of the block that an edit hits. */
static inline size_t edited_byte(const uint8_t *block, uint32_t nodesize, const struct edit *edit)
{
	const struct btrfs_header *header = (const struct btrfs_header *)block;
	const struct btrfs_item *items = (const struct btrfs_item *)(block + 101);
	const size_t nritems = header->nritems, heads = nritems * (header->level ? 33 : 25);
	size_t at = edit->place;

	if ((edit->how & 3) == IN_HEADER) {
		at = 32 + edit->place % 69u;
	} else if (!heads || heads >= nodesize - 101) {
		return at % nodesize;
	} else if ((edit->how & 3) == IN_ITEMS) {
		at = 101 + edit->place % heads;
	} else if ((edit->how & 3) == IN_DATA && !header->level) {
		const struct btrfs_item *item = &items[edit->place % nritems];

		if (item->size)
			at = 101ull + item->offset + edit->place / nritems % item->size;
	}
	return at % nodesize;
}

/* Change what is at a byte of a block. */
static inline void change_bytes(uint8_t *block, uint32_t nodesize, size_t at,
				const struct edit *edit)
{
	size_t left = nodesize - at;

	if (edit->how & EXTREME)
		memset(block + at, edit->value & 1 ? 0xff : 0, left < 8 ? left : 8);
	else if (edit->how & REPLACE)
		block[at] = edit->value;
	else
		block[at] ^= edit->value;
}

#endif
