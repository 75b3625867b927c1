#include "distcache/shuffle.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

#include "draws.hpp"
#include "partitioned_shuffle.hpp"

namespace distcache {
namespace {

constexpr std::uint64_t narrow_max = std::numeric_limits<std::uint32_t>::max();

// A run of draws, prefetched, waiting to be swapped.
template <class Draw>
struct Block {
    std::uint64_t first = 0;
    std::size_t count = 0;
    std::array<Draw, block_steps + draw_slack> draws;

    // The steps from `step` down to `stop`, as far as they share a mask and fit.
    void fill(std::uint64_t step, std::uint64_t stop, Mt19937& generator,
              Instructions instructions) {
        first = step;
        count = step < stop ? 0
                            : steps_with_one_mask(
                                  step, std::min<std::uint64_t>(block_steps, step - stop + 1));
        if (count == 0) {
            return;
        }
        if constexpr (sizeof(Draw) == sizeof(std::uint32_t)) {
            draw_narrow(static_cast<std::uint32_t>(step), count, draws.data(), generator,
                        instructions);
        } else {
            draw_wide(step, count, draws.data(), generator);
        }
    }

    template <class T>
    void prefetch(const T* values) const {
        for (std::size_t k = 0; k < count; ++k) {
            __builtin_prefetch(values + draws[k], 1);
        }
    }

    template <class T>
    void swap(T* values) const {
        for (std::size_t k = 0; k < count; ++k) {
            std::swap(values[first - k], values[draws[k]]);
        }
    }
};

// Swap one block while the targets of the next are on their way from memory.
template <class Draw, class T>
void shuffle_steps(std::uint64_t first, std::uint64_t stop, T* values, Mt19937& generator,
                   Instructions instructions) {
    std::array<Block<Draw>, 2> blocks;
    blocks[0].fill(first, stop, generator, instructions);
    blocks[0].prefetch(values);
    for (std::size_t turn = 0; blocks[turn].count > 0; turn ^= 1) {
        const auto& current = blocks[turn];
        auto& next = blocks[turn ^ 1];
        next.fill(current.first - current.count, stop, generator, instructions);
        next.prefetch(values);
        current.swap(values);
    }
}

void draw_some(std::uint32_t first, std::span<std::uint64_t> draws, Mt19937& generator) {
    std::array<std::uint32_t, block_steps + draw_slack> narrow;
    draw_narrow(first, draws.size(), narrow.data(), generator, best_instructions());
    std::copy_n(narrow.begin(), draws.size(), draws.begin());
}

static_assert((narrow_max + 1) >> partitioning_of<std::int64_t>.region_bits <
                  PartitionedShuffle<std::int64_t>::most_regions,
              "regions are told apart by 16 bits");

long second_cache() {
    static const long size = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return size;
}

// Blocks of steps while there are more values than the caches hold; returns how many are left.
template <class T>
std::uint64_t shuffle_partitioned(T* values, std::uint64_t size, std::uint64_t stop,
                                  Mt19937& generator, const ShuffleOptions& options) {
    const Partitioning partitioning = options.partitioning != nullptr
                                          ? *options.partitioning
                                          : partitioning_for<T>(size, second_cache());
    if (size <= std::max(partitioning.smallest, stop)) {
        return size;
    }
    PartitionedShuffle<T> partitioned(values, size, generator, options.instructions, partitioning);
    HugeMemory own;
    void* const space =
        (options.space != nullptr ? *options.space : own).reserve(partitioned.space());
    if (space == nullptr) {
        return size;
    }
    partitioned.use(space);
    while (size > partitioning.smallest && size > stop) {
        size = partitioned.block(size, stop);
    }
    return size;
}

}  // namespace

template <class T>
Partitioning partitioning_for(std::uint64_t size, long cache) {
    Partitioning found = partitioning_of<T>;
    const bool small = 0 < cache && cache < static_cast<long>(sizeof(T) << found.region_bits);
    const bool few = size >> (found.region_bits - 1) < PartitionedShuffle<T>::most_regions;
    found.region_bits -= small && few ? 1 : 0;
    return found;
}

template <class T>
void shuffle(std::span<T> values, std::uint64_t stop, Mt19937& generator,
             const ShuffleOptions& options) {
    std::uint64_t size = values.size();
    if (size > narrow_max + 1) {
        const std::uint64_t wide_stop = std::max(stop, narrow_max + 1);
        shuffle_steps<std::uint64_t>(size - 1, wide_stop, values.data(), generator,
                                     options.instructions);
        size = wide_stop;
    }
    size = shuffle_partitioned(values.data(), size, stop, generator, options);
    if (size > stop) {
        shuffle_steps<std::uint32_t>(size - 1, stop, values.data(), generator,
                                     options.instructions);
    }
}

void skip_shuffle(std::uint64_t size, std::uint64_t stop, Mt19937& generator,
                  Instructions instructions) {
    Block<std::uint32_t> narrow;
    Block<std::uint64_t> wide;
    std::uint64_t step = size < 2 ? 0 : size - 1;
    for (; step > narrow_max && step >= stop; step -= wide.count) {
        wide.fill(step, std::max(stop, narrow_max + 1), generator, instructions);
    }
    for (; step >= stop; step -= narrow.count) {
        narrow.fill(step, stop, generator, instructions);
    }
}

template <class Position>
void gather(UnalignedView<std::int32_t> values, std::span<const Position> positions,
            std::span<std::int32_t> out) {
    constexpr std::size_t ahead = 64;  // positions between a prefetch and its use
    const std::size_t size = positions.size();
    for (std::size_t i = 0; i < size; ++i) {
        if (i + ahead < size) {
            values.prefetch(positions[i + ahead]);
        }
        out[i] = values[positions[i]];
    }
}

void draw(std::uint64_t first, std::span<std::uint64_t> draws, Mt19937& generator) {
    while (!draws.empty()) {
        const std::size_t count = steps_with_one_mask(first, std::min(draws.size(), block_steps));
        if (first > narrow_max) {
            draw_wide(first, count, draws.data(), generator);
        } else {
            draw_some(static_cast<std::uint32_t>(first), draws.first(count), generator);
        }
        draws = draws.subspan(count);
        first -= count;
    }
}

template void gather(UnalignedView<std::int32_t>, std::span<const std::int32_t>,
                     std::span<std::int32_t>);
template void gather(UnalignedView<std::int32_t>, std::span<const std::int64_t>,
                     std::span<std::int32_t>);
template Partitioning partitioning_for<std::int32_t>(std::uint64_t, long);
template Partitioning partitioning_for<std::uint32_t>(std::uint64_t, long);
template Partitioning partitioning_for<std::int64_t>(std::uint64_t, long);
template void shuffle(std::span<std::int32_t>, std::uint64_t, Mt19937&, const ShuffleOptions&);
template void shuffle(std::span<std::uint32_t>, std::uint64_t, Mt19937&, const ShuffleOptions&);
template void shuffle(std::span<std::int64_t>, std::uint64_t, Mt19937&, const ShuffleOptions&);

}  // namespace distcache
