#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <span>
#include <vector>

#include "distcache/instructions.hpp"

namespace distcache {

/// Storage that starts at a cache line, so that no vector lies across two.
template <class T>
struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t line{64};

    LineAllocator() = default;
    template <class U>
    explicit LineAllocator(const LineAllocator<U>&) {}

    T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), line)); }
    void deallocate(T* values, std::size_t) { ::operator delete(values, line); }
    bool operator==(const LineAllocator&) const = default;
};

/// Corpora in ascending order, with padding that never wins up to a whole vector.
struct BlendCorpora {
    std::vector<double, LineAllocator<double>> weights;
    std::vector<double, LineAllocator<double>> counts;  // how often each has been taken
    std::vector<std::int64_t> taken;                    // the same
    std::vector<std::int64_t> sizes;                    // how often each may be taken
    std::vector<std::int32_t> corpora;                  // number of each corpus
    std::size_t size = 0;

    /// Make room for so many.
    void resize(std::size_t count);
    /// Copy the corpora at these places of others; they may be these.
    void copy(const BlendCorpora& others, std::span<const std::int32_t> places);
    /// Pad the weights and counts of `size` corpora.
    void pad();
};

/// How `weight * step - taken` is computed: rounded after the product and after the difference, as
/// Megatron-Core's helper does on x86-64; or once, as the instructions do to which compilers fuse
/// the two on processors that always have them, AArch64 for one.
enum class Arithmetic { separate, fused };

/// The greedy blend of Megatron-Core's `build_blending_indices` and
/// `build_exhaustive_blending_indices`: at step n take the corpus with the largest
/// `weight * max(n, 1) - taken` in IEEE double and an `Arithmetic`, the lowest corpus on a tie.
///
/// Steps run in windows over few candidates. Why that is exact:
///
/// 1. The error of a corpus that is not picked never decreases from step to step; nor does its
///    rounded value, since rounding is monotone.
/// 2. So a corpus whose error at the end of a window is below a bound is below it at every step.
/// 3. A step whose winner has an error of at least the bound is therefore won by a candidate: a
///    corpus whose error can reach the bound within the window.
/// 4. Within a window only candidates are compared, in ascending order, until the largest error is
///    below the bound; then a new window begins with a lower bound.
/// 5. The bound affects the speed only. It follows the errors of earlier winners.
///
/// Few corpora need no candidates. They are run in stretches side by side, from guessed states; a
/// stretch counts if it began in the state in which the one before it has ended.
class Blender {
public:
    /// Blend by weight without end. Requires finite weights that are not negative.
    explicit Blender(std::span<const double> weights, Arithmetic arithmetic = Arithmetic::separate,
                     Instructions instructions = best_instructions());

    /// Blend until corpus d has been taken sizes[d] times; a spent corpus drops out.
    static Blender exhaustive(std::span<const std::int64_t> sizes,
                              Arithmetic arithmetic = Arithmetic::separate,
                              Instructions instructions = best_instructions());

    /// The corpus and the sample within it of the next `corpora.size()` steps.
    /// `samples` has the same size. Requires enough corpora that are not spent.
    void next(std::span<std::int16_t> corpora, std::span<std::int64_t> samples);

    /// Take `steps` steps without writing them down.
    void skip(std::int64_t steps);

    /// Throws std::out_of_range unless `steps` more steps can be taken before all is spent.
    void require_steps(std::int64_t steps) const;

    /// Continue from the state in which corpus d has been taken `taken[d]` times, reachable or not.
    /// Throws std::out_of_range unless there is a number for each corpus, from 0 to its size.
    void resume(std::span<const std::int64_t> taken);

    /// How often each corpus has been taken.
    [[nodiscard]] std::vector<std::int64_t> taken() const;

private:
    static constexpr std::int64_t endless = std::numeric_limits<std::int64_t>::max();

    Blender(std::span<const double> weights, std::span<const std::int64_t> sizes,
            Arithmetic arithmetic, Instructions instructions);
    void run(std::int64_t steps, std::int16_t* corpora, std::int64_t* samples);
    std::int64_t run_among_all(std::int64_t steps, std::int16_t* corpora, std::int64_t* samples);
    std::int64_t run_alone(std::int64_t steps, std::int16_t* corpora, std::int64_t* samples);
    void guess_begins(std::int64_t each, std::int64_t* begins) const;
    std::int64_t steps_before_lanes();
    std::int64_t run_in_lanes(std::int64_t steps, std::int16_t* corpora, std::int64_t* samples);
    std::int64_t run_candidates(std::int64_t steps, std::int16_t* corpora, std::int64_t* samples);
    void find_near();
    std::size_t find_candidates(std::int64_t steps);
    void put_back();
    void move_bound(double lowest, std::int64_t done, std::int64_t wanted);
    void drop_spent();

    Arithmetic arithmetic_;
    Instructions instructions_;
    BlendCorpora all_;         // all corpora; counts are current only for those that are spent
    BlendCorpora active_;      // that are not spent
    BlendCorpora near_;        // of those that may win before `near_end_`: only weights and counts
    BlendCorpora candidates_;  // that may win within a window
    std::vector<std::int32_t> places_;       // of candidates, or of the active that are kept
    std::vector<std::int32_t> near_places_;  // of those that are near, among the active
    std::int64_t near_end_ = 0;              // step
    double floor_ = 0;                       // no other active corpus reaches it until then
    std::int64_t left_ = endless;            // steps until all are spent
    std::int64_t step_ = 0;
    double bound_ = std::numeric_limits<double>::lowest();
    double margin_ = 0.01;
    std::int64_t period_ = -1;  // of the active corpora's weights; 0 without, -1 if not known
    bool meets_ = true;         // whether stretches have begun where those before them ended
};

}  // namespace distcache
