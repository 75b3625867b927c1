#include <algorithm>
#include <cstdint>
#include <numeric>
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
    const auto draw = [&](int below) {
        return static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(below));
    };
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

TEST_CASE("Sums of a section are those of its rows, one by one") {
    std::mt19937 random(4);
    for (int round = 0; round < 300; ++round) {
        const Case made = random_case(random, round % 2 == 0);
        const Section section = made.section();
        const std::size_t rows = made.shuffle.size();
        const auto samples = static_cast<std::int64_t>(rows == 0 ? 0 : random() % (rows + 1));
        std::vector<std::int64_t> trained(made.lengths.size());
        std::vector<std::uint16_t> documents(rows);
        std::vector<float> squares(rows);
        std::vector<std::int32_t> tokens(rows);
        const SectionSums sums =
            sum_section(section, samples, 0, trained, {documents, squares, tokens});
        std::vector<bool> chosen(rows);
        for (std::int64_t k = 0; k < samples; ++k) {
            chosen[made.shuffle[static_cast<std::size_t>(k)]] = true;
        }
        std::vector<std::int64_t> expected(made.lengths.size());
        std::vector<std::int64_t> pieces(made.documents.size());
        std::int64_t continued = 0;
        for (std::size_t row = 0; row < rows; ++row) {
            const std::int32_t first = made.boundaries[2 * row];
            const std::int32_t last = made.boundaries[2 * row + 2];
            std::int64_t count = 0, sum = 0, square = 0;
            for (std::int32_t entry = first; entry <= last; ++entry) {
                const auto at = static_cast<std::size_t>(entry);
                const auto sequence = static_cast<std::size_t>(made.documents[at]);
                const std::int64_t begin = entry == first ? made.boundaries[2 * row + 1] : 0;
                const std::int64_t end =
                    entry == last ? made.boundaries[2 * row + 3] : made.lengths[sequence];
                if (begin == end) {
                    continue;
                }
                ++count;
                ++pieces[at];
                sum += end - begin;
                square += (end - begin) * (end - begin);
                if (chosen[row]) {
                    expected[sequence] += end - begin;
                    continued += begin > 0 ? end - begin : 0;
                }
            }
            CHECK(documents[row] == count);
            CHECK(tokens[row] == sum);
            CHECK(squares[row] == static_cast<float>(square));
        }
        CHECK(trained == expected);
        CHECK(sums.trained == std::accumulate(expected.begin(), expected.end(), std::int64_t{0}));
        CHECK(sums.continued == continued);
        CHECK(sums.whole == std::count(pieces.begin(), pieces.end(), 1));
        CHECK(sums.cut_once == std::count(pieces.begin(), pieces.end(), 2));
        CHECK(sums.whole + sums.cut_once + sums.cut_more ==
              std::count_if(pieces.begin(), pieces.end(), [](auto n) { return n > 0; }));

        std::vector<std::uint16_t> times(rows);
        for (std::size_t row = 0; row < rows; ++row) {
            times[row] = static_cast<std::uint16_t>(chosen[row] ? 1 + row % 2 : 0);
        }
        std::vector<std::uint16_t> whole(made.lengths.size());
        const PartVisits parts = find_visits(section, times, 0, whole);
        std::vector<std::int64_t> seen(made.lengths.size());
        for (std::size_t i = 0; i < whole.size(); ++i) {
            seen[i] = std::int64_t{whole[i]} * made.lengths[i];
        }
        for (std::size_t i = 0; i < parts.sequences.size(); ++i) {
            CHECK(parts.times[i] > 0);
            seen[static_cast<std::size_t>(parts.sequences[i])] +=
                std::int64_t{parts.times[i]} * (parts.ends[i] - parts.begins[i]);
        }
        std::int64_t all = 0;
        for (std::size_t row = 0; row < rows; ++row) {
            all += std::int64_t{times[row]} * tokens[row];
        }
        CHECK(std::accumulate(seen.begin(), seen.end(), std::int64_t{0}) == all);
    }
}

