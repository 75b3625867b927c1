#include "distcache/ledger.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "distcache/ledger_messages.hpp"
#include "distcache/require.hpp"

namespace distcache {
namespace {

using namespace ledger;

constexpr const char* outside_corpus = "a document index leads outside of the corpus";

// Samples between the steps of a sample: each step prefetches what the next one reads.
constexpr std::size_t ahead = 16;
constexpr std::size_t ring = 64;  // a power of two, above three times as many
constexpr std::int64_t most_prefetched = 64;

template <class Arrays>
const void* address(const Arrays& arrays, std::int64_t i) {
    return std::visit(
        [&](const auto& values) -> const void* {
            return values.data() + static_cast<std::size_t>(i);
        },
        arrays);
}

template <class Arrays>
std::int64_t value(const Arrays& arrays, std::int64_t i) {
    return std::visit(
        [&](const auto& values) {
            return static_cast<std::int64_t>(values[static_cast<std::size_t>(i)]);
        },
        arrays);
}

template <class Arrays>
std::int64_t size(const Arrays& arrays) {
    return std::visit([](const auto& values) { return static_cast<std::int64_t>(values.size()); },
                      arrays);
}

// Where a sample begins and ends, as far as it is known.
struct Place {
    const Section* section;
    std::int64_t row;  // of a section of rows, the entry
    std::int64_t first, first_offset, last, last_offset;
    bool is_row;
};

std::int32_t narrow(std::int64_t token) {
    return static_cast<std::int32_t>(token);
}

// Keeps the parts of samples.
struct KeptParts {
    TracedParts found;

    explicit KeptParts(std::size_t samples) {
        found.bounds.reserve(samples + 1);
        found.bounds.push_back(0);
    }

    void part(std::int64_t sequence, std::int64_t begin, std::int64_t end,
              std::int64_t /*inputs_end*/) {
        found.sequences.push_back(narrow(sequence));
        found.begins.push_back(narrow(begin));
        found.ends.push_back(narrow(end));
    }

    void sample(std::size_t /*k*/) {
        found.bounds.push_back(static_cast<std::int64_t>(found.sequences.size()));
    }
};

// Sums up the squares of the parts of samples. What a sample has less than its length is padding,
// which belongs to the last document, as in the bounds of documents.
struct SummedSquares {
    std::span<double> squares;
    std::int64_t row_length;
    double sum = 0;
    std::int64_t last = 0, left = row_length;

    void part(std::int64_t /*sequence*/, std::int64_t begin, std::int64_t /*end*/,
              std::int64_t inputs_end) {
        if (begin < inputs_end) {  // not the extra token alone
            add_last();
            last = inputs_end - begin;
            left -= last;
        }
    }

    void sample(std::size_t k) {
        last += std::max<std::int64_t>(left, 0);
        add_last();
        squares[k] = sum;
        sum = 0;
        left = row_length;
    }

    void add_last() {
        sum += static_cast<double>(last * last);  // of less than 2**31 tokens
        last = 0;
    }
};

// Gives a sink the parts of samples, in their order: `part` with the tokens of each, and the end of
// its inputs, padding included; then `sample`.
template <class Sink>
class Tracer {
public:
    Tracer(std::span<const Section* const> sections, std::span<const std::int16_t> members,
           std::span<const std::int64_t> samples, Sink& sink)
        : sections_(sections), members_(members), samples_(samples), sink_(sink) {}

    void trace() {
        const std::size_t count = samples_.size();
        for (std::size_t k = 0; k < count + 3 * ahead; ++k) {
            if (k < count) {
                look_up(k);
            }
            if (k >= ahead && k - ahead < count) {
                find_row(k - ahead);
            }
            if (k >= 2 * ahead && k - 2 * ahead < count) {
                find_entries(k - 2 * ahead);
            }
            if (k >= 3 * ahead) {
                give(k - 3 * ahead);
            }
        }
    }

private:
    Place& place(std::size_t k) { return places_[k % ring]; }

    void look_up(std::size_t k) {
        const auto member = static_cast<std::size_t>(members_[k]);
        require(members_[k] >= 0 && member < sections_.size() && sections_[member] != nullptr,
                "a blend names no member");
        const Section& section = *sections_[member];
        const std::int64_t sample = samples_[k];
        const bool is_row = size(section.sample_index) == 0;
        require(sample >= 0 &&
                    sample < (is_row ? static_cast<std::int64_t>(section.document_index.size())
                                     : size(section.shuffle_index)),
                outside_shuffle);
        place(k) = {&section, sample, sample, 0, sample, 0, is_row};
        if (is_row) {
            __builtin_prefetch(section.document_index.data() + sample);
        } else {
            __builtin_prefetch(address(section.shuffle_index, sample));
        }
    }

