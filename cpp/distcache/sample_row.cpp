#include "distcache/sample_row.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "distcache/dispatch.hpp"
#include "distcache/require.hpp"

namespace distcache {
namespace {

// Tokens that stay in a core's cache while everything is made of them.
constexpr std::size_t tile = 4096;

struct FillTokens {
    template <Instructions>
    DISTCACHE_KERNEL void run(const std::int64_t* text, std::size_t size, const SampleRules& rules,
                              std::int64_t* tokens, float* loss_mask) {
        for (std::size_t i = 0; i < size; ++i) {
            const std::int64_t token = text[i];
            tokens[i] = token == rules.pad ? 0 : token;
            loss_mask[i] =
                rules.mask_end_of_document && token == rules.end_of_document ? 0.0F : 1.0F;
        }
    }
};

struct FillLabels {
    template <Instructions>
    DISTCACHE_KERNEL void run(const std::int64_t* text, std::size_t size, std::int64_t pad,
                              std::int64_t* labels, float* loss_mask) {
        for (std::size_t i = 0; i < size; ++i) {
            const std::int64_t label = text[i];
            labels[i] = label == pad ? 0 : label;
            loss_mask[i] = label == pad ? 0.0F : loss_mask[i];
        }
    }
};

struct FillPositions {
    template <Instructions>
    DISTCACHE_KERNEL void run(std::int64_t* positions, std::size_t size) {
        for (std::size_t i = 0; i < size; ++i) {
            positions[i] = static_cast<std::int64_t>(i);
        }
    }
};

// Positions that restart after each end of a document.
void fill_reset_positions(const std::int64_t* text, std::int64_t end_of_document,
                          std::span<std::int64_t> positions) {
    std::int64_t position = 0;
    for (std::size_t i = 0; i < positions.size(); ++i) {
        positions[i] = position;
        position = text[i] == end_of_document ? 0 : position + 1;
    }
}

// The bounds of documents, and positions that restart with each.
void fill_bounds(std::span<const Part> parts, std::int64_t extra_token, const SampleRow& row) {
    const auto size = static_cast<std::int64_t>(row.tokens.size());
    std::vector<std::int64_t> lengths;
    lengths.reserve(parts.size());
    for (const Part& part : parts) {
        lengths.push_back(part.tokens + part.padding);
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
    if (!row.true_bounds.empty()) {
        bound = row.true_bounds[0] = 0;
        for (std::size_t i = 1; i < row.true_bounds.size(); ++i) {
            bound += i <= std::min(lengths.size(), parts.size()) ? parts[i - 1].tokens : 0;
            row.true_bounds[i] = static_cast<std::int32_t>(std::min(bound, size));
        }
    }
}

}  // namespace

void fill_row(const SampleRules& rules, std::span<const std::int64_t> text,
              std::span<const Part> parts, std::int64_t extra_token, const SampleRow& row) {
    const std::size_t size = row.tokens.size();
    const std::size_t known = extra_token != 0 ? size : size - 1;
    for (std::size_t begin = 0; begin < size; begin += tile) {
        float* const loss_mask = row.loss_mask.data() + begin;
        dispatched<FillTokens>(text.data() + begin, std::min(tile, size - begin), rules,
                               row.tokens.data() + begin, loss_mask);
        if (begin < known) {
            dispatched<FillLabels>(text.data() + begin + 1, std::min(tile, known - begin),
                                   rules.pad, row.labels.data() + begin, loss_mask);
        }
    }
    if (known < size) {
        row.labels[known] = 0;  // the token after the last is unknown, as if padded
        row.loss_mask[known] = 0.0F;
    }
    for (std::size_t i = 0; i < row.ends.size(); ++i) {
        row.ends[i] = static_cast<std::uint8_t>(text[i] == rules.end_of_document);
    }
    if (!row.bounds.empty()) {
        fill_bounds(parts, extra_token, row);
    } else if (rules.reset_positions) {
        fill_reset_positions(text.data(), rules.end_of_document, row.positions);
    } else {
        dispatched<FillPositions>(row.positions.data(), size);
    }
}

}  // namespace distcache
