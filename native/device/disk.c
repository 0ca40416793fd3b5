// SPDX-License-Identifier: GPL-2.0-only
/*
 * A disk drive: where a sector lies, how long the arm and the platter take to get there, what is in
 * the drive's buffer.
 *
 * A track begins where the platter is when the arm has come over from the track before: each is
 * turned against the one before by a skew. After a request the drive reads on into a segment of its
 * buffer, until the segment is full or another request makes the arm move.
 */
#include "device/device.h"

#include <stdlib.h>

/* What find_segment() and oldest_segment() go through for each request. */
enum { MOST_SEGMENTS = 1 << 16 };

struct place {
	const struct bm_disk_zone *zone;
	uint64_t cylinder;
	uint64_t head;
	uint64_t sector; /* of the track */
	uint64_t slot;	 /* sectors from the index mark */
};

static struct place locate(const struct bm_disk *disk, uint64_t sector)
{
	uint64_t low = 0, high = disk->zone_count - 1, track, crossed;
	const struct bm_disk_zone *zone;
	struct place place;

	while (low < high) {
		uint64_t middle = (low + high + 1) / 2;

		if (disk->zones[middle].first_sector <= sector)
			low = middle;
		else
			high = middle - 1;
	}
	zone = &disk->zones[low];
	sector -= zone->first_sector;
	track = zone->first_track + sector / zone->sectors_per_track;
	crossed = track / disk->heads;
	place.zone = zone;
	place.cylinder = zone->first_cylinder + crossed;
	place.head = track % disk->heads;
	place.sector = sector % zone->sectors_per_track;
	place.slot =
	    (place.sector + crossed * zone->cylinder_skew + (track - crossed) * zone->track_skew) %
	    zone->sectors_per_track;
	return place;
}

/* How long the arm takes to get there. */
static uint64_t arm_time(const struct disk *disk, const struct place *place)
{
	uint64_t distance = place->cylinder > disk->cylinder ? place->cylinder - disk->cylinder
							     : disk->cylinder - place->cylinder;
	uint64_t seek = disk->model->seek_time[distance];
	uint64_t head_switch = place->head == disk->head ? 0 : disk->model->head_switch;

	return seek > head_switch ? seek : head_switch;
}

/* How long it takes from `now` until the sector comes by. */
static uint64_t rotation_time(const struct disk *disk, const struct place *place, uint64_t now)
{
	uint64_t turn = disk->model->revolution;
	uint64_t at = place->slot * turn / place->zone->sectors_per_track;

	return (at + turn - now % turn) % turn;
}

/*
 * Read or write on from `now`, until `count` sectors are done or `until` is there; how many were
 * done, and when the last of them was. The first place may take `settle` longer.
 */
static uint64_t transfer(struct disk *disk, uint64_t sector, uint64_t count, uint64_t settle,
			 uint64_t *now, uint64_t until)
{
	uint64_t done = 0, end = *now;

	while (done < count) {
		struct place place = locate(disk->model, sector + done);
		uint64_t track = place.zone->sectors_per_track, turn = disk->model->revolution;
		uint64_t zone_left = place.zone->first_sector + place.zone->sectors - sector - done;
		uint64_t here = track - place.sector, start, fit;

		start = end + arm_time(disk, &place) + settle;
		start += rotation_time(disk, &place, start);
		if (start >= until)
			break;
		disk->cylinder = place.cylinder;
		disk->head = place.head;
		settle = 0;
		if (here > zone_left)
			here = zone_left;
		if (here > count - done)
			here = count - done;
		/* as many as end in time */
		fit = until - start >= turn ? track : ((until - start + 1) * track - 1) / turn;
		if (fit > here)
			fit = here;
		done += fit;
		end = start + fit * turn / track;
		if (fit < here)
			break;
	}
	*now = end;
	return done;
}

/* Let the drive read on until `now`. */
static void read_on(struct disk *disk, uint64_t now)
{
	struct segment *active = disk->active;

	if (!active || now <= disk->active_since)
		return;
	active->end += transfer(disk, active->end, disk->active_limit - active->end, 0,
				&disk->active_since, now);
}

