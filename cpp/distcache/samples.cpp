#include "distcache/samples.hpp"

#include <algorithm>
#include <cstddef>

#include "distcache/require.hpp"

namespace distcache {
namespace {

// No loss from the last token of each document to the last of its padding, whose label would be the
// next document's first token.
void mask_ends(std::span<const Part> parts, const SampleRow& row) {
    std::int64_t begin = 0;
    for (const Part& part : parts) {
        const auto size = static_cast<std::int64_t>(row.labels.size());
        const std::int64_t end = std::min(begin + part.tokens + part.padding, size);
        const std::int64_t last = begin + std::max<std::int64_t>(part.tokens - 1, 0);
        for (std::int64_t i = last; i < end; ++i) {
            row.labels[static_cast<std::size_t>(i)] = 0;
            row.loss_mask[static_cast<std::size_t>(i)] = 0.0F;
        }
        begin = end;
    }
}

}  // namespace

ReadOutcome SampleReader::read(const Section& section, std::int64_t sample, Descriptors descriptors,
                               const SampleRow& row) {
    parts_.clear();
    find_parts(section, sample, parts_);
    const std::size_t wanted = row.tokens.size() + static_cast<std::size_t>(section.extra_token);
    std::int64_t tokens = 0, found = 0;
    for (const Part& part : parts_) {
        tokens += part.tokens;
        found += part.tokens + part.padding;
        require(found <= static_cast<std::int64_t>(wanted), "a sample is too long");
    }
    text_.resize(wanted);
    const ReadOutcome outcome = tokens_.read(section, parts_, descriptors, text_.data());
    if (outcome.error == 0) {
        spread(tokens, found);
        std::fill(text_.begin() + found, text_.end(), rules_.pad);
        fill_row(rules_, text_, parts_, section.extra_token, row);
        if (section.multiple > 1 && parts_.size() > 1) {
            mask_ends(parts_, row);
        }
    }
    return outcome;
}

void SampleReader::spread(std::int64_t tokens, std::int64_t found) {
    for (auto part = parts_.rbegin(); tokens < found; ++part) {
        const auto end = text_.begin() + found;
        std::copy_backward(text_.begin() + (tokens - part->tokens), text_.begin() + tokens,
                           end - part->padding);
        std::fill(end - part->padding, end, rules_.pad);
        tokens -= part->tokens;
        found -= part->tokens + part->padding;
    }
}

void SampleReader::announce(const Section& section, std::int64_t sample, Descriptors descriptors) {
    parts_.clear();
    find_parts(section, sample, parts_);
    tokens_.announce(section, parts_, descriptors);
}

}  // namespace distcache
