#include "blend_lanes.hpp"

#include <algorithm>
#include <bit>
#include <cassert>

#if DISTCACHE_HAS_AVX512
#include <immintrin.h>
#endif

namespace distcache::blending {
#if DISTCACHE_HAS_AVX512
namespace {

constexpr std::size_t width = 4;  // lanes of a vector
constexpr std::size_t groups = stretches / width;
constexpr std::size_t block = 64;  // steps between two transpositions

// A corpus and how often it has been taken, in one double between 2^52 and 2^53, whose bits are
// those of an integer: 6 of the corpus, 46 of the count. So one selection finds both, no two
// corpora have an equal double, and what is above the count is subtracted exactly.
constexpr std::int64_t count_mask = most_taken - 1;
constexpr std::int64_t exponent = std::bit_cast<std::int64_t>(4503599627370496.0);

constexpr std::int64_t bits_of(std::size_t corpus, std::int64_t count) {
    return exponent | static_cast<std::int64_t>(corpus) << count_bits | count;
}

template <Arithmetic arithmetic>
DISTCACHE_AVX2 inline __m256d error_of(__m256d weight, __m256d step, __m256d count) {
    if constexpr (arithmetic == Arithmetic::fused) {
        return _mm256_fmsub_pd(weight, step, count);
    }
    return _mm256_sub_pd(_mm256_mul_pd(weight, step), count);
}

// Writes the picks of four stretches: rows of steps become rows of stretches.
DISTCACHE_AVX2 inline void write_picks(const __m256d* picks, std::size_t steps,
                                       const std::int64_t* begins, std::int16_t* corpora,
                                       std::int64_t* samples) {
    const __m256i low = _mm256_set1_epi64x(count_mask);
    const __m256i ids = _mm256_set1_epi64x(0x3f);
    const __m128i even = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    std::size_t s = 0;
    for (; s + width <= steps; s += width) {
        const __m256d ab_low = _mm256_unpacklo_pd(picks[s], picks[s + 1]);
        const __m256d ab_high = _mm256_unpackhi_pd(picks[s], picks[s + 1]);
        const __m256d cd_low = _mm256_unpacklo_pd(picks[s + 2], picks[s + 3]);
        const __m256d cd_high = _mm256_unpackhi_pd(picks[s + 2], picks[s + 3]);
        const __m256i rows[width] = {
            _mm256_castpd_si256(_mm256_permute2f128_pd(ab_low, cd_low, 0x20)),
            _mm256_castpd_si256(_mm256_permute2f128_pd(ab_high, cd_high, 0x20)),
            _mm256_castpd_si256(_mm256_permute2f128_pd(ab_low, cd_low, 0x31)),
            _mm256_castpd_si256(_mm256_permute2f128_pd(ab_high, cd_high, 0x31))};
        for (std::size_t lane = 0; lane < width; ++lane) {
            const std::int64_t at = begins[lane] + static_cast<std::int64_t>(s);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(samples + at),
                                _mm256_and_si256(rows[lane], low));
            const __m256i id = _mm256_and_si256(_mm256_srli_epi64(rows[lane], count_bits), ids);
            const __m128i pairs =
                _mm_packus_epi32(_mm256_castsi256_si128(id), _mm256_extracti128_si256(id, 1));
            _mm_storel_epi64(reinterpret_cast<__m128i*>(corpora + at),
                             _mm_shuffle_epi8(pairs, even));
        }
    }
    for (; s < steps; ++s) {
        alignas(32) std::int64_t row[width];
        _mm256_store_pd(reinterpret_cast<double*>(row), picks[s]);
        for (std::size_t lane = 0; lane < width; ++lane) {
            const std::int64_t at = begins[lane] + static_cast<std::int64_t>(s);
            samples[at] = row[lane] & count_mask;
            corpora[at] = static_cast<std::int16_t>(row[lane] >> count_bits & 0x3f);
        }
    }
}

// `known` corpora, which stay in registers if they are few; 0 for any number.
template <Arithmetic arithmetic, std::size_t known>
DISTCACHE_AVX2 void run(const Lanes& lanes) {
    const std::size_t corpora = known > 0 ? known : lanes.corpora;
    constexpr std::size_t room = known > 0 ? known : most_in_lanes;
    const __m256d one = _mm256_set1_pd(1.0);
    __m256d weights[room];
    __m256d bases[room];
    __m256d taken[groups][room];
    __m256d steps[groups];
    for (std::size_t d = 0; d < corpora; ++d) {
        weights[d] = _mm256_set1_pd(lanes.weights[d]);
        bases[d] = _mm256_set1_pd(std::bit_cast<double>(bits_of(d, 0)));
    }
    for (std::size_t g = 0; g < groups; ++g) {
        alignas(32) double values[width];
        for (std::size_t d = 0; d < corpora; ++d) {
            for (std::size_t lane = 0; lane < width; ++lane) {
                const std::size_t own = (g * width + lane) * corpora + d;
                values[lane] = std::bit_cast<double>(bits_of(d, lanes.counts[own]));
            }
            taken[g][d] = _mm256_load_pd(values);
        }
        for (std::size_t lane = 0; lane < width; ++lane) {
            values[lane] = static_cast<double>(lanes.first[g * width + lane]);
        }
        steps[g] = _mm256_load_pd(values);
    }
    __m256d picks[groups][block];
    for (std::int64_t done = 0; done < lanes.steps;) {
        const auto some = static_cast<std::size_t>(
            std::min(static_cast<std::int64_t>(block), lanes.steps - done));
        for (std::size_t s = 0; s < some; ++s) {
            for (std::size_t g = 0; g < groups; ++g) {
                __m256d won = taken[g][0];
                __m256d best =
                    error_of<arithmetic>(weights[0], steps[g], _mm256_sub_pd(won, bases[0]));
                for (std::size_t d = 1; d < corpora; ++d) {
                    const __m256d error = error_of<arithmetic>(
                        weights[d], steps[g], _mm256_sub_pd(taken[g][d], bases[d]));
                    const __m256d better = _mm256_cmp_pd(error, best, _CMP_GT_OQ);
                    best = _mm256_max_pd(best, error);
                    won = _mm256_blendv_pd(won, taken[g][d], better);
                }
                picks[g][s] = won;
                // The integer of the winner's bits grows by one: -1 is subtracted where it is.
                const __m256i winner = _mm256_castpd_si256(won);
                for (std::size_t d = 0; d < corpora; ++d) {
                    const __m256i own = _mm256_castpd_si256(taken[g][d]);
                    const __m256i here = _mm256_cmpeq_epi64(own, winner);
                    taken[g][d] = _mm256_castsi256_pd(_mm256_sub_epi64(own, here));
                }
                steps[g] = _mm256_add_pd(steps[g], one);
            }
        }
        if (lanes.picked_corpora != nullptr) {
            for (std::size_t g = 0; g < groups; ++g) {
                std::int64_t begins[width];
                for (std::size_t lane = 0; lane < width; ++lane) {
                    begins[lane] = lanes.first[g * width + lane] - lanes.first[0] + done;
                }
                write_picks(picks[g], some, begins, lanes.picked_corpora, lanes.picked_samples);
            }
        }
        done += static_cast<std::int64_t>(some);
    }
    for (std::size_t g = 0; g < groups; ++g) {
        for (std::size_t d = 0; d < corpora; ++d) {
            alignas(32) std::int64_t values[width];
            _mm256_store_pd(reinterpret_cast<double*>(values), taken[g][d]);
            for (std::size_t lane = 0; lane < width; ++lane) {
                lanes.counts[(g * width + lane) * corpora + d] = values[lane] & count_mask;
            }
        }
    }
}

template <Arithmetic arithmetic>
void run_any(const Lanes& lanes) {
    switch (lanes.corpora) {
        case 2:
            return run<arithmetic, 2>(lanes);
        case 3:
            return run<arithmetic, 3>(lanes);
        case 4:
            return run<arithmetic, 4>(lanes);
        default:
            return run<arithmetic, 0>(lanes);
    }
}

}  // namespace

bool has_lanes(Instructions instructions) {
    return instructions != Instructions::baseline;
}

void run_lanes(const Lanes& lanes, Arithmetic arithmetic) {
    assert(2 <= lanes.corpora && lanes.corpora <= most_in_lanes);
    assert(lanes.first.back() <= most_taken - lanes.steps);
    arithmetic == Arithmetic::fused ? run_any<Arithmetic::fused>(lanes)
                                    : run_any<Arithmetic::separate>(lanes);
}
#else
bool has_lanes(Instructions) {
    return false;
}
void run_lanes(const Lanes&, Arithmetic) {}
#endif

}  // namespace distcache::blending
