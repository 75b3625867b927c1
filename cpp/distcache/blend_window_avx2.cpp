#include "blend_window.hpp"

#if DISTCACHE_HAS_AVX512
#include <immintrin.h>

#include <array>
#include <utility>

namespace distcache::blending {
namespace {

constexpr std::size_t width = 4;          // doubles of a vector
constexpr std::size_t most_vectors = 16;  // above six, compilers keep some in memory

template <Arithmetic arithmetic>
DISTCACHE_AVX2 inline __m256d error_of(__m256d weight, __m256d count, __m256d step) {
    if constexpr (arithmetic == Arithmetic::fused) {
        return _mm256_fmsub_pd(weight, step, count);
    }
    return _mm256_sub_pd(_mm256_mul_pd(weight, step), count);
}

// The largest lane, in every lane.
DISTCACHE_AVX2 inline __m256d largest_lane(__m256d values) {
    values = _mm256_max_pd(values, _mm256_permute2f128_pd(values, values, 1));
    return _mm256_max_pd(values, _mm256_permute_pd(values, 0x5));
}

// As `run_in_registers` of AVX-512: the winner's place is not part of the chain from step to step.
template <Arithmetic arithmetic, std::size_t vectors>
DISTCACHE_AVX2 void run_in_registers(Window& window) {
    const __m256d one = _mm256_set1_pd(1.0);
    __m256d weights[vectors];
    __m256d counts[vectors];
    for (std::size_t v = 0; v < vectors; ++v) {
        weights[v] = _mm256_load_pd(window.weights + v * width);
        counts[v] = _mm256_load_pd(window.counts + v * width);
    }
    const std::int64_t first = window.step;
    const std::int64_t size = window.end - first;
    std::int64_t done = 0;
    double lowest = window.lowest;
    while (done < size) {
        const __m256d step = _mm256_set1_pd(factor(first + done));
        __m256d errors[vectors];
        __m256d best[vectors];
        for (std::size_t v = 0; v < vectors; ++v) {
            best[v] = errors[v] = error_of<arithmetic>(weights[v], counts[v], step);
        }
        for (std::size_t left = vectors; left > 1; left = (left + 1) / 2) {
            for (std::size_t v = 0; v < left / 2; ++v) {
                best[v] = _mm256_max_pd(best[v], best[left - 1 - v]);
            }
        }
        const __m256d largest = largest_lane(best[0]);
        const double won = _mm256_cvtsd_f64(largest);
        if (won < window.bound) {
            break;
        }
        lowest = won < lowest ? won : lowest;
        __m256d equal[vectors];
        std::uint64_t winners = 0;
        for (std::size_t v = 0; v < vectors; ++v) {
            equal[v] = _mm256_cmp_pd(errors[v], largest, _CMP_EQ_OQ);
            const auto bits = static_cast<std::uint64_t>(_mm256_movemask_pd(equal[v]));
            winners |= bits << (v * width);
        }
        const auto place = static_cast<std::size_t>(__builtin_ctzll(winners));
        if (__builtin_expect((winners & (winners - 1)) != 0, 0)) {
            const __m256i wanted = _mm256_set1_epi64x(static_cast<long long>(place));
            for (std::size_t v = 0; v < vectors; ++v) {
                const auto here = static_cast<long long>(v * width);
                const __m256i places = _mm256_set_epi64x(here + 3, here + 2, here + 1, here);
                equal[v] = _mm256_castsi256_pd(_mm256_cmpeq_epi64(places, wanted));
            }
        }
        for (std::size_t v = 0; v < vectors; ++v) {
            counts[v] = _mm256_add_pd(counts[v], _mm256_and_pd(equal[v], one));
        }
        const bool spent = write_down(window, done++, place);
        if (__builtin_expect(spent, 0)) {
            break;
        }
    }
    for (std::size_t v = 0; v < vectors; ++v) {
        _mm256_store_pd(window.counts + v * width, counts[v]);
    }
    window.lowest = lowest;
    window.step = first + done;
}

template <Arithmetic arithmetic, std::size_t... fewer>
constexpr std::array<Run, sizeof...(fewer)> by_vectors(std::index_sequence<fewer...>) {
    return {run_in_registers<arithmetic, fewer + 1>...};
}

template <Arithmetic arithmetic>
void run(Window& window) {
    static constexpr auto runs = by_vectors<arithmetic>(std::make_index_sequence<most_vectors>());
    const std::size_t vectors = (window.size + width - 1) / width;
    vectors <= most_vectors ? runs[vectors - 1](window) : run_in_memory(window, arithmetic);
}

// For each set of four lanes, the bytes that move their 32-bit numbers to the front.
constexpr auto to_the_front = [] {
    std::array<std::array<std::int8_t, 16>, 16> found{};
    for (std::size_t set = 0; set < found.size(); ++set) {
        std::size_t next = 0;
        for (std::size_t lane = 0; lane < width; ++lane) {
            for (std::size_t byte = 0; byte < 4 && (set >> lane & 1) != 0; ++byte) {
                found[set][next++] = static_cast<std::int8_t>(lane * 4 + byte);
            }
        }
    }
    return found;
}();

template <Arithmetic arithmetic>
DISTCACHE_AVX2 std::size_t reaching(const double* weights, const double* counts, std::size_t padded,
                                    double step, double bound, std::int32_t* places) {
    const __m256d steps = _mm256_set1_pd(step);
    const __m256d bounds = _mm256_set1_pd(bound);
    __m128i here = _mm_set_epi32(3, 2, 1, 0);
    std::size_t found = 0;
    for (std::size_t d = 0; d < padded; d += width) {
        const __m256d error =
            error_of<arithmetic>(_mm256_load_pd(weights + d), _mm256_load_pd(counts + d), steps);
        const auto set =
            static_cast<unsigned>(_mm256_movemask_pd(_mm256_cmp_pd(error, bounds, _CMP_GE_OQ)));
        const __m128i moves =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(to_the_front[set].data()));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(places + found), _mm_shuffle_epi8(here, moves));
        found += static_cast<std::size_t>(__builtin_popcount(set));
        here = _mm_add_epi32(here, _mm_set1_epi32(width));
    }
    return found;
}

template <Arithmetic arithmetic>
DISTCACHE_AVX2 double largest(const double* weights, const double* counts, std::size_t padded,
                              double step) {
    const __m256d steps = _mm256_set1_pd(step);
    __m256d best = _mm256_set1_pd(-__builtin_inf());
    for (std::size_t d = 0; d < padded; d += width) {
        best = _mm256_max_pd(best, error_of<arithmetic>(_mm256_load_pd(weights + d),
                                                        _mm256_load_pd(counts + d), steps));
    }
    return _mm256_cvtsd_f64(largest_lane(best));
}

}  // namespace

Kernels avx2_kernels(Arithmetic arithmetic) {
    if (arithmetic == Arithmetic::fused) {
        return {run<Arithmetic::fused>, reaching<Arithmetic::fused>, largest<Arithmetic::fused>};
    }
    return {run<Arithmetic::separate>, reaching<Arithmetic::separate>,
            largest<Arithmetic::separate>};
}

}  // namespace distcache::blending
#endif
