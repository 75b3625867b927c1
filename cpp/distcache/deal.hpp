#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace distcache {

/// The work of a step: sums of the squares of documents.
struct StepWork {
    double total = 0;
    double most = 0;        ///< of a rank, as the samples are in their order
    double dealt = 0;       ///< of a rank, as they are dealt
    double most_apart = 0;  ///< of a rank in each micro batch, over all of these
    double dealt_apart = 0;
};

/// Deals the samples of steps to ranks and micro batches, so that these have equal work.
///
/// Micro batch m of rank r begins at place (m * ranks + r) * micro_batch of a step, as Megatron-LM
/// takes samples in order. Two times in rounds: samples become micro batches of equal work, and
/// these go to ranks. A round has one for each, alike in work, and the heaviest of a round goes
/// where there is least so far. Ties are broken by places, so that the result depends on the work
/// alone.
class Dealer {
public:
    /// Throws std::invalid_argument unless a batch has whole micro batches of all ranks.
    Dealer(std::int64_t batch, std::int64_t ranks, std::int64_t micro_batch);

    /// Deals a step. `places` gets the sample of each place; it stays in order if that is not
    /// heavier, at the end of the step or in each micro batch.
    StepWork deal(std::span<const double> work, std::span<std::uint32_t> places);

private:
    void level(std::span<const double> work, std::size_t bins, std::vector<std::uint32_t>& found);
    [[nodiscard]] double heaviest_rank(std::span<const double> micro_batches);
    [[nodiscard]] double heaviest_apart(std::span<const double> micro_batches) const;

    std::size_t batch_, ranks_, micro_batch_;
    // of the step at hand
    std::vector<std::uint32_t> order_, bins_, members_, assigned_;
    std::vector<double> loads_, groups_, dealt_;
};

}  // namespace distcache
