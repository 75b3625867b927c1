#include "distcache/blend.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "distcache/dispatch.hpp"

namespace distcache {
namespace {

constexpr std::size_t lanes = 8;    // doubles of the widest vector
constexpr std::size_t groups = 64;  // residue classes whose largest errors give the bound
constexpr std::int64_t window = groups - 1;
constexpr std::size_t small = 2 * groups;  // so few corpora are cheaper to scan than to sift
// Vectors of the compilers' own kind: the clones below map them to what the machine has.
using Doubles = double __attribute__((vector_size(lanes * sizeof(double))));
using Places = std::int64_t __attribute__((vector_size(lanes * sizeof(std::int64_t))));

constexpr double never = -std::numeric_limits<double>::infinity();

// The error that at least `groups` corpora reach: each residue class has one that does.
DISTCACHE_VECTOR_CLONES
double reached_by_all_groups(const double* weights, const double* counts, std::size_t size,
                             double step) {
    std::array<double, groups> largest;
    largest.fill(never);
    std::size_t d = 0;
    for (; d + groups <= size; d += groups) {
        for (std::size_t g = 0; g < groups; ++g) {
            const double error = weights[d + g] * step - counts[d + g];
            largest[g] = error > largest[g] ? error : largest[g];
        }
    }
    return *std::min_element(largest.begin(), largest.end());
}

// The places whose error reaches `bound` by step `last`, ascending.
DISTCACHE_VECTOR_CLONES
std::size_t reaching(const double* weights, const double* counts, std::size_t size, double last,
                     double bound, std::int32_t* places) {
    std::size_t found = 0;
    for (std::size_t d = 0; d < size; ++d) {
        places[found] = static_cast<std::int32_t>(d);
        found += static_cast<std::size_t>(weights[d] * last - counts[d] >= bound);
    }
    return found;
}

// By reference: returning a wide vector would depend on the caller's instruction set.
inline void load(const double* from, Doubles& values) {
    std::memcpy(&values, from, sizeof(values));
}

// The first place with the largest error. `padded` is a multiple of `lanes`; padding never wins.
DISTCACHE_VECTOR_CLONES
std::size_t winner(const double* weights, const double* counts, std::size_t padded, double step) {
    Doubles best = Doubles{} + never;
    Places place = {};
    Places here = {0, 1, 2, 3, 4, 5, 6, 7};
    for (std::size_t d = 0; d < padded; d += lanes) {
        Doubles weight;
        Doubles count;
        load(weights + d, weight);
        load(counts + d, count);
        const Doubles error = weight * step - count;
        const Places better = error > best;
        best = better ? error : best;
        place = better ? here : place;
        here += static_cast<std::int64_t>(lanes);
    }
    for (std::size_t lane = 1; lane < lanes; ++lane) {
        const bool better =
            best[lane] > best[0] || (best[lane] == best[0] && place[lane] < place[0]);
        best[0] = better ? best[lane] : best[0];
        place[0] = better ? place[lane] : place[0];
    }
    return static_cast<std::size_t>(place[0]);
}

constexpr std::size_t padded_size(std::size_t size) {
    return (size + lanes - 1) / lanes * lanes;
}

// The corpora that may win within a window, with their own copies of weight and count.
class Candidates {
public:
    explicit Candidates(std::size_t most)
        : places_(most + 1), weights_(padded_size(most)), counts_(weights_) {}

    void gather(const std::vector<double>& weights, const std::vector<double>& counts, double first,
                double last) {
        const std::size_t size = weights.size();
        const double bound =
            size <= small ? never
                          : reached_by_all_groups(weights.data(), counts.data(), size, first);
        found_ = reaching(weights.data(), counts.data(), size, last, bound, places_.data());
        for (std::size_t k = 0; k < found_; ++k) {
            const auto place = static_cast<std::size_t>(places_[k]);
            weights_[k] = weights[place];
            counts_[k] = counts[place];
        }
        for (std::size_t k = found_; k < padded_size(found_); ++k) {
            weights_[k] = 0;
            counts_[k] = std::numeric_limits<double>::infinity();
        }
    }

