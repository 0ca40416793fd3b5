// SPDX-License-Identifier: GPL-2.0-only
/*
 * Huffman codes as lib/zlib_deflate/deftree.c chooses them: which of two nodes of the same weight
 * comes first decides what the bits are, so the heap is the kernel's.
 */
#include <string.h>

#include "compress/huffman.h"

#define STORED 0
#define STATIC 1
#define DYNAMIC 2

#define REPEAT 16      /* the last length 3 to 6 times */
#define SHORT_ZEROS 17 /* 3 to 10 times 0 */
#define LONG_ZEROS 18  /* 11 to 138 times 0 */
#define LENGTH_BITS 7  /* a code of a length has at most */

#define NODES (2 * LITERAL_CODES + 1)

static const uint8_t length_extra[LENGTHS] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
					      2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
static const uint8_t distance_extra[DISTANCE_CODES] = {0, 0, 0,	 0,  1,	 1,  2,	 2,  3,	 3,
						       4, 4, 5,	 5,  6,	 6,  7,	 7,  8,	 8,
						       9, 9, 10, 10, 11, 11, 12, 12, 13, 13};
static const uint8_t repeat_extra[LENGTH_CODES] = {
    [REPEAT] = 2, [SHORT_ZEROS] = 3, [LONG_ZEROS] = 7};
static const uint8_t length_order[LENGTH_CODES] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
						   11, 4,  12, 3, 13, 2, 14, 1, 15};

/* An alphabet: its codes, which of them have more bits behind, and how long codes may be. */
struct alphabet {
	struct huffman_code *codes;
	int count;
	const uint8_t *extra;
	int extra_from;
	unsigned int most_bits;
	int last; /* the last code that is used */
};

/* A tree that is being built. */
struct builder {
	uint16_t heap[NODES]; /* from 1 on: the lightest first; from `sorted` on: by weight */
	int size;
	int sorted;
	uint16_t weight[NODES];
	uint16_t parent[NODES];
	uint8_t depth[NODES];
	uint8_t length[NODES];
};

void bm_put_held(struct bit_writer *w)
{
	for (; w->count >= 8; w->count -= 8, w->held >>= 8, w->at++)
		if (w->at < w->capacity)
			w->out[w->at] = (uint8_t)w->held;
}

void bm_end_byte(struct bit_writer *w)
{
	w->count = (w->count + 7) & ~7U;
	bm_put_held(w);
	w->aligned = w->at;
}

void bm_put_bits(struct bit_writer *w, uint32_t value, unsigned int count)
{
	w->held |= (uint64_t)value << w->count;
	w->count += count;
	if (w->count >= 32)
		bm_put_held(w);
}

void bm_put_stored(struct bit_writer *w, const uint8_t *data, uint32_t size, int last)
{
	bm_put_bits(w, STORED << 1 | (uint32_t)last, 3);
	bm_end_byte(w);
	bm_put_bits(w, size & 0xffff, 16);
	bm_put_bits(w, ~size & 0xffff, 16);
	bm_put_held(w);
	if (size && w->at + size <= w->capacity)
		memcpy(w->out + w->at, data, size);
	w->at += size;
	w->aligned = w->at;
}

/* --------------------------------------------------------------------------- building a tree -- */

static int is_lighter(const struct builder *b, int one, int other)
{
	if (b->weight[one] != b->weight[other])
		return b->weight[one] < b->weight[other];
	return b->depth[one] <= b->depth[other];
}

static void sink(struct builder *b, int at)
{
	int node = b->heap[at];

	for (int child = 2 * at; child <= b->size; child = 2 * at) {
		if (child < b->size && is_lighter(b, b->heap[child + 1], b->heap[child]))
			child++;
		if (is_lighter(b, node, b->heap[child]))
			break;
		b->heap[at] = b->heap[child];
		at = child;
	}
	b->heap[at] = (uint16_t)node;
}

