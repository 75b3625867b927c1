#pragma once

#include <cstdint>
#include <span>

#include "distcache/unaligned.hpp"

namespace distcache {

/// Lengths of the documents of a split: lengths[0] is that of document `first_document`.
struct DocumentLengths {
    UnalignedView<std::int32_t> lengths;
    std::int64_t first_document = 0;

    [[nodiscard]] std::int64_t of(std::int32_t document) const {
        return lengths[document - first_document];
    }
    void prefetch(std::int32_t document) const { lengths.prefetch(document - first_document); }
};

/// How samples are cut from the tokens of a document index.
struct SampleShape {
    std::int64_t sequence_length;  ///< tokens from one boundary to the next, at least 1
    std::int64_t extra_token;      ///< 1 when samples overlap by one token, else 0

    /// The token whose document holds boundary `sample` (from 1 on).
    [[nodiscard]] std::int64_t token_of(std::int64_t sample) const {
        return sample * sequence_length - 1 + extra_token;
    }
};

/// A place in the tokens of a document index: the first document that is not yet consumed, the
/// number of tokens before it, and the next boundary to emit.
struct Cursor {
    std::int64_t position;
    std::int64_t token;
    std::int64_t sample;
};

/// The sum of the lengths of a slice of documents, in tokens.
/// Requires every document to have a length.
std::int64_t sum_lengths(DocumentLengths lengths, std::span<const std::int32_t> documents);

/// Emit boundaries as pairs (position in the document index, offset in that document).
///
/// `documents` is the slice of the document index that starts at position `slice_begin`. Boundary
/// s is a function of token position alone, so a rank that knows the number of tokens before its
/// slice emits its boundaries by itself. Stops when `pairs` is full or the slice is consumed,
/// leaves `cursor` there, and returns the number of pairs.
template <class T>
std::int64_t emit_boundaries(DocumentLengths lengths,
                             std::span<const std::int32_t> documents, std::int64_t slice_begin,
                             SampleShape shape, Cursor& cursor, std::span<T> pairs);

extern template std::int64_t emit_boundaries(DocumentLengths,
                                             std::span<const std::int32_t>, std::int64_t,
                                             SampleShape, Cursor&, std::span<std::int32_t>);
extern template std::int64_t emit_boundaries(DocumentLengths,
                                             std::span<const std::int32_t>, std::int64_t,
                                             SampleShape, Cursor&, std::span<std::int64_t>);

}  // namespace distcache
