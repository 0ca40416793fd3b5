// SPDX-License-Identifier: GPL-2.0-only
/*
 * Loaded before the C library (LD_PRELOAD): the n-th system call that changes a file below a folder
 * fails once, or writes half of what it is given, whichever program or library makes it.
 *
 * What is written through a mapping makes no system call, and is not seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <fcntl.h>
#include <unistd.h>

/* Python sets these with ctypes. */
void write_faults_start(const char *folder, long n, int error);
long write_faults_stop(void);
const char *write_faults_call(long n);

enum { HALF = 0, MOST = 100000 };

static char below[PATH_MAX];
static size_t below_size;
static long seen, failing;
static int failing_with;
static const char *calls[MOST];

/* error HALF: a write takes half of its bytes; n -1: nothing fails. */
void write_faults_start(const char *folder, long n, int error)
{
	seen = 0;
	failing = n;
	failing_with = error;
	below_size = strlen(folder);
	memcpy(below, folder, below_size + 1);
}

/* Nothing fails any more; how many calls there were. */
long write_faults_stop(void)
{
	below_size = 0;
	return seen;
}

/* Which function the n-th call was of. */
const char *write_faults_call(long n)
{
	return n >= 0 && n < seen && n < MOST ? calls[n] : "";
}

static void *next_of(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

/* Whether this call is the one. */
static int is_time(const char *name)
{
	const long n = seen++;

	if (n < MOST)
		calls[n] = name;
	return n == failing;
}

/* Whether a path lies below the folder. */
static int is_below(const char *path)
{
	return below_size && !strncmp(path, below, below_size);
}

static int is_here(int directory, const char *path)
{
	char link[64], folder[PATH_MAX];
	ssize_t size;

	if (!below_size)
		return 0;
	if (path && *path == '/')
		return is_below(path);
	if (directory == AT_FDCWD) {
		if (!getcwd(folder, sizeof(folder)))
			return 0;
		return is_below(folder);
	}
	snprintf(link, sizeof(link), "/proc/self/fd/%d", directory);
	size = readlink(link, folder, sizeof(folder) - 1);
	if (size < 0)
		return 0;
	folder[size] = 0;
	return is_below(folder);
}

/* A file below the folder that is open for writing, not a directory. */
static int is_written(int file)
{
	struct stat status;
	int saved = errno, flags, ret = 0;

	if (!below_size)
		return 0;
	flags = fcntl(file, F_GETFL);
	if (flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && !fstat(file, &status) &&
	    !S_ISDIR(status.st_mode))
		ret = is_here(file, NULL);
	errno = saved;
	return ret;
}

/* -1 with the error, where it is time and the error is one. */
static int fails(const char *name)
{
	if (!is_time(name) || failing_with == HALF)
		return 0;
	errno = failing_with;
	return 1;
}

#define NEXT(type, name, ...)                                                                      \
	static type (*next)(__VA_ARGS__);                                                          \
	if (!next)                                                                                 \
	next = (type(*)(__VA_ARGS__))next_of(#name)

/* ------------------------------------------------------------------------------------- bytes -- */

ssize_t write(int file, const void *data, size_t size)
{
	NEXT(ssize_t, write, int, const void *, size_t);
	if (is_written(file) && is_time("write")) {
		if (failing_with == HALF)
			return next(file, data, size > 1 ? size / 2 : size);
		errno = failing_with;
		return -1;
	}
	return next(file, data, size);
}

#define POSITIONED(name)                                                                           \
	ssize_t name(int file, const void *data, size_t size, off_t at)                            \
	{                                                                                          \
		NEXT(ssize_t, name, int, const void *, size_t, off_t);                             \
		if (is_written(file) && is_time(#name)) {                                          \
			if (failing_with == HALF)                                                  \
				return next(file, data, size > 1 ? size / 2 : size, at);           \
			errno = failing_with;                                                      \
			return -1;                                                                 \
		}                                                                                  \
		return next(file, data, size, at);                                                 \
	}
POSITIONED(pwrite)
POSITIONED(pwrite64)

ssize_t writev(int file, const struct iovec *parts, int count)
{
	NEXT(ssize_t, writev, int, const struct iovec *, int);
	if (is_written(file) && is_time("writev")) {
		if (failing_with == HALF)
			return next(file, parts, count > 1 ? count / 2 : count);
		errno = failing_with;
		return -1;
	}
	return next(file, parts, count);
}

#define POSITIONED_PARTS(name)                                                                     \
	ssize_t name(int file, const struct iovec *parts, int count, off_t at)                     \
	{                                                                                          \
		NEXT(ssize_t, name, int, const struct iovec *, int, off_t);                        \
		if (is_written(file) && is_time(#name)) {                                          \
			if (failing_with == HALF)                                                  \
				return next(file, parts, count > 1 ? count / 2 : count, at);       \
			errno = failing_with;                                                      \
			return -1;                                                                 \
		}                                                                                  \
		return next(file, parts, count, at);                                               \
	}
POSITIONED_PARTS(pwritev)
POSITIONED_PARTS(pwritev64)

#define TRUNCATING(name)                                                                           \
	int name(int file, off_t size)                                                             \
	{                                                                                          \
		NEXT(int, name, int, off_t);                                                       \
		return is_written(file) && fails(#name) ? -1 : next(file, size);                   \
	}
TRUNCATING(ftruncate)
TRUNCATING(ftruncate64)

#define SYNCING(name)                                                                              \
	int name(int file)                                                                         \
	{                                                                                          \
		NEXT(int, name, int);                                                              \
		return is_written(file) && fails(#name) ? -1 : next(file);                         \
	}
SYNCING(fsync)
SYNCING(fdatasync)

/* It is closed all the same, as the kernel does it. */
int close(int file)
{
	int error;

	NEXT(int, close, int);
	error = is_written(file) && fails("close") ? errno : 0;
	if (!error)
		return next(file);
	next(file);
	errno = error;
	return -1;
}

/* ------------------------------------------------------------------------------------- names -- */

#define OPENING(name)                                                                              \
	int name(const char *path, int flags, ...)                                                 \
	{                                                                                          \
		mode_t mode = 0;                                                                   \
		va_list rest;                                                                      \
		NEXT(int, name, const char *, int, ...);                                           \
		va_start(rest, flags);                                                             \
		if (flags & (O_CREAT | O_TMPFILE))                                                 \
			mode = va_arg(rest, mode_t);                                               \
		va_end(rest);                                                                      \
		return flags & O_CREAT && is_here(AT_FDCWD, path) && fails(#name)                  \
			   ? -1                                                                    \
			   : next(path, flags, mode);                                              \
	}
OPENING(open)
OPENING(open64)

#define OPENING_AT(name)                                                                           \
	int name(int directory, const char *path, int flags, ...)                                  \
	{                                                                                          \
		mode_t mode = 0;                                                                   \
		va_list rest;                                                                      \
		NEXT(int, name, int, const char *, int, ...);                                      \
		va_start(rest, flags);                                                             \
		if (flags & (O_CREAT | O_TMPFILE))                                                 \
			mode = va_arg(rest, mode_t);                                               \
		va_end(rest);                                                                      \
		return flags & O_CREAT && is_here(directory, path) && fails(#name)                 \
			   ? -1                                                                    \
			   : next(directory, path, flags, mode);                                   \
	}
OPENING_AT(openat)
OPENING_AT(openat64)

int rename(const char *from, const char *to)
{
	NEXT(int, rename, const char *, const char *);
	return is_here(AT_FDCWD, to) && fails("rename") ? -1 : next(from, to);
}

int renameat(int from_directory, const char *from, int to_directory, const char *to)
{
	NEXT(int, renameat, int, const char *, int, const char *);
	return is_here(to_directory, to) && fails("renameat")
		   ? -1
		   : next(from_directory, from, to_directory, to);
}

int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags)
{
	NEXT(int, linkat, int, const char *, int, const char *, int);
	return is_here(to_directory, to) && fails("linkat")
		   ? -1
		   : next(from_directory, from, to_directory, to, flags);
}

int symlinkat(const char *target, int directory, const char *path)
{
	NEXT(int, symlinkat, const char *, int, const char *);
	return is_here(directory, path) && fails("symlinkat") ? -1 : next(target, directory, path);
}

int mkdir(const char *path, mode_t mode)
{
	NEXT(int, mkdir, const char *, mode_t);
	return is_here(AT_FDCWD, path) && fails("mkdir") ? -1 : next(path, mode);
}

int mkdirat(int directory, const char *path, mode_t mode)
{
	NEXT(int, mkdirat, int, const char *, mode_t);
	return is_here(directory, path) && fails("mkdirat") ? -1 : next(directory, path, mode);
}

int fchmod(int file, mode_t mode)
{
	NEXT(int, fchmod, int, mode_t);
	return is_written(file) && fails("fchmod") ? -1 : next(file, mode);
}