/* Put what is used into the heap; two codes at least, even where they are not needed. */
static void fill_heap(struct builder *b, struct alphabet *alphabet)
{
	b->size = 0;
	alphabet->last = -1;
	for (int i = 0; i < alphabet->count; i++) {
		b->weight[i] = alphabet->codes[i].count;
		b->depth[i] = 0;
		b->length[i] = 0;
		if (b->weight[i]) {
			b->heap[++b->size] = (uint16_t)i;
			alphabet->last = i;
		}
	}
	while (b->size < 2) {
		int i = alphabet->last < 2 ? ++alphabet->last : 0;

		b->heap[++b->size] = (uint16_t)i;
		b->weight[i] = 1;
	}
}

/* Join the two lightest nodes until one is left; nodes are then sorted, the heaviest first. */
static void join(struct builder *b, int node)
{
	for (int i = b->size / 2; i >= 1; i--)
		sink(b, i);
	b->sorted = NODES;
	while (b->size >= 2) {
		int one = b->heap[1], other;

		b->heap[1] = b->heap[b->size--];
		sink(b, 1);
		other = b->heap[1];
		b->heap[--b->sorted] = (uint16_t)one;
		b->heap[--b->sorted] = (uint16_t)other;
		b->weight[node] = (uint16_t)(b->weight[one] + b->weight[other]);
		b->depth[node] =
		    (b->depth[one] > b->depth[other] ? b->depth[one] : b->depth[other]);
		b->depth[node]++;
		b->parent[one] = b->parent[other] = (uint16_t)node;
		b->heap[1] = (uint16_t)node++;
		sink(b, 1);
	}
	b->heap[--b->sorted] = b->heap[1];
}

/* Lengths of the codes; where one would be too long, others become longer. */
static void find_lengths(struct builder *b, const struct alphabet *alphabet, uint16_t *of_length)
{
	int overflow = 0, at = NODES;

	memset(of_length, 0, (MOST_BITS + 1) * sizeof(*of_length));
	b->length[b->heap[b->sorted]] = 0;
	for (int i = b->sorted + 1; i < NODES; i++) {
		int node = b->heap[i];
		unsigned int length = b->length[b->parent[node]] + 1U;

		if (length > alphabet->most_bits) {
			length = alphabet->most_bits;
			overflow++;
		}
		b->length[node] = (uint8_t)length;
		if (node <= alphabet->last)
			of_length[length]++;
	}
	if (!overflow)
		return;
	for (; overflow > 0; overflow -= 2) {
		unsigned int length = alphabet->most_bits - 1;

		while (!of_length[length])
			length--;
		of_length[length]--;
		of_length[length + 1] = (uint16_t)(of_length[length + 1] + 2);
		of_length[alphabet->most_bits]--;
	}
	for (unsigned int length = alphabet->most_bits; length; length--)
		for (int left = of_length[length]; left;) {
			int node = b->heap[--at];

			if (node > alphabet->last)
				continue;
			b->length[node] = (uint8_t)length;
			left--;
		}
}

static uint16_t reversed(uint32_t bits, unsigned int length)
{
	uint32_t result = 0;

	for (; length; length--, bits >>= 1)
		result = result << 1 | (bits & 1);
	return (uint16_t)result;
}

static void number_codes(struct huffman_code *codes, int last, const uint16_t *of_length)
{
	uint16_t next[MOST_BITS + 1] = {0};

	for (int length = 1; length <= MOST_BITS; length++)
		next[length] = (uint16_t)((next[length - 1] + of_length[length - 1]) << 1);
	for (int i = 0; i <= last; i++)
		if (codes[i].length)
			codes[i].bits = reversed(next[codes[i].length]++, codes[i].length);
}

/* Find the codes of an alphabet. */
static void build(struct alphabet *alphabet)
{
	struct builder b;
	uint16_t of_length[MOST_BITS + 1];

	fill_heap(&b, alphabet);
	join(&b, alphabet->count);
	find_lengths(&b, alphabet, of_length);
	for (int i = 0; i < alphabet->count; i++)
		alphabet->codes[i].length = b.length[i];
	number_codes(alphabet->codes, alphabet->last, of_length);
}

