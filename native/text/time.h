/* SPDX-License-Identifier: GPL-2.0-only */
/* Times as text. */
#ifndef BTRFS_MODEL_TEXT_TIME_H
#define BTRFS_MODEL_TEXT_TIME_H

#include <stdint.h>

#define LOCAL_DAYS 4096
#define LOCAL_TIME_SIZE 64 /* room that a time takes at most */

/* The time zone on one day of UTC. */
struct local_day {
	int64_t number; /* since 1970 */
	int32_t offset; /* local time less UTC, in seconds */
	uint8_t filled;
	uint8_t regular; /* the offset holds all day, the year has four digits */
	char zone[5];	 /* "+hhmm" */
};

/* What is known of the time zone by day; zeroed memory knows nothing. */
struct local_times {
	struct local_day days[LOCAL_DAYS];
};

/*
 * Write the local time as strftime() writes "%FT%T%z", without a NUL; returns its length, or -1
 * for a time that has no date.
 */
int bm_local_time_text(struct local_times *times, int64_t second, char *text);

#define CLOCK_SIZE 19

/*
 * Seconds since 1970 as "YYYY-MM-DDTHH:MM:SS", CLOCK_SIZE bytes, of the clock that shows 1970 then;
 * for the years 1000 to 9999.
 */
void bm_clock_text(int64_t seconds, char *text);

#endif
