#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "catch.hpp"
#include "distcache/deal.hpp"

using distcache::Dealer;
using distcache::StepWork;

namespace {

struct Dealt {
    std::vector<std::uint32_t> places;
    StepWork work;
};

Dealt dealt(const std::vector<double>& work, std::int64_t ranks, std::int64_t micro_batch) {
    Dealt found{std::vector<std::uint32_t>(work.size()), {}};
    Dealer dealer(static_cast<std::int64_t>(work.size()), ranks, micro_batch);
    found.work = dealer.deal(work, found.places);
    return found;
}

}  // namespace

TEST_CASE("four samples go to two ranks in pairs of equal work") {
    // In order, rank 0 would have 8 + 6, and rank 1 5 + 1.
    const Dealt found = dealt({8, 5, 6, 1}, 2, 1);
    CHECK(found.places == std::vector<std::uint32_t>{0, 2, 3, 1});
    CHECK(found.work.total == 20);
    CHECK(found.work.in_order == 14);
    CHECK(found.work.dealt == 11);
    CHECK(found.work.in_order_by_micro_batch == 14);  // 8, then 6
    CHECK(found.work.dealt_by_micro_batch == 13);     // 8, then 5
}

TEST_CASE("micro batches of several samples are equal, too") {
    const Dealt found = dealt({9, 8, 1, 2}, 2, 2);
    CHECK(found.work.in_order == 17);
    CHECK(found.work.dealt == 10);
}

TEST_CASE("a step of one sample a rank stays as it is") {
    CHECK(dealt({1, 4, 2, 3}, 4, 1).places == std::vector<std::uint32_t>{0, 1, 2, 3});
}

TEST_CASE("random steps have the same samples, and are never heavier") {
    std::mt19937 chance(5);
    for (int k = 0; k < 2000; ++k) {
        const std::int64_t ranks = 1 + chance() % 8, micro = 1 + chance() % 4,
                           rounds = 1 + chance() % 6;
        std::vector<double> work(static_cast<std::size_t>(ranks * micro * rounds));
        const unsigned most = 1U << (chance() % 20);
        for (double& one : work) {
            one = static_cast<double>(chance() % most);
        }
        Dealt found = dealt(work, ranks, micro);
        CHECK(dealt(work, ranks, micro).places == found.places);
        std::vector<double> loads(static_cast<std::size_t>(ranks));
        for (std::size_t i = 0; i < work.size(); ++i) {
            const auto rank = i / static_cast<std::size_t>(micro) % loads.size();
            loads[rank] += work[found.places[i]];
        }
        CHECK(*std::max_element(loads.begin(), loads.end()) == found.work.dealt);
        CHECK(found.work.dealt <= found.work.in_order);
        CHECK(found.work.dealt_by_micro_batch <= found.work.in_order_by_micro_batch);
        std::sort(found.places.begin(), found.places.end());
        std::vector<std::uint32_t> all(work.size());
        std::iota(all.begin(), all.end(), 0U);
        CHECK(found.places == all);
    }
}

TEST_CASE("batches without whole micro batches of all ranks are refused") {
    CHECK_THROWS_AS(Dealer(10, 4, 1), std::invalid_argument);
    CHECK_THROWS_AS(Dealer(8, 0, 1), std::invalid_argument);
    CHECK_THROWS_AS(Dealer(8, 2, -1), std::invalid_argument);
    CHECK_THROWS_AS(Dealer(8, std::int64_t{1} << 62, 4), std::invalid_argument);
    std::vector<std::uint32_t> places(4);
    CHECK_THROWS_AS(Dealer(4, 2, 1).deal(std::vector<double>(3), places), std::invalid_argument);
}
