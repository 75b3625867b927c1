#include "distcache/samples.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "distcache/dispatch.hpp"

namespace distcache {
namespace {

// Tokens that stay in a core's cache while everything is made of them.
constexpr std::size_t tile = 4096;

void require(bool condition, const char* what) {
    if (!condition) {
        throw std::out_of_range(what);
    }
}

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

// Inlined into every version of its caller.
template <class T>
[[gnu::always_inline]] inline void widen(const unsigned char* bytes, std::size_t count,
                                         std::int64_t* out) {
    for (std::size_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
        out[i] = static_cast<std::int64_t>(value);
    }
}

DISTCACHE_BODY void widen_as_body(TokenType type, const unsigned char* bytes, std::size_t count,
                                  std::int64_t* out) {
    switch (type) {
        case TokenType::u8:
            return widen<std::uint8_t>(bytes, count, out);
        case TokenType::i8:
            return widen<std::int8_t>(bytes, count, out);
        case TokenType::i16:
            return widen<std::int16_t>(bytes, count, out);
        case TokenType::i32:
            return widen<std::int32_t>(bytes, count, out);
        case TokenType::i64:
            return widen<std::int64_t>(bytes, count, out);
        case TokenType::u16:
            return widen<std::uint16_t>(bytes, count, out);
    }
}

DISTCACHE_DISPATCHED(void, widen_as,
                     (TokenType type, const unsigned char* bytes, std::size_t count,
                      std::int64_t* out),
                     (type, bytes, count, out))

DISTCACHE_BODY void fill_tokens_body(const std::int64_t* text, std::size_t size,
                                     const SampleRules& rules, std::int64_t* tokens,
                                     float* loss_mask) {
    for (std::size_t i = 0; i < size; ++i) {
        const std::int64_t token = text[i];
        tokens[i] = token == rules.pad ? 0 : token;
        loss_mask[i] = rules.mask_end_of_document && token == rules.end_of_document ? 0.0F : 1.0F;
    }
}

DISTCACHE_DISPATCHED(void, fill_tokens,
                     (const std::int64_t* text, std::size_t size, const SampleRules& rules,
                      std::int64_t* tokens, float* loss_mask),
                     (text, size, rules, tokens, loss_mask))

DISTCACHE_BODY void fill_labels_body(const std::int64_t* text, std::size_t size, std::int64_t pad,
                                     std::int64_t* labels, float* loss_mask) {
    for (std::size_t i = 0; i < size; ++i) {
        const std::int64_t label = text[i];
        labels[i] = label == pad ? 0 : label;
        loss_mask[i] = label == pad ? 0.0F : loss_mask[i];
    }
}

DISTCACHE_DISPATCHED(void, fill_labels,
                     (const std::int64_t* text, std::size_t size, std::int64_t pad,
                      std::int64_t* labels, float* loss_mask),
                     (text, size, pad, labels, loss_mask))

DISTCACHE_BODY void fill_positions_body(std::int64_t* positions, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
        positions[i] = static_cast<std::int64_t>(i);
    }
}

DISTCACHE_DISPATCHED(void, fill_positions, (std::int64_t* positions, std::size_t size),
                     (positions, size))

// Positions that restart behind each end of a document.
void fill_reset_positions(const std::int64_t* text, std::int64_t end_of_document,
                          std::span<std::int64_t> positions) {
    std::int64_t position = 0;
    for (std::size_t i = 0; i < positions.size(); ++i) {
        positions[i] = position;
        position = text[i] == end_of_document ? 0 : position + 1;
    }
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
        const std::int64_t extra = i == last ? section.extra_token : 0;
        // Offsets of a corrupt file may hold anything: nothing is added before it is bounded.
        const std::int64_t end = (i == last ? last_offset : length - extra);
        require(begin >= 0 && end <= length - extra && begin <= end + extra,
                "a sample index leads outside of a sequence");
        const std::int64_t before = section.offsets[sequence];
        const std::int64_t skipped = begin * token_size(section.type);
        require(before >= 0 && before <= std::numeric_limits<std::int64_t>::max() - skipped,
                "an index of a corpus leads outside of its tokens");
        parts.push_back({before + skipped, end + extra - begin});
    }
}

std::int64_t shard_of(const Section& section, std::int64_t byte) {
    const auto above = std::upper_bound(section.shards.begin(), section.shards.end(), byte);
    require(above != section.shards.begin(), "an index of a corpus leads outside of its shards");
    return above - section.shards.begin() - 1;
}

void SampleReader::find(const Section& section, std::int64_t sample, Descriptors descriptors) {
    parts_.clear();
    places_.clear();
    find_parts(section, sample, parts_);
    require(descriptors.size() == (section.shards.empty() ? 1 : parts_.size()),
            "the parts of a sample are other ones than those whose files are open");
    for (std::size_t k = 0; k < parts_.size(); ++k) {
        const std::int64_t begin = parts_[k].begin;
        if (section.shards.empty()) {
            places_.push_back({descriptors[0], begin});
        } else {
            const std::int64_t base =
                parts_[k].tokens == 0
                    ? begin
                    : section.shards[static_cast<std::size_t>(shard_of(section, begin))];
            places_.push_back({descriptors[k], begin - base});
        }
    }
}

ReadOutcome SampleReader::read(const Section& section, std::int64_t sample, Descriptors descriptors,
                               const SampleRow& row) {
    waited_ = false;
    find(section, sample, descriptors);
    const std::size_t wanted = row.tokens.size() + static_cast<std::size_t>(section.extra_token);
    std::int64_t found = 0;
    for (const Part& part : parts_) {
        found += part.tokens;
        require(found <= static_cast<std::int64_t>(wanted), "a sample is too long");
    }
    text_.resize(wanted);
    const ReadOutcome outcome = read_parts(section.type);
    if (outcome.error == 0) {
        std::fill(text_.begin() + found, text_.end(), rules_.pad);
        fill(row, section.extra_token);
    }
    return outcome;
}

