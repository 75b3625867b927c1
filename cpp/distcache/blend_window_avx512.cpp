#include "blend_window.hpp"

#if DISTCACHE_HAS_AVX512
#include "avx512.hpp"

namespace distcache::blending {
namespace {

constexpr std::size_t most_vectors = 8;  // whose weights and counts fit into registers
constexpr std::size_t few = 24;          // corpora: shuffles across a vector of AVX2 take less time

template <Arithmetic arithmetic>
DISTCACHE_AVX512 inline __m512d error_of(__m512d weight, __m512d count, __m512d step) {
    if constexpr (arithmetic == Arithmetic::fused) {
        return _mm512_fmsub_pd(weight, step, count);
    }
    return _mm512_sub_pd(_mm512_mul_pd(weight, step), count);
}

// The largest lane, in every lane.
DISTCACHE_AVX512 inline __m512d largest_lane(__m512d values) {
    values = _mm512_max_pd(values, _mm512_shuffle_f64x2(values, values, 0x4e));
    values = _mm512_max_pd(values, _mm512_shuffle_f64x2(values, values, 0xb1));
    return _mm512_max_pd(values, _mm512_permute_pd(values, 0x55));
}

// Everything stays in registers: the chain from one step to the next is a subtraction, the largest
// of all lanes, a comparison, and an addition under its mask. The winner's place, which needs
// general registers, is not part of it unless several corpora have the same error.
template <Arithmetic arithmetic, std::size_t vectors>
DISTCACHE_AVX512 void run_in_registers(Window& window) {
    const __m512d one = _mm512_set1_pd(1.0);
    __m512d weights[vectors];
    __m512d counts[vectors];
    for (std::size_t v = 0; v < vectors; ++v) {
        weights[v] = _mm512_load_pd(window.weights + v * lanes);
        counts[v] = _mm512_load_pd(window.counts + v * lanes);
    }
    const std::int64_t first = window.step;
    const std::int64_t size = window.end - first;
    std::int64_t done = 0;
    double lowest = window.lowest;
    while (done < size) {
        const __m512d step = _mm512_set1_pd(factor(first + done));
        __m512d errors[vectors];
        for (std::size_t v = 0; v < vectors; ++v) {
            errors[v] = error_of<arithmetic>(weights[v], counts[v], step);
        }
        __m512d best = errors[0];
        for (std::size_t v = 1; v < vectors; ++v) {
            best = _mm512_max_pd(best, errors[v]);
        }
        best = largest_lane(best);
        const double won = _mm512_cvtsd_f64(best);
        if (won < window.bound) {
            break;
        }
        lowest = won < lowest ? won : lowest;
        __mmask8 equal[vectors];
        std::uint64_t winners = 0;
        for (std::size_t v = 0; v < vectors; ++v) {
            equal[v] = _mm512_cmp_pd_mask(errors[v], best, _CMP_EQ_OQ);
            winners |= static_cast<std::uint64_t>(equal[v]) << (v * lanes);
        }
        if (__builtin_expect((winners & (winners - 1)) != 0, 0)) {
            const std::uint64_t lowest_place = winners & (~winners + 1);
            for (std::size_t v = 0; v < vectors; ++v) {
                equal[v] = static_cast<__mmask8>(lowest_place >> (v * lanes));
            }
        }
        for (std::size_t v = 0; v < vectors; ++v) {
            counts[v] = _mm512_mask_add_pd(counts[v], equal[v], counts[v], one);
        }
        const auto place = static_cast<std::size_t>(__builtin_ctzll(winners));
        const bool spent = write_down(window, done++, place);
        if (__builtin_expect(spent, 0)) {
            break;
        }
    }
    for (std::size_t v = 0; v < vectors; ++v) {
        _mm512_store_pd(window.counts + v * lanes, counts[v]);
    }
    window.lowest = lowest;
    window.step = first + done;
}

// The same for any number of corpora, in memory.
template <Arithmetic arithmetic>
DISTCACHE_AVX512 void run_in_memory(Window& window) {
    const std::int64_t first = window.step;
    const std::int64_t size = window.end - first;
    std::int64_t done = 0;
    for (bool spent = false; done < size && !spent;) {
        const __m512d step = _mm512_set1_pd(factor(first + done));
        __m512d best[2] = {_mm512_set1_pd(-__builtin_inf()), _mm512_set1_pd(-__builtin_inf())};
        __m512i found[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        std::size_t d = 0;
        for (std::size_t turn = 0; d < window.padded; d += lanes, turn ^= 1) {
            const __m512d error = error_of<arithmetic>(_mm512_load_pd(window.weights + d),
                                                       _mm512_load_pd(window.counts + d), step);
            const __mmask8 better = _mm512_cmp_pd_mask(error, best[turn], _CMP_GT_OQ);
            best[turn] = _mm512_max_pd(best[turn], error);
            found[turn] = _mm512_mask_set1_epi64(found[turn], better, static_cast<long long>(d));
        }
        const __m512d largest = largest_lane(_mm512_max_pd(best[0], best[1]));
        const double won = _mm512_cvtsd_f64(largest);
        if (won < window.bound) {
            break;
        }
        window.lowest = won < window.lowest ? won : window.lowest;
        // The lowest place of those that have it: lanes that have not are moved out of the way.
        const __m512i lane = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
        const __m512i beyond = _mm512_set1_epi64(1LL << 62);
        __m512i places = beyond;
        for (const std::size_t turn : {0U, 1U}) {
            const __mmask8 equal = _mm512_cmp_pd_mask(best[turn], largest, _CMP_EQ_OQ);
            places =
                _mm512_mask_min_epi64(places, equal, places, _mm512_add_epi64(found[turn], lane));
        }
        const auto place = static_cast<std::size_t>(_mm512_reduce_min_epi64(places));
        // A whole vector is stored, so that the load of the next step can be served from it.
        double* const counts = window.counts + place / lanes * lanes;
        const auto winner = static_cast<__mmask8>(1U << place % lanes);
        const __m512d old = _mm512_load_pd(counts);
        _mm512_store_pd(counts, _mm512_mask_add_pd(old, winner, old, _mm512_set1_pd(1.0)));
        spent = write_down(window, done++, place);
    }
    window.step = first + done;
}

template <Arithmetic arithmetic>
DISTCACHE_AVX512 void run(Window& window) {
    static constexpr Run by_vectors[most_vectors] = {
        run_in_registers<arithmetic, 1>, run_in_registers<arithmetic, 2>,
        run_in_registers<arithmetic, 3>, run_in_registers<arithmetic, 4>,
        run_in_registers<arithmetic, 5>, run_in_registers<arithmetic, 6>,
        run_in_registers<arithmetic, 7>, run_in_registers<arithmetic, 8>};
    if (window.size <= few) {
        return avx2_kernels(arithmetic).run(window);
    }
    const std::size_t vectors = window.padded / lanes;
    vectors <= most_vectors ? by_vectors[vectors - 1](window) : run_in_memory<arithmetic>(window);
}

template <Arithmetic arithmetic>
DISTCACHE_AVX512 std::size_t reaching(const double* weights, const double* counts,
                                      std::size_t padded, double step, double bound,
                                      std::int32_t* places) {
    const __m512d steps = _mm512_set1_pd(step);
    const __m512d bounds = _mm512_set1_pd(bound);
    __m256i here = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    std::size_t found = 0;
    for (std::size_t d = 0; d < padded; d += lanes) {
        const __m512d error =
            error_of<arithmetic>(_mm512_load_pd(weights + d), _mm512_load_pd(counts + d), steps);
        const __mmask8 reached = _mm512_cmp_pd_mask(error, bounds, _CMP_GE_OQ);
        // Compressed in a register: compressing to memory is slow on some processors.
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + found),
                            _mm256_maskz_compress_epi32(reached, here));
        found += static_cast<std::size_t>(__builtin_popcount(reached));
        here = _mm256_add_epi32(here, _mm256_set1_epi32(lanes));
    }
    return found;
}

template <Arithmetic arithmetic>
DISTCACHE_AVX512 double largest(const double* weights, const double* counts, std::size_t padded,
                                double step) {
    const __m512d steps = _mm512_set1_pd(step);
    __m512d best = _mm512_set1_pd(-__builtin_inf());
    for (std::size_t d = 0; d < padded; d += lanes) {
        best = _mm512_max_pd(best, error_of<arithmetic>(_mm512_load_pd(weights + d),
                                                        _mm512_load_pd(counts + d), steps));
    }
    return _mm512_cvtsd_f64(largest_lane(best));
}

}  // namespace

Kernels avx512_kernels(Arithmetic arithmetic) {
    if (arithmetic == Arithmetic::fused) {
        return {run<Arithmetic::fused>, reaching<Arithmetic::fused>, largest<Arithmetic::fused>};
    }
    return {run<Arithmetic::separate>, reaching<Arithmetic::separate>,
            largest<Arithmetic::separate>};
}

}  // namespace distcache::blending
#endif
