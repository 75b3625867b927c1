#include "distcache/tokens.hpp"

#include <algorithm>

namespace distcache {
namespace {

// Small enough for the second look, which finds the token, to read from the nearest cache.
constexpr std::size_t kBlock = 4096;

// A negative token becomes a number above every limit.
template <class From>
bool is_outside(From value, std::uint64_t limit) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(value)) >= limit;
}

// A u64 beyond 2^63 must not wrap around when it goes through a signed type.
template <>
bool is_outside(std::uint64_t value, std::uint64_t limit) {
    return value >= limit;
}

template <class From>
std::int64_t find_outside(std::span<const From> block, std::uint64_t limit, std::size_t begin) {
    const auto found = std::find_if(block.begin(), block.end(),
                                    [limit](From value) { return is_outside(value, limit); });
    return static_cast<std::int64_t>(begin) + (found - block.begin());
}

// Without an early exit the loops vectorise.
template <class From>
bool any_outside(std::span<const From> block, std::uint64_t limit) {
    bool outside = false;
    for (const From value : block) {
        outside |= is_outside(value, limit);
    }
    return outside;
}

template <class From, class To>
bool copy_block(std::span<const From> block, std::uint64_t limit, To* out) {
    bool outside = false;
    for (std::size_t i = 0; i < block.size(); ++i) {
        outside |= is_outside(block[i], limit);
        out[i] = static_cast<To>(block[i]);
    }
    return outside;
}

}  // namespace

template <class From, class To>
std::int64_t narrow_tokens(std::span<const From> values, std::uint64_t limit, std::span<To> out) {
    for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
        const auto block = values.subspan(begin, std::min(kBlock, values.size() - begin));
        if (copy_block(block, limit, out.data() + begin)) {
            return find_outside(block, limit, begin);
        }
    }
    return -1;
}

template <class From>
std::int64_t first_outside(std::span<const From> values, std::uint64_t limit) {
    for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
        const auto block = values.subspan(begin, std::min(kBlock, values.size() - begin));
        if (any_outside(block, limit)) {
            return find_outside(block, limit, begin);
        }
    }
    return -1;
}

#define DISTCACHE_NARROW_TO(From, To)                                                   \
    template std::int64_t narrow_tokens<From, To>(std::span<const From>, std::uint64_t, \
                                                  std::span<To>);
#define DISTCACHE_NARROW(From)                                                       \
    template std::int64_t first_outside<From>(std::span<const From>, std::uint64_t); \
    DISTCACHE_NARROW_TO(From, std::uint8_t)                                          \
    DISTCACHE_NARROW_TO(From, std::int8_t)                                           \
    DISTCACHE_NARROW_TO(From, std::uint16_t)                                         \
    DISTCACHE_NARROW_TO(From, std::int16_t)                                          \
    DISTCACHE_NARROW_TO(From, std::int32_t)                                          \
    DISTCACHE_NARROW_TO(From, std::int64_t)

DISTCACHE_NARROW(std::uint8_t)
DISTCACHE_NARROW(std::int8_t)
DISTCACHE_NARROW(std::uint16_t)
DISTCACHE_NARROW(std::int16_t)
DISTCACHE_NARROW(std::uint32_t)
DISTCACHE_NARROW(std::int32_t)
DISTCACHE_NARROW(std::uint64_t)
DISTCACHE_NARROW(std::int64_t)

}  // namespace distcache
