#include <algorithm>
#include <random>
#include <vector>

#include "catch.hpp"
#include "distcache/packing.hpp"

using namespace distcache;

namespace {

struct SlowRow {
    std::int64_t room;
    std::int64_t since;  // when it was filled last
    std::int64_t tail = -1;
    std::vector<std::int64_t> documents;  // without the tail
    std::int64_t count = 0;
};

std::int64_t padded(std::int64_t length, const PackingRules& rules) {
    while (length % rules.multiple != 0) {
        ++length;
    }
    return length;
}

// The rows of documents as a list of (document, token) of their starts, and all documents. A scan
// over all rows for every document.
struct SlowPacking {
    std::vector<std::int32_t> documents;
    std::vector<std::int64_t> starts;

    SlowPacking(const std::vector<std::int64_t>& lengths, PackingRules rules) {
        struct Piece {
            std::int64_t length, document;
            bool is_tail;
        };
        std::vector<Piece> pieces;
        for (std::size_t i = 0; i < lengths.size(); ++i) {
            const auto document = static_cast<std::int64_t>(i);
            const std::int64_t length = lengths[i];
            if (length > rules.row_length && rules.cuts_longer) {
                if (length % rules.row_length == 0) {
                    whole_rows(length / rules.row_length, rules.row_length);
                    documents.push_back(static_cast<std::int32_t>(document));
                } else {
                    pieces.push_back({padded(length % rules.row_length, rules), document, true});
                }
            } else if (length > 0 && length <= rules.row_length) {
                pieces.push_back({padded(length, rules), document, false});
            }
        }
        std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
            return a.is_tail != b.is_tail ? a.is_tail : a.length > b.length;
        });
        std::vector<SlowRow> rows;
        std::int64_t clock = 0;
        for (const Piece& piece : pieces) {
            SlowRow* best = nullptr;
            for (SlowRow& row : rows) {
                const bool full = rules.most_documents > 0 && row.count >= rules.most_documents;
                if (full || row.room < piece.length || piece.is_tail) {
                    continue;
                }
                const auto rank = [](const SlowRow& r) { return std::tuple(r.room, r.since); };
                if (best == nullptr || rank(row) < rank(*best)) {
                    best = &row;
                }
            }
            if (best == nullptr) {
                rows.push_back({rules.row_length, 0, -1, {}, 0});
                best = &rows.back();
            }
            best->room -= piece.length;
            best->since = ++clock;
            ++best->count;
            if (piece.is_tail) {
                best->tail = piece.document;
            } else {
                best->documents.push_back(piece.document);
            }
        }
        for (const SlowRow& row : rows) {
            std::int64_t whole = 0;
            if (row.tail >= 0) {
                whole = lengths[static_cast<std::size_t>(row.tail)] / rules.row_length;
                whole_rows(whole, rules.row_length);
            }
            start(whole * rules.row_length);
            if (row.tail >= 0) {
                documents.push_back(static_cast<std::int32_t>(row.tail));
            }
            for (const std::int64_t document : row.documents) {
                documents.push_back(static_cast<std::int32_t>(document));
            }
        }
    }

    void whole_rows(std::int64_t count, std::int64_t row_length) {
        for (std::int64_t row = 0; row < count; ++row) {
            start(row * row_length);
        }
    }

    void start(std::int64_t token) {
        starts.push_back(static_cast<std::int64_t>(documents.size()));
        starts.push_back(token);
    }
};

}  // namespace

TEST_CASE("packing is best-fit decreasing, after tails") {
    std::mt19937 random(7);
    for (int round = 0; round < 300; ++round) {
        const auto below = [&](std::int64_t limit) {
            return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
        };
        const std::int64_t multiple = round % 6 == 0 ? 1 + below(8) : 1;
        const std::int64_t row_length = multiple * (1 + below(round % 3 == 0 ? 12 : 300));
        const std::int64_t most_documents = round % 4 == 0 ? 1 + below(5) : 0;
        const PackingRules rules{row_length, most_documents, round % 5 != 0, multiple};
        const std::int64_t most = round % 7 == 0 ? 3 * row_length : row_length + row_length / 4;
        std::vector<std::int64_t> lengths(static_cast<std::size_t>(below(200)));
        for (std::int64_t& length : lengths) {
            length = below(most + 1);
        }
        std::vector<std::int64_t> entries;
        LengthCounts counts(rules);
        for (const std::int64_t length : lengths) {
            counts.add(length);
            entries.push_back(Entry::of(static_cast<std::int64_t>(entries.size()),
                                        static_cast<std::int32_t>(length)));
        }
        const SlowPacking expected(lengths, rules);
        CHECK(2 * (counts.cut_rows + Packing(counts).rows()) ==
              static_cast<std::int64_t>(expected.starts.size()));
        std::vector<std::int32_t> documents(expected.documents.size());
        std::vector<std::int64_t> starts(expected.starts.size());
        pack_documents<std::int64_t>(entries, rules, 0, documents, starts);
        CHECK(documents == expected.documents);
        CHECK(starts == expected.starts);
    }
}

TEST_CASE("tails find rows that are not full yet") {
    LengthCounts counts({10, 0, true});
    for (const std::int64_t length : {8, 2, 11}) {
        for (int i = 0; i < 1000; ++i) {
            counts.add(length);
        }
    }
    // 21,000 tokens: at least 2,100 rows.
    CHECK(counts.cut_rows + Packing(counts).rows() == 2200);
}

TEST_CASE("packing refuses what does not fit") {
    CHECK_THROWS_AS(LengthCounts({0, 0, true}), std::out_of_range);
    CHECK_THROWS_AS(LengthCounts({std::int64_t{1} << 40, 0, true}), std::out_of_range);
    CHECK_THROWS_AS(LengthCounts({8, -1, true}), std::out_of_range);
    CHECK_THROWS_AS(LengthCounts({8, 0, true, 3}), std::out_of_range);
    CHECK_THROWS_AS(LengthCounts({8, 0, true, 0}), std::out_of_range);
    const std::vector<std::int64_t> entries{Entry::of(0, 5), Entry::of(1, 5)};
    std::vector<std::int32_t> documents(2);
    std::vector<std::int32_t> starts(2);
    CHECK_THROWS_AS(pack_documents<std::int32_t>(entries, {8, 0, true}, 0, documents, starts),
                    std::out_of_range);
}

TEST_CASE("entries have documents and lengths, from lengths at any address") {
    std::vector<unsigned char> bytes(1);  // the lengths that follow are unaligned
    const std::vector<std::int32_t> lengths{3, 0, 7, 2'000'000'000};
    bytes.insert(bytes.end(), reinterpret_cast<const unsigned char*>(lengths.data()),
                 reinterpret_cast<const unsigned char*>(lengths.data() + lengths.size()));
    std::vector<std::int64_t> entries(3);
    fill_entries({bytes.data() + 1, 4}, 1, entries);
    for (std::size_t k = 0; k < entries.size(); ++k) {
        CHECK(Entry::length(entries[k]) == lengths[k + 1]);
        CHECK(static_cast<std::uint32_t>(entries[k]) == k + 1);
    }
}
