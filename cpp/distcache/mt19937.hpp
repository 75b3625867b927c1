#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace distcache {

/// The 32-bit Mersenne Twister of Matsumoto and Nishimura (1998), seeded as NumPy's legacy
/// `RandomState(seed)` seeds it, which is also how `std::mt19937` does.
///
/// Words are generated and tempered a block of 624 at a time, so that both loops vectorise.
class Mt19937 {
public:
    static constexpr std::size_t block_size = 624;

    explicit Mt19937(std::uint32_t seed);

    /// The next word of the stream.
    std::uint32_t next32();

    /// Two words as one, the first in the upper half, as NumPy joins them.
    std::uint64_t next64();

    /// The words that are ready, at least one; `consume` says how many of them were used.
    std::span<const std::uint32_t> ready();
    void consume(std::size_t count) { position_ += count; }

private:
    std::array<std::uint32_t, block_size> state_;
    std::array<std::uint32_t, block_size> words_;
    std::size_t position_ = block_size;
};

}  // namespace distcache
