#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "catch.hpp"
#include "distcache/ledger.hpp"

using namespace distcache;

namespace {

// A section whose rows end anywhere, and what it holds.
struct Case {
    std::vector<std::int32_t> lengths, documents, boundaries;
    std::vector<std::int64_t> offsets;
    std::vector<std::uint32_t> shuffle;
    std::int64_t extra = 0;

    [[nodiscard]] Section section() const {
        return {documents,
                std::span<const std::int32_t>(boundaries),
                std::span<const std::uint32_t>(shuffle),
                UnalignedView<std::int32_t>(lengths.data(), std::ssize(lengths)),
                UnalignedView<std::int64_t>(offsets.data(), std::ssize(offsets)),
                TokenType::i32,
                extra,
                {}};
    }
};

Case random_case(std::mt19937& random, bool extra) {
    Case made;
    made.extra = extra ? 1 : 0;
    const auto draw = [&](int below) { return static_cast<std::int32_t>(random() % below); };
    std::int64_t offset = 0;
    for (int i = 0, count = 1 + draw(20); i < count; ++i) {
        made.lengths.push_back(1 + draw(9));
        made.offsets.push_back(offset);
        offset += 4 * made.lengths.back();
    }
    for (int i = 0, count = 2 + draw(40); i < count; ++i) {
        made.documents.push_back(draw(static_cast<int>(made.lengths.size())));
    }
    const auto length = [&](std::int32_t entry) {
        return made
            .lengths[static_cast<std::size_t>(made.documents[static_cast<std::size_t>(entry)])];
    };
    std::int32_t entry = 0, token = 0;
    made.boundaries = {0, 0};
    while (true) {  // a boundary is before the last token of its document, if there is an extra one
        token += 1 + draw(14);
        while (token > length(entry) - made.extra) {
            token -= length(entry);
            token = token < 0 ? 0 : token;
            if (++entry == std::ssize(made.documents)) {
                break;
            }
        }
        if (entry == std::ssize(made.documents)) {
            break;
        }
        made.boundaries.insert(made.boundaries.end(), {entry, token});
    }
    for (std::uint32_t i = 0; i + 1 < made.boundaries.size() / 2; ++i) {
        made.shuffle.push_back(i);
    }
    std::shuffle(made.shuffle.begin(), made.shuffle.end(), random);
    return made;
}

}  // namespace

TEST_CASE("Parts are those with which samples are read, but for empty ones") {
    std::mt19937 random(1);
    for (int round = 0; round < 300; ++round) {
        const Case one = random_case(random, round % 2 == 0);
        const Case two = random_case(random, round % 3 == 0);
        const std::vector<Section> held{one.section(), two.section()};
        const std::vector<const Section*> sections{&held[0], &held[1]};
        std::vector<std::int16_t> members;
        std::vector<std::int64_t> samples;
        for (int k = 0; k < 60; ++k) {
            const auto member = static_cast<std::int16_t>(random() % 2);
            const std::size_t count = (member == 0 ? one : two).shuffle.size();
            if (count > 0) {
                members.push_back(member);
                samples.push_back(static_cast<std::int64_t>(random() % count));
            }
        }
        const TracedParts found = trace_parts(sections, members, samples);
        REQUIRE(found.bounds.size() == samples.size() + 1);
        for (std::size_t k = 0; k < samples.size(); ++k) {
            const Section& section = held[static_cast<std::size_t>(members[k])];
            std::vector<Part> parts;
            find_parts(section, samples[k], parts);
            std::erase_if(parts, [](const Part& part) { return part.tokens == 0; });
            const auto begin = static_cast<std::size_t>(found.bounds[k]);
            REQUIRE(found.bounds[k + 1] - found.bounds[k] == std::ssize(parts));
            for (std::size_t i = 0; i < parts.size(); ++i) {
                const std::int64_t sequence = found.sequences[begin + i];
                CHECK(section.offsets[sequence] + 4 * found.begins[begin + i] == parts[i].begin);
                CHECK(found.ends[begin + i] - found.begins[begin + i] == parts[i].tokens);
            }
        }
    }
}

