#include <bit>
#include <numeric>
#include <vector>

#include "catch.hpp"
#include "distcache/shuffle.hpp"

using namespace distcache;

namespace {

// NumPy's legacy draw from [0, highest]: mask, and reject what is above.
std::uint64_t slow_draw(std::uint64_t highest, Mt19937& generator) {
    const std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(highest);
    while (true) {
        const std::uint64_t word = highest <= 0xffffffff ? generator.next32() : generator.next64();
        if ((word & mask) <= highest) {
            return word & mask;
        }
    }
}

template <class T>
void slow_shuffle(std::vector<T>& values, Mt19937& generator) {
    for (std::size_t i = values.size(); i-- > 1;) {
        std::swap(values[i], values[slow_draw(i, generator)]);
    }
}

template <class T>
std::vector<T> counting(std::size_t size) {
    std::vector<T> values(size);
    std::iota(values.begin(), values.end(), T{0});
    return values;
}

const std::vector<std::size_t> sizes{0,   1,   2,    3,    31,   32,    33,    511,
                                     512, 513, 1024, 1025, 4095, 40000, 65536, 65537};

}  // namespace

TEST_CASE("a shuffle is Fisher-Yates from the top, and leaves the generator behind its draws") {
    for (const std::size_t size : sizes) {
        Mt19937 slow(99);
        Mt19937 fast(99);
        auto expected = counting<std::int64_t>(size);
        auto values = expected;
        slow_shuffle(expected, slow);
        shuffle(std::span(values), 1, fast);
        REQUIRE(values == expected);
        REQUIRE(fast.next32() == slow.next32());
    }
}

TEST_CASE("a partitioned shuffle is the same shuffle, in regions and blocks of any size") {
    for (const auto instructions : available_instructions()) {
        for (const Partitioning partitioning :
             {Partitioning{4, 2, 16}, Partitioning{5, 3, 40}, Partitioning{8, 8, 300},
              Partitioning{10, 8, 4096}, Partitioning{12, 5, 5000}}) {
            for (const std::size_t size : sizes) {
                HugeMemory space;
                const ShuffleOptions options{instructions, &space, &partitioning};
                Mt19937 slow(99);
                Mt19937 fast(99);
                auto expected = counting<std::int32_t>(size);
                auto narrow = expected;
                slow_shuffle(expected, slow);
                shuffle(std::span(narrow), 1, fast, options);
                REQUIRE(narrow == expected);
                REQUIRE(fast.next32() == slow.next32());
                Mt19937 again(99);
                auto wide = counting<std::int64_t>(size);
                shuffle(std::span(wide), 1, again, options);
                REQUIRE(std::equal(wide.begin(), wide.end(), expected.begin()));
            }
        }
    }
}

TEST_CASE("a list that is full ends its block early") {
    const Partitioning partitioning{10, 2, 2000, 700};
    Mt19937 slow(3);
    Mt19937 fast(3);
    auto expected = counting<std::int32_t>(120000);
    auto values = expected;
    slow_shuffle(expected, slow);
    shuffle(std::span(values), 1, fast, {.partitioning = &partitioning});
    REQUIRE(values == expected);
    REQUIRE(fast.next32() == slow.next32());
}

TEST_CASE("a partitioned shuffle stops where it is told to") {
    const Partitioning partitioning{6, 4, 70};
    for (const std::uint64_t stop : {1u, 64u, 65u, 900u, 2999u, 3000u}) {
        Mt19937 plain(8);
        Mt19937 partitioned(8);
        auto expected = counting<std::int64_t>(3000);
        auto values = expected;
        shuffle(std::span(expected), stop, plain);
        shuffle(std::span(values), stop, partitioned, {.partitioning = &partitioning});
        REQUIRE(values == expected);
        REQUIRE(partitioned.next32() == plain.next32());
    }
}

TEST_CASE("all element types are moved alike") {
    Mt19937 a(5);
    Mt19937 b(5);
    auto narrow = counting<std::int32_t>(3000);
    auto wide = counting<std::int64_t>(3000);
    shuffle(std::span(narrow), 1, a);
    shuffle(std::span(wide), 1, b);
    REQUIRE(std::vector<std::int64_t>(narrow.begin(), narrow.end()) == wide);
}

TEST_CASE("skipping a shuffle leaves the generator where the shuffle does") {
    for (const std::size_t size : sizes) {
        for (const std::uint64_t stop : {1u, 2u, 30u, 700u}) {
            Mt19937 shuffled(11);
            Mt19937 skipped(11);
            auto values = counting<std::int32_t>(size);
            shuffle(std::span(values), stop, shuffled);
            skip_shuffle(size, stop, skipped);
            REQUIRE(skipped.next32() == shuffled.next32());
        }
    }
}

TEST_CASE("a shuffle cut in two, its lower half done on positions, is the whole shuffle") {
    for (const std::size_t size : sizes) {
        for (const std::size_t pivot : {1u, 2u, 17u, 512u, 33000u}) {
            Mt19937 whole(21);
            auto expected = counting<std::int32_t>(size);
            shuffle(std::span(expected), 1, whole);

            Mt19937 upper(21);
            auto values = counting<std::int32_t>(size);
            shuffle(std::span(values), pivot, upper);
            Mt19937 lower(21);
            skip_shuffle(size, pivot, lower);
            auto positions = counting<std::int32_t>(std::min(pivot, size));
            shuffle(std::span(positions), 1, lower);
            std::vector<std::int32_t> below(positions.size());
            gather({values.data(), std::ssize(values)}, std::span<const std::int32_t>(positions),
                   std::span(below));
            std::copy(below.begin(), below.end(), values.begin());
            REQUIRE(values == expected);
            REQUIRE(lower.next32() == whole.next32());
        }
    }
}

TEST_CASE("draws on both sides of 2^32 take narrow and wide words") {
    for (const std::uint64_t first : {std::uint64_t{1} << 20, (std::uint64_t{1} << 32) + 40,
                                      std::uint64_t{1} << 33, (std::uint64_t{1} << 40) + 3}) {
        Mt19937 slow(17);
        Mt19937 fast(17);
        std::vector<std::uint64_t> draws(100);
        draw(first, draws, fast);
        for (std::size_t k = 0; k < draws.size(); ++k) {
            REQUIRE(draws[k] == slow_draw(first - k, slow));
        }
        REQUIRE(fast.next32() == slow.next32());
    }
}

TEST_CASE("skipping steps above 2^32 takes wide words") {
    const std::uint64_t size = (std::uint64_t{1} << 32) + 60;
    Mt19937 drawn(4);
    std::vector<std::uint64_t> draws(100);
    draw(size - 1, draws, drawn);
    Mt19937 skipped(4);
    skip_shuffle(size, size - draws.size(), skipped);
    REQUIRE(skipped.next32() == drawn.next32());
}

TEST_CASE("regions are half as large where a core's second cache is small") {
    constexpr long kib = 1024;
    REQUIRE(partitioning_for<std::int32_t>(1 << 30, 0).region_bits == 18);
    REQUIRE(partitioning_for<std::int32_t>(1 << 30, 2048 * kib).region_bits == 18);
    REQUIRE(partitioning_for<std::int32_t>(1 << 30, 512 * kib).region_bits == 17);
    REQUIRE(partitioning_for<std::int64_t>(1 << 30, 512 * kib).region_bits == 16);
    REQUIRE(partitioning_for<std::int64_t>(std::uint64_t{1} << 32, 512 * kib).region_bits == 17);
}
