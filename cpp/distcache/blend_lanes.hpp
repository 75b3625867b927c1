#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "distcache/blend.hpp"

namespace distcache::blending {

inline constexpr std::size_t stretches = 8;       // that are run side by side
inline constexpr std::size_t most_in_lanes = 32;  // corpora; more are faster in windows
inline constexpr int count_bits = 46;             // of how often a corpus has been taken
inline constexpr std::int64_t most_taken = std::int64_t{1} << count_bits;
static_assert(most_in_lanes <= 64, "6 bits are left for the corpus");

/// Stretches of a blend, each from a state of its own, one in each lane of vectors.
///
/// The chain from one step to the next is what a blend of few corpora costs. Side by side, a step
/// of one stretch does not wait for that of another.
struct Lanes {
    const double* weights;
    std::size_t corpora;
    std::array<std::int64_t, stretches> first;  ///< first step of each stretch; at least 1
    std::int64_t steps;                         ///< of each stretch
    std::int64_t* counts;          ///< how often corpus d has been taken: [stretch][d]; moved on
    std::int16_t* picked_corpora;  ///< of steps from first[0] on; null if they are not written
    std::int64_t* picked_samples;
};

/// Whether `run_lanes` can be called.
bool has_lanes(Instructions instructions);

/// Runs all stretches. Requires 2 to `most_in_lanes` corpora, and that no step reaches
/// `most_taken`.
void run_lanes(const Lanes& lanes, Arithmetic arithmetic);

}  // namespace distcache::blending
