// A filesystem, or a kernel, that lacks something, or that strikes at a chosen call. Preloaded; ODD
// says what, in words that are separated by spaces.
//
// What is lacking: "flock=37", "flock=0" (always granted), "link=1", "link=symlink", "link=within"
// (one directory only), "madvise=22", "fallocate=95", "mmap=1:PART" (of files whose path has that
// part), "renameat2=22", "chmod=1", "symlink=1", "times=1" (that are set), "dirsync=22" (fsync of
// directories), "statvfs=none" (no blocks), "statvfs=full", "statvfs=endless", "unlink=slow".
//
// "strike=ACTION:CALL:N:PART": before this process's N-th CALL on a path that has PART. CALL is
// read, write, fsync, link, rename, unlink, mkdir, map or reserve (of space). ACTION is kill, term, usr1, usr2, twice
// (two signals), hang, pause (five seconds, or up to 60 until the file of "struck" is removed), cut (the file
// to a page, or "cut=PATH"), full or broken (this call and all later ones find no space, or fail
// with EIO), ENOSPC or EIO (this call fails). "rank=R": only in that rank of MPI. "struck=PATH": a
// file that says that it has struck.
//
// A word that is none of these, or a strike that can never be, ends the process at once.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
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

#define ORIGINAL(name, type, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

static void path_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t size = readlink(link, path, PATH_MAX - 1);
    path[size > 0 ? size : 0] = 0;
}

static int is_chosen_rank(void) {
    const char *wanted = odd("rank");
    const char *rank = getenv("PMI_RANK");
    rank = rank != NULL ? rank : getenv("OMPI_COMM_WORLD_RANK");
    return wanted == NULL || atoi(wanted) == (rank != NULL ? atoi(rank) : 0);
}

static int is_one_of(const char *word, const char *all) {
    const char *at = strstr(all, word);
    const size_t size = strlen(word);
    return size > 0 && at != NULL && (at == all || at[-1] == ' ') && (at[size] == ' ' || !at[size]);
}

__attribute__((constructor)) static void require_known_words(void) {
    char words[8192], *rest = words;
    snprintf(words, sizeof words, "%s", getenv("ODD") != NULL ? getenv("ODD") : "");
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        char name[32] = "", action[16], call[16], part[PATH_MAX];
        long number = 0;
        const int is_word = sscanf(word, "%31[a-z0-9]=", name) == 1 &&
                            is_one_of(name, "flock link madvise fallocate mmap renameat2 chmod "
                                            "symlink times dirsync statvfs unlink rank cut struck "
                                            "strike");
        const int is_strike =
            strcmp(name, "strike") != 0 ||
            (sscanf(word, "strike=%15[^:]:%15[^:]:%ld:%4095s", action, call, &number, part) == 4 &&
             is_one_of(action, "kill term usr1 usr2 twice hang pause cut full broken ENOSPC EIO") &&
             is_one_of(call, "read write fsync link rename unlink mkdir map reserve") && number > 0);
        if (!is_word || !is_strike) {
            fprintf(stderr, "odd_filesystem: what is %s?\n", word);
            abort();
        }
    }
}

// The path of the file of "struck", or "".
static void path_of_struck(char *path) {
    const char *value = odd("struck");
    snprintf(path, PATH_MAX, "%s", value != NULL ? value : "");
    path[strcspn(path, " ")] = 0;
}

static void say_that_it_struck(void) {
    char path[PATH_MAX];
    path_of_struck(path);
    if (*path != 0) {
        syscall(SYS_close, (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT, 0600));
    }
}

static void pause_a_test(void) {
    char path[PATH_MAX];
    path_of_struck(path);
    for (int tenths = 0; tenths < (*path != 0 ? 600 : 50); ++tenths) {
        if (*path != 0 && access(path, F_OK) != 0) {
            return;
        }
        usleep(100000);
    }
}

