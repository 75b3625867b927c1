#include <algorithm>
#include <random>
#include <vector>

#include "catch.hpp"
#include "distcache/shuffle.hpp"
#include "distcache/whole_section.hpp"

using namespace distcache;

namespace {

struct Arrays {
    std::vector<std::int32_t> documents;
    std::vector<std::int32_t> rows;
    std::vector<std::uint32_t> samples;

    bool operator==(const Arrays&) const = default;
};

// Step by step, with nothing but the shuffle and one token after the other.
Arrays slow_section(const std::vector<std::int32_t>& lengths, const SectionRules& rules,
                    Arrays arrays) {
    Mt19937 generator(rules.seed);
    const auto sequences = rules.end - rules.begin;
    for (std::size_t i = 0; i < arrays.documents.size(); ++i) {
        const auto sequence = rules.begin + static_cast<std::int64_t>(i) % sequences;
        arrays.documents[i] = static_cast<std::int32_t>(sequence);
    }
    const std::span documents(arrays.documents);
    const auto first = static_cast<std::size_t>(rules.first_documents);
    shuffle(documents.first(first), 1, generator);
    shuffle(documents.subspan(first), 1, generator);
    for (std::size_t i = 0; i < arrays.samples.size(); ++i) {
        arrays.samples[i] = static_cast<std::uint32_t>(i);
    }
    const std::span samples(arrays.samples);
    shuffle(samples.first(static_cast<std::size_t>(rules.first_samples)), 1, generator);
    shuffle(samples.subspan(static_cast<std::size_t>(rules.first_samples)), 1, generator);
    const auto length_of = [&](std::size_t position) {
        return lengths[static_cast<std::size_t>(documents[position])];
    };
    const auto extra = static_cast<std::int32_t>(rules.shape.extra_token);
    const auto size = documents.size();
    const std::int64_t last_length = size == 0 ? 0 : length_of(size - 1);
    for (std::size_t row = 1; row < arrays.rows.size() / 2; ++row) {
        std::int64_t left = rules.shape.token_of(static_cast<std::int64_t>(row));
        std::size_t position = 0;
        while (position < size && left >= length_of(position)) {
            left -= length_of(position++);
        }
        const bool beyond = position == size;
        arrays.rows[2 * row] = static_cast<std::int32_t>(position) - (beyond ? 1 : 0);
        arrays.rows[2 * row + 1] =
            static_cast<std::int32_t>(beyond ? last_length : left + 1) - extra;
    }
    return arrays;
}

}  // namespace

TEST_CASE("a section that is built at once is that of its single steps") {
    std::mt19937 random(1);
    for (int round = 0; round < 300; ++round) {
        std::vector<std::int32_t> lengths(1 + random() % 40);
        std::ranges::generate(lengths, [&] { return static_cast<std::int32_t>(random() % 9); });
        const auto size = static_cast<std::int64_t>(lengths.size());
        const auto begin = static_cast<std::int64_t>(random()) % size;
        const auto end = begin + static_cast<std::int64_t>(random()) % (size - begin + 1);
        const auto documents = (1 + random() % 4) * static_cast<std::size_t>(end - begin);
        const auto samples = random() % 50;
        const SectionRules rules{
            begin,
            end,
            static_cast<std::int64_t>(random() % (documents + 1)),
            static_cast<std::int64_t>(random() % (samples + 1)),
            {1 + static_cast<std::int64_t>(random() % 12), static_cast<std::int64_t>(random() % 2)},
            static_cast<std::uint32_t>(random())};
        Arrays arrays{std::vector<std::int32_t>(documents),
                      std::vector<std::int32_t>(2 * (samples + 1)),
                      std::vector<std::uint32_t>(samples)};
        const Arrays expected = slow_section(lengths, rules, arrays);
        build_section({lengths.data(), size}, rules, arrays.documents, arrays.rows, arrays.samples);
        REQUIRE(arrays == expected);
    }
}
