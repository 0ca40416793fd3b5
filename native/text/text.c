// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tree blocks as text: follows the steps of a form (see api.h).
 *
 * The caller says what words stand for numbers: flags, names of objects, dates of far years. Each is
 * asked for once and kept in a table. A part of a block (its head, an item) is written whole or
 * not at all, so that it can be begun again once a question was answered or there is more room.
 */
#include "image/internal.h"
#include "stream/stream.h"

#include <stdlib.h>
#include <string.h>

#define MAX_STRUCTURE 512 /* bytes of one that may be cut short: a root item */
#define NAME_SHOWN 255
#define LINE_OF_SUMS 16 /* bytes of checksums on a line */
#define ANSWERS (1u << 15)
#define ANSWER_TEXT (4u << 20)
#define YEAR_1000 (-30610224000)
#define YEAR_10000 253402300800
#define DATE_SIZE 24 /* "YYYY-MM-DDTHH:MM:SS+hhmm" */

/* Why a part is not finished, beside the codes of faults. */
enum { ASKS = 1, FULL = 2 };

struct answer {
	struct bm_text_question of;
	uint32_t text, size;
};

struct bm_text {
	struct bm_text_form form;
	struct bm_text_step *steps;
	uint8_t *texts;
	struct answer *answers; /* open addressing */
	uint32_t answer_count;
	uint8_t *answer_text;
	uint32_t answer_size;
	struct local_times times;
};

struct bm_text *bm_text_create(const struct bm_text_form *form)
{
	struct bm_text *text = calloc(1, sizeof(*text));

	if (!text)
		return NULL;
	text->form = *form;
	text->steps = malloc(form->step_count * sizeof(*text->steps));
	text->texts = malloc(form->text_size + 1);
	text->answers = calloc(ANSWERS, sizeof(*text->answers));
	text->answer_text = malloc(ANSWER_TEXT);
	if (!text->steps || !text->texts || !text->answers || !text->answer_text) {
		bm_text_destroy(text);
		return NULL;
	}
	memcpy(text->steps, form->steps, form->step_count * sizeof(*text->steps));
	memcpy(text->texts, form->texts, form->text_size);
	return text;
}

void bm_text_destroy(struct bm_text *text)
{
	if (!text)
		return;
	free(text->steps);
	free(text->texts);
	free(text->answers);
	free(text->answer_text);
	free(text);
}

/* ----------------------------------------------------------------------------------- answers -- */

/* Where the answer to a question is, or will be. */
static struct answer *answer_to(const struct bm_text *text, const struct bm_text_question *of)
{
	uint64_t hash = of->of[0] * 0x9e3779b97f4a7c15u ^ of->of[1] * 0xc2b2ae3d27d4eb4fu ^
			of->of[2] * 0x165667b19e3779f9u ^ of->word * 0x27d4eb2f165667c5u;
	uint32_t at = (uint32_t)(hash >> 40) % ANSWERS;

	for (;; at = (at + 1) % ANSWERS) {
		struct answer *answer = &text->answers[at];

		if (answer->of.word == BM_TEXT_NO_WORD ||
		    (answer->of.word == of->word && !memcmp(answer->of.of, of->of, sizeof(of->of))))
			return answer;
	}
}

int bm_text_answer(struct bm_text *text, const struct bm_text_question *question,
		   const uint8_t *answer, uint64_t size, struct bm_fault *fault)
{
	struct answer *place;

	if (size > ANSWER_TEXT)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	if (text->answer_count >= ANSWERS / 2 || text->answer_size + size > ANSWER_TEXT) {
		memset(text->answers, 0, ANSWERS * sizeof(*text->answers));
		text->answer_count = text->answer_size = 0;
	}
	place = answer_to(text, question);
	*place = (struct answer){*question, text->answer_size, (uint32_t)size};
	memcpy(text->answer_text + text->answer_size, answer, size);
	text->answer_size += (uint32_t)size;
	text->answer_count++;
	return BM_OK;
}

/* ----------------------------------------------------------------------------------- writing -- */

/* A part of a block on its way to text. */
struct part {
	struct bm_text *text;
	const uint8_t *block; /* all of it */
	const uint8_t *payload;
	uint64_t size; /* of the payload */
	uint64_t at;   /* behind what was taken from it */
	const uint8_t *structure;
	uint8_t padded[MAX_STRUCTURE];
	struct bm_text_item item;
	const struct bm_text_rows *rows;
	uint64_t row;
	uint8_t *p, *end;
	struct bm_text_question *question;
	struct bm_fault *fault;
};

