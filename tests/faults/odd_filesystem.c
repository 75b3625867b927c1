// A filesystem, or a kernel, that lacks something. Preloaded; ODD says what: words such as
// "flock=37", "flock=0" (always granted), "link=1", "link=symlink", "madvise=22", "fallocate=95",
// "mmap=1:PART" (of files whose path has that part), "link=within" (one directory only), "renameat2=22", "chmod=1", "symlink=1", "times=1" (that are set), "dirsync=22" (fsync of directories),
// "statvfs=none" (no blocks), "statvfs=full", "unlink=slow", "pread=hang:PART" and "fsync=hang:PART"
// (for files whose path has that part), and "full=N": no space after N writes to files.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *odd(const char *name) {
    const char *words = getenv("ODD");
    const size_t size = strlen(name);
    for (const char *at = words; at != NULL; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL) {
        if (strncmp(at, name, size) == 0 && at[size] == '=') {
            return at + size + 1;
        }
    }
    return NULL;
}

static int failed(const char *value) {
    errno = atoi(value);
    return -1;
}

static void hang(int descriptor, const char *value) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t size = readlink(link, path, sizeof path - 1);
    path[size > 0 ? size : 0] = 0;
    if (strncmp(value, "hang:", 5) == 0) {
        char part[PATH_MAX];
        snprintf(part, sizeof part, "%s", value + 5);
        part[strcspn(part, " ")] = 0;
        while (strstr(path, part) != NULL) {
            sleep(1);
        }
    }
}

#define ORIGINAL(name, type, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

int flock(int descriptor, int operation) {
    const char *value = odd("flock");
    if (value != NULL) {
        return *value == '0' ? 0 : failed(value);
    }
    return ORIGINAL("flock", int, int, int)(descriptor, operation);
}

static void parent_of(int directory, const char *path, char *out) {
    char full[2 * PATH_MAX], link[64];
    if (path[0] == '/') {
        snprintf(full, sizeof full, "%s", path);
    } else {
        char base[PATH_MAX] = "";
        snprintf(link, sizeof link, "/proc/self/%s", "cwd");
        if (directory != AT_FDCWD) {
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        }
        const ssize_t size = readlink(link, base, sizeof base - 1);
        base[size > 0 ? size : 0] = 0;
        snprintf(full, sizeof full, "%s/%s", base, path);
    }
    char *slash = strrchr(full, '/');
    if (slash != NULL && slash != full) {
        *slash = 0;
    }
    if (realpath(full, out) == NULL) {
        snprintf(out, PATH_MAX, "%s", full);
    }
}

int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags) {
    const char *value = odd("link");
    if (value == NULL) {
        return ORIGINAL("linkat", int, int, const char *, int, const char *, int)(
            from_directory, from, to_directory, to, flags);
    }
    if (*value == 'w') {  // within one directory only
        char first[PATH_MAX], second[PATH_MAX];
        parent_of(from_directory, from, first);
        parent_of(to_directory, to, second);
        if (strcmp(first, second) == 0) {
            return ORIGINAL("linkat", int, int, const char *, int, const char *, int)(
                from_directory, from, to_directory, to, flags);
        }
        return failed("1");
    }
    return *value == 's' ? symlinkat(from, to_directory, to) : failed(value);
}

int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    const char *value = odd("renameat2");
    return value != NULL ? failed(value)
                         : ORIGINAL("renameat2", int, int, const char *, int, const char *, unsigned)(
                               from_directory, from, to_directory, to, flags);
}

int fchmod(int descriptor, mode_t mode) {
    const char *value = odd("chmod");
    return value != NULL ? failed(value) : ORIGINAL("fchmod", int, int, mode_t)(descriptor, mode);
}

int chmod(const char *path, mode_t mode) {
    const char *value = odd("chmod");
    return value != NULL ? failed(value) : ORIGINAL("chmod", int, const char *, mode_t)(path, mode);
}

int symlink(const char *to, const char *path) {
    const char *value = odd("symlink");
    return value != NULL ? failed(value)
                         : ORIGINAL("symlink", int, const char *, const char *)(to, path);
}

int futimens(int descriptor, const struct timespec times[2]) {
    const char *value = odd("times");
    return value != NULL ? failed(value)
                         : ORIGINAL("futimens", int, int, const struct timespec *)(descriptor, times);
}

