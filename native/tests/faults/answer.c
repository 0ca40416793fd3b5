// SPDX-License-Identifier: GPL-2.0-only
#include "faults/faults.h"

#include <stdio.h>
#include <stdlib.h>

void broken(const char *what)
{
	fprintf(stderr, "%s\n", what);
	exit(2);
}

void add_bytes(struct answer *answer, const void *bytes, size_t size)
{
	const uint8_t *byte = bytes;

	for (size_t i = 0; i < size; i++)
		answer->sum = (answer->sum ^ byte[i]) * 0x100000001b3ull;
}

void add_number(struct answer *answer, uint64_t number)
{
	add_bytes(answer, &number, sizeof(number));
}
