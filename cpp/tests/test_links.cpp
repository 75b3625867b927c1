#include <algorithm>
#include <numeric>
#include <vector>

#include "catch.hpp"
#include "distcache/links.hpp"
#include "distcache/shuffle.hpp"

using namespace distcache;

namespace {

using Numbers = std::vector<std::uint32_t>;

Numbers shuffled(std::uint32_t size, Mt19937& generator) {
    Numbers values(size);
    std::iota(values.begin(), values.end(), 0U);
    shuffle(std::span(values), 1, generator);
    return values;
}

// All links, found in pieces of positions and of steps, and followed to their ends.
Numbers by_links(std::uint32_t size, std::uint32_t pieces, std::uint32_t steps_at_a_time) {
    Numbers latest(size, no_link);
    Numbers link_of_step(size, no_link);
    Numbers draw_of_step(size, 0);
    for (std::uint32_t piece = 0; piece < pieces; ++piece) {
        const std::uint32_t begin = size * piece / pieces;
        const std::uint32_t end = size * (piece + 1) / pieces;
        Mt19937 generator(5);
        for (std::uint32_t first = size - 1; first > 0;) {
            const std::uint32_t count = std::min(steps_at_a_time, first);
            Numbers steps(count);
            Numbers draws(count);
            steps.resize(draws_within(first, count, begin, end, steps, draws, generator));
            draws.resize(steps.size());
            Numbers links(steps.size());
            link_steps(steps, draws, begin, std::span(latest).subspan(begin, end - begin), links);
            for (std::size_t k = 0; k < steps.size(); ++k) {
                link_of_step[steps[k]] = links[k];
                draw_of_step[steps[k]] = draws[k];
            }
            first -= count;
        }
    }
    link_of_step[0] = latest[0];
    Numbers values(size);
    for (std::uint32_t i = 0; i < size; ++i) {
        std::uint32_t value = draw_of_step[i];
        for (std::uint32_t step = link_of_step[i]; step != no_link; step = latest[step]) {
            value = step;
        }
        values[i] = value;
    }
    return values;
}

}  // namespace

TEST_CASE("links lead to what a shuffle leaves") {
    for (const std::uint32_t size : {1U, 2U, 3U, 20U, 1000U, 5000U}) {
        Mt19937 generator(5);
        const Numbers expected = shuffled(size, generator);
        REQUIRE(by_links(size, 1, size) == expected);
        REQUIRE(by_links(size, 3, 700) == expected);
    }
}

TEST_CASE("draws within a range leave the generator behind all draws") {
    Mt19937 scanned(5);
    Mt19937 shuffling(5);
    Numbers steps(4999);
    Numbers draws(4999);
    draws_within(4999, 4999, 100, 200, steps, draws, scanned);
    shuffled(5000, shuffling);
    REQUIRE(scanned.next32() == shuffling.next32());
}

TEST_CASE("keys are grouped by the range that they lie in, in order") {
    const Numbers keys{7, 0, 3, 9, 3, 2, 8};
    const std::vector<std::int64_t> bounds{0, 3, 3, 8, 10};
    Numbers order(keys.size());
    std::vector<std::int64_t> counts(4);
    group_by_range(keys, bounds, order, counts);
    REQUIRE(order == Numbers{1, 5, 0, 2, 4, 3, 6});
    REQUIRE(counts == std::vector<std::int64_t>{2, 0, 3, 2});
}
