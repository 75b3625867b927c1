#pragma once

#include <cstdint>
#include <vector>

#include "distcache/sample_row.hpp"
#include "distcache/section.hpp"
#include "distcache/token_reader.hpp"

namespace distcache {

/// Reads samples: finds their parts, reads the tokens, and fills rows.
class SampleReader {
public:
    explicit SampleReader(const SampleRules& rules) : rules_(rules) {}

    /// Continues with other rules.
    void use(const SampleRules& rules) {
        rules_ = rules;
        tokens_.restart();
    }

    /// Reads a sample, and fills its row. Throws as `find_parts`, `TokenReader::read` and
    /// `fill_row` do. `mask` is an open file with a byte for each token, 1 or 0, by which the loss
    /// of predicting the token is multiplied; or negative. Errors of it are of the part `of_mask`.
    ReadOutcome read(const Section& section, std::int64_t sample, Descriptors descriptors,
                     const SampleRow& row, std::int32_t mask = -1);

    static constexpr std::size_t of_mask = static_cast<std::size_t>(-1);

    /// Whether the last sample was not in memory: see `TokenReader::waited`.
    [[nodiscard]] bool waited() const { return tokens_.waited(); }

    /// Asks the disk for a sample that will be read. Throws as `find_parts` does.
    void announce(const Section& section, std::int64_t sample, Descriptors descriptors);

private:
    ReadOutcome read_mask(const Section& section, std::int32_t mask, std::int64_t tokens,
                          std::int64_t found, const SampleRow& row);

    SampleRules rules_;
    TokenReader tokens_;
    std::vector<Part> parts_;
    std::vector<std::int64_t> text_;     // the tokens, with the extra one, padded
    std::vector<std::uint8_t> weights_;  // of the same tokens, by the mask
};

}  // namespace distcache