TEST_CASE("Samples are found by their sequences, and positions by samples") {
    std::mt19937 random(2);
    for (int round = 0; round < 300; ++round) {
        const Case one = random_case(random, round % 2 == 0);
        const Section section = one.section();
        std::vector<std::int16_t> members(one.shuffle.size(), 0);
        std::vector<std::int64_t> samples(one.shuffle.size());
        for (std::size_t k = 0; k < samples.size(); ++k) {
            samples[k] = static_cast<std::int64_t>(k);
        }
        const std::vector<const Section*> sections{&section};
        const TracedParts parts = trace_parts(sections, members, samples);
        const auto wanted = static_cast<std::int64_t>(random() % one.lengths.size());
        std::vector<std::uint64_t> bits((one.lengths.size() + 63) / 64);
        bits[static_cast<std::size_t>(wanted / 64)] |= std::uint64_t{1} << (wanted % 64);
        std::vector<std::int64_t> expected;
        for (std::size_t k = 0; k < samples.size(); ++k) {
            const auto begin = parts.sequences.begin() + parts.bounds[k];
            const auto end = parts.sequences.begin() + parts.bounds[k + 1];
            if (std::find(begin, end, wanted) != end) {
                expected.push_back(static_cast<std::int64_t>(k));
            }
        }
        const std::vector<std::int64_t> found = find_samples(section, bits);
        CHECK(found == expected);
        const std::vector<std::span<const std::int64_t>> spans{found};
        CHECK(find_positions(members, samples, spans) == expected);
    }
}

TEST_CASE("A section of rows has an entry for each sample") {
    Case made;
    made.lengths = {3, 1, 2};
    made.offsets = {0, 12, 16};
    made.documents = {2, 0, 1, 2};
    const Section section = made.section();
    const std::vector<const Section*> sections{nullptr, &section};
    const std::vector<std::int16_t> members{1, 1, 1};
    const std::vector<std::int64_t> samples{3, 1, 2};
    const TracedParts found = trace_parts(sections, members, samples);
    CHECK(found.sequences == std::vector<std::int32_t>{2, 0, 1});
    CHECK(found.ends == std::vector<std::int32_t>{2, 3, 1});
    CHECK(find_samples(section, std::vector<std::uint64_t>{4}) == std::vector<std::int64_t>{0, 3});
}

TEST_CASE("Arrays that lead outside of one another are refused") {
    std::mt19937 random(3);
    const auto outside = [](std::int32_t value) { return value < 0 ? -1 : 1 << 30; };
    for (int round = 0; round < 200; ++round) {
        Case made = random_case(random, false);
        if (made.shuffle.empty()) {
            continue;
        }
        const std::vector<std::int16_t> members(made.shuffle.size(), 0);
        std::vector<std::int64_t> samples;
        for (std::size_t k = 0; k < made.shuffle.size(); ++k) {
            samples.push_back(static_cast<std::int64_t>(k));
        }
        std::fill(made.shuffle.begin(), made.shuffle.end(), 1U << 30);
        const Section shuffled = made.section();
        const std::vector<const Section*> sections{&shuffled};
        CHECK_THROWS_AS(trace_parts(sections, members, samples), std::out_of_range);
        std::vector<std::uint64_t> all((made.lengths.size() + 63) / 64, ~std::uint64_t{0});
        CHECK_THROWS_AS(find_samples(shuffled, all), std::out_of_range);
        std::fill(made.documents.begin(), made.documents.end(), outside(round % 2 - 1));
        const Section moved = made.section();
        CHECK_THROWS_AS(find_samples(moved, all), std::out_of_range);
    }
    const std::vector<std::int16_t> members{1};
    const std::vector<std::int64_t> samples{0};
    CHECK_THROWS_AS(trace_parts({}, members, samples), std::out_of_range);
    CHECK_THROWS_AS(find_positions(members, samples, {}), std::out_of_range);
    CHECK_THROWS_AS(find_positions(members, {}, {}), std::out_of_range);
}
