#include "distcache/samples.hpp"

#include <algorithm>
#include <cstddef>

#include "distcache/require.hpp"

namespace distcache {

ReadOutcome SampleReader::read(const Section& section, std::int64_t sample, Descriptors descriptors,
                               const SampleRow& row) {
    parts_.clear();
    find_parts(section, sample, parts_);
    const std::size_t wanted = row.tokens.size() + static_cast<std::size_t>(section.extra_token);
    std::int64_t found = 0;
    for (const Part& part : parts_) {
        found += part.tokens;
        require(found <= static_cast<std::int64_t>(wanted), "a sample is too long");
    }
    text_.resize(wanted);
    const ReadOutcome outcome = tokens_.read(section, parts_, descriptors, text_.data());
    if (outcome.error == 0) {
        std::fill(text_.begin() + found, text_.end(), rules_.pad);
        fill_row(rules_, text_, parts_, section.extra_token, row);
    }
    return outcome;
}

void SampleReader::announce(const Section& section, std::int64_t sample, Descriptors descriptors) {
    parts_.clear();
    find_parts(section, sample, parts_);
    tokens_.announce(section, parts_, descriptors);
}

}  // namespace distcache