// Whether the call fails, with errno set; it may not return at all.
static int strike(const char *call, const char *path) {
    static _Atomic long calls;
    const char *value = odd("strike");
    char action[16], wanted[16], part[PATH_MAX] = "";
    long number;
    if (value == NULL) {
        return 0;
    }
    if (sscanf(value, "%15[^:]:%15[^:]:%ld:%4095[^ ]", action, wanted, &number, part) < 3) {
        abort();
    }
    if (strcmp(call, wanted) != 0 || strstr(path, part) == NULL || !is_chosen_rank()) {
        return 0;
    }
    const long at = ++calls;
    const int is_full = strcmp(action, "full") == 0;
    const int is_broken = strcmp(action, "broken") == 0;
    if (at < number || (at > number && !is_full && !is_broken)) {
        return 0;
    }
    say_that_it_struck();
    static const struct {
        const char *name;
        int number;
    } signals[] = {{"kill", SIGKILL}, {"term", SIGTERM}, {"usr1", SIGUSR1}, {"usr2", SIGUSR2},
                   {"twice", SIGTERM}, {"twice", SIGUSR1}};
    int sent = 0;
    for (size_t place = 0; place < sizeof signals / sizeof *signals; ++place) {
        if (strcmp(action, signals[place].name) == 0) {
            kill(getpid(), signals[place].number);
            sent = 1;
        }
    }
    if (sent) {
        return 0;
    }
    if (strcmp(action, "pause") == 0) {
        pause_a_test();
    } else if (strcmp(action, "cut") == 0) {
        char victim[PATH_MAX];
        snprintf(victim, sizeof victim, "%s", odd("cut") != NULL ? odd("cut") : path);
        victim[strcspn(victim, " ")] = 0;
        if (truncate(victim, 4096) != 0) {
            abort();
        }
    } else if (is_full || strcmp(action, "ENOSPC") == 0) {
        errno = ENOSPC;
        return 1;
    } else if (is_broken || strcmp(action, "EIO") == 0) {
        errno = EIO;
        return 1;
    } else if (strcmp(action, "hang") == 0) {
        for (;;) {
            sleep(1);
        }
    } else {
        abort();
    }
    return 0;
}

static int strike_file(const char *call, int descriptor) {
    char path[PATH_MAX];
    struct stat found;
    if (odd("strike") == NULL || fstat(descriptor, &found) != 0 || S_ISFIFO(found.st_mode) ||
        S_ISSOCK(found.st_mode) || S_ISCHR(found.st_mode)) {
        return 0;
    }
    path_of(descriptor, path);
    return strike(call, path);
}

int flock(int descriptor, int operation) {
    const char *value = odd("flock");
    if (value != NULL) {
        return *value == '0' ? 0 : failed(value);
    }
    return ORIGINAL("flock", int, int, int)(descriptor, operation);
}

static void full_path(int directory, const char *path, char *out) {
    char base[PATH_MAX] = "";
    if (path[0] != '/' && directory == AT_FDCWD) {
        if (getcwd(base, sizeof base) == NULL) {
            abort();
        }
    } else if (path[0] != '/') {
        path_of(directory, base);
    }
    snprintf(out, 2 * PATH_MAX, "%s%s%s", base, path[0] != '/' ? "/" : "", path);
}

static int strike_name(const char *call, int directory, const char *path) {
    char full[2 * PATH_MAX];
    if (odd("strike") == NULL) {
        return 0;
    }
    full_path(directory, path, full);
    return strike(call, full);
}

static void parent_of(int directory, const char *path, char *out) {
    char full[2 * PATH_MAX];
    full_path(directory, path, full);
    char *slash = strrchr(full, '/');
    if (slash != NULL && slash != full) {
        *slash = 0;
    }
    if (realpath(full, out) == NULL) {
        abort();
    }
}

int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags) {
    const char *value = odd("link");
    if (strike_name("link", to_directory, to)) {
        return -1;
    }
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
    if (strike_name("rename", to_directory, to)) {
        return -1;
    }
    return value != NULL ? failed(value)
                         : ORIGINAL("renameat2", int, int, const char *, int, const char *, unsigned)(
                               from_directory, from, to_directory, to, flags);
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    return strike_name("rename", to_directory, to)
               ? -1
               : ORIGINAL("renameat", int, int, const char *, int, const char *)(from_directory, from,
                                                                                 to_directory, to);
}