/* Bits that all symbols of an alphabet take, each by the length of its code in `codes`. */
static uint64_t bits_of(const struct alphabet *alphabet, const struct huffman_code *codes)
{
	uint64_t bits = 0;

	for (int i = 0; i < alphabet->count; i++) {
		unsigned int more =
		    i < alphabet->extra_from ? 0U : alphabet->extra[i - alphabet->extra_from];

		bits += (uint64_t)alphabet->codes[i].count * (codes[i].length + more);
	}
	return bits;
}

/* -------------------------------------------------------------------------------- the blocks -- */

/* The codes that need not be told. */
static void fixed_codes(struct huffman_code *literals, struct huffman_code *distances)
{
	uint16_t of_length[MOST_BITS + 1] = {[7] = 24, [8] = 152, [9] = 112};

	for (int i = 0; i < LITERAL_CODES + 2; i++)
		literals[i].length = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
	number_codes(literals, LITERAL_CODES + 1, of_length);
	for (int i = 0; i < DISTANCE_CODES; i++) {
		distances[i].length = 5;
		distances[i].bits = reversed((uint32_t)i, 5);
	}
}

/*
 * The code of a number, and the first number that has it: from 2 << `bits` on there are 1 << `bits`
 * codes for the numbers up to twice as large.
 */
static uint32_t code_of(uint32_t number, unsigned int bits, uint32_t *first)
{
	unsigned int shift = 0;

	while (number >> shift >= 2U << bits)
		shift++;
	*first = number >> shift << shift;
	return (shift << bits) + (number >> shift);
}

static uint32_t distance_code(uint32_t distance, uint32_t *first)
{
	return code_of(distance - 1, 1, first);
}

/* The same of a length less MIN_MATCH; the largest has a code of its own. */
static uint32_t length_code(uint32_t length, uint32_t *first)
{
	if (length < MAX_MATCH - MIN_MATCH)
		return code_of(length, 2, first);
	*first = length;
	return LENGTHS - 1;
}

void bm_start_block(struct block *block)
{
	block->count = block->matches = 0;
	memset(block->literals, 0, sizeof(block->literals));
	memset(block->distances, 0, sizeof(block->distances));
	block->literals[END_OF_BLOCK].count = 1;
}

void bm_add_symbol(struct block *block, uint32_t distance, uint32_t value)
{
	uint32_t first;

	block->distance[block->count] = (uint16_t)distance;
	block->value[block->count++] = (uint8_t)value;
	if (!distance) {
		block->literals[value].count++;
		return;
	}
	block->matches++;
	block->literals[LITERALS + 1 + length_code(value, &first)].count++;
	block->distances[distance_code(distance, &first)].count++;
}

uint64_t bm_guess_block(const struct block *block)
{
	uint64_t bits = (uint64_t)block->count * 8;

	for (int i = 0; i < DISTANCE_CODES; i++)
		bits += block->distances[i].count * (5ULL + distance_extra[i]);
	return bits >> 3;
}

static void put_code(struct bit_writer *w, const struct huffman_code *code)
{
	bm_put_bits(w, code->bits, code->length);
}

static void put_symbols(struct bit_writer *w, const struct block *block,
			const struct huffman_code *literals, const struct huffman_code *distances)
{
	for (uint32_t i = 0; i < block->count; i++) {
		uint32_t distance = block->distance[i], value = block->value[i], first;
		uint32_t code;

		if (!distance) {
			put_code(w, &literals[value]);
			continue;
		}
		code = length_code(value, &first);
		put_code(w, &literals[LITERALS + 1 + code]);
		bm_put_bits(w, value - first, length_extra[code]);
		code = distance_code(distance, &first);
		put_code(w, &distances[code]);
		bm_put_bits(w, distance - 1 - first, distance_extra[code]);
	}
	put_code(w, &literals[END_OF_BLOCK]);
}

