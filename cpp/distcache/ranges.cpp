#include "distcache/ranges.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <limits>

namespace distcache {
namespace {

// Reads bytes [begin, begin + size); an offset of a corrupt file may be anything.
int read_whole(int descriptor, std::int64_t begin, std::int64_t size, unsigned char* out) {
    if (begin < 0 || begin > std::numeric_limits<std::int64_t>::max() - size) {
        return RangesOutcome::file_ends;
    }
    for (std::int64_t done = 0; done < size;) {
        const ssize_t count =
            ::pread(descriptor, out + done, static_cast<std::size_t>(size - done), begin + done);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            return count < 0 ? errno : RangesOutcome::file_ends;
        }
        done += count;
    }
    return 0;
}

}  // namespace

RangesOutcome read_ranges(int descriptor, std::span<const std::int64_t> begins,
                          std::span<const std::int64_t> sizes, unsigned char* out) {
    RangesOutcome outcome;
    for (std::size_t i = 0; i < begins.size();) {
        const std::int64_t begin = begins[i];
        std::int64_t size = sizes[i];
        for (++i; i < begins.size() && begins[i] - begin == size; ++i) {
            size += sizes[i];
        }
        outcome.error = read_whole(descriptor, begin, size, out + outcome.done);
        if (outcome.error != 0) {
            return outcome;
        }
        outcome.done += size;
    }
    return outcome;
}

}  // namespace distcache
