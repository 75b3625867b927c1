#include "distcache/shuffle.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <limits>
#include <utility>

namespace distcache {
namespace {

constexpr std::size_t block_steps = 512;  // 512 targets of 64 bytes stay in the first-level cache
constexpr std::uint64_t narrow_max = std::numeric_limits<std::uint32_t>::max();

// Steps first, first - 1, ... that share the mask of `first`, at most `wanted`.
std::size_t steps_with_one_mask(std::uint64_t first, std::size_t wanted) {
    const std::uint64_t below = std::bit_floor(first) - 1;
    return static_cast<std::size_t>(std::min<std::uint64_t>(wanted, first - below));
}

// Draw for consecutive steps with one mask. A rejected word is overwritten by the next: the
// loop has no branch to mispredict, and `ready` never offers more words than steps are left.
template <class Draw>
void draw_narrow(std::uint32_t first, std::size_t count, Draw* draws, Mt19937& generator) {
    const std::uint32_t mask =
        static_cast<std::uint32_t>(std::bit_ceil(std::uint64_t{first} + 1) - 1);
    std::uint32_t done = 0;
    while (done < count) {
        const auto words = generator.ready();
        const std::size_t usable = std::min(words.size(), count - done);
        for (std::size_t k = 0; k < usable; ++k) {
            const std::uint32_t value = words[k] & mask;
            draws[done] = value;
            done += static_cast<std::uint32_t>(value <= first - done);
        }
        generator.consume(usable);
    }
}

void draw_wide(std::uint64_t first, std::size_t count, std::uint64_t* draws, Mt19937& generator) {
    const std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(first);
    for (std::size_t done = 0; done < count;) {
        const std::uint64_t value = generator.next64() & mask;
        draws[done] = value;
        done += static_cast<std::size_t>(value <= first - done);
    }
}

// A run of draws, prefetched, waiting to be swapped.
template <class Draw>
struct Block {
    std::uint64_t first = 0;
    std::size_t count = 0;
    std::array<Draw, block_steps> draws;

    // The steps from `step` down to `stop`, as far as they share a mask and fit.
    void fill(std::uint64_t step, std::uint64_t stop, Mt19937& generator) {
        first = step;
        count = step < stop ? 0
                            : steps_with_one_mask(
                                  step, std::min<std::uint64_t>(block_steps, step - stop + 1));
        if (count == 0) {
            return;
        }
        if constexpr (sizeof(Draw) == sizeof(std::uint32_t)) {
            draw_narrow(static_cast<std::uint32_t>(step), count, draws.data(), generator);
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
void shuffle_steps(std::uint64_t first, std::uint64_t stop, T* values, Mt19937& generator) {
    std::array<Block<Draw>, 2> blocks;
    blocks[0].fill(first, stop, generator);
    blocks[0].prefetch(values);
    for (std::size_t turn = 0; blocks[turn].count > 0; turn ^= 1) {
        const auto& current = blocks[turn];
        auto& next = blocks[turn ^ 1];
        next.fill(current.first - current.count, stop, generator);
        next.prefetch(values);
        current.swap(values);
    }
}

}  // namespace

template <class T>
void shuffle(std::span<T> values, std::uint64_t stop, Mt19937& generator) {
    if (values.size() < 2) {
        return;
    }
    std::uint64_t first = values.size() - 1;
    if (first > narrow_max) {
        const std::uint64_t wide_stop = std::max(stop, narrow_max + 1);
        shuffle_steps<std::uint64_t>(first, wide_stop, values.data(), generator);
        first = narrow_max;
    }
    shuffle_steps<std::uint32_t>(first, stop, values.data(), generator);
}

void skip_shuffle(std::uint64_t size, std::uint64_t stop, Mt19937& generator) {
    Block<std::uint32_t> narrow;
    Block<std::uint64_t> wide;
    std::uint64_t step = size < 2 ? 0 : size - 1;
    for (; step > narrow_max && step >= stop; step -= wide.count) {
        wide.fill(step, std::max(stop, narrow_max + 1), generator);
    }
    for (; step >= stop; step -= narrow.count) {
        narrow.fill(step, stop, generator);
    }
}

template <class Position>
void gather(std::span<const std::int64_t> values, std::span<const Position> positions,
            std::span<std::int64_t> out) {
    constexpr std::size_t ahead = 64;  // positions between a prefetch and its use
    const auto at = [&](std::size_t i) { return static_cast<std::size_t>(positions[i]); };
    const std::size_t size = positions.size();
    for (std::size_t i = 0; i < size; ++i) {
        if (i + ahead < size) {
            __builtin_prefetch(values.data() + at(i + ahead));
        }
        out[i] = values[at(i)];
    }
}

void draw(std::uint64_t first, std::span<std::uint64_t> draws, Mt19937& generator) {
    while (!draws.empty()) {
        const std::size_t count = steps_with_one_mask(first, draws.size());
        if (first > narrow_max) {
            draw_wide(first, count, draws.data(), generator);
        } else {
            draw_narrow(static_cast<std::uint32_t>(first), count, draws.data(), generator);
        }
        draws = draws.subspan(count);
        first -= count;
    }
}

template void gather(std::span<const std::int64_t>, std::span<const std::int32_t>,
                     std::span<std::int64_t>);
template void gather(std::span<const std::int64_t>, std::span<const std::int64_t>,
                     std::span<std::int64_t>);
template void shuffle(std::span<std::int32_t>, std::uint64_t, Mt19937&);
template void shuffle(std::span<std::uint32_t>, std::uint64_t, Mt19937&);
template void shuffle(std::span<std::int64_t>, std::uint64_t, Mt19937&);

}  // namespace distcache
