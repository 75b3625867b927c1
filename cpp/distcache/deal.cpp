#include "distcache/deal.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "distcache/ledger.hpp"
#include "distcache/require.hpp"

namespace distcache {

Dealer::Dealer(std::int64_t batch, std::int64_t ranks, std::int64_t micro_batch)
    : batch_(static_cast<std::size_t>(batch)),
      ranks_(static_cast<std::size_t>(ranks)),
      micro_batch_(static_cast<std::size_t>(micro_batch)) {
    if (ranks < 1 || micro_batch < 1 || batch < 1 || ranks > batch || micro_batch > batch / ranks ||
        batch % (ranks * micro_batch) != 0 || batch > std::numeric_limits<std::uint32_t>::max()) {
        throw std::invalid_argument("a batch must have whole micro batches of all ranks");
    }
}

// Gives items to bins in rounds: `found[round * bins + bin]` is an item.
void Dealer::level(std::span<const double> work, std::size_t bins,
                   std::vector<std::uint32_t>& found) {
    order_.resize(work.size());
    std::iota(order_.begin(), order_.end(), 0U);
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
        return work[a] != work[b] ? work[a] > work[b] : a < b;
    });
    bins_.resize(bins);
    std::iota(bins_.begin(), bins_.end(), 0U);
    loads_.assign(bins, 0);
    found.resize(work.size());
    for (std::size_t round = 0; round < work.size(); round += bins) {
        std::sort(bins_.begin(), bins_.end(), [&](std::uint32_t a, std::uint32_t b) {
            return loads_[a] != loads_[b] ? loads_[a] < loads_[b] : a < b;
        });
        for (std::size_t i = 0; i < bins; ++i) {
            const std::uint32_t item = order_[round + i];
            found[round + bins_[i]] = item;
            loads_[bins_[i]] += work[item];
        }
    }
}

double Dealer::heaviest_rank(std::span<const double> micro_batches) {
    loads_.assign(ranks_, 0);
    for (std::size_t i = 0; i < micro_batches.size(); ++i) {
        loads_[i % ranks_] += micro_batches[i];
    }
    return *std::max_element(loads_.begin(), loads_.end());
}

double Dealer::heaviest_by_micro_batch(std::span<const double> micro_batches) const {
    double sum = 0;
    for (std::size_t i = 0; i < micro_batches.size(); i += ranks_) {
        const auto one = micro_batches.subspan(i, ranks_);
        sum += *std::max_element(one.begin(), one.end());
    }
    return sum;
}

StepWork Dealer::deal(std::span<const double> work, std::span<std::uint32_t> places) {
    if (work.size() != batch_ || places.size() != batch_) {
        throw std::invalid_argument("a step must have as many samples as a batch");
    }
    const std::size_t groups = batch_ / micro_batch_;
    StepWork found;
    found.total = std::accumulate(work.begin(), work.end(), 0.0);
    groups_.assign(groups, 0);
    for (std::size_t i = 0; i < batch_; ++i) {
        groups_[i / micro_batch_] += work[i];
    }
    found.in_order = heaviest_rank(groups_);
    found.in_order_by_micro_batch = heaviest_by_micro_batch(groups_);

    level(work, groups, members_);
    groups_.assign(groups, 0);
    for (std::size_t i = 0; i < batch_; ++i) {
        groups_[i % groups] += work[members_[i]];
    }
    level(groups_, ranks_, assigned_);
    dealt_.resize(groups);
    for (std::size_t i = 0; i < groups; ++i) {
        dealt_[i] = groups_[assigned_[i]];
    }
    found.dealt = heaviest_rank(dealt_);
    found.dealt_by_micro_batch = heaviest_by_micro_batch(dealt_);

    const bool lighter =
        found.dealt < found.in_order || found.dealt_by_micro_batch < found.in_order_by_micro_batch;
    if (!lighter || found.dealt > found.in_order ||
        found.dealt_by_micro_batch > found.in_order_by_micro_batch) {
        found.dealt = found.in_order;
        found.dealt_by_micro_batch = found.in_order_by_micro_batch;
        std::iota(places.begin(), places.end(), 0U);
        return found;
    }
    for (std::size_t i = 0; i < groups; ++i) {
        for (std::size_t slot = 0; slot < micro_batch_; ++slot) {
            places[i * micro_batch_ + slot] = members_[slot * groups + assigned_[i]];
        }
    }
    return found;
}

void deal_steps(std::span<const Section* const> sections, std::span<const std::int16_t> members,
                std::span<const std::int64_t> samples, std::int64_t row_length, Dealer dealer,
                std::span<std::uint32_t> places, std::span<StepWork> work) {
    const std::size_t batch = dealer.batch();
    const std::size_t count = batch * work.size();
    require(samples.size() == count && members.size() == count && places.size() == count,
            "there must be whole steps, with a place for each sample");
    std::vector<double> squares(batch);
    for (std::size_t step = 0; step < work.size(); ++step) {
        const std::size_t begin = step * batch;
        sum_squares(sections, members.subspan(begin, batch), samples.subspan(begin, batch),
                    row_length, squares);
        work[step] = dealer.deal(squares, places.subspan(begin, batch));
    }
}

}  // namespace distcache