/* Lengths of codes, those that repeat told once; where `w` is NULL they are counted only. */
static void put_lengths(struct bit_writer *w, struct huffman_code *of_lengths,
			const struct alphabet *alphabet)
{
	int before = -1, next = alphabet->codes[0].length, count = 0;
	int most = next ? 7 : 138, least = next ? 4 : 3;

	for (int i = 0; i <= alphabet->last; i++) {
		int length = next, code = length, told = 0;

		/* what comes behind the last is none of all lengths */
		next = i < alphabet->last ? alphabet->codes[i + 1].length : -1;
		if (++count < most && length == next)
			continue;
		if (count >= least) {
			code = length ? REPEAT : count <= 10 ? SHORT_ZEROS : LONG_ZEROS;
			told = code == LONG_ZEROS ? 11 : 3;
		}
		if (w && code == REPEAT && length != before) {
			put_code(w, &of_lengths[length]);
			count--;
		} else if (!w && code == REPEAT && length != before) {
			of_lengths[length].count++;
		}
		if (!w) {
			of_lengths[code].count =
			    (uint16_t)(of_lengths[code].count + (told ? 1 : count));
		} else if (told) {
			put_code(w, &of_lengths[code]);
			bm_put_bits(w, (uint32_t)(count - told), repeat_extra[code]);
		} else {
			for (; count; count--)
				put_code(w, &of_lengths[code]);
		}
		count = 0;
		before = length;
		most = !next ? 138 : length == next ? 6 : 7;
		least = !next || length == next ? 3 : 4;
	}
}

void bm_put_block(struct bit_writer *w, struct block *block, const uint8_t *data, uint32_t size,
		  int last)
{
	struct huffman_code fixed_literals[LITERAL_CODES + 2], fixed_distances[DISTANCE_CODES];
	struct huffman_code of_lengths[LENGTH_CODES] = {{0}};
	struct alphabet literals = {block->literals, LITERAL_CODES, length_extra,
				    LITERALS + 1,    MOST_BITS,	    0};
	struct alphabet distances = {
	    block->distances, DISTANCE_CODES, distance_extra, 0, MOST_BITS, 0};
	struct alphabet lengths = {of_lengths, LENGTH_CODES, repeat_extra, 0, LENGTH_BITS, 0};
	uint64_t with_tree, with_fixed;
	int told = LENGTH_CODES;

	fixed_codes(fixed_literals, fixed_distances);
	build(&literals);
	build(&distances);
	put_lengths(NULL, of_lengths, &literals);
	put_lengths(NULL, of_lengths, &distances);
	build(&lengths);
	while (told > 4 && !of_lengths[length_order[told - 1]].length)
		told--;
	with_tree = bits_of(&literals, block->literals) + bits_of(&distances, block->distances) +
		    bits_of(&lengths, of_lengths) + 3 * (uint64_t)told + 5 + 5 + 4;
	with_fixed = bits_of(&literals, fixed_literals) + bits_of(&distances, fixed_distances);
	with_tree = (with_tree + 3 + 7) >> 3;
	with_fixed = (with_fixed + 3 + 7) >> 3;
	if (data && size + 4 <= (with_fixed < with_tree ? with_fixed : with_tree)) {
		bm_put_stored(w, data, size, last);
	} else if (with_fixed <= with_tree) {
		bm_put_bits(w, STATIC << 1 | (uint32_t)last, 3);
		put_symbols(w, block, fixed_literals, fixed_distances);
	} else {
		bm_put_bits(w, DYNAMIC << 1 | (uint32_t)last, 3);
		bm_put_bits(w, (uint32_t)(literals.last - LITERALS), 5);
		bm_put_bits(w, (uint32_t)distances.last, 5);
		bm_put_bits(w, (uint32_t)(told - 4), 4);
		for (int i = 0; i < told; i++)
			bm_put_bits(w, of_lengths[length_order[i]].length, 3);
		put_lengths(w, of_lengths, &literals);
		put_lengths(w, of_lengths, &distances);
		put_symbols(w, block, block->literals, block->distances);
	}
	bm_start_block(block);
	if (last)
		bm_end_byte(w);
}