static int put_bytes(struct part *part, const void *bytes, uint64_t size)
{
	if (size > (uint64_t)(part->end - part->p))
		return FULL;
	memcpy(part->p, bytes, size);
	part->p += size;
	return 0;
}

/* The digits of a number, at the end of `digits`; returns how many. */
static unsigned decimal(uint64_t number, char digits[20])
{
	static const char pairs[] = "00010203040506070809101112131415161718192021222324252627282930"
				    "31323334353637383940414243444546474849505152535455565758596061"
				    "62636465666768697071727374757677787980818283848586878889909192"
				    "93949596979899";
	char *p = digits + 20;

	for (; number >= 100; number /= 100)
		memcpy(p -= 2, pairs + number % 100 * 2, 2);
	if (number >= 10)
		memcpy(p -= 2, pairs + number * 2, 2);
	else
		*--p = (char)('0' + number);
	return (unsigned)(digits + 20 - p);
}

static int put_decimal(struct part *part, uint64_t number)
{
	char digits[20];
	unsigned size = decimal(number, digits);

	return put_bytes(part, digits + 20 - size, size);
}

static int put_signed(struct part *part, uint64_t number)
{
	if (!(number >> 63))
		return put_decimal(part, number);
	return put_bytes(part, "-", 1) ? FULL : put_decimal(part, 0 - number);
}

/* In base 8 or 16. */
static int put_shifted(struct part *part, uint64_t number, unsigned bits)
{
	char digits[22], *p = digits + sizeof(digits);

	do
		*--p = "0123456789abcdef"[number & ((1u << bits) - 1)];
	while (number >>= bits);
	return put_bytes(part, p, (uint64_t)(digits + sizeof(digits) - p));
}

static int put_hex(struct part *part, const uint8_t *bytes, unsigned size, int dashes)
{
	if (part->end - part->p < 2 * (int)size + 4)
		return FULL;
	for (unsigned i = 0; i < size; i++) {
		if (dashes && (i == 4 || i == 6 || i == 8 || i == 10))
			*part->p++ = '-';
		*part->p++ = (uint8_t) "0123456789abcdef"[bytes[i] >> 4];
		*part->p++ = (uint8_t) "0123456789abcdef"[bytes[i] & 15];
	}
	return 0;
}

/* What the caller says of up to three numbers. */
static int put_answer(struct part *part, uint32_t word, uint64_t first, uint64_t second,
		      uint64_t third)
{
	struct bm_text_question question = {.of = {first, second, third}, .word = word};
	const struct answer *answer = answer_to(part->text, &question);

	if (answer->of.word == BM_TEXT_NO_WORD) {
		*part->question = question;
		return ASKS;
	}
	return put_bytes(part, part->text->answer_text + answer->text, answer->size);
}

/* Objects with a name are less than 256 away from 0. */
static int put_objectid(struct part *part, uint64_t number, uint8_t type)
{
	if (part->text->form.plain[type] && number + 256 >= 512)
		return put_decimal(part, number);
	return put_answer(part, BM_TEXT_OBJECTID_WORD, number, type, 0);
}

static int put_key(struct part *part, const uint8_t *at)
{
	uint64_t objectid = load64(at), offset = load64(at + 9);
	uint8_t type = at[8], plain = part->text->form.plain[type];
	int ret = put_bytes(part, "key (", 5);

	if (!ret)
		ret = put_objectid(part, objectid, type);
	if (!ret)
		ret = put_bytes(part, " ", 1);
	if (!ret)
		ret = put_answer(part, BM_TEXT_TYPE_WORD, type, type ? 0 : objectid, 0);
	if (!ret)
		ret = put_bytes(part, " ", 1);
	if (!ret && plain && offset != UINT64_MAX)
		ret = put_decimal(part, offset);
	else if (!ret)
		ret = put_answer(part, BM_TEXT_OFFSET_WORD, offset, type, plain ? 0 : objectid);
	return ret ? ret : put_bytes(part, ")", 1);
}

