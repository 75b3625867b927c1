#include "distcache/idx.hpp"

#include "distcache/dispatch.hpp"

namespace distcache {
namespace {

// Offsets of a corrupt file may hold anything: compare modulo 2^64, where nothing overflows.
std::uint64_t expected_offset(UnalignedView<std::int32_t> lengths,
                              UnalignedView<std::int64_t> offsets, std::int64_t i,
                              std::int64_t item_size) {
    if (i == 0) {
        return 0;
    }
    return static_cast<std::uint64_t>(offsets[i - 1]) +
           static_cast<std::uint64_t>(std::int64_t{lengths[i - 1]} * item_size);
}

bool is_misplaced(UnalignedView<std::int32_t> lengths, UnalignedView<std::int64_t> offsets,
                  std::int64_t i, std::int64_t item_size) {
    return static_cast<std::uint64_t>(offsets[i]) !=
           expected_offset(lengths, offsets, i, item_size);
}

// Counting has no early exit and so vectorises; the search for the first fault runs only if any.
struct CountFaults {
    template <Instructions>
    DISTCACHE_KERNEL void run(UnalignedView<std::int32_t> lengths,
                              UnalignedView<std::int64_t> offsets, std::int64_t begin,
                              std::int64_t end, std::int64_t item_size, SequenceFacts* facts) {
        std::int64_t tokens = 0;
        std::int64_t empty = 0;
        std::int64_t negative = 0;
        std::int64_t misplaced = 0;
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t length = lengths[i];
            const std::uint64_t expected = static_cast<std::uint64_t>(offsets[i - 1]) +
                                           static_cast<std::uint64_t>(lengths[i - 1] * item_size);
            tokens += length;
            empty += length == 0;
            negative += length < 0;
            misplaced += static_cast<std::uint64_t>(offsets[i]) != expected;
        }
        facts->tokens += tokens;
        facts->empty += empty;
        facts->negative_count += negative;
        facts->misplaced_count += misplaced;
    }
};

void find_first_faults(UnalignedView<std::int32_t> lengths, UnalignedView<std::int64_t> offsets,
                       std::int64_t begin, std::int64_t end, std::int64_t item_size,
                       SequenceFacts& facts) {
    for (std::int64_t i = begin; facts.negative_count > 0 && i < end; ++i) {
        if (lengths[i] < 0) {
            facts.first_negative = i;
            break;
        }
    }
    for (std::int64_t i = begin; facts.misplaced_count > 0 && i < end; ++i) {
        if (is_misplaced(lengths, offsets, i, item_size)) {
            facts.first_misplaced = i;
            break;
        }
    }
}

}  // namespace

SequenceFacts check_sequences(UnalignedView<std::int32_t> lengths,
                              UnalignedView<std::int64_t> offsets, std::int64_t begin,
                              std::int64_t end, std::int64_t item_size) {
    SequenceFacts facts;
    if (begin >= end) {
        return facts;
    }
    std::int64_t rest = begin;
    if (begin == 0) {
        facts.tokens = lengths[0];
        facts.empty = lengths[0] == 0;
        facts.negative_count = lengths[0] < 0;
        facts.misplaced_count = is_misplaced(lengths, offsets, 0, item_size);
        rest = 1;
    }
    dispatched<CountFaults>(lengths, offsets, rest, end, item_size, &facts);
    find_first_faults(lengths, offsets, begin, end, item_size, facts);
    return facts;
}

OutsideFacts find_outside(UnalignedView<std::int32_t> lengths, UnalignedView<std::int64_t> offsets,
                          std::int64_t begin, std::int64_t end, std::int64_t item_size,
                          std::int64_t size) {
    OutsideFacts facts;
    for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t offset = offsets[i];
        const std::int64_t bytes = lengths[i] * item_size;
        if (offset < 0 || bytes > size || offset > size - bytes) {
            facts.first = facts.count++ == 0 ? i : facts.first;
        }
    }
    return facts;
}

std::int64_t first_descent(UnalignedView<std::int64_t> bounds, std::int64_t begin,
                           std::int64_t end) {
    for (std::int64_t i = begin > 0 ? begin : 1; i < end; ++i) {
        if (bounds[i] < bounds[i - 1]) {
            return i;
        }
    }
    return -1;
}

}  // namespace distcache
