#include "blend_window.hpp"

#include <cstring>
#include <limits>

namespace distcache::blending {
namespace {

// Two lanes, as wide as the vectors that all processors have: compilers compare wider ones one lane
// after the other.
constexpr std::size_t width = 2;
using Doubles = double __attribute__((vector_size(width * sizeof(double))));
using Places = std::int64_t __attribute__((vector_size(width * sizeof(std::int64_t))));

constexpr double never = -std::numeric_limits<double>::infinity();

// weight * step - count, rounded twice or once.
template <Arithmetic arithmetic>
double error_of(double weight, double step, double count) {
    if constexpr (arithmetic == Arithmetic::fused) {
        return __builtin_fma(weight, step, -count);
    }
    return weight * step - count;
}

// The same of every lane. The compilers have no fused operation of their vectors in common.
template <Arithmetic arithmetic>
Doubles errors_of(Doubles weights, double step, Doubles counts) {
    if constexpr (arithmetic == Arithmetic::separate) {
        return weights * step - counts;
    }
    Doubles errors;
    for (std::size_t lane = 0; lane < width; ++lane) {
        errors[lane] = error_of<arithmetic>(weights[lane], step, counts[lane]);
    }
    return errors;
}

Doubles load(const double* from) {
    Doubles values;
    std::memcpy(&values, from, sizeof(values));
    return values;
}

struct Winner {
    std::size_t place;
    double error;
};

// The first place with the largest error.
template <Arithmetic arithmetic>
Winner find_winner(const Window& window, double step) {
    Doubles best = {never, never};
    Places place = {};
    Places here = {0, 1};
    for (std::size_t d = 0; d < window.padded; d += width) {
        const Doubles error =
            errors_of<arithmetic>(load(window.weights + d), step, load(window.counts + d));
        const Places better = error > best;
        best = better ? error : best;
        place = better ? here : place;
        here += static_cast<std::int64_t>(width);
    }
    const bool second = best[1] > best[0] || (best[1] == best[0] && place[1] < place[0]);
    return {static_cast<std::size_t>(place[second ? 1 : 0]), best[second ? 1 : 0]};
}

template <Arithmetic arithmetic>
void run(Window& window) {
    const std::int64_t first = window.step;
    const std::int64_t size = window.end - first;
    std::int64_t done = 0;
    for (bool spent = false; done < size && !spent;) {
        const Winner won = find_winner<arithmetic>(window, factor(first + done));
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
    const Doubles weights = load(window.weights);
    Doubles counts = load(window.counts);
    const std::int64_t first = window.step;
    for (; window.step < window.end; ++window.step) {
        const Doubles errors = errors_of<arithmetic>(weights, factor(window.step), counts);
        const auto second = Doubles{errors[1], errors[1]} > Doubles{errors[0], errors[0]};
        counts += second ? Doubles{0, 1} : Doubles{1, 0};
        write_down(window, window.step - first, static_cast<std::size_t>(second[0] & 1));
    }
    window.counts[0] = counts[0];
    window.counts[1] = counts[1];
}

template <Arithmetic arithmetic>
std::size_t reaching(const double* weights, const double* counts, std::size_t padded, double step,
                     double bound, std::int32_t* places) {
    std::size_t found = 0;
    for (std::size_t d = 0; d < padded; ++d) {
        places[found] = static_cast<std::int32_t>(d);
        const bool reaches = error_of<arithmetic>(weights[d], step, counts[d]) >= bound;
        found += static_cast<std::size_t>(reaches);
    }
    return found;
}

template <Arithmetic arithmetic>
double largest(const double* weights, const double* counts, std::size_t padded, double step) {
    Doubles best = {never, never};
    for (std::size_t d = 0; d < padded; d += width) {
        const Doubles error = errors_of<arithmetic>(load(weights + d), step, load(counts + d));
        best = error > best ? error : best;
    }
    return best[1] > best[0] ? best[1] : best[0];
}

template <Arithmetic arithmetic>
constexpr Kernels portable_kernels{run<arithmetic>, reaching<arithmetic>, largest<arithmetic>};

}  // namespace

Kernels kernels([[maybe_unused]] Instructions instructions, Arithmetic arithmetic) {
#if DISTCACHE_HAS_AVX512
    if (instructions == Instructions::avx512) {
        return avx512_kernels(arithmetic);
    }
    if (instructions == Instructions::avx2) {
        return avx2_kernels(arithmetic);
    }
#endif
    return arithmetic == Arithmetic::fused ? portable_kernels<Arithmetic::fused>
                                           : portable_kernels<Arithmetic::separate>;
}

void run_in_memory(Window& window, Arithmetic arithmetic) {
    arithmetic == Arithmetic::fused ? run<Arithmetic::fused>(window)
                                    : run<Arithmetic::separate>(window);
}

Run pair_kernel(Arithmetic arithmetic) {
    return arithmetic == Arithmetic::fused ? run_pair<Arithmetic::fused>
                                           : run_pair<Arithmetic::separate>;
}

}  // namespace distcache::blending
