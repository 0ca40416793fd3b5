// SPDX-License-Identifier: GPL-2.0-only
/*
 * Transactions of all kinds on a filesystem whose tree blocks are damaged: items, space, quotas,
 * snapshots, files, changes in bulk. Damaged blocks mostly get a right checksum again.
 */
#include "faults/faults.h"
#include "image/checksum.h"

#include <stdlib.h>
#include <string.h>

#define NODESIZE 4096u
#define BLOCKS 200
#define EDITS 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct edit {
	uint16_t block;
	uint16_t place;
	uint8_t how;
	uint8_t value;
};

enum how {
	IN_HEADER = 1, /* of the block, */
	IN_ITEMS = 2,  /* in the heads of its items or its pointers; 0: anywhere */
	REPLACE = 4,   /* instead of exclusive or */
	EXTREME = 8,   /* eight bytes of 0x00 or 0xff */
	LEAVE_CSUM = 0x70,
};

static uint8_t *bytes, *sound;
static uint64_t blocks[BLOCKS];
static size_t count = BLOCKS;

static void apply(const struct edit *edit)
{
	uint8_t *block = bytes + blocks[edit->block % count];
	const struct btrfs_header *header = (const struct btrfs_header *)block;
	const uint32_t heads = header->nritems * (header->level ? 33u : 25u);
	size_t at = edit->place % NODESIZE;

	if ((edit->how & 3) == IN_HEADER)
		at = 32 + edit->place % 69u;
	else if ((edit->how & 3) == IN_ITEMS && heads && heads < NODESIZE - 101)
		at = 101 + edit->place % heads;
	if (edit->how & EXTREME)
		memset(block + at, edit->value & 1 ? 0xff : 0,
		       NODESIZE - at < 8 ? NODESIZE - at : 8);
	else if (edit->how & REPLACE)
		block[at] = edit->value;
	else
		block[at] ^= edit->value;
	if ((edit->how & LEAVE_CSUM) != LEAVE_CSUM) {
		memset(block, 0, 32);
		bm_csum(0, block + 32, NODESIZE - 32, block);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void *stage;
	static size_t whole;
	struct edit edits[EDITS];
	size_t edited;

	if (!stage) {
		stage = writing_open(&bytes, &whole, blocks, &count);
		sound = malloc(whole);
		if (!sound)
			abort();
		memcpy(sound, bytes, whole);
	}
	if (!size)
		return 0;
	edited = (size - 1) / sizeof(*edits);
	if (edited > EDITS)
		edited = EDITS;
	memcpy(edits, data + 1, edited * sizeof(*edits));
	for (size_t i = 0; i < edited; i++)
		apply(&edits[i]);
	writing_try(stage, data[0]);
	memcpy(bytes, sound, whole);
	return 0;
}
