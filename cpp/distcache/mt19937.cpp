#include "distcache/mt19937.hpp"

#include "distcache/dispatch.hpp"

namespace distcache {
namespace {

constexpr std::size_t N = Mt19937::block_size;
constexpr std::size_t M = 397;

inline std::uint32_t twist(std::uint32_t high, std::uint32_t low) {
    const std::uint32_t joined = (high & 0x80000000U) | (low & 0x7fffffffU);
    return (joined >> 1) ^ ((0U - (low & 1U)) & 0x9908b0dfU);
}

// Each loop reads words that are at least 227 places away from the one it writes, further than
// any vector is wide.
struct NextState {
    template <Instructions>
    DISTCACHE_KERNEL void run(std::uint32_t* state) {
        for (std::size_t k = 0; k < N - M; ++k) {
            state[k] = state[k + M] ^ twist(state[k], state[k + 1]);
        }
        for (std::size_t k = N - M; k < N - 1; ++k) {
            state[k] = state[k - (N - M)] ^ twist(state[k], state[k + 1]);
        }
        state[N - 1] = state[M - 1] ^ twist(state[N - 1], state[0]);
    }
};

struct Temper {
    template <Instructions>
    DISTCACHE_KERNEL void run(const std::uint32_t* __restrict state,
                              std::uint32_t* __restrict words) {
        for (std::size_t k = 0; k < N; ++k) {
            std::uint32_t y = state[k];
            y ^= y >> 11;
            y ^= (y << 7) & 0x9d2c5680U;
            y ^= (y << 15) & 0xefc60000U;
            words[k] = y ^ (y >> 18);
        }
    }
};

}  // namespace

Mt19937::Mt19937(std::uint32_t seed) {
    for (std::size_t k = 0; k < N; ++k) {
        state_[k] = seed;
        seed = 1812433253U * (seed ^ (seed >> 30)) + static_cast<std::uint32_t>(k) + 1U;
    }
    words_.fill(0);
}

std::span<const std::uint32_t> Mt19937::ready() {
    if (position_ == N) {
        dispatched<NextState>(state_.data());
        dispatched<Temper>(state_.data(), words_.data());
        position_ = 0;
    }
    return std::span(words_).subspan(position_);
}

std::uint32_t Mt19937::next32() {
    const std::uint32_t word = ready().front();
    consume(1);
    return word;
}

std::uint64_t Mt19937::next64() {
    const std::uint64_t high = next32();
    return (high << 32) | next32();
}

}  // namespace distcache
