#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distcache/section.hpp"

namespace distcache {

/// The work of a step: sums of the squares of documents.
struct StepWork {
    double total = 0;
    // of the heaviest rank: with the samples in order, and dealt
    double in_order = 0;
    double dealt = 0;
    // sums over micro batches, of the heaviest rank of each
    double in_order_by_micro_batch = 0;
    double dealt_by_micro_batch = 0;
};

/// Deals the samples of steps to ranks and micro batches, so that these have equal work.
///
/// Micro batch m of rank r begins at place (m * ranks + r) * micro_batch of a step, as Megatron-LM
/// takes samples in order. Deals twice, in rounds: samples to micro batches, and then micro batches
/// to ranks. A round has one for each, alike in work, and the heaviest of a round goes where there
/// is least so far. Ties are broken by places, so that the result depends on the work alone.
class Dealer {
public:
    /// Throws std::invalid_argument unless a batch has whole micro batches of all ranks.
    Dealer(std::int64_t batch, std::int64_t ranks, std::int64_t micro_batch);

    /// Deals a step. `places` gets the sample of each place; it stays in order if that is not
    /// heavier, at the end of the step or in each micro batch.
    StepWork deal(std::span<const double> work, std::span<std::uint32_t> places);

    [[nodiscard]] std::size_t batch() const { return batch_; }

private:
    void level(std::span<const double> work, std::size_t bins, std::vector<std::uint32_t>& found);
    [[nodiscard]] double heaviest_rank(std::span<const double> micro_batches);
    [[nodiscard]] double heaviest_by_micro_batch(std::span<const double> micro_batches) const;

    std::size_t batch_, ranks_, micro_batch_;
    // of the step at hand
    std::vector<std::uint32_t> order_, bins_, members_, assigned_;
    std::vector<double> loads_, groups_, dealt_;
};

/// Deals steps of samples of a length. `places` and `work` have a place for each sample and a sum
/// for each step. Throws std::out_of_range if the samples are no whole steps, and as `Dealer` and
/// `sum_squares`.
void deal_steps(std::span<const Section* const> sections, std::span<const std::int16_t> members,
                std::span<const std::int64_t> samples, std::int64_t row_length, Dealer dealer,
                std::span<std::uint32_t> places, std::span<StepWork> work);

}  // namespace distcache
