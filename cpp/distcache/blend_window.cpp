#include "blend_window.hpp"

#include <cstring>
#include <limits>
#include <type_traits>

#include "distcache/dispatch.hpp"

namespace distcache::blending {
namespace {

// Vectors of the compilers' own kind, as wide as registers are: wider ones are compared one lane
// after the other.
struct Narrow {
    static constexpr std::size_t width = 2;
    using Doubles = double __attribute__((vector_size(2 * sizeof(double))));
    using Places = std::int64_t __attribute__((vector_size(2 * sizeof(std::int64_t))));
};
struct Wide {
    static constexpr std::size_t width = 4;
    using Doubles = double __attribute__((vector_size(4 * sizeof(double))));
    using Places = std::int64_t __attribute__((vector_size(4 * sizeof(std::int64_t))));
};
template <Instructions kind>
using Vectors = std::conditional_t<kind == Instructions::baseline, Narrow, Wide>;

constexpr double never = -std::numeric_limits<double>::infinity();

// weight * step - count, rounded twice or once.
template <Arithmetic arithmetic>
[[gnu::always_inline]] inline double error_of(double weight, double step, double count) {
    if constexpr (arithmetic == Arithmetic::fused) {
        return __builtin_fma(weight, step, -count);
    }
    return weight * step - count;
}

// The same of every lane. The compilers have no fused operation of their vectors in common.
template <Arithmetic arithmetic, typename Doubles>
[[gnu::always_inline]] inline void errors_of(const Doubles& weights, double step,
                                             const Doubles& counts, Doubles& errors) {
    if constexpr (arithmetic == Arithmetic::separate) {
        errors = weights * step - counts;
    } else {
        for (std::size_t lane = 0; lane < sizeof(Doubles) / sizeof(double); ++lane) {
            errors[lane] = error_of<arithmetic>(weights[lane], step, counts[lane]);
        }
    }
}

// By reference: returning a wide vector would depend on the caller's instruction set.
template <typename Doubles>
inline void load(const double* from, Doubles& values) {
    std::memcpy(&values, from, sizeof(values));
}

struct Winner {
    std::size_t place;
    double error;
};

// The first place with the largest error.
template <Arithmetic arithmetic>
struct FindWinner {
    template <Instructions kind>
    DISTCACHE_KERNEL Winner run(const double* weights, const double* counts, std::size_t padded,
                                double step) {
        using Doubles = typename Vectors<kind>::Doubles;
        using Places = typename Vectors<kind>::Places;
        constexpr std::size_t width = Vectors<kind>::width;
        Doubles best = Doubles{} + never;
        Places place = {};
        Places here = {};
        for (std::size_t lane = 0; lane < width; ++lane) {
            here[lane] = static_cast<std::int64_t>(lane);
        }
        for (std::size_t d = 0; d < padded; d += width) {
            Doubles weight;
            Doubles count;
            load(weights + d, weight);
            load(counts + d, count);
            Doubles error;
            errors_of<arithmetic>(weight, step, count, error);
            const Places better = error > best;
            best = better ? error : best;
            place = better ? here : place;
            here += static_cast<std::int64_t>(width);
        }
        for (std::size_t lane = 1; lane < width; ++lane) {
            const bool better =
                best[lane] > best[0] || (best[lane] == best[0] && place[lane] < place[0]);
            best[0] = better ? best[lane] : best[0];
            place[0] = better ? place[lane] : place[0];
        }
        return {static_cast<std::size_t>(place[0]), best[0]};
    }
};

template <Arithmetic arithmetic>
void run(Window& window) {
    const std::int64_t first = window.step;
    const std::int64_t size = window.end - first;
    std::int64_t done = 0;
    for (bool spent = false; done < size && !spent;) {
        const Winner won = dispatched<FindWinner<arithmetic>>(window.weights, window.counts,
                                                              window.padded, factor(first + done));
        if (won.error < window.bound) {
            break;
        }
        window.lowest = won.error < window.lowest ? won.error : window.lowest;
        window.counts[won.place] += 1;
        spent = write_down(window, done++, won.place);
    }
    window.step = first + done;
}

// Two corpora alone, of which neither is spent before the end.
template <Arithmetic arithmetic>
void run_pair(Window& window) {
    using Pair = Narrow::Doubles;
    const Pair weights = {window.weights[0], window.weights[1]};
    Pair counts = {window.counts[0], window.counts[1]};
    const std::int64_t first = window.step;
    for (; window.step < window.end; ++window.step) {
        Pair errors;
        errors_of<arithmetic>(weights, factor(window.step), counts, errors);
        const auto second = Pair{errors[1], errors[1]} > Pair{errors[0], errors[0]};
        counts += second ? Pair{0, 1} : Pair{1, 0};
        write_down(window, window.step - first, static_cast<std::size_t>(second[0] & 1));
    }
    window.counts[0] = counts[0];
    window.counts[1] = counts[1];
}

template <Arithmetic arithmetic>
struct FindReaching {
    template <Instructions>
    DISTCACHE_KERNEL std::size_t run(const double* weights, const double* counts,
                                     std::size_t padded, double step, double bound,
                                     std::int32_t* places) {
        std::size_t found = 0;
        for (std::size_t d = 0; d < padded; ++d) {
            places[found] = static_cast<std::int32_t>(d);
            found += static_cast<std::size_t>(error_of<arithmetic>(weights[d], step, counts[d]) >=
                                              bound);
        }
        return found;
    }
};

template <Arithmetic arithmetic>
struct FindLargest {
    template <Instructions kind>
    DISTCACHE_KERNEL double run(const double* weights, const double* counts, std::size_t padded,
                                double step) {
        using Doubles = typename Vectors<kind>::Doubles;
        constexpr std::size_t width = Vectors<kind>::width;
        Doubles best = Doubles{} + never;
        for (std::size_t d = 0; d < padded; d += width) {
            Doubles weight;
            Doubles count;
            load(weights + d, weight);
            load(counts + d, count);
            Doubles error;
            errors_of<arithmetic>(weight, step, count, error);
            best = error > best ? error : best;
        }
        double found = best[0];
        for (std::size_t lane = 1; lane < width; ++lane) {
            found = best[lane] > found ? best[lane] : found;
        }
        return found;
    }
};

template <Arithmetic arithmetic>
constexpr Kernels portable_kernels{
    run<arithmetic>,
    [](const double* weights, const double* counts, std::size_t padded, double step, double bound,
       std::int32_t* places) {
        return dispatched<FindReaching<arithmetic>>(weights, counts, padded, step, bound, places);
    },
    [](const double* weights, const double* counts, std::size_t padded, double step) {
        return dispatched<FindLargest<arithmetic>>(weights, counts, padded, step);
    },
};

}  // namespace

Kernels kernels([[maybe_unused]] Instructions instructions, Arithmetic arithmetic) {
#if DISTCACHE_HAS_AVX512
    if (instructions == Instructions::avx512) {
        return avx512_kernels(arithmetic);
    }
#endif
    return arithmetic == Arithmetic::fused ? portable_kernels<Arithmetic::fused>
                                           : portable_kernels<Arithmetic::separate>;
}

Run pair_kernel(Arithmetic arithmetic) {
    return arithmetic == Arithmetic::fused ? run_pair<Arithmetic::fused>
                                           : run_pair<Arithmetic::separate>;
}

}  // namespace distcache::blending
