#include "draws.hpp"

#if DISTCACHE_HAS_AVX512
#include <immintrin.h>

#include <array>

namespace distcache {
namespace {

constexpr std::size_t lanes = 8;

// For each set of lanes, their numbers in ascending order.
constexpr auto numbers_of = [] {
    std::array<std::array<std::int32_t, lanes>, 256> found{};
    for (std::size_t set = 0; set < found.size(); ++set) {
        std::size_t next = 0;
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            if ((set >> lane & 1) != 0) {
                found[set][next++] = static_cast<std::int32_t>(lane);
            }
        }
    }
    return found;
}();

// The lanes whose values, without a sign, are at most a bound.
DISTCACHE_AVX2 inline unsigned up_to(__m256i values, __m256i bound) {
    const __m256i are = _mm256_cmpeq_epi32(_mm256_min_epu32(values, bound), values);
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(are)));
}

}  // namespace

// As `draw_avx512`.
DISTCACHE_AVX2 Drawn draw_avx2(const std::uint32_t* words, std::size_t size, std::uint32_t first,
                               std::size_t done, std::size_t count, std::uint32_t* draws) {
    const std::uint32_t bits = ~std::uint32_t{0} >> __builtin_clz(first);
    const auto last = static_cast<std::uint32_t>(first - (count - 1));
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(bits));
    const __m256i surely = _mm256_set1_epi32(static_cast<int>(last));
    const __m256i maybe = _mm256_set1_epi32(static_cast<int>(first));
    const std::size_t before = done;
    std::size_t used = 0;
    for (; used + lanes <= size; used += lanes) {
        const auto* const from = reinterpret_cast<const __m256i*>(words + used);
        const __m256i values = _mm256_and_si256(_mm256_loadu_si256(from), mask);
        const unsigned taken = up_to(values, surely);
        if (__builtin_expect(taken != up_to(values, maybe), 0)) {
            for (std::size_t k = used; k < used + lanes; ++k) {
                const std::uint32_t value = words[k] & bits;
                draws[done] = value;
                done += static_cast<std::size_t>(value <= first - done);
            }
            continue;
        }
        const auto* const numbers = reinterpret_cast<const __m256i*>(numbers_of[taken].data());
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(draws + done),
                            _mm256_permutevar8x32_epi32(values, _mm256_loadu_si256(numbers)));
        done += static_cast<std::size_t>(__builtin_popcount(taken));
    }
    return {used, done - before};
}

}  // namespace distcache
#endif