/* "YYYY-MM-DD HH:MM:SS"; of years with other than four digits the caller knows what to make. */
static int put_time(struct part *part, uint64_t second)
{
	char date[LOCAL_TIME_SIZE];

	if (bm_local_time_text(&part->text->times, (int64_t)second, date) != DATE_SIZE ||
	    date[0] < '1' || date[0] > '9' || date[4] != '-')
		return put_answer(part, BM_TEXT_TIME_WORD, second, 0, 0);
	date[10] = ' ';
	return put_bytes(part, date, 19);
}

/* "YYYY-MM-DD HH:MM:SS" of a struct btrfs_timespec. */
static int put_utc(struct part *part, const uint8_t *at)
{
	int64_t second = (int64_t)(load64(at) + load32(at + 8) / 1000000000);
	char date[CLOCK_SIZE];

	if (second < YEAR_1000 || second >= YEAR_10000)
		return put_answer(part, BM_TEXT_UTC_WORD, (uint64_t)second, 0, 0);
	bm_clock_text(second, date);
	date[10] = ' ';
	return put_bytes(part, date, CLOCK_SIZE);
}

static int is_printable(const uint8_t *text, uint64_t size)
{
	int printable = 1;

	for (uint64_t i = 0; i < size; i++)
		printable &= text[i] >= ' ' && text[i] <= '~';
	return printable;
}

/* The path of a row; the top has none and is ".". */
static int put_path(struct part *part)
{
	const struct bm_text_rows *rows = part->rows;
	uint64_t row = part->row, start = rows->path_ends[rows->directory[row]];
	uint64_t size = rows->path_ends[rows->directory[row] + 1] - start;
	uint8_t *begin = part->p;
	int ret = put_bytes(part, rows->paths + start, size);

	if (!ret)
		ret = put_bytes(part, rows->names + rows->name[row], rows->name_size[row]);
	if (!ret && part->p == begin)
		ret = put_bytes(part, ".", 1);
	if (ret || is_printable(begin, (uint64_t)(part->p - begin)))
		return ret;
	part->p = begin;
	return put_answer(part, BM_TEXT_NAME_WORD, row, 0, 0);
}

/* A string as C shows it. */
static int put_string(struct part *part, const uint8_t *name, uint64_t size, int is_name)
{
	const uint8_t *end;

	if (is_name && part->text->form.hide_names)
		return put_bytes(part, "HIDDEN", 6);
	if (is_name && size > NAME_SHOWN)
		size = NAME_SHOWN;
	end = memchr(name, 0, size);
	if (end)
		size = (uint64_t)(end - name);
	if (!part->text->form.escape_names || is_printable(name, size))
		return put_bytes(part, name, size);
	return put_answer(part, BM_TEXT_NAME_WORD, block_header(part->block)->bytenr,
			  (uint64_t)(name - part->block), size);
}

/* The checksums of a leaf's item, as many on a line as fill it. */
static int put_sums(struct part *part)
{
	uint32_t width = part->text->form.csum_size;
	uint64_t count = part->size / width, data = load64(part->item.key + 9);
	uint64_t per_line = width < LINE_OF_SUMS ? LINE_OF_SUMS / width : 1;
	int ret = 0;

	for (uint64_t i = 0; i < count && !ret; i++) {
		ret = i % per_line ? put_bytes(part, " [", 2) : put_bytes(part, "\t\t[", 3);
		if (!ret)
			ret = put_decimal(part, data + i * part->text->form.sectorsize);
		if (!ret)
			ret = put_bytes(part, "] 0x", 4);
		if (!ret)
			ret = put_hex(part, part->payload + i * width, width, 0);
		if (!ret && ((i + 1) % per_line == 0 || i + 1 == count))
			ret = put_bytes(part, "\n", 1);
	}
	return ret;
}

/* ------------------------------------------------------------------------------------- steps -- */

static int too_short(struct part *part, uint64_t wanted)
{
	return bm_fail(part->fault, (struct bm_fault){.code = BM_BAD_ITEM_SIZE,
						      .block = block_header(part->block)->bytenr,
						      .slot = (uint32_t)part->item.slot,
						      .found = part->size,
						      .wanted = wanted});
}

