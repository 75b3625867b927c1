#pragma once

#include <cstdint>
#include <span>

#include "distcache/unaligned.hpp"

namespace distcache {

/// In a table of lengths in 16 bits: the length is this or more, and is in the `.idx`.
inline constexpr std::uint16_t too_long = 0xffff;

/// The lengths of sequences in any order, from a table in 16 bits of those from `begin` on.
///
/// Each look-up is a cache miss. In an `.idx`, lengths have twice the size and small pages, whose
/// translation misses too, so a look-up there takes twice as long. `lengths` is read for long
/// sequences only, which are rare in large corpora. Requires that both have all of the sequences.
void look_up_lengths(std::span<const std::uint16_t> narrow, UnalignedView<std::int32_t> lengths,
                     std::int64_t begin, std::span<const std::int32_t> sequences,
                     std::span<std::int32_t> out);

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
/// `lengths` are those of the documents of a slice of the document index, in tokens; the slice
/// starts at position `slice_begin`. Boundary s is a function of token position alone, so a rank
/// that knows the number of tokens before its slice emits its boundaries by itself. Stops when
/// `pairs` is full or the slice is consumed, leaves `cursor` there, and returns the number of
/// pairs; those after them hold anything. Requires cursor.position to lie within the slice.
template <class T>
std::int64_t emit_boundaries(std::span<const std::int32_t> lengths, std::int64_t slice_begin,
                             SampleShape shape, Cursor& cursor, std::span<T> pairs);

extern template std::int64_t emit_boundaries(std::span<const std::int32_t>, std::int64_t,
                                             SampleShape, Cursor&, std::span<std::int32_t>);
extern template std::int64_t emit_boundaries(std::span<const std::int32_t>, std::int64_t,
                                             SampleShape, Cursor&, std::span<std::int64_t>);

}  // namespace distcache
