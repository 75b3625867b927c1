#pragma once

#include <cstdint>
#include <span>

namespace distcache {

/// How reading ranges ended: the bytes that were read, and 0, an error number, or `file_ends`.
struct RangesOutcome {
    static constexpr int file_ends = -1;
    std::int64_t done = 0;
    int error = 0;
};

/// Read ranges of bytes of a file, one after the other, into `out`, which holds them all. Ranges
/// that continue one another are read together.
RangesOutcome read_ranges(int descriptor, std::span<const std::int64_t> begins,
                          std::span<const std::int64_t> sizes, unsigned char* out);

}  // namespace distcache