static uint64_t sector_count(const struct disk *disk)
{
	const struct bm_disk_zone *last = &disk->model->zones[disk->model->zone_count - 1];

	return last->first_sector + last->sectors;
}

/* After a read up to active->end: how far the drive goes on, and what falls out of the segment. */
static void plan_read_on(struct disk *disk, uint64_t now)
{
	const struct bm_disk *model = disk->model;
	uint64_t limit = disk->active->end + model->read_ahead, capacity = sector_count(disk);

	disk->active_since = now;
	disk->active_limit = limit < capacity ? limit : capacity;
	if (disk->active_limit - disk->active->start > model->segment_size)
		disk->active->start = disk->active_limit - model->segment_size;
}

static struct segment *find_segment(const struct disk *disk, uint64_t sector)
{
	for (uint32_t i = 0; i < disk->model->segments; i++) {
		struct segment *segment = &disk->segments[i];
		uint64_t behind = segment->end + (segment == disk->active);

		if (segment->used && sector >= segment->start && sector < behind)
			return segment;
	}
	return NULL;
}

static struct segment *oldest_segment(const struct disk *disk)
{
	struct segment *oldest = disk->segments;

	for (uint32_t i = 1; i < disk->model->segments; i++)
		if (disk->segments[i].used < oldest->used)
			oldest = &disk->segments[i];
	return oldest;
}

/* The interface carries a read whose sectors came off the medium up to `read`; when it is done. */
static uint64_t link_read(struct disk *disk, uint64_t sectors, uint64_t ready, uint64_t read)
{
	const struct bm_disk *model = disk->model;
	uint64_t start = ready + model->reselect, end;

	if (start < disk->link_free)
		start = disk->link_free;
	end = start + sectors * model->link_sector;
	/* the last sector cannot be carried before it was read */
	if (end < read + model->link_sector)
		end = read + model->link_sector;
	disk->link_free = end;
	return end + model->completion;
}

static struct service serve_read(struct disk *disk, uint64_t sector, uint64_t count, uint64_t now)
{
	const struct bm_disk *model = disk->model;
	struct segment *segment;
	struct service service = {0};
	uint64_t held = 0, read, ready, early;

	read_on(disk, now);
	segment = find_segment(disk, sector);
	service.buffered = segment != NULL;
	now += segment ? model->hit_overhead : model->miss_overhead;
	if (segment && segment == disk->active)
		read_on(disk, now);
	if (segment)
		held = segment->end - sector < count ? segment->end - sector : count;
	if (held == count) {
		segment->used = disk->requests;
		service.done = service.free = link_read(disk, count, now, now);
		return service;
	}
	/* the rest comes off the medium, at once where the drive is reading just that */
	read = now;
	if (segment && segment == disk->active && segment->end < disk->active_limit)
		read = disk->active_since;
	service.seek = locate(model, sector + held).cylinder != disk->cylinder;
	transfer(disk, sector + held, count - held, 0, &read, UINT64_MAX);
	if (!segment && model->segments) {
		segment = oldest_segment(disk);
		segment->start = sector;
	}
	if (segment) {
		segment->end = sector + count;
		segment->used = disk->requests;
		disk->active = segment;
		plan_read_on(disk, read);
	}
	/* the interface starts when that part of the request is there that the watermark asks for */
	early = (count - held) * (1000 - model->watermark) / 1000 * model->revolution /
		locate(model, sector + count - 1).zone->sectors_per_track;
	ready = read - now > early ? read - early : now;
	service.done = link_read(disk, count, ready, read);
	service.free = read;
	return service;
}

static struct service serve_write(struct disk *disk, uint64_t sector, uint64_t count, uint64_t now)
{
	const struct bm_disk *model = disk->model;
	struct place place = locate(model, sector);
	struct service service = {0};
	uint64_t arrived, arm;

