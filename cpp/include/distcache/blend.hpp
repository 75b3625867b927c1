#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace distcache {

/// The greedy blend of Megatron-Core's `build_blending_indices` and
/// `build_exhaustive_blending_indices`: at step n take the corpus with the largest
/// `weight * max(n, 1) - taken` in IEEE double, the lowest corpus on a tie.
///
/// Steps run in windows of B. At most B picks fall into a window, and the error of a corpus that
/// is not picked never falls, nor does its rounded value, since rounding is monotone. So the
/// winner of each step has at least an error that B + 1 corpora have at the window's start; only
/// the corpora that can reach that bound by the window's end are looked at within it.
class Blender {
public:
    /// Blend by weight without end.
    explicit Blender(std::span<const double> weights);

    /// Blend until corpus d has been taken sizes[d] times; a spent corpus drops out.
    static Blender exhaustive(std::span<const std::int64_t> sizes);

    /// The corpus and the sample within it of the next `corpora.size()` steps.
    /// `samples` has the same size. Requires enough corpora that are not spent.
    void next(std::span<std::int16_t> corpora, std::span<std::int64_t> samples);

    /// Take `steps` steps without writing them down.
    void skip(std::int64_t steps);

    /// Throws std::out_of_range unless `steps` more steps can be taken before all is spent.
    void require_steps(std::int64_t steps) const;

    /// How often each corpus has been taken.
    [[nodiscard]] const std::vector<std::int64_t>& taken() const { return taken_; }

private:
    void run(std::int64_t steps, std::int16_t* corpora, std::int64_t* samples);
    void drop_spent();

    std::vector<std::int32_t> active_;  // corpora that are not spent, ascending
    std::vector<double> weights_;       // of the active corpora
    std::vector<double> counts_;        // of the active corpora, as doubles
    std::vector<std::int64_t> sizes_;   // of all corpora; empty when there is no end
    std::vector<std::int64_t> taken_;   // of all corpora
    std::int64_t step_ = 0;
};

}  // namespace distcache
