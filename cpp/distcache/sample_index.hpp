#pragma once

#include <cstdint>
#include <span>

#include "distcache/unaligned.hpp"

namespace distcache {

/// An entry of a document index while it is made: the document in the lower 32 bits and its length
/// in tokens in the upper. The length travels with the document through the shuffle, which saves a
/// cache miss for each entry afterwards.
struct Entry {
    static constexpr int length_shift = 32;

    static std::int64_t length(std::int64_t entry) { return entry >> length_shift; }

    static std::int64_t of(std::int64_t document, std::int32_t length) {
        const auto upper = static_cast<std::uint64_t>(std::int64_t{length}) << length_shift;
        return static_cast<std::int64_t>(upper | static_cast<std::uint32_t>(document));
    }
};

/// The entries of documents begin, begin + 1, ... as they are before any shuffle.
/// Requires begin + out.size() lengths.
void fill_entries(UnalignedView<std::int32_t> lengths, std::int64_t begin,
                  std::span<std::int64_t> out);

/// How samples are cut from the tokens of a document index.
struct SampleShape {
    std::int64_t sequence_length;  ///< tokens from one boundary to the next, at least 1
    std::int64_t extra_token;      ///< 1 when samples overlap by one token, else 0

    /// The token whose document holds boundary `sample` (from 1 on).
    [[nodiscard]] std::int64_t token_of(std::int64_t sample) const {
        return sample * sequence_length - 1 + extra_token;
    }
};

/// A place in the tokens of a document index: the first entry that is not yet consumed, the
/// number of tokens before it, and the next boundary to emit.
struct Cursor {
    std::int64_t position;
    std::int64_t token;
    std::int64_t sample;
};

/// Emit boundaries as pairs (position in the document index, offset in that document).
///
/// `entries` is the slice of the document index that starts at position `slice_begin`. Boundary
/// s is a function of token position alone, so a rank that knows the number of tokens before its
/// slice emits its boundaries by itself. Stops when `pairs` is full or the slice is consumed,
/// leaves `cursor` there, and returns the number of pairs; those after them hold anything.
/// Requires cursor.position to lie within the slice.
template <class T>
std::int64_t emit_boundaries(std::span<const std::int64_t> entries, std::int64_t slice_begin,
                             SampleShape shape, Cursor& cursor, std::span<T> pairs);

extern template std::int64_t emit_boundaries(std::span<const std::int64_t>, std::int64_t,
                                             SampleShape, Cursor&, std::span<std::int32_t>);
extern template std::int64_t emit_boundaries(std::span<const std::int64_t>, std::int64_t,
                                             SampleShape, Cursor&, std::span<std::int64_t>);

}  // namespace distcache
