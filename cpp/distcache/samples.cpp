#include "distcache/samples.hpp"

#include <algorithm>
#include <cstddef>

#include "distcache/dispatch.hpp"
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

// Moves the values of parts apart, so that each has its padding behind it.
template <class Value>
void spread(std::span<const Part> parts, std::vector<Value>& values, std::int64_t tokens,
            std::int64_t found, Value padding) {
    for (auto part = parts.rbegin(); tokens < found; ++part) {
        const auto end = values.begin() + found;
        std::copy_backward(values.begin() + (tokens - part->tokens), values.begin() + tokens,
                           end - part->padding);
        std::fill(end - part->padding, end, padding);
        tokens -= part->tokens;
        found -= part->tokens + part->padding;
    }
}

struct Weigh {
    template <Instructions>
    DISTCACHE_KERNEL void run(const std::uint8_t* weights, std::size_t size, float* loss_mask) {
        for (std::size_t i = 0; i < size; ++i) {
            loss_mask[i] *= static_cast<float>(weights[i] & 1);
        }
    }
};

}  // namespace

ReadOutcome SampleReader::read(const Section& section, std::int64_t sample, Descriptors descriptors,
                               const SampleRow& row, std::int32_t mask) {
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
        spread(std::span<const Part>(parts_), text_, tokens, found, rules_.pad);
        std::fill(text_.begin() + found, text_.end(), rules_.pad);
        fill_row(rules_, text_, parts_, section.extra_token, row);
        if (section.multiple > 1 && parts_.size() > 1) {
            mask_ends(parts_, row);
        }
        if (mask >= 0) {
            return read_mask(section, mask, tokens, found, row);
        }
    }
    return outcome;
}

ReadOutcome SampleReader::read_mask(const Section& section, std::int32_t mask, std::int64_t tokens,
                                    std::int64_t found, const SampleRow& row) {
    Section bytes = section;  // the same places, of a byte each
    bytes.type = TokenType::u8;
    bytes.shards = {};
    for (Part& part : parts_) {
        part.begin /= token_size(section.type);
    }
    weights_.resize(text_.size());
    ReadOutcome outcome = tokens_.read_bytes(bytes, parts_, {&mask, 1}, weights_.data());
    if (outcome.error != 0) {
        outcome.part = of_mask;
        return outcome;
    }
    spread(std::span<const Part>(parts_), weights_, tokens, found, std::uint8_t{0});
    std::fill(weights_.begin() + found, weights_.end(), std::uint8_t{0});
    // The byte of a token is about predicting it: about the place before it.
    const std::size_t known = std::min(row.loss_mask.size(), weights_.size() - 1);
    dispatched<Weigh>(static_cast<const std::uint8_t*>(weights_.data() + 1), known,
                      row.loss_mask.data());
    return outcome;
}

void SampleReader::announce(const Section& section, std::int64_t sample, Descriptors descriptors) {
    parts_.clear();
    find_parts(section, sample, parts_);
    tokens_.announce(section, parts_, descriptors);
}

}  // namespace distcache