    void find_row(std::size_t k) {
        Place& here = place(k);
        if (here.is_row) {
            return;
        }
        here.row = value(here.section->shuffle_index, here.row);
        require(here.row >= 0 && here.row < size(here.section->sample_index) / 2 - 1, outside_rows);
        __builtin_prefetch(address(here.section->sample_index, 2 * here.row));
        __builtin_prefetch(address(here.section->sample_index, 2 * here.row + 3));
    }

    void find_entries(std::size_t k) {
        Place& here = place(k);
        const Section& section = *here.section;
        if (!here.is_row) {
            here.first = value(section.sample_index, 2 * here.row);
            here.first_offset = value(section.sample_index, 2 * here.row + 1);
            here.last = value(section.sample_index, 2 * here.row + 2);
            here.last_offset = value(section.sample_index, 2 * here.row + 3);
        }
        require(0 <= here.first && here.first <= here.last &&
                    here.last < static_cast<std::int64_t>(section.document_index.size()),
                outside_documents);
        const std::int64_t end = std::min(here.last, here.first + most_prefetched);
        for (std::int64_t i = here.first; i <= end; i += 16) {
            __builtin_prefetch(section.document_index.data() + i);
        }
    }

    void give(std::size_t k) {
        const Place& here = place(k);
        const Section& section = *here.section;
        // Sequences are shuffled, so that each costs a cache miss: let these continue together.
        for (std::int64_t i = here.first; i <= here.last; ++i) {
            const std::int64_t sequence = section.document_index[static_cast<std::size_t>(i)];
            require(sequence >= 0 && sequence < section.lengths.size(), outside_corpus);
            section.lengths.prefetch(sequence);
        }
        for (std::int64_t i = here.first; i <= here.last; ++i) {
            const std::int64_t sequence = section.document_index[static_cast<std::size_t>(i)];
            const std::int64_t length = section.lengths[sequence];
            const std::int64_t begin = i == here.first ? here.first_offset : 0;
            const bool ends = i == here.last && !here.is_row;
            const std::int64_t extra = ends ? section.extra_of(here.first < here.last) : 0;
            const std::int64_t end = ends ? here.last_offset + extra : length;
            require(begin >= 0 && begin <= end && end <= length, outside_sequence);
            if (begin < end) {
                sink_.part(sequence, begin, end, begin + section.room_of(end - extra - begin));
            }
        }
        sink_.sample(k);
    }

