#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "distcache/ledger.hpp"
#include "distcache/ledger_messages.hpp"
#include "distcache/require.hpp"

namespace distcache {
namespace {

using namespace ledger;

constexpr std::int64_t ahead = 16;
constexpr std::int64_t most_documents = 65535;
constexpr const char* no_member = "a blend names no member";
constexpr const char* no_room = "there must be a number for each window and row";
constexpr const char* outside_corpus = "a document index leads outside of the section";

std::size_t place(std::int64_t i) {
    return static_cast<std::size_t>(i);
}

// Begins to load what may be outside: its place has not been checked yet.
template <class T>
void prefetch(const T* values, std::int64_t i) {
    const auto address =
        reinterpret_cast<std::uintptr_t>(values) + static_cast<std::uintptr_t>(i) * sizeof(T);
    __builtin_prefetch(reinterpret_cast<const void*>(address), 1);
}

// A bit for each row that one of the first samples is.
template <class Index>
std::vector<std::uint64_t> trained_rows(std::span<const Index> shuffle, std::int64_t samples,
                                        std::int64_t rows) {
    require(samples >= 0 && samples <= std::ssize(shuffle), outside_shuffle);
    std::vector<std::uint64_t> found(place(rows + 63) / 64);
    for (std::int64_t k = 0; k < samples; ++k) {
        if (k + 2 * ahead < samples) {
            prefetch(found.data(), static_cast<std::int64_t>(shuffle[place(k + 2 * ahead)]) / 64);
        }
        const auto row = static_cast<std::int64_t>(shuffle[place(k)]);
        require(row >= 0 && row < rows, outside_rows);
        found[place(row / 64)] |= std::uint64_t{1} << (row % 64);
    }
    return found;
}

// Goes through the rows of a section in the order of the document index: each ends where the next
// begins. Calls visitor.piece(row, sequence, begin, end) for each part with tokens, in order;
// visitor.end_row(row) after the last of a row; and visitor.end_entry(sequence, length) after the
// last of an entry. Sequences are counted from `first` on.
template <class Index, class Visitor>
void walk_rows(const Section& section, std::span<const Index> boundaries, std::int64_t first,
               std::int64_t sequences, Visitor& visitor) {
    const std::int64_t count = std::ssize(boundaries) / 2 - 1;
    const std::int64_t entries = std::ssize(section.document_index);
    const std::int32_t* const documents = section.document_index.data();
    if (count <= 0) {
        return;
    }
    const auto boundary = [&](std::int64_t row) {
        return std::pair{static_cast<std::int64_t>(boundaries[place(2 * row)]),
                         static_cast<std::int64_t>(boundaries[place(2 * row + 1)])};
    };
    auto [entry, offset] = boundary(0);
    require(entry >= 0, outside_documents);
    std::int64_t row = 0;
    auto [last, last_offset] = boundary(1);
    for (; row < count; ++entry, offset = 0) {
        require(entry < entries && last >= entry, outside_documents);
        if (entry + 2 * ahead < entries) {
            const std::int64_t later = documents[entry + 2 * ahead];
            section.lengths.prefetch(later);
            visitor.prefetch(later - first);
        }
        const std::int64_t sequence = documents[entry];
        require(
            sequence >= first && sequence - first < sequences && sequence < section.lengths.size(),
            outside_corpus);
        const std::int64_t length = section.lengths[sequence];
        while (true) {
            const bool ends = entry == last;
            const std::int64_t end = ends ? last_offset : length;
            require(offset >= 0 && offset <= end && end <= length, outside_sequence);
            if (offset < end) {
                visitor.piece(row, sequence - first, offset, end);
            }
            if (!ends) {
                break;
            }
            visitor.end_row(row);
            offset = last_offset;
            if (++row == count) {
                break;
            }
            std::tie(last, last_offset) = boundary(row + 1);
            require(last >= entry, outside_documents);
        }
        visitor.end_entry(sequence - first, length);
    }
}

// Sums up rows, and what is trained of sequences.
class SumVisitor {
public:
    SumVisitor(std::span<const std::uint64_t> chosen, std::span<std::int64_t> trained,
               const RowSums& rows)
        : chosen_(chosen), trained_(trained), rows_(rows) {}

    void prefetch(std::int64_t sequence) { distcache::prefetch(trained_.data(), sequence); }

