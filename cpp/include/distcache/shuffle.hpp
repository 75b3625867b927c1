#pragma once

#include <cstdint>
#include <span>

#include "distcache/mt19937.hpp"

namespace distcache {

/// The Fisher-Yates shuffle of NumPy's legacy `RandomState.shuffle`: for step i from the last
/// position down to 1, swap value i with value j(i), where j(i) is drawn from [0, i] by masking
/// words of the generator and rejecting those above i. Steps above 2^32 - 1 draw 64-bit words.

/// Shuffle in place, leaving `generator` where NumPy's would be.
template <class T>
void shuffle(std::span<T> values, Mt19937& generator);

/// Move `generator` past the draws that shuffling `size` values takes, without the values.
void skip_shuffle(std::uint64_t size, Mt19937& generator);

/// The draws j(first), j(first - 1), ... of `draws.size()` consecutive steps.
/// Requires draws.size() <= first.
void draw(std::uint64_t first, std::span<std::uint64_t> draws, Mt19937& generator);

extern template void shuffle(std::span<std::int32_t>, Mt19937&);
extern template void shuffle(std::span<std::uint32_t>, Mt19937&);
extern template void shuffle(std::span<std::int64_t>, Mt19937&);

}  // namespace distcache