TEST_CASE("Windows of a blend have the sums of their samples") {
    std::mt19937 random(5);
    for (int round = 0; round < 100; ++round) {
        const Case one = random_case(random, true);
        const Case two = random_case(random, false);
        if (one.shuffle.empty() || two.shuffle.empty()) {
            continue;
        }
        const std::vector<Section> sections{one.section(), two.section()};
        std::vector<std::int16_t> members;
        std::vector<std::int64_t> samples;
        for (int k = 0; k < 50; ++k) {
            members.push_back(static_cast<std::int16_t>(random() % 2));
            const Case& own = members.back() == 0 ? one : two;
            samples.push_back(static_cast<std::int64_t>(random() % own.shuffle.size()));
        }
        std::vector<std::vector<std::uint16_t>> documents;
        std::vector<std::vector<float>> squares;
        std::vector<std::vector<std::int32_t>> tokens;
        for (const Case* own : {&one, &two}) {
            documents.emplace_back(own->shuffle.size(), 3);
            squares.emplace_back(own->shuffle.size());
            std::iota(squares.back().begin(), squares.back().end(), 1.0F);
            tokens.emplace_back(own == &one ? own->shuffle.size() : 0, 7);
        }
        const std::vector<MemberRows> rows{{&sections[0], documents[0], squares[0], tokens[0]},
                                           {&sections[1], documents[1], squares[1], tokens[1]}};
        std::vector<std::int64_t> sums(4), inputs(4), counts(8);
        std::vector<double> square_sums(4);
        std::vector<float> most(4);
        sum_windows(members, samples, 15, rows, {sums, inputs, square_sums, most});
        const BlendRuns runs = count_members(members, 15, 2, counts);
        std::int64_t same = 0, longest = 1, run = 1;
        for (std::size_t i = 1; i < members.size(); ++i) {
            run = members[i] == members[i - 1] ? run + 1 : 1;
            same += members[i] == members[i - 1];
            longest = std::max(longest, run);
        }
        CHECK(runs.same == same);
        CHECK(runs.longest == longest);
        for (std::size_t w = 0; w < 4; ++w) {
            double sum = 0;
            float greatest = 0;
            std::int64_t ones = 0;
            const std::size_t end = std::min<std::size_t>(50, 15 * w + 15);
            for (std::size_t i = 15 * w; i < end; ++i) {
                const auto member = static_cast<std::size_t>(members[i]);
                const Case& own = member == 0 ? one : two;
                const float square =
                    squares[member][own.shuffle[static_cast<std::size_t>(samples[i])]];
                sum += static_cast<double>(square);
                greatest = std::max(greatest, square);
                ones += members[i] == 1;
            }
            CHECK(sums[w] == 3 * static_cast<std::int64_t>(end - 15 * w));
            CHECK(inputs[w] == 7 * (static_cast<std::int64_t>(end - 15 * w) - ones));
            CHECK(square_sums[w] == sum);
            CHECK(most[w] == greatest);
            CHECK(counts[2 * w + 1] == ones);
        }
        CHECK_THROWS_AS(count_members(members, 15, 1, counts), std::out_of_range);
        CHECK_THROWS_AS(count_members(members, 1, 2, counts), std::out_of_range);
        CHECK_THROWS_AS(sum_windows(members, samples, 1, rows, {sums, inputs, square_sums, most}),
                        std::out_of_range);
    }
}

TEST_CASE("Documents are counted by their visits and their lengths") {
    const std::vector<std::int64_t> lengths{4, 4, 4, 4, 0, 1, 8};
    const std::vector<std::int64_t> trained{0, 3, 4, 9, 0, 7, 8};
    std::vector<std::int64_t> visits(4), classes(6);
    const VisitSums sums = count_visits(trained, lengths, visits, classes);
    CHECK(visits == std::vector<std::int64_t>{1, 1, 2, 2});
    CHECK(classes == std::vector<std::int64_t>{1, 1, 0, 4, 1, 0});
    CHECK(sums.tokens == 25);
    CHECK(sums.never == 5);
    CHECK(sums.most == 7.0);
    CHECK_THROWS_AS(count_visits({}, lengths, visits, classes), std::out_of_range);
}

TEST_CASE("Rows that lead outside of their corpus, or are visited too often, are refused") {
    std::mt19937 random(6);
    for (int round = 0; round < 100; ++round) {
        Case made = random_case(random, false);
        const std::size_t rows = made.shuffle.size();
        if (rows == 0) {
            continue;
        }
        std::vector<std::int64_t> trained(made.lengths.size());
        std::vector<std::uint16_t> documents(rows), whole(made.lengths.size());
        std::vector<float> squares(rows);
        std::vector<std::int32_t> tokens(rows);
        const RowSums sums{documents, squares, tokens};
        CHECK_THROWS_AS(sum_section(made.section(), 1 << 20, 0, trained, sums), std::out_of_range);
        CHECK_THROWS_AS(sum_section(made.section(), 1, 1 << 20, trained, sums), std::out_of_range);
        std::vector<std::uint16_t> times(rows, 40'000);
        const auto visit = [&] { static_cast<void>(find_visits(made.section(), times, 0, whole)); };
        bool refused = false;
        for (int again = 0; again < 3; ++again) {
            try {
                visit();
            } catch (const std::overflow_error&) {
                refused = true;
            }
        }
        CHECK((refused || std::count(whole.begin(), whole.end(), 0) == std::ssize(whole)));
        std::fill(made.boundaries.begin(), made.boundaries.end(), -1);
        CHECK_THROWS_AS(sum_section(made.section(), 1, 0, trained, sums), std::out_of_range);
    }
}
