// SPDX-License-Identifier: GPL-2.0-only
/*
 * no_memory POINTS IMAGE...: let every allocation of every scenario fail, each alone and with all
 * behind it; with POINTS other than 0 at most so many of a scenario, evenly spread.
 *
 * At each point the answer is BM_NOMEM, or the right one where a kernel does without the memory. The
 * same run afterwards gives the right answer, and nothing is left allocated in the end. The
 * sanitizers see to the rest.
 */
#include "faults/faults.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static int64_t points, told, without, most;
static int wrong;

static void complain(const struct scenario *scenario, int64_t n, int all, const char *what,
		     const struct bm_fault *fault)
{
	fprintf(stderr, "%s: allocation %lld%s fails: %s (code %d, found %llu)\n", scenario->name,
		(long long)n, all ? " and all behind it" : "", what, fault->code,
		(unsigned long long)fault->found);
	wrong++;
}

/* Whether the fault says that there was no memory. */
static int is_told(const struct bm_fault *fault)
{
	return fault->code == BM_NOMEM || (fault->code == BM_ERRNO && fault->found == ENOMEM);
}

/* Run with a point at which memory is gone; whether there is such a point. */
static int try_point(const struct scenario *scenario, int64_t n, int all, uint64_t wanted)
{
	const int64_t alive = allocations_alive();
	struct answer answer = {0};
	struct bm_fault fault = {0};
	void *stage = scenario->open();
	int64_t ret;
	int reached;

	allocations_fail(n, all);
	ret = scenario->run(stage, &answer, &fault);
	reached = allocations_stop() > n;
	if (ret < 0 && (fault.code != ret || !is_told(&fault)))
		complain(scenario, n, all, "another fault", &fault);
	if (ret >= 0 && answer.sum != wanted)
		complain(scenario, n, all, "a wrong answer", &fault);
	told += ret < 0;
	without += reached && ret >= 0;
	if (scenario->recover && !scenario->recover(stage))
		complain(scenario, n, all, "what was there is not as before", &fault);
	if (reached) {
		answer.sum = 0;
		ret = scenario->run(stage, &answer, &fault);
		if (ret < 0 || answer.sum != wanted)
			complain(scenario, n, all, "afterwards it is wrong", &fault);
		points++;
	}
	scenario->close(stage);
	if (allocations_alive() != alive)
		complain(scenario, n, all, "memory is lost", &fault);
	return reached;
}

static void try_scenario(const struct scenario *scenario)
{
	struct answer answer = {0};
	struct bm_fault fault = {0};
	void *stage = scenario->open();
	int64_t count;
	const int64_t before = points;

	allocations_fail(FAIL_NONE, 0);
	if (scenario->run(stage, &answer, &fault) < 0)
		complain(scenario, FAIL_NONE, 0, "it fails without that", &fault);
	count = allocations_stop();
	scenario->close(stage);
	/* 2: alone, and with all behind it */
	for (int64_t i = 0; i < count; i++) {
		const int64_t n = most && count > most ? i * count / most : i;

		if (n >= count)
			break;
		for (int all = 0; all < 2; all++)
			try_point(scenario, n, all, answer.sum);
	}
	printf("  %s: %lld allocations, %lld points\n", scenario->name, (long long)count,
	       (long long)(points - before));
}

static void try_all(const struct scenario *scenarios, size_t count)
{
	for (size_t i = 0; i < count; i++)
		try_scenario(&scenarios[i]);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: no_memory POINTS IMAGE...\n");
		return 2;
	}
	most = atoll(argv[1]);
	try_all(others, others_count);
	try_all(writing, writing_count);
	for (int i = 2; i < argc; i++) {
		reading_load(argv[i]);
		try_all(reading, reading_count);
		reading_unload();
	}
	printf("no_memory: %lld points, %lld told, %lld done without, %d wrong\n",
	       (long long)points, (long long)told, (long long)without, wrong);
	return wrong ? 1 : 0;
}