    std::span<const Section* const> sections_;
    std::span<const std::int16_t> members_;
    std::span<const std::int64_t> samples_;
    std::array<Place, ring> places_{};
    Sink& sink_;
};

static_assert(ring > 3 * ahead, "a place is kept until its parts are given");

// Marks the rows that have a token of a wanted sequence.
template <class Index>
std::vector<std::uint64_t> mark_rows(const Section& section, std::span<const Index> boundaries,
                                     std::span<const std::uint64_t> wanted) {
    const auto rows = static_cast<std::int64_t>(boundaries.size() / 2) - 1;
    const auto at = [&](std::int64_t i) {
        return static_cast<std::int64_t>(boundaries[static_cast<std::size_t>(i)]);
    };
    std::vector<std::uint64_t> marked(static_cast<std::size_t>(rows + 63) / 64);
    std::int64_t row = 0;  // no row before it ends at or after the entry
    const auto entries = static_cast<std::int64_t>(section.document_index.size());
    for (std::int64_t entry = 0; entry < entries; ++entry) {
        const std::int64_t sequence = section.document_index[static_cast<std::size_t>(entry)];
        require(sequence >= 0 && sequence < section.lengths.size(), outside_corpus);
        if (!has_bit(wanted, sequence)) {
            continue;
        }
        std::int64_t step = 1;
        while (row + step < rows && at(2 * (row + step)) < entry) {
            row += step;
            step *= 2;
        }
        std::int64_t high = std::min(row + step, rows);
        while (row < high) {
            const std::int64_t middle = row + (high - row) / 2;
            if (at(2 * middle + 2) < entry) {
                row = middle + 1;
            } else {
                high = middle;
            }
        }
        for (std::int64_t r = row; r < rows && at(2 * r) <= entry; ++r) {
            const std::int64_t begin = at(2 * r) == entry ? at(2 * r + 1) : 0;
            const std::int64_t extra = section.extra_of(at(2 * r) < entry);
            const std::int64_t end =
                at(2 * r + 2) == entry ? at(2 * r + 3) + extra : section.lengths[sequence];
            if (begin < end) {
                marked[static_cast<std::size_t>(r >> 6)] |= std::uint64_t{1} << (r & 63);
            }
        }
    }
    return marked;
}

std::vector<std::int64_t> find_wanted_rows(const Section& section,
                                           std::span<const std::uint64_t> wanted) {
    std::vector<std::int64_t> found;
    for (std::size_t k = 0; k < section.document_index.size(); ++k) {
        const std::int64_t sequence = section.document_index[k];
        require(sequence >= 0 && sequence < section.lengths.size(), outside_corpus);
        if (has_bit(wanted, sequence)) {
            found.push_back(static_cast<std::int64_t>(k));
        }
    }
    return found;
}

}  // namespace

TracedParts trace_parts(std::span<const Section* const> sections,
                        std::span<const std::int16_t> members,
                        std::span<const std::int64_t> samples) {
    require(members.size() == samples.size(), "there must be a member for each sample");
    KeptParts kept(samples.size());
    Tracer(sections, members, samples, kept).trace();
    return std::move(kept.found);
}

void sum_squares(std::span<const Section* const> sections, std::span<const std::int16_t> members,
                 std::span<const std::int64_t> samples, std::int64_t row_length,
                 std::span<double> squares) {
    require(members.size() == samples.size() && squares.size() == samples.size(),
            "there must be a member and a sum for each sample");
    require(row_length > 0 && row_length < (std::int64_t{1} << 31),
            "samples of no sensible length");
    SummedSquares summed{squares, row_length};
    Tracer(sections, members, samples, summed).trace();
}

std::vector<std::int64_t> find_samples(const Section& section,
                                       std::span<const std::uint64_t> wanted) {
    require(static_cast<std::int64_t>(wanted.size()) >= (section.lengths.size() + 63) / 64,
            "there must be a bit for each sequence");
    if (size(section.sample_index) == 0) {
        return find_wanted_rows(section, wanted);
    }
    const auto marked =
        std::visit([&](const auto& boundaries) { return mark_rows(section, boundaries, wanted); },
                   section.sample_index);
    const std::int64_t rows = size(section.sample_index) / 2 - 1;
    std::vector<std::int64_t> found;
    std::visit(
        [&](const auto& shuffle) {
            for (std::size_t k = 0; k < shuffle.size(); ++k) {
                const auto row = static_cast<std::int64_t>(shuffle[k]);
                require(row >= 0 && row < rows, outside_rows);
                if (has_bit(marked, row)) {
                    found.push_back(static_cast<std::int64_t>(k));
                }
            }
        },
        section.shuffle_index);
    return found;
}

std::vector<std::int64_t> find_positions(std::span<const std::int16_t> members,
                                         std::span<const std::int64_t> samples,
                                         std::span<const std::span<const std::int64_t>> wanted) {
    require(members.size() == samples.size(), "there must be a member for each sample");
    constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
    std::vector<std::int64_t> next;  // the next wanted sample of each member
    for (const auto& own : wanted) {
        next.push_back(own.empty() ? none : own.front());
    }
    std::vector<std::size_t> done(wanted.size());
    std::vector<std::int64_t> found;
    for (std::size_t i = 0; i < members.size(); ++i) {
        const auto member = static_cast<std::size_t>(members[i]);
        require(members[i] >= 0 && member < wanted.size(), "a blend names no member");
        if (samples[i] < next[member]) {
            continue;
        }
        const auto& own = wanted[member];
        std::size_t& at = done[member];
        at = static_cast<std::size_t>(
            std::lower_bound(own.begin() + static_cast<std::ptrdiff_t>(at), own.end(), samples[i]) -
            own.begin());
        if (at < own.size() && own[at] == samples[i]) {
            found.push_back(static_cast<std::int64_t>(i));
            ++at;
        }
        next[member] = at < own.size() ? own[at] : none;
    }
    return found;
}

}  // namespace distcache
