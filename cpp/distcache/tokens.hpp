#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace distcache {

/// Copy tokens into the type of a `.bin`, and return the index of the first that is not in
/// [0, limit), or -1. What is copied from there on is not defined. From and To are integers;
/// `limit` is at most the largest value of To plus one.
template <class From, class To>
std::int64_t narrow_tokens(std::span<const From> values, std::uint64_t limit, std::span<To> out);

/// The index of the first token that is not in [0, limit), or -1.
template <class From>
std::int64_t first_outside(std::span<const From> values, std::uint64_t limit);

}  // namespace distcache
