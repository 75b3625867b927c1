#include <algorithm>
#include <random>
#include <vector>

#include "catch.hpp"
#include "distcache/shuffle.hpp"
#include "distcache/small_sections.hpp"

using namespace distcache;

namespace {

struct Arrays {
    std::vector<std::int32_t> documents;
    std::vector<std::int32_t> rows;
    std::vector<std::uint32_t> samples;

    bool operator==(const Arrays&) const = default;
};

// Step by step, with nothing but the shuffle and one token after the other.
Arrays slow_section(const std::vector<std::int32_t>& lengths, const SmallSection& rules,
                    SampleShape shape) {
    Arrays arrays{std::vector<std::int32_t>(static_cast<std::size_t>(rules.documents)),
                  std::vector<std::int32_t>(static_cast<std::size_t>(2 * rules.rows)),
                  std::vector<std::uint32_t>(static_cast<std::size_t>(rules.samples))};
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
    const auto extra = static_cast<std::int32_t>(shape.extra_token);
    const auto size = documents.size();
    const std::int64_t last_length = size == 0 ? 0 : length_of(size - 1);
    for (std::size_t row = 1; row < arrays.rows.size() / 2; ++row) {
        std::int64_t left = shape.token_of(static_cast<std::int64_t>(row));
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

SmallSection random_section(std::mt19937& random, const std::vector<std::int32_t>& lengths) {
    const auto below = [&](std::int64_t end) { return static_cast<std::int64_t>(random()) % end; };
    const auto size = static_cast<std::int64_t>(lengths.size());
    const auto begin = below(size);
    const auto end = begin + below(size - begin + 1);
    const auto documents = (1 + below(4)) * (end - begin);
    const auto samples = below(50);
    return {{lengths.data(), size},
            begin,
            end,
            below(documents + 1),
            below(samples + 1),
            static_cast<std::uint32_t>(random()),
            documents,
            samples + 1,
            samples};
}

void append(Arrays& all, const Arrays& more) {
    all.documents.insert(all.documents.end(), more.documents.begin(), more.documents.end());
    all.rows.insert(all.rows.end(), more.rows.begin(), more.rows.end());
    all.samples.insert(all.samples.end(), more.samples.begin(), more.samples.end());
}

}  // namespace

TEST_CASE("sections that are built at once are those of their single steps") {
    std::mt19937 random(1);
    for (int round = 0; round < 300; ++round) {
        std::vector<std::vector<std::int32_t>> corpora(random() % 4);
        std::vector<SmallSection> sections;
        const SampleShape shape{1 + static_cast<std::int64_t>(random() % 12),
                                static_cast<std::int64_t>(random() % 2)};
        Arrays expected;
        for (auto& lengths : corpora) {
            lengths.resize(1 + random() % 40);
            std::ranges::generate(lengths, [&] { return static_cast<std::int32_t>(random() % 9); });
            sections.push_back(random_section(random, lengths));
            append(expected, slow_section(lengths, sections.back(), shape));
        }
        Arrays arrays{std::vector<std::int32_t>(expected.documents.size()),
                      std::vector<std::int32_t>(expected.rows.size()),
                      std::vector<std::uint32_t>(expected.samples.size())};
        build_small_sections(sections, shape, arrays.documents, arrays.rows, arrays.samples);
        REQUIRE(arrays == expected);
    }
}
