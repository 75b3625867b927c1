#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "distcache/mt19937.hpp"

namespace distcache {

/// One shuffle in parallel. Shuffling the identity 0, 1, ..., step i leaves at position i the value
/// that position j(i) had just before, where j(i) is its draw. That value was put there by the
/// latest earlier step that drew j(i), which is the *link* of step i, or it is j(i) itself if there
/// is none. The value that the linked step put there is the one that its own position had, and so
/// on: following the links gives the final value. A rank finds the links of its own positions alone
/// by going through all draws. Positions have 32 bits; `no_link` is none of them.
inline constexpr std::uint32_t no_link = 0xffffffff;

/// Of the steps first, first - 1, ... down to first - count + 1, those whose draw lies in [begin,
/// end), in this order, and their draws. Both arrays have room for `count`; returns how many.
/// Requires 1 <= count <= first < no_link.
std::size_t draws_within(std::uint32_t first, std::uint32_t count, std::uint32_t begin,
                         std::uint32_t end, std::span<std::uint32_t> steps,
                         std::span<std::uint32_t> draws, Mt19937& generator);

/// Link steps, of which `latest` has the latest before them for each position from `begin` on, or
/// `no_link`. A step that draws itself is no link for its position: nothing draws it later.
/// Requires equal sizes, and draws of positions that `latest` has.
void link_steps(std::span<const std::uint32_t> steps, std::span<const std::uint32_t> draws,
                std::uint32_t begin, std::span<std::uint32_t> latest,
                std::span<std::uint32_t> links);

/// Put the numbers 0, 1, ... of keys into the order of the ranges that the keys lie in, range r
/// being [bounds[r], bounds[r + 1]); those of one range stay in order. `counts` has one entry for
/// each range. Requires keys that lie in one of them.
void group_by_range(std::span<const std::uint32_t> keys, std::span<const std::int64_t> bounds,
                    std::span<std::uint32_t> order, std::span<std::int64_t> counts);

}  // namespace distcache