	read_on(disk, now);
	disk->active = NULL;
	for (uint32_t i = 0; i < model->segments; i++)
		if (disk->segments[i].start < sector + count && sector < disk->segments[i].end)
			disk->segments[i].used = 0;
	now += model->write_overhead;
	arrived = now > disk->link_free ? now : disk->link_free;
	arrived += count * model->link_sector;
	disk->link_free = arrived;
	service.seek = place.cylinder != disk->cylinder;
	/* the data comes in while the arm moves */
	arm = arm_time(disk, &place) + model->write_settle;
	if (now + arm < arrived)
		now = arrived - arm;
	transfer(disk, sector, count, model->write_settle, &now, UINT64_MAX);
	service.free = now;
	service.done = now + model->completion;
	return service;
}

struct service disk_serve(struct disk *disk, const struct request *request, uint64_t now)
{
	uint64_t size = disk->model->sector_size;
	uint64_t first = request->offset / size;
	uint64_t count = (request->offset + request->length + size - 1) / size - first;

	disk->requests++;
	return request->write ? serve_write(disk, first, count, now)
			      : serve_read(disk, first, count, now);
}

/* Time from `now`, when the drive turns to it, until a request's first sector is at hand. */
static uint64_t access_time(const struct disk *disk, const struct request *request, uint64_t now)
{
	uint64_t sector = request->offset / disk->model->sector_size, arm;
	struct place place;

	if (!request->write && find_segment(disk, sector))
		return 0;
	place = locate(disk->model, sector);
	arm = arm_time(disk, &place);
	arm += request->write ? disk->model->write_overhead + disk->model->write_settle
			      : disk->model->miss_overhead;
	return arm + rotation_time(disk, &place, now + arm);
}

size_t disk_choose(const struct disk *disk, const struct request *requests, size_t count,
		   uint64_t now)
{
	uint64_t shortest = UINT64_MAX;
	size_t chosen = 0;

	if (!disk->model->shortest_first)
		return 0;
	for (size_t i = 0; i < count; i++) {
		uint64_t time = access_time(disk, &requests[i], now);

		if (time < shortest) {
			shortest = time;
			chosen = i;
		}
	}
	return chosen;
}

/* ------------------------------------------------------------------------------- the model -- */

static int bad_zone(struct bm_fault *fault, uint64_t zone, uint64_t found)
{
	return bm_fail(fault,
		       (struct bm_fault){.code = BM_BAD_VALUE, .offset = zone, .found = found});
}

/* Zones hold all sectors of the capacity, on cylinders that have a seek time. */
static int check_zones(const struct bm_disk *disk, uint64_t capacity, struct bm_fault *fault)
{
	uint64_t next = 0;

	for (uint64_t i = 0; i < disk->zone_count; i++) {
		const struct bm_disk_zone *zone = &disk->zones[i];
		uint64_t tracks;

		if (!zone->sectors_per_track || !zone->sectors || zone->first_sector != next)
			return bad_zone(fault, i, zone->first_sector);
		tracks = zone->first_track + zone->sectors / zone->sectors_per_track +
			 !!(zone->sectors % zone->sectors_per_track);
		if (tracks > (uint64_t)zone->cylinders * disk->heads ||
		    (uint64_t)zone->first_cylinder + zone->cylinders > disk->seek_count ||
		    disk->revolution < zone->sectors_per_track)
			return bad_zone(fault, i, tracks);
		next += zone->sectors;
		if (next < zone->sectors)
			return bad_zone(fault, i, zone->sectors);
	}
	if (next < capacity / disk->sector_size)
		return bad_zone(fault, disk->zone_count, next);
	return BM_OK;
}

int disk_init(struct disk *disk, const struct bm_device *device, struct bm_fault *fault)
{
	const struct bm_disk *model = device->disk;

	*disk = (struct disk){.model = model};
	if (!model->zone_count || !model->heads || !model->sector_size || model->watermark > 1000 ||
	    model->read_ahead > model->segment_size || model->segments > MOST_SEGMENTS)
		return bad_zone(fault, 0, model->zone_count);
	if (check_zones(model, device->capacity, fault) < 0)
		return fault->code;
	disk->segments = calloc(model->segments + 1u, sizeof(*disk->segments));
	return disk->segments ? BM_OK : bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
}

void disk_deinit(struct disk *disk)
{
	free(disk->segments);
}
