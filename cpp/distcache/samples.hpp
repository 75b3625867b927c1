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
    /// `fill_row` do.
    ReadOutcome read(const Section& section, std::int64_t sample, Descriptors descriptors,
                     const SampleRow& row);

    /// Whether the last sample was not in memory: see `TokenReader::waited`.
    [[nodiscard]] bool waited() const { return tokens_.waited(); }

    /// Asks the disk for a sample that will be read. Throws as `find_parts` does.
    void announce(const Section& section, std::int64_t sample, Descriptors descriptors);

private:
    /// Moves the tokens of parts apart, so that each has its padding behind it.
    void spread(std::int64_t tokens, std::int64_t found);

    SampleRules rules_;
    TokenReader tokens_;
    std::vector<Part> parts_;
    std::vector<std::int64_t> text_;  // the tokens, with the extra one, padded
};

}  // namespace distcache
