#pragma once

#include <cstddef>
#include <cstdint>

#include "distcache/instructions.hpp"
#include "distcache/mt19937.hpp"

namespace distcache {

/// Steps whose draws are made at a time: their targets, of 64 bytes each, stay in a core's cache.
inline constexpr std::size_t block_steps = 512;

/// What `draw_narrow` may write behind its draws.
inline constexpr std::size_t draw_slack = 16;

/// Steps first, first - 1, ... that share the mask of `first`, at most `wanted`.
std::size_t steps_with_one_mask(std::uint64_t first, std::size_t wanted);

/// The draws of `count` steps with one mask, below 2^32; `draws` has room for `draw_slack` more.
void draw_narrow(std::uint32_t first, std::size_t count, std::uint32_t* draws, Mt19937& generator,
                 Instructions instructions);

/// The same from 64-bit words, as NumPy draws above 2^32 - 1.
void draw_wide(std::uint64_t first, std::size_t count, std::uint64_t* draws, Mt19937& generator);

/// The draws that all words but the last few give: see `draw_narrow`.
struct Drawn {
    std::size_t words;
    std::size_t draws;
};

#if DISTCACHE_HAS_AVX512
/// Of `size` words, as many as fill whole vectors; no more draws than words are made.
Drawn draw_avx512(const std::uint32_t* words, std::size_t size, std::uint32_t first,
                  std::size_t done, std::size_t count, std::uint32_t* draws);
Drawn draw_avx2(const std::uint32_t* words, std::size_t size, std::uint32_t first, std::size_t done,
                std::size_t count, std::uint32_t* draws);
#endif

}  // namespace distcache