    void piece(std::int64_t row, std::int64_t, std::int64_t begin, std::int64_t end) {
        const std::int64_t here = end - begin;
        ++pieces_;
        ++parts_;
        tokens_ += here;
        squares_ += static_cast<double>(here) * static_cast<double>(here);
        if (has_bit(chosen_, row)) {
            own_ += here;
            sums_.continued += begin > 0 ? here : 0;
        }
    }

    void end_row(std::int64_t row) {
        rows_.documents[place(row)] = static_cast<std::uint16_t>(std::min(parts_, most_documents));
        rows_.squares[place(row)] = static_cast<float>(squares_);
        if (!rows_.tokens.empty()) {
            rows_.tokens[place(row)] = static_cast<std::int32_t>(tokens_);
        }
        parts_ = tokens_ = 0;
        squares_ = 0;
    }

    void end_entry(std::int64_t sequence, std::int64_t) {
        trained_[place(sequence)] += own_;
        sums_.trained += own_;
        sums_.whole += pieces_ == 1;
        sums_.cut_once += pieces_ == 2;
        sums_.cut_more += pieces_ > 2;
        own_ = pieces_ = 0;
    }

    [[nodiscard]] const SectionSums& sums() const { return sums_; }

private:
    std::span<const std::uint64_t> chosen_;
    std::span<std::int64_t> trained_;
    RowSums rows_;
    SectionSums sums_;
    std::int64_t parts_ = 0, tokens_ = 0;  // of the row
    double squares_ = 0;
    std::int64_t pieces_ = 0, own_ = 0;  // of the entry
};

// Counts whole visits of sequences, and lists visits of parts of them.
class VisitVisitor {
public:
    VisitVisitor(std::span<const std::uint16_t> rows, std::span<std::uint16_t> whole)
        : rows_(rows), whole_(whole) {}

    void prefetch(std::int64_t sequence) { distcache::prefetch(whole_.data(), sequence); }

    void piece(std::int64_t row, std::int64_t sequence, std::int64_t begin, std::int64_t end) {
        const std::uint16_t times = rows_[place(row)];
        if (times == times_ && begin == end_ && begin > begin_) {
            end_ = end;
            return;
        }
        list(sequence);
        times_ = times;
        begin_ = begin;
        end_ = end;
    }

    void end_row(std::int64_t) {}

    void end_entry(std::int64_t sequence, std::int64_t length) {
        if (begin_ == 0 && end_ == length && length > 0) {
            const std::int64_t sum = std::int64_t{whole_[place(sequence)]} + times_;
            if (sum > std::numeric_limits<std::uint16_t>::max()) {
                throw std::overflow_error("a sequence is visited too often");
            }
            whole_[place(sequence)] = static_cast<std::uint16_t>(sum);
        } else {
            list(sequence);
        }
        times_ = 0;
        begin_ = end_ = 0;
    }

    PartVisits found;

private:
    void list(std::int64_t sequence) {
        if (times_ > 0 && begin_ < end_) {
            found.sequences.push_back(sequence);
            found.begins.push_back(static_cast<std::int32_t>(begin_));
            found.ends.push_back(static_cast<std::int32_t>(end_));
            found.times.push_back(times_);
        }
    }

    std::span<const std::uint16_t> rows_;
    std::span<std::uint16_t> whole_;
    std::uint16_t times_ = 0;  // visits of the part that is being put together
    std::int64_t begin_ = 0, end_ = 0;
};

}  // namespace

BlendRuns count_members(std::span<const std::int16_t> members, std::int64_t window,
                        std::int64_t datasets, std::span<std::int64_t> counts) {
    require(window > 0 && datasets > 0, no_room);
    require((std::ssize(members) + window - 1) / window * datasets <= std::ssize(counts), no_room);
    BlendRuns found;
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < std::ssize(members); ++i) {
        const std::int64_t member = members[place(i)];
        require(member >= 0 && member < datasets, no_member);
        ++counts[place(i / window * datasets + member)];
        if (i > 0 && members[place(i - 1)] == member) {
            ++found.same;
        } else {
            begin = i;
        }
        if (i + 1 - begin > found.longest) {
            found.longest = i + 1 - begin;
            found.longest_begin = begin;
        }
    }
    return found;
}

