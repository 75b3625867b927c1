#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "distcache/unaligned.hpp"

namespace distcache {

/// The room of a document in a row, if it is padded to a multiple of tokens; 1 for none.
inline std::int64_t padded_length(std::int64_t length, std::int64_t multiple) {
    return multiple == 1 ? length : (length + multiple - 1) / multiple * multiple;
}

/// How documents are packed into rows.
struct PackingRules {
    std::int64_t row_length;      ///< tokens of a row, at least 1
    std::int64_t most_documents;  ///< of a row; 0 for any number
    bool cuts_longer;             ///< whether documents longer than a row are cut, or left out
    std::int64_t multiple = 1;    ///< of which the room of each document is one, as is a row

    /// The room of a document, or of a tail, in its row.
    [[nodiscard]] std::int64_t room_of(std::int64_t length) const {
        return padded_length(length, multiple);
    }
};

/// The documents of a group by their lengths, which decide how many rows they give.
///
/// A longer document gives whole rows and a tail, which is what is left after them.
struct LengthCounts {
    /// For no documents yet. Throws std::out_of_range if the rules are not possible.
    explicit LengthCounts(const PackingRules& rules);

    /// Add documents.
    void add(UnalignedView<std::int32_t> lengths);
    void add(std::int64_t length);

    PackingRules rules;
    std::vector<std::int64_t> whole;  ///< documents of at most a row, by the room they need
    std::vector<std::int64_t> tails;  ///< documents longer than a row, by the room of the tail
    std::int64_t cut_rows = 0;        ///< whole rows of longer documents
    std::int64_t left_out = 0;        ///< longer documents that are not cut
    std::int64_t empty = 0;           ///< documents without tokens
    std::int64_t tokens = 0;          ///< of all that are neither
};

/// The rows of documents of some lengths, by best-fit decreasing.
///
/// Tails come first, then whole documents, each by decreasing length, else in the given order. A
/// tail begins a row of its own. A whole document goes into the row with the least room that holds
/// it, among equals the one that has waited longest; a new row is opened if there is none. Tails
/// that came later would find rows that are full, and open rows that stay nearly empty.
///
/// Equal documents are placed together: neighbouring rows with the same documents so far are one
/// run. So there is a step for each run and not for each document, and the documents of a row are
/// found by multiplication.
class Packing {
public:
    explicit Packing(const LengthCounts& counts);

    /// Rows, without those that one longer document fills.
    [[nodiscard]] std::int64_t rows() const { return rows_; }

    /// Documents of one length, tails or not, in a run of rows: row `first_row` + i takes `times`
    /// of them, from document `first` + i * `times` of that length on.
    struct Part {
        std::int64_t previous;  ///< the part that the rows took before, or -1
        std::int64_t first_row;
        std::int64_t first;
        std::int64_t times;
        std::int32_t length;
        bool is_tail;
    };

    /// Rows with the same parts.
    struct Run {
        std::int64_t first_row;
        std::int64_t rows;
        std::int64_t last_part;
    };

    /// All rows, in the order in which they were opened.
    [[nodiscard]] std::span<const Run> runs() const { return runs_; }
    [[nodiscard]] const Part& part(std::int64_t number) const {
        return parts_[static_cast<std::size_t>(number)];
    }

private:
    friend class Packer;
    std::int64_t rows_ = 0;
    std::vector<Run> runs_;
    std::vector<Part> parts_;
};

/// A document with its length, to be shuffled: the document in the lower 32 bits, its length in
/// tokens in the upper. The documents of rows are sorted by length, so that lengths travel with
/// them instead of being looked up, each with a cache miss.
struct Entry {
    static constexpr int length_shift = 32;

    static std::int64_t length(std::int64_t entry) { return entry >> length_shift; }

    static std::int64_t of(std::int64_t document, std::int32_t length) {
        const auto upper = static_cast<std::uint64_t>(std::int64_t{length}) << length_shift;
        return static_cast<std::int64_t>(upper | static_cast<std::uint32_t>(document));
    }
};

/// The entries of documents begin, begin + 1, ... Requires begin + out.size() lengths.
void fill_entries(UnalignedView<std::int32_t> lengths, std::int64_t begin,
                  std::span<std::int64_t> out);

/// Pack a group of documents.
///
/// `entries` are documents with their lengths, as `Entry` has them, in the order in which equal
/// ones are taken. The documents of the rows are written one row after the other: first those
/// longer ones that fill whole rows, then the rows of the packing, each after the whole rows of its
/// tail. `starts` gets a pair for each row: its first document, counted from `first_entry`, and the
/// token of it. Throws std::out_of_range if the sizes are not those of the counts.
template <class T>
void pack_documents(std::span<const std::int64_t> entries, const PackingRules& rules,
                    std::int64_t first_entry, std::span<std::int32_t> documents,
                    std::span<T> starts);

extern template void pack_documents(std::span<const std::int64_t>, const PackingRules&,
                                    std::int64_t, std::span<std::int32_t>, std::span<std::int32_t>);
extern template void pack_documents(std::span<const std::int64_t>, const PackingRules&,
                                    std::int64_t, std::span<std::int32_t>, std::span<std::int64_t>);

}  // namespace distcache