    [[nodiscard]] std::size_t winner_at(double step) {
        return winner(weights_.data(), counts_.data(), padded_size(found_), step);
    }

    void take(std::size_t k) { counts_[k] += 1; }
    void spend(std::size_t k) { counts_[k] = std::numeric_limits<double>::infinity(); }
    [[nodiscard]] std::size_t place(std::size_t k) const {
        return static_cast<std::size_t>(places_[k]);
    }

private:
    std::vector<std::int32_t> places_;
    std::vector<double> weights_;
    std::vector<double> counts_;
    std::size_t found_ = 0;
};

double factor(std::int64_t step) {
    return std::max(static_cast<double>(step), 1.0);
}

}  // namespace

Blender::Blender(std::span<const double> weights)
    : weights_(weights.begin(), weights.end()),
      counts_(weights.size(), 0.0),
      taken_(weights.size(), 0) {
    active_.resize(weights.size());
    for (std::size_t d = 0; d < active_.size(); ++d) {
        active_[d] = static_cast<std::int32_t>(d);
    }
}

Blender Blender::exhaustive(std::span<const std::int64_t> sizes) {
    std::int64_t total = 0;
    for (const std::int64_t size : sizes) {
        total += size;
    }
    std::vector<double> weights;
    for (const std::int64_t size : sizes) {
        weights.push_back(static_cast<double>(size) / static_cast<double>(total));
    }
    Blender blender(weights);
    blender.sizes_.assign(sizes.begin(), sizes.end());
    blender.drop_spent();
    return blender;
}

void Blender::next(std::span<std::int16_t> corpora, std::span<std::int64_t> samples) {
    run(static_cast<std::int64_t>(corpora.size()), corpora.data(), samples.data());
}

void Blender::skip(std::int64_t steps) {
    run(steps, nullptr, nullptr);
}

void Blender::require_steps(std::int64_t steps) const {
    std::int64_t left = weights_.empty() ? 0 : std::numeric_limits<std::int64_t>::max();
    if (!sizes_.empty()) {
        left = std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0}) - step_;
    }
    if (steps < 0 || steps > left) {
        throw std::out_of_range("the blend has no " + std::to_string(steps) + " steps left");
    }
}

void Blender::drop_spent() {
    std::size_t kept = 0;
    for (std::size_t k = 0; k < active_.size(); ++k) {
        const auto corpus = static_cast<std::size_t>(active_[k]);
        if (taken_[corpus] < sizes_[corpus]) {
            active_[kept] = active_[k];
            weights_[kept] = weights_[k];
            counts_[kept] = counts_[k];
            ++kept;
        }
    }
    active_.resize(kept);
    weights_.resize(kept);
    counts_.resize(kept);
}

void Blender::run(std::int64_t steps, std::int16_t* corpora, std::int64_t* samples) {
    Candidates candidates(active_.size());
    for (std::int64_t done = 0; done < steps;) {
        const std::int64_t count = std::min(window, steps - done);
        candidates.gather(weights_, counts_, factor(step_), factor(step_ + count - 1));
        bool spent = false;
        for (const std::int64_t end = done + count; done < end; ++done, ++step_) {
            const std::size_t k = candidates.winner_at(factor(step_));
            const std::size_t place = candidates.place(k);
            const auto corpus = static_cast<std::size_t>(active_[place]);
            if (corpora != nullptr) {
                corpora[done] = static_cast<std::int16_t>(corpus);
                samples[done] = taken_[corpus];
            }
            counts_[place] += 1;
            candidates.take(k);
            if (++taken_[corpus]; !sizes_.empty() && taken_[corpus] == sizes_[corpus]) {
                candidates.spend(k);
                spent = true;
            }
        }
        if (spent) {
            drop_spent();
        }
    }
}

}  // namespace distcache