int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int mkdirat(int directory, const char *path, mode_t mode) {
    return strike_name("mkdir", directory, path)
               ? -1
               : ORIGINAL("mkdirat", int, int, const char *, mode_t)(directory, path, mode);
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

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
    char path[PATH_MAX], wanted[PATH_MAX];
    path_of(descriptor, path);
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
    if (descriptor >= 0 && strike_file("map", descriptor)) {
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
    if (strike_file("reserve", descriptor)) {
        return errno;
    }
    return value != NULL ? atoi(value)
                         : ORIGINAL("posix_fallocate", int, int, off_t, off_t)(descriptor, offset, size);
}

int posix_fallocate64(int descriptor, off_t offset, off_t size) {
    return posix_fallocate(descriptor, offset, size);
}

int ftruncate(int descriptor, off_t size) {
    return strike_file("reserve", descriptor)
               ? -1
               : ORIGINAL("ftruncate", int, int, off_t)(descriptor, size);
}

int ftruncate64(int descriptor, off_t size) {
    return ftruncate(descriptor, size);
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

int unlinkat(int directory, const char *path, int flags) {
    if (odd("unlink") != NULL) {
        usleep(1000);
    }
    return strike_name("unlink", directory, path)
               ? -1
               : ORIGINAL("unlinkat", int, int, const char *, int)(directory, path, flags);
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

ssize_t read(int descriptor, void *data, size_t size) {
    return strike_file("read", descriptor)
               ? -1
               : ORIGINAL("read", ssize_t, int, void *, size_t)(descriptor, data, size);
}

ssize_t pread(int descriptor, void *data, size_t size, off_t offset) {
    return strike_file("read", descriptor)
               ? -1
               : ORIGINAL("pread", ssize_t, int, void *, size_t, off_t)(descriptor, data, size,
                                                                        offset);
}

ssize_t pread64(int descriptor, void *data, size_t size, off_t offset) {
    return pread(descriptor, data, size, offset);
}

ssize_t preadv2(int descriptor, const struct iovec *pieces, int count, off_t offset, int flags) {
    return strike_file("read", descriptor)
               ? -1
               : ORIGINAL("preadv2", ssize_t, int, const struct iovec *, int, off_t, int)(
                     descriptor, pieces, count, offset, flags);
}

ssize_t preadv64v2(int descriptor, const struct iovec *pieces, int count, off_t offset, int flags) {
    return preadv2(descriptor, pieces, count, offset, flags);
}

ssize_t preadv(int descriptor, const struct iovec *pieces, int count, off_t offset) {
    return preadv2(descriptor, pieces, count, offset, 0);
}

ssize_t preadv64(int descriptor, const struct iovec *pieces, int count, off_t offset) {
    return preadv2(descriptor, pieces, count, offset, 0);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    return strike_file("write", descriptor)
               ? -1
               : ORIGINAL("write", ssize_t, int, const void *, size_t)(descriptor, data, size);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    return strike_file("write", descriptor)
               ? -1
               : ORIGINAL("pwrite", ssize_t, int, const void *, size_t, off_t)(descriptor, data,
                                                                               size, offset);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off_t offset) {
    return pwrite(descriptor, data, size, offset);
}

ssize_t pwritev2(int descriptor, const struct iovec *pieces, int count, off_t offset, int flags) {
    return strike_file("write", descriptor)
               ? -1
               : ORIGINAL("pwritev2", ssize_t, int, const struct iovec *, int, off_t, int)(
                     descriptor, pieces, count, offset, flags);
}

ssize_t pwritev64v2(int descriptor, const struct iovec *pieces, int count, off_t offset, int flags) {
    return pwritev2(descriptor, pieces, count, offset, flags);
}

static int sync_file(const char *name, int descriptor) {
    struct stat found;
    if (strike_file("fsync", descriptor)) {
        return -1;
    }
    if (odd("dirsync") != NULL && fstat(descriptor, &found) == 0 && S_ISDIR(found.st_mode)) {
        return failed(odd("dirsync"));
    }
    return ORIGINAL(name, int, int)(descriptor);
}

int fsync(int descriptor) { return sync_file("fsync", descriptor); }

int fdatasync(int descriptor) { return sync_file("fdatasync", descriptor); }
