#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "distcache/permutation.hpp"

using namespace distcache;

namespace {

// What torch does, step by step, over the whole array.
std::vector<std::int64_t> whole(std::uint32_t seed, std::size_t size) {
    std::mt19937 generator(seed);
    std::vector<std::int64_t> values(size);
    std::iota(values.begin(), values.end(), 0);
    for (std::size_t i = 0; i + 1 < size; ++i) {
        std::swap(values[i], values[i + generator() % (size - i)]);
    }
    return values;
}

}  // namespace

TEST_CASE("A permutation is drawn from its start on") {
    for (const std::size_t size : {0U, 1U, 2U, 3U, 100U, 5000U}) {
        for (const std::uint32_t seed : {0U, 1U, 77U}) {
            const auto expected = whole(seed, size);
            Permutation permutation(seed, size);
            std::vector<std::int64_t> found(size);
            const std::size_t cut = size / 3;
            permutation.next(std::span(found).first(cut));
            CHECK(permutation.position() == cut);
            permutation.next(std::span(found).subspan(cut));
            CHECK(found == expected);
        }
    }
}

TEST_CASE("What is skipped is drawn all the same") {
    const auto expected = whole(5, 1000);
    Permutation permutation(5, 1000);
    permutation.skip(400);
    std::vector<std::int64_t> found(100);
    permutation.next(found);
    CHECK(std::equal(found.begin(), found.end(), expected.begin() + 400));
}