/* A structure that comes next. */
static int take(struct part *part, const struct bm_text_step *step)
{
	uint64_t left = part->size - part->at, size = step->value;

	if (left < step->least)
		return too_short(part, part->at + step->least);
	part->structure = part->payload + part->at;
	if (left < size) {
		/* least is less than the size of structures that fit alone */
		memset(part->padded, 0, sizeof(part->padded));
		memcpy(part->padded, part->structure, left);
		part->structure = part->padded;
	}
	part->at += left < size ? left : size;
	part->item.rest = part->size - part->at;
	return 0;
}

/* As many bytes as `size` says, after the structure. */
static int take_name(struct part *part, const struct bm_text_step *step, uint64_t size)
{
	const uint8_t *name = part->payload + part->at;

	if (size > part->size - part->at)
		return too_short(part, part->at + size);
	part->at += size;
	part->item.rest = part->size - part->at;
	return put_string(part, name, size, step->how == BM_TEXT_NAME);
}

static uint64_t load(const uint8_t *at, unsigned width)
{
	uint64_t number = 0;

	switch (width) {
	case 8:
		return load64(at);
	case 4:
		return load32(at);
	case 2:
		return load16(at);
	default:
		memcpy(&number, at, width > 8 ? 8 : width);
		return number;
	}
}

static int put_field(struct part *part, const struct bm_text_step *step, const uint8_t *at,
		     uint64_t number)
{
	switch (step->how) {
	case BM_TEXT_DECIMAL:
		return put_decimal(part, number);
	case BM_TEXT_SIGNED:
		return put_signed(part, number);
	case BM_TEXT_OCTAL:
		return put_shifted(part, number, 3);
	case BM_TEXT_HEX:
		return put_shifted(part, number, 4);
	case BM_TEXT_BYTES:
		return put_hex(part, at, step->width, 0);
	case BM_TEXT_UUID:
		return put_hex(part, at, 16, 1);
	case BM_TEXT_TIME:
		return put_time(part, number);
	case BM_TEXT_UTC:
		return put_utc(part, at);
	case BM_TEXT_PATH:
		return put_path(part);
	case BM_TEXT_OBJECTID:
		return put_objectid(part, number, 0);
	case BM_TEXT_KEY:
		return put_key(part, at);
	case BM_TEXT_KEY_OBJECTID:
		return put_objectid(part, load64(at), at[8]);
	case BM_TEXT_WORD:
		return put_answer(part, step->word, number, 0, 0);
	case BM_TEXT_NAME:
	case BM_TEXT_STRING:
		return take_name(part, step, number);
	case BM_TEXT_REST:
		return take_name(part, step, part->size - part->at);
	case BM_TEXT_SUMS:
		return put_sums(part);
	case BM_TEXT_BAD:
		return bm_fail(part->fault,
			       (struct bm_fault){.code = BM_BAD_VALUE,
						 .block = block_header(part->block)->bytenr,
						 .slot = (uint32_t)part->item.slot,
						 .found = number});
	default:
		return 0;
	}
}

/* Follow the steps from `start` on; 0, ASKS, FULL or the code of a fault. */
static int follow(struct part *part, uint32_t start)
{
	const struct bm_text_step *step = part->text->steps + start;

	part->at = 0;
	part->item.turn = 0;
	part->item.rest = part->size;
	part->structure = part->payload;
	for (;; step++) {
		const uint8_t *from =
		    step->in_item ? (const uint8_t *)&part->item : part->structure;
		const uint8_t *at = from + step->place;
		uint64_t number = load(at, step->width);
		int ret = 0, jumps = 0;

		if (step->size)
			ret = put_bytes(part, part->text->texts + step->text, step->size);
		if (ret)
			return ret;
		switch (step->how) {
		case BM_TEXT_END:
			return 0;
		case BM_TEXT_STRUCTURE:
			ret = take(part, step);
			break;
		case BM_TEXT_BACK:
			part->at -= step->value < part->at ? step->value : part->at;
			break;
		case BM_TEXT_COUNT:
			part->item.turns = number;
			break;
		case BM_TEXT_UNLESS:
			jumps = (number & step->mask) != step->value;
			break;
		case BM_TEXT_UNLESS_SAME:
			jumps = number != load(from + step->value, step->width);
			break;
		case BM_TEXT_IF_MORE:
			jumps = part->at < part->size;
			part->item.turn++;
			break;
		case BM_TEXT_IF_TURNS:
			jumps = ++part->item.turn < part->item.turns;
			break;
		default:
			ret = put_field(part, step, at, number);
		}
		if (ret)
			return ret;
		if (jumps)
			step += step->jump;
	}
}

