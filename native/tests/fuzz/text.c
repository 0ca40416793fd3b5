// SPDX-License-Identifier: GPL-2.0-only
/*
 * Text of a leaf whose items are of any bytes, by a form that has a step of each kind; any times as
 * dates.
 */
#include "kernels.h"
#include "text/time.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NODESIZE 512u
#define ROOM 8192u
#define KIND 84

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Items of type KIND and above begin at one of these steps. */
static const struct bm_text_step steps[] = {
    {.how = BM_TEXT_END},
    /* 1: a structure whose fields are written in every way, with a name behind it, again and again */
    {.how = BM_TEXT_STRUCTURE, .value = 40, .least = 30},
    {.size = 1, .how = BM_TEXT_KEY},
    {.size = 1, .how = BM_TEXT_DECIMAL, .place = 17, .width = 8},
    {.size = 1, .how = BM_TEXT_SIGNED, .place = 17, .width = 8},
    {.size = 1, .how = BM_TEXT_OCTAL, .place = 25, .width = 4},
    {.size = 1, .how = BM_TEXT_HEX, .place = 17, .width = 8},
    {.size = 1, .how = BM_TEXT_BYTES, .place = 0, .width = 16},
    {.size = 1, .how = BM_TEXT_UUID, .place = 0, .width = 16},
    {.size = 1, .how = BM_TEXT_TIME, .place = 17, .width = 8},
    {.size = 1, .how = BM_TEXT_UTC, .place = 17, .width = 8},
    {.size = 1, .how = BM_TEXT_OBJECTID, .place = 17, .width = 8},
    {.size = 1, .how = BM_TEXT_KEY_OBJECTID},
    {.size = 1, .how = BM_TEXT_WORD, .place = 25, .width = 1, .word = BM_TEXT_WORDS},
    {.how = BM_TEXT_UNLESS, .place = 26, .width = 1, .mask = 1, .value = 1, .jump = 2},
    {.size = 1, .how = BM_TEXT_NAME, .place = 27, .width = 2},
    {.how = BM_TEXT_UNLESS_SAME, .place = 26, .width = 1, .value = 25, .jump = 2},
    {.how = BM_TEXT_BACK, .value = 3},
    {.how = BM_TEXT_IF_MORE, .jump = -17},
    {.how = BM_TEXT_END},
    /* 20: turns that the item counts, with strings */
    {.how = BM_TEXT_STRUCTURE, .value = 4, .least = 4},
    {.how = BM_TEXT_COUNT, .place = 0, .width = 1},
    {.size = 1, .how = BM_TEXT_STRING, .place = 2, .width = 1},
    {.how = BM_TEXT_IF_TURNS, .jump = -1},
    {.size = 1, .how = BM_TEXT_REST},
    {.how = BM_TEXT_END},
    /* 26: checksums */
    {.size = 1, .how = BM_TEXT_SUMS},
    {.how = BM_TEXT_END},
    /* 28: a value that must not be */
    {.how = BM_TEXT_STRUCTURE, .value = 8, .least = 1},
    {.how = BM_TEXT_UNLESS, .place = 0, .width = 1, .mask = 0xff, .value = 7, .jump = 2},
    {.how = BM_TEXT_BAD, .place = 0, .width = 1},
    {.size = 1, .how = BM_TEXT_DECIMAL, .place = 0, .width = 8},
    {.how = BM_TEXT_END},
    /* 33: head of a leaf, head of an item */
    {.size = 1, .how = BM_TEXT_END},
    {.size = 1, .how = BM_TEXT_KEY},
    {.how = BM_TEXT_END},
};

static struct bm_text *make(uint8_t how)
{
	struct bm_text_form form = {.steps = steps,
				    .step_count = sizeof(steps) / sizeof(*steps),
				    .texts = (const uint8_t *)" ",
				    .text_size = 1,
				    .sectorsize = 4096,
				    .csum_size = how & 1 ? 4 : 32,
				    .hide_names = how >> 1 & 1,
				    .escape_names = how >> 2 & 1};

	form.starts[KIND] = 1;
	form.starts[KIND + 1] = 20;
	form.starts[KIND + 2] = 26;
	form.starts[KIND + 3] = 28;
	form.starts[BM_TEXT_LEAF] = 33;
	form.starts[BM_TEXT_ITEM] = 34;
	memset(form.plain, how >> 3 & 1, sizeof(form.plain));
	return bm_text_create(&form);
}

static void write_leaf(struct bm_text *text, const uint8_t *leaf, uint32_t count)
{
	static uint8_t out[ROOM];
	struct bm_text_question question;
	struct bm_fault fault = {0};
	uint64_t used;
	int64_t part = 0;

	for (int i = 0; i < 100 && part >= 0 && part <= count; i++) {
		part = bm_text_block(text, leaf, NODESIZE, NULL, count, (uint32_t)part, out, ROOM,
				     &used, &question, &fault);
		if (part >= 0 && used > ROOM)
			abort();
		if (part >= 0 && question.word)
			bm_text_answer(text, &question, (const uint8_t *)"word", 4, &fault);
		else if (part >= 0 && !used)
			break;
	}
}

/* Items of the kinds for which there are steps, one behind the other; bytes are the input's. */
static uint32_t fill(uint8_t *leaf, const uint8_t *data, size_t size)
{
	struct btrfs_item *items = (struct btrfs_item *)(leaf + 101);
	uint32_t end = NODESIZE - 101, count = 0;

	while (size > 2 && count < 8) {
		uint32_t room = end - 25 * (count + 1), length = data[1] % 120u;

		length = length < size - 2 ? length : (uint32_t)size - 2;
		if (length > room || end < 25 * (count + 1))
			break;
		end -= length;
		items[count] = (struct btrfs_item){.key = {.objectid = data[0],
							   .type = (uint8_t)(KIND + data[0] % 5),
							   .offset = end},
						   .offset = end,
						   .size = length};
		memcpy(leaf + 101 + end, data + 2, length);
		data += 2 + length;
		size -= 2 + length;
		count++;
	}
	return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct local_times times;
	static struct bm_text *texts[16];
	char date[LOCAL_TIME_SIZE];
	int64_t second = 0;
	uint8_t *leaf;
	uint32_t count;

	if (!size)
		return 0;
	leaf = calloc(1, NODESIZE);
	if (!texts[data[0] & 15])
		texts[data[0] & 15] = make(data[0]);
	if (!leaf || !texts[data[0] & 15])
		abort();
	tzset();
	count = fill(leaf, data + 1, size - 1);
	/* now and then a head of an item is damaged */
	if (size > 8 && data[0] >> 6 == 3)
		leaf[101 + data[1] % 200] ^= data[2];
	write_leaf(texts[data[0] & 15], leaf, count);
	memcpy(&second, data, size < sizeof(second) ? size : sizeof(second));
	bm_local_time_text(&times, second, date);
	free(leaf);
	return 0;
}
