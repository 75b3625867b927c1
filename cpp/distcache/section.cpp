#include "distcache/section.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "distcache/require.hpp"

namespace distcache {
namespace {

// A value of an array whose element type the file chose.
template <class Arrays>
std::int64_t value_at(const Arrays& arrays, std::int64_t i, const char* what) {
    return std::visit(
        [&](const auto& values) {
            require(i >= 0 && static_cast<std::size_t>(i) < values.size(), what);
            return static_cast<std::int64_t>(values[static_cast<std::size_t>(i)]);
        },
        arrays);
}

}  // namespace

std::int64_t token_size(TokenType type) {
    switch (type) {
        case TokenType::u8:
        case TokenType::i8:
            return 1;
        case TokenType::i16:
        case TokenType::u16:
            return 2;
        case TokenType::i32:
            return 4;
        case TokenType::i64:
            return 8;
    }
    return 0;
}

void find_parts(const Section& section, std::int64_t sample, std::vector<Part>& parts) {
    constexpr const char* rows = "a sample is not in the sample index";
    const std::int64_t row =
        value_at(section.shuffle_index, sample, "a sample is not in the shuffle index");
    const std::int64_t samples =
        std::visit([](const auto& values) { return static_cast<std::int64_t>(values.size() / 2); },
                   section.sample_index);
    require(row >= 0 && row < samples - 1, rows);
    const std::int64_t first = value_at(section.sample_index, 2 * row, rows);
    const std::int64_t first_offset = value_at(section.sample_index, 2 * row + 1, rows);
    const std::int64_t last = value_at(section.sample_index, 2 * row + 2, rows);
    const std::int64_t last_offset = value_at(section.sample_index, 2 * row + 3, rows);
    const auto entries = static_cast<std::int64_t>(section.document_index.size());
    require(first >= 0 && first <= last && last < entries,
            "a sample index leads outside of the document index");
    // Sequences are shuffled, so that each costs two cache misses: let these continue together.
    for (std::int64_t i = first; i <= last; ++i) {
        const std::int64_t sequence = section.document_index[static_cast<std::size_t>(i)];
        require(sequence >= 0 && sequence < section.lengths.size(),
                "a document index leads outside of the corpus");
        section.lengths.prefetch(sequence);
        section.offsets.prefetch(sequence);
    }
    for (std::int64_t i = first; i <= last; ++i) {
        const std::int64_t sequence = section.document_index[static_cast<std::size_t>(i)];
        const std::int64_t length = section.lengths[sequence];
        const std::int64_t begin = i == first ? first_offset : 0;
        const std::int64_t own_extra = section.extra_of(first < last);
        const std::int64_t extra = i == last ? own_extra : 0;
        // Offsets of a corrupt file may hold anything: nothing is added before it is bounded.
        const std::int64_t end = (i == last ? last_offset : length - extra);
        require(begin >= 0 && end <= length - extra && begin <= end + extra,
                "a sample index leads outside of a sequence");
        const std::int64_t before = section.offsets[sequence];
        const std::int64_t skipped = begin * token_size(section.type);
        require(before >= 0 && before <= std::numeric_limits<std::int64_t>::max() - skipped,
                "an index of a corpus leads outside of its tokens");
        // `fill_row` counts the extra token to the last part, also where padding takes its place.
        const std::int64_t missing = i == last ? section.extra_token - own_extra : 0;
        const std::int64_t padding = section.room_of(end - begin) - (end - begin) + missing;
        parts.push_back({before + skipped, end + extra - begin, padding});
    }
}

std::int64_t shard_of(const Section& section, std::int64_t byte) {
    const auto above = std::upper_bound(section.shards.begin(), section.shards.end(), byte);
    require(above != section.shards.begin(), "an index of a corpus leads outside of its shards");
    return above - section.shards.begin() - 1;
}

}  // namespace distcache
