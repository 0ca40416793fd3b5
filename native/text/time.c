// SPDX-License-Identifier: GPL-2.0-only
/*
 * Local time as text, for streams that have three times in every other command.
 *
 * The C library is asked for the offset of the time zone only, once a day that occurs; the date is
 * then plain arithmetic. Years that do not have four digits, days on which the offset changes and
 * clocks that count leap seconds are left to the C library altogether.
 */
#define _DEFAULT_SOURCE /* localtime_r, tm_gmtoff */
#include "text/time.h"

#include <string.h>
#include <time.h>

#define SECONDS_A_DAY 86400

static int local_time(int64_t second, struct tm *tm)
{
	time_t time = (time_t)second;

	return localtime_r(&time, tm) ? 0 : -1;
}

static void put_digits(char *p, int64_t number, int digits)
{
	for (int i = digits - 1; i >= 0; i--, number /= 10)
		p[i] = (char)('0' + number % 10);
}

/*
 * Years are taken to start in March, so that the day that
 * leap years have more is their last; 146097 days make four centuries, from 1 March of year 0 on.
 */
void bm_clock_text(int64_t seconds, char *text)
{
	int64_t day = seconds / SECONDS_A_DAY - (seconds % SECONDS_A_DAY < 0);
	int64_t second = seconds - day * SECONDS_A_DAY;
	int64_t from_zero = day + 719468;
	int64_t era = from_zero / 146097;
	int64_t of_era = from_zero % 146097;
	int64_t year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
	int64_t of_year = of_era - (365 * year + year / 4 - year / 100);
	int64_t month = (5 * of_year + 2) / 153; /* 0: March */

	memcpy(text, "yyyy-mm-ddThh:mm:ss", CLOCK_SIZE);
	put_digits(text, era * 400 + year + (month >= 10), 4);
	put_digits(text + 5, month < 10 ? month + 3 : month - 9, 2);
	put_digits(text + 8, of_year - (153 * month + 2) / 5 + 1, 2);
	put_digits(text + 11, second / 3600, 2);
	put_digits(text + 14, second / 60 % 60, 2);
	put_digits(text + 17, second % 60, 2);
}

/* Whether local time at `second` is what the offset makes of it; the zone goes to `zone`. */
static int matches(const struct tm *tm, int64_t second, char zone[8])
{
	char expected[CLOCK_SIZE];
	char text[64];

	if (tm->tm_year < 1000 - 1900 || tm->tm_year > 9999 - 1900)
		return 0;
	bm_clock_text(second + tm->tm_gmtoff, expected);
	return strftime(text, sizeof(text), "%FT%T", tm) == CLOCK_SIZE &&
	       !memcmp(text, expected, CLOCK_SIZE) && strftime(zone, 8, "%z", tm) == 5;
}

/*
 * Asking for local time takes most of the time of a dump, so it is asked for only at both ends of
 * a day. Where they agree the offset has not changed between: in no time zone has it ever changed
 * there and back within a day of UTC.
 */
static void fill_day(struct local_day *day, int64_t number)
{
	char first_zone[8], last_zone[8];
	struct tm first, last;
	int64_t start, end;

	*day = (struct local_day){.number = number, .filled = 1};
	if (number < INT32_MIN ||
	    number > INT32_MAX) /* the C library knows whether it has a date */
		return;
	start = number * SECONDS_A_DAY;
	end = start + SECONDS_A_DAY - 1;
	if (local_time(start, &first) || local_time(end, &last) ||
	    first.tm_gmtoff != last.tm_gmtoff || !matches(&first, start, first_zone) ||
	    !matches(&last, end, last_zone) || memcmp(first_zone, last_zone, 5))
		return;
	day->regular = 1;
	day->offset = (int32_t)first.tm_gmtoff;
	memcpy(day->zone, first_zone, sizeof(day->zone));
}

int bm_local_time_text(struct local_times *times, int64_t second, char *text)
{
	int64_t number = second / SECONDS_A_DAY - (second % SECONDS_A_DAY < 0);
	struct local_day *day = &times->days[(uint64_t)number % LOCAL_DAYS];
	struct tm tm;

	if (day->number != number || !day->filled)
		fill_day(day, number);
	if (day->regular) {
		bm_clock_text(second + day->offset, text);
		memcpy(text + CLOCK_SIZE, day->zone, sizeof(day->zone));
		return CLOCK_SIZE + (int)sizeof(day->zone);
	}
	if (local_time(second, &tm))
		return -1;
	return (int)strftime(text, LOCAL_TIME_SIZE, "%FT%T%z", &tm);
}
