// SPDX-License-Identifier: GPL-2.0-only
/*
 * mutate IMAGE CASES SEED: run fuzz/image.c on CASES random inputs that follow from SEED alone.
 * A case that takes longer than a minute is a hang and ends the process.
 */
#define _POSIX_C_SOURCE 200809L

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t state;
static unsigned long current;

/* xorshift64* */
static uint8_t random_byte(void)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (uint8_t)(state * 2685821657736338717ull >> 56);
}

static void hang(int number)
{
	char text[64];
	int length = snprintf(text, sizeof(text), "mutate: case %lu hangs\n", current);

	(void)number;
	if (write(2, text, (size_t)length) == length)
		_exit(1);
	_exit(1);
}

int main(int argc, char **argv)
{
	unsigned long cases;

	if (argc != 4) {
		fprintf(stderr, "usage: mutate IMAGE CASES SEED\n");
		return 2;
	}
	setenv("BTRFS_MODEL_FUZZ_IMAGE", argv[1], 1);
	cases = strtoul(argv[2], NULL, 10);
	signal(SIGALRM, hang);
	for (current = 0; current < cases; current++) {
		uint8_t input[6 * 4];
		size_t edits;

		state = (strtoul(argv[3], NULL, 10) << 32) + current + 1;
		for (int i = 0; i < 16; i++)
			random_byte();
		/* the first case is the image as it is */
		edits = current ? 1 + random_byte() % 4 : 0;
		for (size_t i = 0; i < edits * 6; i++)
			input[i] = random_byte();
		alarm(60);
		LLVMFuzzerTestOneInput(input, edits * 6);
	}
	printf("mutate: %lu cases, no crash and no hang\n", cases);
	return 0;
}
