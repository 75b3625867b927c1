#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "catch.hpp"
#include "distcache/blend.hpp"

using distcache::Arithmetic;
using distcache::available_instructions;
using distcache::Blender;

namespace {

constexpr std::array arithmetics{Arithmetic::separate, Arithmetic::fused};

struct Blend {
    std::vector<std::int16_t> corpora;
    std::vector<std::int64_t> samples;

    explicit Blend(std::size_t size) : corpora(size), samples(size) {}
    bool operator==(const Blend&) const = default;
};

// Look at every corpus in every step.
Blend slow_blend(const std::vector<double>& weights, std::size_t size, Arithmetic arithmetic,
                 const std::vector<std::int64_t>& sizes = {}) {
    Blend blend(size);
    std::vector<std::int64_t> taken(weights.size());
    for (std::size_t n = 0; n < size; ++n) {
        const double step = std::max(static_cast<double>(n), 1.0);
        std::size_t best = weights.size();
        double best_error = -INFINITY;
        for (std::size_t d = 0; d < weights.size(); ++d) {
            if (!sizes.empty() && taken[d] == sizes[d]) {
                continue;
            }
            const auto count = static_cast<double>(taken[d]);
            const double error = arithmetic == Arithmetic::fused
                                     ? std::fma(weights[d], step, -count)
                                     : weights[d] * step - count;
            if (error > best_error) {
                best = d;
                best_error = error;
            }
        }
        blend.corpora[n] = static_cast<std::int16_t>(best);
        blend.samples[n] = taken[best]++;
    }
    return blend;
}

Blend in_pieces(Blender blender, std::size_t size, std::size_t piece) {
    Blend blend(size);
    for (std::size_t begin = 0; begin < size; begin += piece) {
        const std::size_t count = std::min(piece, size - begin);
        blender.next(std::span(blend.corpora).subspan(begin, count),
                     std::span(blend.samples).subspan(begin, count));
    }
    return blend;
}

std::vector<double> random_weights(std::mt19937& random, std::size_t count) {
    std::lognormal_distribution<double> draw(0.0, 2.0);
    std::vector<double> weights(count);
    double sum = 0;
    for (auto& weight : weights) {
        weight = random() % 5 == 0 ? 1.0 : draw(random);
        sum += weight;
    }
    for (auto& weight : weights) {
        weight /= sum;
    }
    return weights;
}

}  // namespace

TEST_CASE("a blend by weight is the greedy one, in pieces of any size") {
    std::mt19937 random(2);
    for (const std::size_t count : {1u, 2u, 3u, 7u, 16u, 17u, 64u, 65u, 200u, 900u}) {
        const auto weights = random_weights(random, count);
        for (const auto arithmetic : arithmetics) {
            const auto expected = slow_blend(weights, 3000, arithmetic);
            for (const auto instructions : available_instructions()) {
                const Blender blender(weights, arithmetic, instructions);
                REQUIRE(in_pieces(blender, 3000, 3000) == expected);
                REQUIRE(in_pieces(blender, 3000, 1 + random() % 300) == expected);
            }
        }
    }
}

TEST_CASE("rounding once makes another blend of many weights, where errors would be equal") {
    std::mt19937 random(7);
    int differing = 0;
    for (int i = 0; i < 40; ++i) {
        std::vector<double> weights(2 + random() % 30);
        std::generate(weights.begin(), weights.end(),
                      [&] { return 1.0 + static_cast<double>(random() % 9); });
        const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
        std::for_each(weights.begin(), weights.end(), [&](double& weight) { weight /= sum; });
        const auto once = slow_blend(weights, 5000, Arithmetic::fused);
        const auto twice = slow_blend(weights, 5000, Arithmetic::separate);
        for (const auto instructions : available_instructions()) {
            const Blender fused(weights, Arithmetic::fused, instructions);
            const Blender separate(weights, Arithmetic::separate, instructions);
            REQUIRE(in_pieces(fused, 5000, 777) == once);
            REQUIRE(in_pieces(separate, 5000, 777) == twice);
        }
        differing += static_cast<int>(twice != once);
    }
    REQUIRE(differing > 5);
}

