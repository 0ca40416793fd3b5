// SPDX-License-Identifier: GPL-2.0-only
/*
 * Text of items, cut anywhere. A payload lies at the very end of an allocation, so that under
 * AddressSanitizer a read of one byte too many ends the test.
 */
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

#define KIND 84
#define HEAD 30 /* bytes before the name, whose length is at byte 27 */
#define ROOM 4096

/* A directory entry: key, number, name; again and again. Then the heads. */
static const struct bm_text_step steps[] = {
    {.how = BM_TEXT_END},
    /* 1: the item */
    {.how = BM_TEXT_STRUCTURE, .value = HEAD, .least = HEAD},
    {.how = BM_TEXT_KEY},
    {.text = 0, .size = 1, .how = BM_TEXT_DECIMAL, .place = 17, .width = 8},
    {.text = 0, .size = 1, .how = BM_TEXT_NAME, .place = 27, .width = 2},
    {.text = 1, .size = 1, .how = BM_TEXT_LITERAL},
    {.how = BM_TEXT_IF_MORE, .jump = -6},
    {.how = BM_TEXT_END},
    /* 8: head of a leaf */
    {.text = 2, .size = 5, .how = BM_TEXT_END},
};

static struct bm_text *make(void)
{
	struct bm_text_form form = {.steps = steps,
				    .step_count = sizeof(steps) / sizeof(*steps),
				    .texts = (const uint8_t *)" \nleaf\n",
				    .text_size = 7,
				    .sectorsize = 4096,
				    .csum_size = 4};

	form.starts[KIND] = 1;
	form.starts[BM_TEXT_LEAF] = 8;
	memset(form.plain, 1, sizeof(form.plain));
	return bm_text_create(&form);
}

/* A leaf of one item, whose payload is its last bytes. */
static uint8_t *make_leaf(uint32_t size, const uint8_t *payload)
{
	uint32_t nodesize = BTRFS_HEADER_SIZE + BTRFS_ITEM_SIZE + size;
	uint8_t *leaf = calloc(1, nodesize);
	struct btrfs_header header = {.nritems = 1};
	struct btrfs_item item = {
	    .key = {.objectid = 257, .type = KIND}, .offset = BTRFS_ITEM_SIZE, .size = size};

	memcpy(leaf, &header, sizeof(header));
	memcpy(leaf + BTRFS_HEADER_SIZE, &item, sizeof(item));
	if (size)
		memcpy(leaf + nodesize - size, payload, size);
	return leaf;
}

/* The text of a leaf, every word being "word"; or the code of a fault. */
static int64_t text_of(struct bm_text *text, const uint8_t *leaf, uint32_t size, char *out,
		       uint64_t capacity)
{
	struct bm_text_question question;
	struct bm_fault fault = {0};
	uint64_t used, filled = 0;
	int64_t part = 0;

	while (part < 2) {
		part = bm_text_block(text, leaf, BTRFS_HEADER_SIZE + BTRFS_ITEM_SIZE + size, NULL,
				     1, (uint32_t)part, (uint8_t *)out + filled, capacity - filled,
				     &used, &question, &fault);
		if (part < 0)
			return part;
		filled += used;
		if (question.word)
			CHECK(!bm_text_answer(text, &question, (const uint8_t *)"word", 4, &fault));
		else if (part < 2)
			return -1000;
	}
	return (int64_t)filled;
}

static void fill(uint8_t *payload, size_t size)
{
	for (size_t i = 0; i < size; i++)
		payload[i] = (uint8_t)(i * 37 + 11);
}

static void test_whole(struct bm_text *text)
{
	static const char wanted[] = "leaf\nkey (1234567 word 99) 5 name\n";
	uint8_t payload[HEAD + 4] = {0};
	struct btrfs_disk_key key = {.objectid = 1234567, .type = 1, .offset = 99};
	char out[ROOM];
	uint8_t *leaf;

	memcpy(payload, &key, sizeof(key));
	payload[17] = 5;
	payload[27] = 4;
	memcpy(payload + HEAD, "name", 4);
	leaf = make_leaf(sizeof(payload), payload);
	CHECK(text_of(text, leaf, sizeof(payload), out, ROOM) == (int64_t)strlen(wanted));
	CHECK(!memcmp(out, wanted, strlen(wanted)));
	/* a part is written whole or not at all */
	CHECK(text_of(text, leaf, sizeof(payload), out, 20) == -1000);
	free(leaf);
}

static void test_cut(struct bm_text *text)
{
	uint8_t payload[3 * HEAD];
	char out[ROOM];

	for (uint32_t size = 0; size <= sizeof(payload); size++)
		for (unsigned length = 0; length < 40; length++) {
			uint8_t *leaf;
			int64_t ret;

			fill(payload, sizeof(payload));
			payload[27] = (uint8_t)length;
			payload[28] = 0;
			leaf = make_leaf(size, payload);
			ret = text_of(text, leaf, size, out, ROOM);
			CHECK(ret == BM_BAD_ITEM_SIZE || (ret > 0 && size == HEAD + length));
			free(leaf);
		}
}

/* Item headers that point outside of the leaf. */
static void test_outside(struct bm_text *text)
{
	uint8_t payload[HEAD];
	char out[ROOM];

	fill(payload, sizeof(payload));
	for (uint32_t offset = 0; offset < 200; offset += 7) {
		uint8_t *leaf = make_leaf(sizeof(payload), payload);
		struct btrfs_item *item = (struct btrfs_item *)(leaf + BTRFS_HEADER_SIZE);

		item->offset = offset < 100 ? UINT32_MAX - offset : offset;
		CHECK(text_of(text, leaf, sizeof(payload), out, ROOM) == BM_BAD_ITEM_SIZE);
		free(leaf);
	}
}

int main(void)
{
	struct bm_text *text = make();

	CHECK(text);
	test_whole(text);
	test_cut(text);
	test_outside(text);
	bm_text_destroy(text);
	return finish("text");
}
