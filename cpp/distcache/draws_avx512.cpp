#include "draws.hpp"

#if DISTCACHE_HAS_AVX512
#include "avx512.hpp"

namespace distcache {

// A masked word up to the last step's bound is accepted by every step of the block; one above the
// first step's bound by none. Words in between depend on how many were accepted before; they are
// rare.
DISTCACHE_AVX512 Drawn draw_avx512(const std::uint32_t* words, std::size_t size,
                                   std::uint32_t first, std::size_t done, std::size_t count,
                                   std::uint32_t* draws) {
    constexpr std::size_t lanes = 16;
    const std::uint32_t bits = ~std::uint32_t{0} >> __builtin_clz(first);
    const auto last = static_cast<std::uint32_t>(first - (count - 1));
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(bits));
    const __m512i surely = _mm512_set1_epi32(static_cast<int>(last));
    const __m512i maybe = _mm512_set1_epi32(static_cast<int>(first));
    const std::size_t before = done;
    std::size_t used = 0;
    for (; used + lanes <= size; used += lanes) {
        const __m512i values = _mm512_and_si512(_mm512_loadu_si512(words + used), mask);
        const __mmask16 taken = _mm512_cmple_epu32_mask(values, surely);
        const __mmask16 possible = _mm512_cmple_epu32_mask(values, maybe);
        if (__builtin_expect(taken != possible, 0)) {
            for (std::size_t k = used; k < used + lanes; ++k) {
                const std::uint32_t value = words[k] & bits;
                draws[done] = value;
                done += static_cast<std::size_t>(value <= first - done);
            }
            continue;
        }
        _mm512_storeu_si512(draws + done, _mm512_maskz_compress_epi32(taken, values));
        done += static_cast<std::size_t>(__builtin_popcount(taken));
    }
    return {used, done - before};
}

}  // namespace distcache
#endif
