#include "distcache/blend.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <string>

#include "blend_lanes.hpp"
#include "blend_window.hpp"

namespace distcache {
namespace {

using blending::factor;
using blending::lanes;
using blending::padded_size;

// Corpora that are compared in every step, in registers; more are faster in windows.
constexpr std::size_t most_at_once = 32;
static_assert(blending::most_in_lanes <= most_at_once, "what does not meet is run among all");
// Longer windows have more candidates, shorter ones are sifted more often.
constexpr std::int64_t window_steps = 24;
constexpr std::int64_t near_steps = 512;        // for which corpora are near
constexpr double near_margins = 8;              // by which the bound may fall until then
constexpr std::int64_t scratch_size = 1 << 18;  // steps, of which stretches are worth their run-up
constexpr std::int64_t most_steps = std::int64_t{1} << 62;
constexpr double no_bound = std::numeric_limits<double>::lowest();
constexpr double infinity = std::numeric_limits<double>::infinity();

// Adjacent corpora of equal weight and count win in ascending order, so at most `steps` of them can
// win: drops the others. Returns how many are kept.
std::size_t drop_ties(const BlendCorpora& corpora, std::span<std::int32_t> places,
                      std::int64_t steps) {
    std::size_t kept = 0;
    std::int64_t equals = 0;
    for (const std::int32_t candidate : places) {
        const auto place = static_cast<std::size_t>(candidate);
        const auto last = static_cast<std::size_t>(kept > 0 ? places[kept - 1] : candidate);
        const bool same = kept > 0 && corpora.weights[place] == corpora.weights[last] &&
                          corpora.counts[place] == corpora.counts[last];
        equals = same ? equals + 1 : 1;
        places[kept] = candidate;
        kept += static_cast<std::size_t>(equals <= steps);
    }
    return kept;
}

blending::Window window_of(BlendCorpora& corpora, double bound, std::int64_t first,
                           std::int64_t size, std::int16_t* picked_corpora,
                           std::int64_t* picked_samples) {
    return {.weights = corpora.weights.data(),
            .counts = corpora.counts.data(),
            .taken = corpora.taken.data(),
            .sizes = corpora.sizes.data(),
            .corpora = corpora.corpora.data(),
            .size = corpora.size,
            .padded = padded_size(corpora.size),
            .bound = bound,
            .picked_corpora = picked_corpora,
            .picked_samples = picked_samples,
            .step = first,
            .end = first + size,
            .lowest = infinity};
}

}  // namespace

void BlendCorpora::resize(std::size_t count) {
    const std::size_t room = padded_size(count);
    weights.resize(room);
    counts.resize(room);
    taken.resize(room);
    sizes.resize(room);
    corpora.resize(room);
}

void BlendCorpora::copy(const BlendCorpora& others, std::span<const std::int32_t> places) {
    size = places.size();
    for (std::size_t k = 0; k < size; ++k) {
        const auto place = static_cast<std::size_t>(places[k]);
        weights[k] = others.weights[place];
        counts[k] = others.counts[place];
        taken[k] = others.taken[place];
        sizes[k] = others.sizes[place];
        corpora[k] = others.corpora[place];
    }
    pad();
}

void BlendCorpora::pad() {
    for (std::size_t k = size; k < padded_size(size); ++k) {
        weights[k] = 0;
        counts[k] = infinity;
    }
}

Blender::Blender(std::span<const double> weights, Arithmetic arithmetic, Instructions instructions)
    : Blender(weights, std::vector<std::int64_t>(weights.size(), endless), arithmetic,
              instructions) {}

Blender::Blender(std::span<const double> weights, std::span<const std::int64_t> sizes,
                 Arithmetic arithmetic, Instructions instructions)
    : arithmetic_(arithmetic),
      instructions_(instructions),
      places_(weights.size() + lanes),
      near_places_(weights.size() + lanes) {
    for (auto* corpora : {&all_, &active_, &near_, &candidates_}) {
        corpora->resize(weights.size());
    }
    all_.size = weights.size();
    std::copy(weights.begin(), weights.end(), all_.weights.begin());
    std::copy(sizes.begin(), sizes.end(), all_.sizes.begin());
    std::iota(all_.corpora.begin(), all_.corpora.end(), 0);
    resume(std::vector<std::int64_t>(weights.size(), 0));
}

Blender Blender::exhaustive(std::span<const std::int64_t> sizes, Arithmetic arithmetic,
                            Instructions instructions) {
    const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    std::vector<double> weights;
    for (const std::int64_t size : sizes) {
        weights.push_back(static_cast<double>(size) / static_cast<double>(total));
    }
    return Blender(weights, sizes, arithmetic, instructions);
}

void Blender::next(std::span<std::int16_t> corpora, std::span<std::int64_t> samples) {
    run(static_cast<std::int64_t>(corpora.size()), corpora.data(), samples.data());
}

void Blender::skip(std::int64_t steps) {
    const std::int64_t room = std::min(scratch_size, steps);
    std::vector<std::int16_t> corpora(static_cast<std::size_t>(std::max(room, std::int64_t{0})));
    std::vector<std::int64_t> samples(corpora.size());
    for (std::int64_t done = 0; done < steps; done += scratch_size) {
        run(std::min(scratch_size, steps - done), corpora.data(), samples.data());
    }
}

void Blender::require_steps(std::int64_t steps) const {
    if (steps < 0 || steps > left_ || (steps > 0 && active_.size == 0)) {
        throw std::out_of_range("the blend has no " + std::to_string(steps) + " steps left");
    }
}

void Blender::resume(std::span<const std::int64_t> taken) {
    if (taken.size() != all_.size) {
        throw std::out_of_range("there must be one number for each corpus");
    }
    std::int64_t sum = 0;
    for (std::size_t d = 0; d < all_.size; ++d) {
        if (taken[d] < 0 || taken[d] > all_.sizes[d] || taken[d] > most_steps - sum) {
            throw std::out_of_range("a corpus cannot have been taken so often");
        }
        sum += taken[d];
    }
    step_ = sum;
    left_ = 0;
    bound_ = no_bound;
    near_.size = 0;
    meets_ = std::ranges::all_of(std::span(all_.weights).first(all_.size),
                                 [](double weight) { return 0 <= weight && weight <= 1; });
    for (std::size_t d = 0; d < all_.size; ++d) {
        all_.taken[d] = taken[d];
        all_.counts[d] = static_cast<double>(taken[d]);
        left_ = all_.sizes[d] == endless ? endless : left_ + all_.sizes[d] - taken[d];
    }
    std::iota(places_.begin(), places_.end(), 0);
    active_.copy(all_, std::span(places_).first(all_.size));
    drop_spent();
}

std::vector<std::int64_t> Blender::taken() const {
    auto taken = all_.taken;
    taken.resize(all_.size);
    for (std::size_t k = 0; k < active_.size; ++k) {
        taken[static_cast<std::size_t>(active_.corpora[k])] = active_.taken[k];
    }
    return taken;
}

void Blender::drop_spent() {
    put_back();
    std::size_t kept = 0;
    for (std::size_t k = 0; k < active_.size; ++k) {
        if (active_.taken[k] < active_.sizes[k]) {
            places_[kept++] = static_cast<std::int32_t>(k);
        } else {
            all_.taken[static_cast<std::size_t>(active_.corpora[k])] = active_.taken[k];
        }
    }
    if (kept < active_.size) {
        active_.copy(active_, std::span(places_).first(kept));
        period_ = -1;
    }
}

void Blender::run(std::int64_t steps, std::int16_t* corpora, std::int64_t* samples) {
    assert(steps >= 0 && (left_ == endless || steps <= left_) && active_.size > 0);
    for (std::int64_t done = 0; done < steps;) {
        std::int64_t left = steps - done;
        if (meets_ && 1 < active_.size && active_.size <= blending::most_in_lanes &&
            blending::has_lanes(instructions_)) {
            const std::int64_t before = steps_before_lanes();
            if (before == 0) {
                done += run_in_lanes(left, corpora + done, samples + done);
            }
            left = before > 0 ? std::min(before, left) : steps - done;
        }
        if (left > 0) {
            done += active_.size <= most_at_once
                        ? run_among_all(left, corpora + done, samples + done)
                        : run_candidates(left, corpora + done, samples + done);
        }
    }
    left_ -= left_ == endless ? 0 : steps;
}

std::int64_t Blender::run_among_all(std::int64_t steps, std::int16_t* corpora,
                                    std::int64_t* samples) {
    if (active_.size == 1) {
        return run_alone(steps, corpora, samples);
    }
    const bool pair = active_.size == 2;
    // Of two corpora neither is spent in so many steps.
    const std::int64_t unspent =
        pair ? std::min(active_.sizes[0] - active_.taken[0], active_.sizes[1] - active_.taken[1])
             : steps;
    auto window = window_of(active_, no_bound, step_, std::min(unspent, steps), corpora, samples);
    const auto run = pair ? blending::pair_kernel(arithmetic_)
                          : blending::kernels(instructions_, arithmetic_).run;
    run(window);
    const std::int64_t done = window.step - step_;
    step_ = window.step;
    if (left_ != endless) {
        drop_spent();
    }
    return done;
}

std::int64_t Blender::run_alone(std::int64_t steps, std::int16_t* corpora, std::int64_t* samples) {
    std::fill_n(corpora, steps, static_cast<std::int16_t>(active_.corpora[0]));
    std::iota(samples, samples + steps, active_.taken[0]);
    active_.taken[0] += steps;
    active_.counts[0] = static_cast<double>(active_.taken[0]);
    step_ += steps;
    return steps;
}

// Corpora that cannot come near the bound for a while are left out of the search for candidates.
void Blender::find_near() {
    put_back();
    near_end_ = step_ + near_steps;
    floor_ = bound_ - near_margins * margin_;
    const auto kernels = blending::kernels(instructions_, arithmetic_);
    const std::size_t found =
        kernels.reaching(active_.weights.data(), active_.counts.data(), padded_size(active_.size),
                         factor(near_end_ - 1), floor_, near_places_.data());
    near_.size = drop_ties(active_, std::span(near_places_).first(found), near_steps);
    for (std::size_t k = 0; k < near_.size; ++k) {
        const auto place = static_cast<std::size_t>(near_places_[k]);
        near_.weights[k] = active_.weights[place];
        near_.counts[k] = active_.counts[place];
    }
    near_.pad();
}

void Blender::put_back() {
    for (std::size_t k = 0; k < near_.size; ++k) {
        active_.counts[static_cast<std::size_t>(near_places_[k])] = near_.counts[k];
    }
    near_.size = 0;
}

std::size_t Blender::find_candidates(std::int64_t steps) {
    const auto kernels = blending::kernels(instructions_, arithmetic_);
    std::size_t found =
        kernels.reaching(near_.weights.data(), near_.counts.data(), padded_size(near_.size),
                         factor(step_ + steps - 1), bound_, places_.data());
    if (found > most_at_once) {
        found = drop_ties(near_, std::span(places_).first(found), steps);
    }
    candidates_.size = found;
    for (std::size_t k = 0; k < found; ++k) {
        const auto near = static_cast<std::size_t>(places_[k]);
        const auto place = static_cast<std::size_t>(near_places_[near]);
        candidates_.weights[k] = near_.weights[near];
        candidates_.counts[k] = near_.counts[near];
        candidates_.taken[k] = active_.taken[place];
        candidates_.sizes[k] = active_.sizes[place];
        candidates_.corpora[k] = active_.corpora[place];
    }
    candidates_.pad();
    return found;
}

std::int64_t Blender::run_candidates(std::int64_t steps, std::int16_t* corpora,
                                     std::int64_t* samples) {
    if (near_.size == 0 || step_ >= near_end_ || bound_ < floor_) {
        find_near();
    }
    const std::int64_t wanted = std::min({window_steps, steps, near_end_ - step_});
    const std::size_t found = find_candidates(wanted);
    auto window = window_of(candidates_, bound_, step_, wanted, corpora, samples);
    if (found > 0) {
        blending::kernels(instructions_, arithmetic_).run(window);
    }
    bool spent = false;
    for (std::size_t k = 0; k < found; ++k) {
        const auto near = static_cast<std::size_t>(places_[k]);
        near_.counts[near] = candidates_.counts[k];
        active_.taken[static_cast<std::size_t>(near_places_[near])] = candidates_.taken[k];
        spent = spent || candidates_.taken[k] == candidates_.sizes[k];
    }
    const std::int64_t done = window.step - step_;
    assert(0 <= done && done <= wanted);
    step_ = window.step;
    if (spent) {
        drop_spent();
    }
    move_bound(window.lowest, done, wanted);
    return done;
}

void Blender::move_bound(double lowest, std::int64_t done, std::int64_t wanted) {
    if (done == 0) {
        put_back();
        lowest = blending::kernels(instructions_, arithmetic_)
                     .largest(active_.weights.data(), active_.counts.data(),
                              padded_size(active_.size), factor(step_));
    }
    margin_ = done < wanted ? margin_ * 2 : margin_ * 0.9;
    margin_ = std::clamp(margin_, 1e-9, 1.0);
    bound_ = lowest - margin_;
}

}  // namespace distcache