SectionSums sum_section(const Section& section, std::int64_t samples, std::int64_t first,
                        std::span<std::int64_t> trained, const RowSums& rows) {
    return std::visit(
        [&](const auto& boundaries) {
            const std::int64_t count = std::max<std::int64_t>(std::ssize(boundaries) / 2 - 1, 0);
            require(std::ssize(rows.documents) == count && std::ssize(rows.squares) == count &&
                        (rows.tokens.empty() || std::ssize(rows.tokens) == count),
                    no_room);
            const std::vector<std::uint64_t> chosen = std::visit(
                [&](const auto& shuffle) { return trained_rows(shuffle, samples, count); },
                section.shuffle_index);
            SumVisitor visitor(chosen, trained, rows);
            walk_rows(section, boundaries, first, std::ssize(trained), visitor);
            return visitor.sums();
        },
        section.sample_index);
}

PartVisits find_visits(const Section& section, std::span<const std::uint16_t> rows,
                       std::int64_t first, std::span<std::uint16_t> whole) {
    return std::visit(
        [&](const auto& boundaries) {
            require(std::ssize(rows) == std::max<std::int64_t>(std::ssize(boundaries) / 2 - 1, 0),
                    no_room);
            VisitVisitor visitor(rows, whole);
            walk_rows(section, boundaries, first, std::ssize(whole), visitor);
            return std::move(visitor.found);
        },
        section.sample_index);
}

VisitSums count_visits(std::span<const std::int64_t> trained, std::span<const std::int64_t> lengths,
                       std::span<std::int64_t> visits, std::span<std::int64_t> classes) {
    require(trained.size() == lengths.size() && visits.size() > 1, no_room);
    VisitSums sums;
    const std::int64_t last = std::ssize(visits) - 1;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::int64_t length = lengths[i];
        const std::int64_t seen = trained[i];
        const auto bits = static_cast<std::size_t>(
            std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(length, 0))));
        ++classes[std::min(bits, classes.size() - 1)];
        if (length <= 0) {
            continue;
        }
        sums.tokens += length;
        sums.never += std::max<std::int64_t>(length - seen, 0);
        // Most are seen once or not at all, and a division takes longer than all else.
        const std::int64_t times = seen < length ? 0 : seen < 2 * length ? 1 : seen / length;
        ++visits[place(seen == 0 ? 0 : std::min(times + 1, last))];
        if (static_cast<double>(seen) > sums.most * static_cast<double>(length)) {
            sums.most = static_cast<double>(seen) / static_cast<double>(length);
        }
    }
    return sums;
}

void sum_windows(std::span<const std::int16_t> members, std::span<const std::int64_t> samples,
                 std::int64_t window, std::span<const MemberRows> rows, const WindowSums& sums) {
    const std::int64_t count = std::ssize(members);
    require(window > 0 && std::ssize(samples) == count, no_room);
    const std::int64_t windows = (count + window - 1) / window;
    require(windows <= std::ssize(sums.documents) && windows <= std::ssize(sums.tokens) &&
                windows <= std::ssize(sums.squares) && windows <= std::ssize(sums.most_squares),
            no_room);
    const auto row_of = [&](std::int64_t i) {
        const std::int64_t member = members[place(i)];
        require(member >= 0 && member < std::ssize(rows), no_member);
        const MemberRows& own = rows[place(member)];
        const std::int64_t row = std::visit(
            [&](const auto& shuffle) {
                const std::int64_t sample = samples[place(i)];
                require(sample >= 0 && sample < std::ssize(shuffle), outside_shuffle);
                return static_cast<std::int64_t>(shuffle[place(sample)]);
            },
            own.section->shuffle_index);
        require(row >= 0 && row < std::ssize(own.documents) && row < std::ssize(own.squares) &&
                    (own.tokens.empty() || row < std::ssize(own.tokens)),
                outside_rows);
        return std::pair<const MemberRows&, std::int64_t>{own, row};
    };
    for (std::int64_t i = 0; i < count; ++i) {
        if (i + ahead < count) {
            const auto [own, row] = row_of(i + ahead);
            __builtin_prefetch(own.documents.data() + row);
            __builtin_prefetch(own.squares.data() + row);
        }
        const auto [own, row] = row_of(i);
        const std::size_t w = place(i / window);
        sums.documents[w] += own.documents[place(row)];
        sums.tokens[w] += own.tokens.empty() ? 0 : own.tokens[place(row)];
        const float squares = own.squares[place(row)];
        sums.squares[w] += static_cast<double>(squares);
        sums.most_squares[w] = std::max(sums.most_squares[w], squares);
    }
}

}  // namespace distcache
