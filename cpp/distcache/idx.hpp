#pragma once

#include <cstdint>

#include "distcache/unaligned.hpp"

namespace distcache {

/// What a range of sequences of an `.idx` file shows. Faults are counted, and the first is named
/// by its index, or -1.
struct SequenceFacts {
    std::int64_t tokens = 0;          ///< sum of the lengths, in tokens
    std::int64_t empty = 0;           ///< sequences of length 0
    std::int64_t negative_count = 0;  ///< lengths below 0
    std::int64_t first_negative = -1;
    std::int64_t misplaced_count = 0;  ///< offsets that are not the running sum of lengths
    std::int64_t first_misplaced = -1;
};

/// Check sequences [begin, end): lengths are not negative, offset 0 is 0, and every other offset is
/// the one before it plus that sequence's bytes. Ranges can be checked by different ranks.
SequenceFacts check_sequences(UnalignedView<std::int32_t> lengths,
                              UnalignedView<std::int64_t> offsets, std::int64_t begin,
                              std::int64_t end, std::int64_t item_size);

/// Sequences that do not lie within the bytes that they point into; the first by its index, or -1.
struct OutsideFacts {
    std::int64_t count = 0;
    std::int64_t first = -1;
};

/// Check where sequences [begin, end) of a view lie: whole within `size` bytes, in any order.
/// Lengths are not negative.
OutsideFacts find_outside(UnalignedView<std::int32_t> lengths, UnalignedView<std::int64_t> offsets,
                          std::int64_t begin, std::int64_t end, std::int64_t item_size,
                          std::int64_t size);

/// The first i in [begin, end) with i > 0 and bounds[i] < bounds[i - 1], or -1.
std::int64_t first_descent(UnalignedView<std::int64_t> bounds, std::int64_t begin,
                           std::int64_t end);

}  // namespace distcache