/* Header and payload of an item, or a pointer of a node. */
static int put_slot(struct part *part, uint32_t nodesize, uint32_t slot)
{
	const struct bm_text_form *form = &part->text->form;
	int level = block_header(part->block)->level;
	uint64_t width = level ? BTRFS_KEY_PTR_SIZE : BTRFS_ITEM_SIZE;
	uint64_t place = BTRFS_HEADER_SIZE + slot * width;
	const struct btrfs_item *item;
	uint64_t start;
	int ret;

	part->item.slot = slot;
	part->payload = part->block + BTRFS_HEADER_SIZE;
	part->size = 0;
	if (place + width > nodesize)
		return too_short(part, width);
	part->payload = part->block + place;
	part->size = width;
	memcpy(part->item.key, part->payload, sizeof(part->item.key));
	ret = follow(part, form->starts[level ? BM_TEXT_POINTER : BM_TEXT_ITEM]);
	if (ret || level)
		return ret;
	item = leaf_item(part->block, slot);
	start = BTRFS_HEADER_SIZE + (uint64_t)item->offset;
	if (start > nodesize || item->size > nodesize - start)
		return too_short(part, item->size);
	part->payload = part->block + start;
	part->size = item->size;
	part->item.length = part->size / form->csum_size * form->sectorsize;
	part->item.end = item->key.offset + part->item.length;
	return follow(part, form->starts[item->key.type]);
}

/* Free bytes of a leaf, free pointers of a node. */
static uint64_t free_space(const uint8_t *block, uint32_t nodesize)
{
	uint64_t room = nodesize - BTRFS_HEADER_SIZE, count = block_header(block)->nritems;

	if (block_header(block)->level)
		return room / BTRFS_KEY_PTR_SIZE - count;
	if (!count || count > room / BTRFS_ITEM_SIZE)
		return room;
	return leaf_item(block, (uint32_t)count - 1)->offset - count * BTRFS_ITEM_SIZE;
}

static int put_head(struct part *part, uint32_t nodesize)
{
	const struct btrfs_header *header = block_header(part->block);

	part->payload = part->block;
	part->size = nodesize;
	part->item.free_space = free_space(part->block, nodesize);
	part->item.revision = header->flags >> 56;
	part->item.flags = header->flags & UINT64_MAX >> 8;
	return follow(part, part->text->form.starts[header->level ? BM_TEXT_NODE : BM_TEXT_LEAF]);
}

int64_t bm_text_block(struct bm_text *text, const uint8_t *block, uint32_t nodesize,
		      const uint16_t *slots, uint32_t count, uint32_t from, uint8_t *out,
		      uint64_t capacity, uint64_t *used, struct bm_text_question *question,
		      struct bm_fault *fault)
{
	struct part part = {.text = text,
			    .block = block,
			    .p = out,
			    .end = out + capacity,
			    .question = question,
			    .fault = fault};

	*used = 0;
	question->word = BM_TEXT_NO_WORD;
	for (; from <= count; from++) {
		int ret = from ? put_slot(&part, nodesize, slots ? slots[from - 1] : from - 1)
			       : put_head(&part, nodesize);

		if (ret < 0)
			return ret;
		if (ret)
			break;
		*used = (uint64_t)(part.p - out);
	}
	return from;
}

int64_t bm_text_rows(struct bm_text *text, const struct bm_text_rows *rows, uint64_t count,
		     uint64_t from, uint8_t *out, uint64_t capacity, uint64_t *used,
		     struct bm_text_question *question, struct bm_fault *fault)
{
	struct part part = {.text = text,
			    .rows = rows,
			    .p = out,
			    .end = out + capacity,
			    .question = question,
			    .fault = fault};

	*used = 0;
	question->word = BM_TEXT_NO_WORD;
	for (; from < count; from++) {
		int ret;

		part.row = from;
		part.payload = rows->structures + rows->structure[from] * (uint64_t)rows->width;
		part.size = rows->width;
		ret = follow(&part, text->form.starts[BM_TEXT_ROW]);
		if (ret < 0)
			return ret;
		if (ret)
			break;
		*used = (uint64_t)(part.p - out);
	}
	return (int64_t)from;
}
