#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "distcache/packing.hpp"
#include "distcache/unaligned.hpp"

namespace distcache {

/// The types of tokens, by their code in the header of an `.idx`.
enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

/// Bytes of a token; 0 for a code that is no integer type.
std::int64_t token_size(TokenType type);

/// Successive tokens of one sequence.
struct Part {
    std::int64_t begin;        ///< byte of the `.bin`
    std::int64_t tokens;       ///< at least 0
    std::int64_t padding = 0;  ///< tokens of padding behind them
};

/// The arrays that say where the samples of a section are, and those of its corpus.
struct Section {
    std::span<const std::int32_t> document_index;
    /// Pairs (position in the document index, offset in that sequence), one more than samples.
    std::variant<std::span<const std::int32_t>, std::span<const std::int64_t>> sample_index;
    std::variant<std::span<const std::uint32_t>, std::span<const std::int64_t>> shuffle_index;
    UnalignedView<std::int32_t> lengths;
    UnalignedView<std::int64_t> offsets;
    TokenType type;
    std::int64_t extra_token;  ///< 1 when samples overlap by one token, else 0
    /// Ascending bytes of the `.bin` at which the files begin that make it up; empty if it is one.
    std::span<const std::int64_t> shards;
    /// Tokens to whose multiples each document of a packed sample is padded; 1 for none. The loss
    /// then ends with the document: only a sample within a longer document has an extra token.
    std::int64_t multiple = 1;

    /// The extra tokens of a sample that ends with a document, or within one.
    [[nodiscard]] std::int64_t extra_of(bool ends_document) const {
        return multiple > 1 && ends_document ? 0 : extra_token;
    }

    /// The room of a document in a sample.
    [[nodiscard]] std::int64_t room_of(std::int64_t tokens) const {
        return padded_length(tokens, multiple);
    }
};

/// Append the parts of a sample, as Megatron-Core's `GPTDataset` draws them; parts may be empty.
/// Throws std::out_of_range if the arrays lead outside of one another.
void find_parts(const Section& section, std::int64_t sample, std::vector<Part>& parts);

/// The shard that holds a byte of the `.bin`. Throws std::out_of_range if the byte is before the
/// first.
std::int64_t shard_of(const Section& section, std::int64_t byte);

}  // namespace distcache
