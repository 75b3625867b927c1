#pragma once

#include <cstddef>
#include <cstdint>

#include "distcache/blend.hpp"
#include "distcache/instructions.hpp"

namespace distcache::blending {

inline constexpr std::size_t lanes = 8;  // doubles of the widest vector

constexpr std::size_t padded_size(std::size_t size) {
    return (size + lanes - 1) / lanes * lanes;
}

/// Consecutive steps; only these corpora can win.
///
/// The arrays of corpora are in ascending order and have room for `padded` entries; weights and
/// counts are padded with 0 and infinity, and aligned to a vector of 64 bytes.
struct Window {
    const double* weights;
    double* counts;               ///< how often each has been taken, as doubles
    std::int64_t* taken;          ///< and as integers
    const std::int64_t* sizes;    ///< how often each may be taken
    const std::int32_t* corpora;  ///< number of each corpus
    std::size_t size;
    std::size_t padded;
    double bound;                  ///< no other corpus has an error that reaches this
    std::int16_t* picked_corpora;  ///< where steps are written down, from `step` on
    std::int64_t* picked_samples;
    std::int64_t step;  ///< the next one; moved by `run`
    std::int64_t end;
    double lowest;  ///< the smallest error that has won
};

/// Takes steps until the end, until no error reaches the bound, or until a corpus is spent.
using Run = void (*)(Window&);

/// The places of `padded` weights and counts whose error reaches `bound` at a step, ascending.
/// `places` has room for `lanes` entries more than are found.
using Reaching = std::size_t (*)(const double* weights, const double* counts, std::size_t padded,
                                 double step, double bound, std::int32_t* places);

/// The largest error at a step.
using Largest = double (*)(const double* weights, const double* counts, std::size_t padded,
                           double step);

struct Kernels {
    Run run;
    Reaching reaching;
    Largest largest;
};

Kernels kernels(Instructions instructions, Arithmetic arithmetic);

/// Runs two corpora alone, of which neither is spent before the end.
Run pair_kernel(Arithmetic arithmetic);

/// Runs any number of corpora, with any instructions: their counts are in memory.
void run_in_memory(Window& window, Arithmetic arithmetic);

#if DISTCACHE_HAS_AVX512
Kernels avx2_kernels(Arithmetic arithmetic);
Kernels avx512_kernels(Arithmetic arithmetic);
#endif

/// Writes a pick down, and returns whether its corpus is spent.
inline bool write_down(Window& window, std::int64_t index, std::size_t place) {
    const std::int64_t sample = window.taken[place];
    window.picked_corpora[index] = static_cast<std::int16_t>(window.corpora[place]);
    window.picked_samples[index] = sample;
    window.taken[place] = sample + 1;
    return sample + 1 == window.sizes[place];
}

/// Megatron-Core multiplies weights by max(step, 1).
inline double factor(std::int64_t step) {
    return static_cast<double>(step < 1 ? 1 : step);
}

}  // namespace distcache::blending
