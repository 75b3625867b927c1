#include <algorithm>
#include <iterator>
#include <random>
#include <vector>

#include "catch.hpp"
#include "distcache/sample_index.hpp"

using namespace distcache;

namespace {

// One token after the other: boundary s is where token s * L - 1 + extra lies, plus one token
// without an extra one.
std::vector<std::int64_t> slow_rows(const std::vector<std::int32_t>& lengths, SampleShape shape) {
    std::vector<std::int64_t> rows;
    std::int64_t token = 0;
    std::int64_t sample = 1;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        for (std::int64_t offset = 0; offset < lengths[i]; ++offset, ++token) {
            if (token == shape.token_of(sample)) {
                rows.push_back(static_cast<std::int64_t>(i));
                rows.push_back(offset + 1 - shape.extra_token);
                ++sample;
            }
        }
    }
    return rows;
}

std::vector<std::int32_t> random_lengths(std::mt19937& random, std::size_t size) {
    std::vector<std::int32_t> lengths(size);
    for (auto& length : lengths) {
        const auto kind = random() % 8;
        length = static_cast<std::int32_t>(kind == 0   ? 0
                                           : kind == 1 ? random() % 300
                                                       : random() % 9);
    }
    return lengths;
}

template <class T>
std::vector<std::int64_t> rows_in_slices(const std::vector<std::int32_t>& lengths,
                                         SampleShape shape, std::size_t slice, std::size_t room) {
    std::vector<std::int64_t> rows;
    Cursor cursor{0, 0, 1};
    std::vector<T> pairs(2 * room);
    for (std::size_t begin = 0; begin < lengths.size(); begin += slice) {
        const auto part =
            std::span(lengths).subspan(begin, std::min(slice, lengths.size() - begin));
        const auto end = static_cast<std::int64_t>(begin + part.size());
        while (cursor.position < end) {
            const auto count = emit_boundaries(part, static_cast<std::int64_t>(begin), shape,
                                               cursor, std::span(pairs));
            rows.insert(rows.end(), pairs.begin(), pairs.begin() + 2 * count);
        }
    }
    return rows;
}

}  // namespace

TEST_CASE("boundaries are those of counting tokens, in any slices and with any room") {
    std::mt19937 random(1);
    for (int round = 0; round < 60; ++round) {
        const auto lengths = random_lengths(random, random() % 90);
        for (const std::int64_t length : {1, 2, 7, 64}) {
            for (const std::int64_t extra : {0, 1}) {
                const SampleShape shape{length, extra};
                const auto expected = slow_rows(lengths, shape);
                const std::size_t slice = 1 + random() % 40;
                const std::size_t room = 1 + random() % 20;
                REQUIRE(rows_in_slices<std::int64_t>(lengths, shape, slice, room) == expected);
                REQUIRE(rows_in_slices<std::int32_t>(lengths, shape, slice, room) == expected);
            }
        }
    }
}

TEST_CASE("positions and tokens beyond 2^32 are kept whole") {
    const std::int64_t begin = (std::int64_t{1} << 32) + 5;
    const std::int64_t token = (std::int64_t{1} << 40) + 1;
    const std::vector<std::int32_t> lengths{10, 0, 2147483647, 3};
    const SampleShape shape{1 << 30, 1};
    const std::int64_t sample = token / shape.sequence_length + 1;
    Cursor cursor{begin, token, sample};
    std::vector<std::int64_t> pairs(20);
    const auto count = emit_boundaries(std::span<const std::int32_t>(lengths), begin, shape, cursor,
                                       std::span(pairs));
    REQUIRE(count == 2);
    REQUIRE(pairs[0] == begin + 2);
    REQUIRE(pairs[1] == (std::int64_t{1} << 30) - 11);
    REQUIRE(pairs[2] == begin + 2);
    REQUIRE(pairs[3] == (std::int64_t{1} << 31) - 11);
    REQUIRE(cursor.position == begin + 4);
    REQUIRE(cursor.token == token + 10 + 2147483647 + 3);
    REQUIRE(cursor.sample == sample + 2);
}

TEST_CASE("without room nothing moves past the next boundary") {
    const std::vector<std::int32_t> lengths{5, 5};
    Cursor cursor{0, 0, 1};
    std::vector<std::int64_t> none;
    REQUIRE(emit_boundaries(std::span<const std::int32_t>(lengths), 0, SampleShape{4, 1}, cursor,
                            std::span(none)) == 0);
    REQUIRE(cursor.position == 0);
    REQUIRE(cursor.sample == 1);
}

TEST_CASE("lengths are looked up in any order, from lengths at any address") {
    const std::vector<std::int32_t> lengths{3, 0, 7, 65'534, 65'535, 2'000'000'000, 5};
    std::vector<unsigned char> bytes(1);  // the lengths that follow are unaligned
    bytes.insert(bytes.end(), reinterpret_cast<const unsigned char*>(lengths.data()),
                 reinterpret_cast<const unsigned char*>(lengths.data() + lengths.size()));
    constexpr std::int64_t begin = 1;
    std::vector<std::uint16_t> narrow;
    for (std::size_t k = begin; k < lengths.size(); ++k) {
        narrow.push_back(static_cast<std::uint16_t>(std::min<std::int32_t>(lengths[k], too_long)));
    }
    std::mt19937 random(1);
    for (const std::size_t size : {0U, 1U, 3U, 64U, 65U, 500U}) {
        std::vector<std::int32_t> sequences(size);
        std::vector<std::int32_t> expected(size);
        for (std::size_t i = 0; i < size; ++i) {
            sequences[i] = static_cast<std::int32_t>(begin + random() % narrow.size());
            expected[i] = lengths[static_cast<std::size_t>(sequences[i])];
        }
        std::vector<std::int32_t> found(size);
        look_up_lengths(narrow, {bytes.data() + 1, std::ssize(lengths)}, begin, sequences, found);
        REQUIRE(found == expected);
    }
}
