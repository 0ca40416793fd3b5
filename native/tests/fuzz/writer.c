// SPDX-License-Identifier: GPL-2.0-only
/*
 * Transactions of all kinds on a filesystem whose tree blocks are damaged: items, space, quotas,
 * snapshots, files, changes in bulk. Damaged blocks mostly get a right checksum again.
 */
#include "faults/faults.h"
#include "fuzz/edit.h"
#include "image/checksum.h"

#include <stdlib.h>
#include <string.h>

#define NODESIZE 4096u
#define BLOCKS 200
#define EDITS 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t *bytes, *sound;
static uint64_t blocks[BLOCKS];
static size_t count = BLOCKS;

static void apply(const struct edit *edit)
{
	uint8_t *block = bytes + blocks[edit->block % count];

	change_bytes(block, NODESIZE, edited_byte(block, NODESIZE, edit), edit);
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