ReadOutcome SampleReader::read_parts(TokenType type) {
    const std::int64_t size = token_size(type);
    std::int64_t* out = text_.data();
    for (std::size_t k = 0; k < parts_.size(); ++k) {
        const Part& part = parts_[k];
        const auto bytes = static_cast<std::size_t>(part.tokens * size);
        bytes_.resize(std::max(bytes_.size(), bytes));
        for (std::size_t done = 0; done < bytes;) {
            const ssize_t count = read_some(k, done, bytes, size);
            if (count < 0 && errno == EINTR) {
                continue;
            }
            if (count <= 0) {
                return {count < 0 ? errno : ReadOutcome::file_ends,
                        places_[k].begin + static_cast<std::int64_t>(done), k};
            }
            done += static_cast<std::size_t>(count);
        }
        widen_as(type, bytes_.data(), static_cast<std::size_t>(part.tokens), out);
        out += part.tokens;
    }
    return {};
}

ssize_t SampleReader::read_some(std::size_t part, std::size_t done, std::size_t bytes,
                                std::int64_t token_bytes) {
    const int descriptor = places_[part].descriptor;
    const std::int64_t offset = places_[part].begin + static_cast<std::int64_t>(done);
    // One read of a sample says enough: refusable reads cost more.
    if (part == 0 && done == 0 && can_refuse_) {
        iovec piece{bytes_.data() + done, bytes - done};
        const ssize_t count = ::preadv2(descriptor, &piece, 1, offset, RWF_NOWAIT);
        // Linux 5.9 and 5.10 may answer 0 where the file does not end: see preadv2(2).
        if (count > 0 || (count < 0 && errno == EINTR)) {
            return count;
        }
        waited_ = count == 0 || errno == EAGAIN;
        can_refuse_ = waited_ || (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL);
        if (waited_) {
            announce_from(part, token_bytes);
        }
    }
    return ::pread(descriptor, bytes_.data() + done, bytes - done, offset);
}

void SampleReader::announce_from(std::size_t part, std::int64_t token_bytes) const {
    for (; part < parts_.size(); ++part) {
        const auto [descriptor, begin] = places_[part];
        ::posix_fadvise(descriptor, begin, parts_[part].tokens * token_bytes, POSIX_FADV_WILLNEED);
    }
}

void SampleReader::announce(const Section& section, std::int64_t sample, Descriptors descriptors) {
    find(section, sample, descriptors);
    announce_from(0, token_size(section.type));
}

void SampleReader::fill(const SampleRow& row, std::int64_t extra_token) const {
    const std::size_t size = row.tokens.size();
    const std::size_t known = extra_token != 0 ? size : size - 1;
    for (std::size_t begin = 0; begin < size; begin += tile) {
        float* const loss_mask = row.loss_mask.data() + begin;
        fill_tokens(text_.data() + begin, std::min(tile, size - begin), rules_,
                    row.tokens.data() + begin, loss_mask);
        if (begin < known) {
            fill_labels(text_.data() + begin + 1, std::min(tile, known - begin), rules_.pad,
                        row.labels.data() + begin, loss_mask);
        }
    }
    if (known < size) {
        row.labels[known] = 0;  // the token behind the last is not known, as if padded
        row.loss_mask[known] = 0.0F;
    }
    for (std::size_t i = 0; i < row.ends.size(); ++i) {
        row.ends[i] = static_cast<std::uint8_t>(text_[i] == rules_.end_of_document);
    }
    if (!row.bounds.empty()) {
        fill_bounds(row, extra_token);
    } else if (rules_.reset_positions) {
        fill_reset_positions(text_.data(), rules_.end_of_document, row.positions);
    } else {
        fill_positions(row.positions.data(), size);
    }
}

void SampleReader::fill_bounds(const SampleRow& row, std::int64_t extra_token) const {
    const auto size = static_cast<std::int64_t>(row.tokens.size());
    std::vector<std::int64_t> lengths;
    lengths.reserve(parts_.size());
    for (const Part& part : parts_) {
        lengths.push_back(part.tokens);
    }
    // The extra token is the last part's, and is no token of the sample; padding is the last's too.
    if (extra_token != 0 && --lengths.back() == 0) {
        lengths.pop_back();
    }
    const std::int64_t shortfall = size - std::reduce(lengths.begin(), lengths.end());
    if (shortfall > 0) {
        if (lengths.empty()) {
            lengths.push_back(0);
        }
        lengths.back() += shortfall;
    }
    require(lengths.size() < row.bounds.size(), "a sample has more documents than tokens");
    std::fill(row.bounds.begin(), row.bounds.end(), static_cast<std::int32_t>(size));
    std::int64_t bound = 0;
    row.bounds[0] = 0;
    *row.longest = 0;
    require(std::reduce(lengths.begin(), lengths.end()) == size &&
                std::all_of(lengths.begin(), lengths.end(), [](auto n) { return n >= 0; }),
            "a sample index leads outside of a sequence");
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const auto begin = row.positions.begin() + bound;
        bound += lengths[i];
        std::iota(begin, row.positions.begin() + bound, std::int64_t{0});
        row.bounds[i + 1] = static_cast<std::int32_t>(bound);
        *row.longest = std::max(*row.longest, static_cast<std::int32_t>(lengths[i]));
    }
}

}  // namespace distcache
