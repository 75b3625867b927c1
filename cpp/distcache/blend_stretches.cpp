#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>

#include "blend_lanes.hpp"
#include "distcache/blend.hpp"

namespace distcache {
namespace {

using blending::stretches;

constexpr std::int64_t run_up = 4096;  // steps after which a guess has nearly always become true
constexpr std::int64_t shortest = 4 * run_up;   // steps of a stretch with a run-up
constexpr std::int64_t shortest_periods = 512;  // steps of a stretch of whole periods
constexpr std::int64_t longest_period = 4096;   // steps
constexpr double whole = 1e-9;                  // how far products of whole numbers are from them

// The smallest number of steps in which each corpus has a whole number of samples; 0 if it is long.
std::int64_t period_of(std::span<const double> weights) {
    for (std::int64_t steps = 1; steps <= longest_period; ++steps) {
        const auto is_whole = [=](double weight) {
            const double samples = weight * static_cast<double>(steps);
            return std::abs(samples - std::round(samples)) < whole;
        };
        if (std::all_of(weights.begin(), weights.end(), is_whole)) {
            return steps;
        }
    }
    return 0;
}

// Counts that are near those of the blend after some more steps: no error is above one level, which
// is such that they add up. As `estimate_counts` of distcache/plan/blend_counts.py.
void estimate(std::span<const double> weights, std::span<const std::int64_t> from,
              std::int64_t step, std::int64_t more, std::int64_t* counts) {
    const std::size_t corpora = weights.size();
    const auto at = static_cast<double>(step + more);
    const std::int64_t wanted = std::accumulate(from.begin(), from.end(), more);
    const auto below = [&](double level) {
        std::int64_t sum = 0;
        for (std::size_t d = 0; d < corpora; ++d) {
            const auto count = static_cast<std::int64_t>(std::floor(weights[d] * at - level)) + 1;
            sum += counts[d] = std::max(count, from[d]);
        }
        return sum;
    };
    double low = -2;
    double high = 2;
    while (below(low) < wanted) {
        low *= 2;
    }
    while (below(high) > wanted) {
        high *= 2;
    }
    for (int halvings = 0; halvings < 60; ++halvings) {
        const double middle = (low + high) / 2;
        (below(middle) > wanted ? low : high) = middle;
    }
    for (std::int64_t missing = wanted - below(high); missing > 0; --missing) {
        std::size_t best = 0;
        for (std::size_t d = 1; d < corpora; ++d) {
            const auto error = [&](std::size_t e) {
                return weights[e] * at - static_cast<double>(counts[e]);
            };
            best = error(d) > error(best) ? d : best;
        }
        ++counts[best];
    }
}

}  // namespace

// Stretches begin where periods do: within them the order follows from how errors are rounded that
// are equal otherwise. The first step is one of its own.
std::int64_t Blender::steps_before_lanes() {
    if (period_ < 0) {
        period_ = period_of({active_.weights.data(), active_.size});
    }
    if (step_ == 0) {
        return std::max(period_, std::int64_t{1});
    }
    return period_ > 0 ? (period_ - step_ % period_) % period_ : 0;
}

std::int64_t Blender::run_in_lanes(std::int64_t steps, std::int16_t* corpora,
                                   std::int64_t* samples) {
    if (step_ > blending::most_taken - steps) {
        return 0;
    }
    std::int64_t each = steps / static_cast<std::int64_t>(stretches);
    each -= period_ > 0 ? each % period_ : 0;
    if (each < (period_ > 0 ? shortest_periods : shortest)) {
        return 0;
    }
    const std::size_t size = active_.size;
    std::vector<std::int64_t> begins(stretches * size);
    guess_begins(each, begins.data());
    std::vector<std::int64_t> ends = begins;
    blending::Lanes lanes{.weights = active_.weights.data(),
                          .corpora = size,
                          .first = {},
                          .steps = each,
                          .counts = ends.data(),
                          .picked_corpora = corpora,
                          .picked_samples = samples};
    for (std::size_t s = 0; s < stretches; ++s) {
        lanes.first[s] = step_ + static_cast<std::int64_t>(s) * each;
    }
    blending::run_lanes(lanes, arithmetic_);
    // A stretch is right if it began where the one before it, which is right, has ended, and if no
    // corpus was spent before its end.
    std::size_t right = 0;
    for (const std::int64_t* end = ends.data(); right < stretches; ++right, end += size) {
        const bool meets = right == 0 || std::equal(end - size, end, begins.data() + right * size);
        const bool spent = !std::equal(end, end + size, active_.sizes.data(), std::less<>());
        if (!meets || spent) {
            break;
        }
        std::copy(end, end + size, active_.taken.begin());
        std::copy(end, end + size, active_.counts.begin());
    }
    meets_ = right == stretches;
    const std::int64_t done = static_cast<std::int64_t>(right) * each;
    if (size < all_.size) {
        std::transform(corpora, corpora + done, corpora, [this](std::int16_t place) {
            return static_cast<std::int16_t>(active_.corpora[static_cast<std::size_t>(place)]);
        });
    }
    step_ += done;
    return done;
}

void Blender::guess_begins(std::int64_t each, std::int64_t* begins) const {
    const std::size_t size = active_.size;
    const std::span<const double> weights(active_.weights.data(), size);
    const std::span<const std::int64_t> taken(active_.taken.data(), size);
    blending::Lanes lanes{.weights = weights.data(),
                          .corpora = size,
                          .first = {},
                          .steps = run_up,
                          .counts = begins,
                          .picked_corpora = nullptr,
                          .picked_samples = nullptr};
    for (std::size_t s = 0; s < stretches; ++s) {
        const std::int64_t steps = static_cast<std::int64_t>(s) * each;
        lanes.first[s] = step_ + std::max(steps - run_up, std::int64_t{0});
        for (std::size_t d = 0; d < size && period_ > 0; ++d) {
            begins[s * size + d] = taken[d] + std::llround(weights[d] * static_cast<double>(steps));
        }
        if (period_ == 0 && s > 0) {
            estimate(weights, taken, step_, steps - run_up, begins + s * size);
        }
    }
    if (period_ == 0) {
        blending::run_lanes(lanes, arithmetic_);
        std::copy(taken.begin(), taken.end(), begins);  // the first stretch begins here
    }
}

}  // namespace distcache