// Long enough for stretches of a blend of few corpora, which are run side by side.
TEST_CASE("stretches that meet, and those that do not, make the greedy blend") {
    constexpr std::size_t size = 140'000;
    std::mt19937 random(11);
    const auto kinds = std::array<std::function<double()>, 5>{
        [&] { return std::lognormal_distribution<double>(0.0, 1.5)(random); },
        [&] { return 1.0 + static_cast<double>(random() % 3); },
        [&] { return std::ldexp(1.0, -static_cast<int>(random() % 21)); },
        [&] { return random() % 3 == 0 ? 0.0 : 1.0 + static_cast<double>(random() % 90); },
        [] { return 1.0; }};
    std::size_t next = 0;
    for (const std::size_t count : {2u, 3u, 4u, 7u, 32u}) {
        for (int i = 0; i < 2; ++i) {
            std::vector<double> weights(count);
            std::generate(weights.begin(), weights.end(), kinds[next++ % kinds.size()]);
            weights[0] += 1;
            const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
            std::for_each(weights.begin(), weights.end(), [&](double& weight) { weight /= sum; });
            const auto arithmetic = arithmetics[random() % 2];
            const auto expected = slow_blend(weights, size, arithmetic);
            for (const auto instructions : available_instructions()) {
                const Blender blender(weights, arithmetic, instructions);
                REQUIRE(in_pieces(blender, size, i == 0 ? size : 70'001) == expected);
            }
        }
    }
}

TEST_CASE("a blend continues from any state, also beyond the counts of stretches") {
    const std::vector<double> weights{0.21337, 0.2, 0.2, 0.2, 0.18663};
    constexpr std::size_t size = 140'000;
    for (const int power : {10, 43, 45, 46, 50}) {
        const std::vector<std::int64_t> taken(weights.size(), std::int64_t{1} << power);
        std::vector<Blend> found;
        for (const auto instructions : available_instructions()) {
            Blender blender(weights, Arithmetic::separate, instructions);
            blender.resume(taken);
            found.push_back(in_pieces(blender, size, size));
            REQUIRE(found.back() == found.front());
        }
        REQUIRE(*std::min_element(found[0].samples.begin(), found[0].samples.end()) >= taken[0]);
    }
}

TEST_CASE("weights that do not add up to one, and one more corpus than stretches take") {
    constexpr std::size_t size = 140'000;
    std::mt19937 random(13);
    for (const auto& [sum, count] : {std::pair{0.5, 3u}, std::pair{3.0, 4u}, std::pair{1.0, 33u}}) {
        auto weights = random_weights(random, count);
        for (auto& weight : weights) {
            weight *= sum;
        }
        const auto expected = slow_blend(weights, size, Arithmetic::separate);
        for (const auto instructions : available_instructions()) {
            const Blender blender(weights, Arithmetic::separate, instructions);
            REQUIRE(in_pieces(blender, size, size) == expected);
        }
    }
}

TEST_CASE("stretches of an exhaustive blend end where a corpus is spent") {
    std::mt19937 random(12);
    for (const std::size_t count : {2u, 6u, 40u}) {
        std::vector<std::int64_t> sizes(count);
        std::generate(sizes.begin(), sizes.end(),
                      [&] { return random() % 4 == 0 ? random() % 3 : 1'000 + random() % 4'000; });
        sizes[count / 2] = 150'000;
        const auto total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
        std::vector<double> weights;
        for (const std::int64_t own : sizes) {
            weights.push_back(static_cast<double>(own) / static_cast<double>(total));
        }
        const auto all = static_cast<std::size_t>(total);
        const auto arithmetic = arithmetics[count % 4 / 2];
        const auto expected = slow_blend(weights, all, arithmetic, sizes);
        for (const auto instructions : available_instructions()) {
            const auto blender = Blender::exhaustive(sizes, arithmetic, instructions);
            REQUIRE(in_pieces(blender, all, all) == expected);
            REQUIRE(in_pieces(blender, all, 100) == expected);
        }
    }
}

TEST_CASE("equal weights tie, and the lowest corpus goes first") {
    for (const std::size_t count : {2u, 5u, 64u, 300u}) {
        const std::vector<double> weights(count, 1.0 / static_cast<double>(count));
        for (const auto arithmetic : arithmetics) {
            const auto expected = slow_blend(weights, 2000, arithmetic);
            for (const auto instructions : available_instructions()) {
                const Blender blender(weights, arithmetic, instructions);
                REQUIRE(in_pieces(blender, 2000, 700) == expected);
            }
        }
    }
}

TEST_CASE("groups of equal weights among others, more than fit into registers") {
    std::mt19937 random(5);
    for (const std::size_t kinds : {1u, 2u, 10u}) {
        std::vector<double> weights(1500);
        for (auto& weight : weights) {
            weight = 1.0 / static_cast<double>(1000 + random() % kinds);
        }
        for (const auto arithmetic : arithmetics) {
            const auto expected = slow_blend(weights, 4000, arithmetic);
            for (const auto instructions : available_instructions()) {
                const Blender blender(weights, arithmetic, instructions);
                REQUIRE(in_pieces(blender, 4000, 900) == expected);
            }
        }
    }
}

TEST_CASE("a blend continues from how often each corpus has been taken") {
    std::mt19937 random(6);
    for (const std::size_t count : {1u, 3u, 100u}) {
        const auto weights = random_weights(random, count);
        Blender first(weights);
        first.skip(2345);
        Blender second(weights);
        second.resume(first.taken());
        REQUIRE(in_pieces(second, 1000, 64) == in_pieces(first, 1000, 1000));
    }
    const std::vector<std::int64_t> sizes{5, 0, 70, 3, 40};
    auto first = Blender::exhaustive(sizes);
    first.skip(115);
    auto second = Blender::exhaustive(sizes);
    second.resume(first.taken());
    REQUIRE_NOTHROW(second.require_steps(3));
    REQUIRE_THROWS_AS(second.require_steps(4), std::out_of_range);
    REQUIRE(in_pieces(second, 3, 2) == in_pieces(first, 3, 3));
}

TEST_CASE("an exhaustive blend takes every corpus as often as it has samples") {
    std::mt19937 random(3);
    for (const std::size_t count : {1u, 2u, 9u, 65u, 300u}) {
        std::vector<std::int64_t> sizes(count);
        std::int64_t total = 0;
        for (auto& size : sizes) {
            size = static_cast<std::int64_t>(random() % 40);
            total += size;
        }
        std::vector<double> weights(count);
        std::transform(sizes.begin(), sizes.end(), weights.begin(), [&](std::int64_t size) {
            return static_cast<double>(size) / static_cast<double>(total);
        });
        const auto steps = static_cast<std::size_t>(total);
        for (const auto arithmetic : arithmetics) {
            const auto expected = slow_blend(weights, steps, arithmetic, sizes);
            for (const auto instructions : available_instructions()) {
                const auto blender = Blender::exhaustive(sizes, arithmetic, instructions);
                for (const std::size_t piece : {1u, 2u, 113u}) {
                    REQUIRE(in_pieces(blender, steps, piece) == expected);
                }
            }
        }
    }
}

TEST_CASE("skipping counts without writing") {
    std::mt19937 random(4);
    const auto weights = random_weights(random, 150);
    Blender written(weights);
    Blender skipped(weights);
    Blend all(5000);
    written.next(all.corpora, all.samples);
    skipped.skip(4321);
    Blend rest(5000 - 4321);
    skipped.next(rest.corpora, rest.samples);
    REQUIRE(std::equal(rest.corpora.begin(), rest.corpora.end(), all.corpora.begin() + 4321));
    REQUIRE(skipped.taken() == written.taken());
}

TEST_CASE("an exhaustive blend cannot be asked for more than there is") {
    const std::vector<std::int64_t> sizes{2, 3};
    auto blender = Blender::exhaustive(sizes);
    blender.skip(4);
    REQUIRE_NOTHROW(blender.require_steps(1));
    REQUIRE_THROWS_AS(blender.require_steps(2), std::out_of_range);
}
