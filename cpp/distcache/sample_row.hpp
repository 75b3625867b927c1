#pragma once

#include <cstdint>
#include <span>

#include "distcache/section.hpp"

namespace distcache {

/// What is made of a sample's tokens.
struct SampleRules {
    std::int64_t pad;  ///< padding after a sample that is too short; masked wherever it occurs
    std::int64_t end_of_document;
    bool mask_end_of_document;  ///< no loss where the token is the end of a document
    bool reset_positions;       ///< positions restart after the end of a document
};

/// One sample's place in the arrays of a batch; all have the sequence length.
struct SampleRow {
    std::span<std::int64_t> tokens;
    std::span<std::int64_t> labels;
    std::span<float> loss_mask;
    std::span<std::int64_t> positions;
    std::span<std::uint8_t> ends;    ///< 1 where a document ends; or empty
    std::span<std::int32_t> bounds;  ///< cumulative lengths of documents, one longer; or empty
    std::int32_t* longest;           ///< the longest document, where there are bounds
    std::span<std::int32_t> true_bounds{};  ///< the same without padding; or empty
};

/// Fills the row of a sample.
///
/// `text` has the tokens of `parts`, the extra one included, and padding after them: as many as the
/// row has, and `extra_token` more. Throws std::out_of_range if the parts are no sample of the row.
void fill_row(const SampleRules& rules, std::span<const std::int64_t> text,
              std::span<const Part> parts, std::int64_t extra_token, const SampleRow& row);

}  // namespace distcache