int utimensat(int directory, const char *path, const struct timespec times[2], int flags) {
    const char *value = odd("times");
    return value != NULL
               ? failed(value)
               : ORIGINAL("utimensat", int, int, const char *, const struct timespec *, int)(
                     directory, path, times, flags);
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

static int is_part_of_path(int descriptor, const char *part) {
    char link[64], path[PATH_MAX], wanted[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t size = readlink(link, path, sizeof path - 1);
    path[size > 0 ? size : 0] = 0;
    snprintf(wanted, sizeof wanted, "%s", part);
    wanted[strcspn(wanted, " ")] = 0;
    return strstr(path, wanted) != NULL;
}

void *mmap(void *address, size_t size, int protection, int flags, int descriptor, off_t offset) {
    const char *value = odd("mmap");
    if (value != NULL && descriptor >= 0 && strchr(value, ':') != NULL &&
        is_part_of_path(descriptor, strchr(value, ':') + 1)) {
        errno = atoi(value);
        return MAP_FAILED;
    }
    return ORIGINAL("mmap", void *, void *, size_t, int, int, int, off_t)(
        address, size, protection, flags, descriptor, offset);
}

void *mmap64(void *address, size_t size, int protection, int flags, int descriptor, off_t offset) {
    return mmap(address, size, protection, flags, descriptor, offset);
}

int madvise(void *address, size_t size, int advice) {
    const char *value = odd("madvise");
    if (value != NULL && advice == MADV_HUGEPAGE) {
        return failed(value);
    }
    return ORIGINAL("madvise", int, void *, size_t, int)(address, size, advice);
}

int posix_fallocate(int descriptor, off_t offset, off_t size) {
    const char *value = odd("fallocate");
    return value != NULL ? atoi(value)
                         : ORIGINAL("posix_fallocate", int, int, off_t, off_t)(descriptor, offset, size);
}

int posix_fallocate64(int descriptor, off_t offset, off_t size) {
    return posix_fallocate(descriptor, offset, size);
}

static int lie(int result, struct statvfs *found) {
    const char *value = odd("statvfs");
    if (result == 0 && value != NULL) {
        found->f_bavail = found->f_bfree = 0;
        if (strncmp(value, "none", 4) == 0) {
            found->f_blocks = 0;
        } else if (strncmp(value, "endless", 7) == 0) {
            found->f_bavail = found->f_bfree = found->f_blocks = 1UL << 50;
        }
    }
    return result;
}

int statvfs(const char *path, struct statvfs *found) {
    return lie(ORIGINAL("statvfs", int, const char *, struct statvfs *)(path, found), found);
}

int statvfs64(const char *path, struct statvfs64 *found) {
    return lie(ORIGINAL("statvfs64", int, const char *, struct statvfs64 *)(path, found),
               (struct statvfs *)found);
}

int unlink(const char *path) {
    if (odd("unlink") != NULL) {
        usleep(1000);
    }
    return ORIGINAL("unlink", int, const char *)(path);
}

ssize_t preadv(int descriptor, const struct iovec *pieces, int count, off_t offset) {
    const char *value = odd("pread");
    if (value != NULL) {
        hang(descriptor, value);
    }
    return ORIGINAL("preadv", ssize_t, int, const struct iovec *, int, off_t)(descriptor, pieces,
                                                                              count, offset);
}

ssize_t preadv64(int descriptor, const struct iovec *pieces, int count, off_t offset) {
    return preadv(descriptor, pieces, count, offset);
}

ssize_t preadv2(int descriptor, const struct iovec *pieces, int count, off_t offset, int flags) {
    const char *value = odd("pread");
    if (value != NULL) {
        hang(descriptor, value);
    }
    return ORIGINAL("preadv2", ssize_t, int, const struct iovec *, int, off_t, int)(
        descriptor, pieces, count, offset, flags);
}

ssize_t preadv64v2(int descriptor, const struct iovec *pieces, int count, off_t offset, int flags) {
    return preadv2(descriptor, pieces, count, offset, flags);
}

int fsync(int descriptor) {
    const char *value = odd("fsync");
    if (value != NULL) {
        hang(descriptor, value);
    }
    struct stat found;
    if (odd("dirsync") != NULL && fstat(descriptor, &found) == 0 && S_ISDIR(found.st_mode)) {
        return failed(odd("dirsync"));
    }
    return ORIGINAL("fsync", int, int)(descriptor);
}

static int full(int descriptor) {
    static _Atomic long writes;
    const char *value = odd("full");
    struct stat found;
    if (value == NULL || fstat(descriptor, &found) != 0 || !S_ISREG(found.st_mode)) {
        return 0;
    }
    errno = ENOSPC;
    return ++writes > atol(value);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    return full(descriptor)
               ? -1
               : ORIGINAL("write", ssize_t, int, const void *, size_t)(descriptor, data, size);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    return full(descriptor)
               ? -1
               : ORIGINAL("pwrite", ssize_t, int, const void *, size_t, off_t)(descriptor, data,
                                                                               size, offset);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off_t offset) {
    return pwrite(descriptor, data, size, offset);
}
