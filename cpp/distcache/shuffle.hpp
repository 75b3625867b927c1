#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "distcache/huge_memory.hpp"
#include "distcache/instructions.hpp"
#include "distcache/mt19937.hpp"
#include "distcache/unaligned.hpp"

namespace distcache {

/// The Fisher-Yates shuffle of NumPy's legacy `RandomState.shuffle`: for step i from the last
/// position down to 1, swap value i with value j(i), where j(i) is drawn from [0, i] by masking
/// words of the generator and rejecting those above i. Steps above 2^32 - 1 draw 64-bit words.

/// A shuffle can be cut in two: the steps down to `stop`, then a shuffle of the first `stop`
/// values. The second half is a permutation that does not depend on the values, so that it can be
/// computed at the same time, by a generator that has skipped the first, on positions.

/// How a shuffle that is larger than the caches is partitioned: into fewer than 65,535 regions.
/// What its lists take is foreseen by `distcache.plan.memory`.
struct Partitioning {
    unsigned region_bits;    ///< 2^region_bits values are a region, which fits into the cache
    std::uint64_t fraction;  ///< a block has 1/fraction of the steps that are left
    std::uint64_t
        smallest;  ///< fewer values are shuffled as they are; at least a region, and `fraction`
    std::size_t list = 0;  ///< parcels that a list holds, above 512; 0: as many as are expected
};

/// For cores whose second cache holds a region; `partitioning_for` has regions for smaller ones.
template <class T>
inline constexpr Partitioning partitioning_of =
    sizeof(T) == 4 ? Partitioning{18, 8, 1 << 22} : Partitioning{17, 8, 1 << 21};

/// For values of a size, on a core with a second cache of so many bytes; 0 if that is not known.
template <class T>
Partitioning partitioning_for(std::uint64_t size, long cache);

/// What a shuffle may be told. The memory of `space` is used again by the next shuffle.
struct ShuffleOptions {
    Instructions instructions = best_instructions();
    HugeMemory* space = nullptr;
    const Partitioning* partitioning = nullptr;
};

/// Shuffle in place: the steps from the last position down to `stop`, which is at least 1. Leaves
/// `generator` where NumPy's would be.
template <class T>
void shuffle(std::span<T> values, std::uint64_t stop, Mt19937& generator,
             const ShuffleOptions& options = {});

/// Move `generator` past the draws of those steps for `size` values, without the values.
void skip_shuffle(std::uint64_t size, std::uint64_t stop, Mt19937& generator,
                  Instructions instructions = best_instructions());

/// The draws j(first), j(first - 1), ... of `draws.size()` consecutive steps.
/// Requires draws.size() <= first.
void draw(std::uint64_t first, std::span<std::uint64_t> draws, Mt19937& generator);

/// out[i] = values[positions[i]]; requires every position to lie within the values.
template <class Position>
void gather(UnalignedView<std::int32_t> values, std::span<const Position> positions,
            std::span<std::int32_t> out);

extern template void gather(UnalignedView<std::int32_t>, std::span<const std::int32_t>,
                            std::span<std::int32_t>);
extern template void gather(UnalignedView<std::int32_t>, std::span<const std::int64_t>,
                            std::span<std::int32_t>);
extern template Partitioning partitioning_for<std::int32_t>(std::uint64_t, long);
extern template Partitioning partitioning_for<std::int64_t>(std::uint64_t, long);
extern template void shuffle(std::span<std::int32_t>, std::uint64_t, Mt19937&,
                             const ShuffleOptions&);
extern template void shuffle(std::span<std::uint32_t>, std::uint64_t, Mt19937&,
                             const ShuffleOptions&);
extern template void shuffle(std::span<std::int64_t>, std::uint64_t, Mt19937&,
                             const ShuffleOptions&);

}  // namespace distcache
