#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "distcache/unaligned.hpp"

namespace distcache {

/// The types of tokens, by their code in the header of an `.idx`.
enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

/// Bytes of a token; 0 for a code that is no integer type.
std::int64_t token_size(TokenType type);

/// Successive tokens of one sequence.
struct Part {
    std::int64_t begin;   ///< byte of the `.bin`
    std::int64_t tokens;  ///< at least 0
};

/// The arrays that say where the samples of a section lie, and the corpus's own.
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
};

/// Append the parts of a sample, as Megatron-Core's `GPTDataset` draws them; parts may be empty.
/// Throws std::out_of_range if the arrays lead outside of one another.
void find_parts(const Section& section, std::int64_t sample, std::vector<Part>& parts);

/// The shard that a byte of the `.bin` lies in. Throws std::out_of_range if it lies before the
/// first.
std::int64_t shard_of(const Section& section, std::int64_t byte);

/// What is made of a sample's tokens.
struct SampleRules {
    std::int64_t pad;  ///< stands behind a sample that is too short; masked wherever it stands
    std::int64_t end_of_document;
    bool mask_end_of_document;  ///< no loss where the token is the end of a document
    bool reset_positions;       ///< positions restart behind the end of a document
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
};

/// How reading tokens ended: 0, an error number, or `file_ends`.
struct ReadOutcome {
    static constexpr int file_ends = -1;
    int error = 0;
    std::int64_t offset = 0;  ///< the byte of the file
    std::size_t part = 0;     ///< the part of the sample that could not be read
};

/// Open files with the tokens of a sample: the `.bin`, or for a section of shards one for each
/// part.
using Descriptors = std::span<const std::int32_t>;

/// Reads samples from files, with buffers that are kept from one to the next.
class SampleReader {
public:
    explicit SampleReader(const SampleRules& rules) : rules_(rules) {}

    /// Go on by other rules.
    void use(const SampleRules& rules) {
        rules_ = rules;
        can_refuse_ = true;
    }

    /// Read a sample, and fill its row. Throws as `find_parts` does, and if there is no file for a
    /// part.
    ReadOutcome read(const Section& section, std::int64_t sample, Descriptors descriptors,
                     const SampleRow& row);

    /// Whether the last sample was not in memory. The disk is then told of all of its parts at
    /// once, where the filesystem can say so without waiting.
    [[nodiscard]] bool waited() const { return waited_; }

    /// Tell the disk of a sample that will be read. Throws as `find_parts` does.
    void announce(const Section& section, std::int64_t sample, Descriptors descriptors);

private:
    /// Where a part lies: its file, and the byte in it.
    struct Place {
        int descriptor;
        std::int64_t begin;
    };

    /// Finds the parts of a sample, and where each lies.
    void find(const Section& section, std::int64_t sample, Descriptors descriptors);
    ReadOutcome read_parts(TokenType type);
    /// Reads bytes from `done` on of a part; what the kernel does not have is announced first.
    ssize_t read_some(std::size_t part, std::size_t done, std::size_t bytes,
                      std::int64_t token_bytes);
    void announce_from(std::size_t part, std::int64_t token_bytes) const;
    void fill(const SampleRow& row, std::int64_t extra_token) const;
    void fill_bounds(const SampleRow& row, std::int64_t extra_token) const;

    SampleRules rules_;
    bool waited_ = false;
    bool can_refuse_ = true;  // a read that would wait for the disk
    std::vector<Part> parts_;
    std::vector<Place> places_;
    std::vector<unsigned char> bytes_;
    std::vector<std::int64_t> text_;  // the tokens, with the extra one, padded
};

}  // namespace distcache
