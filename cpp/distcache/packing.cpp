#include "distcache/packing.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>

#include "distcache/dispatch.hpp"
#include "distcache/huge_memory.hpp"
#include "distcache/require.hpp"

namespace distcache {
namespace {

constexpr std::int64_t longest_row = 1 << 26;
constexpr std::size_t prefetched = 32;

// A set of integers below a limit, as bits in words, and as bits for the words that have any.
class OrderedSet {
public:
    explicit OrderedSet(std::int64_t limit) {
        std::size_t words = static_cast<std::size_t>(limit);
        do {
            words = (words + 63) / 64;
            levels_.emplace_back(words, 0);
        } while (words > 1);
    }

    void add(std::int64_t value) {
        auto place = static_cast<std::size_t>(value);
        for (auto& level : levels_) {
            std::uint64_t& word = level[place / 64];
            const bool was_empty = word == 0;
            word |= std::uint64_t{1} << place % 64;
            if (!was_empty) {
                return;
            }
            place /= 64;
        }
    }

    void remove(std::int64_t value) {
        auto place = static_cast<std::size_t>(value);
        for (auto& level : levels_) {
            std::uint64_t& word = level[place / 64];
            word &= ~(std::uint64_t{1} << place % 64);
            if (word != 0) {
                return;
            }
            place /= 64;
        }
    }

    // The smallest value that is not below another; -1 if there is none.
    [[nodiscard]] std::int64_t at_least(std::int64_t value) const {
        auto place = static_cast<std::size_t>(value);
        for (std::size_t level = 0; level < levels_.size(); ++level) {
            if (place / 64 >= levels_[level].size()) {
                return -1;
            }
            const std::uint64_t word = levels_[level][place / 64] & ~std::uint64_t{0} << place % 64;
            if (word != 0) {
                place = place / 64 * 64 + static_cast<std::size_t>(std::countr_zero(word));
                while (level-- > 0) {
                    place = place * 64 +
                            static_cast<std::size_t>(std::countr_zero(levels_[level][place]));
                }
                return static_cast<std::int64_t>(place);
            }
            place = place / 64 + 1;
        }
        return -1;
    }

private:
    std::vector<std::vector<std::uint64_t>> levels_;
};

}  // namespace

LengthCounts::LengthCounts(const PackingRules& rules_) : rules(rules_) {
    require(rules.row_length >= 1 && rules.row_length <= longest_row, "rows of no sensible length");
    require(rules.most_documents >= 0, "fewer than no documents in a row");
    require(rules.multiple >= 1 && rules.row_length % rules.multiple == 0,
            "a row is no multiple of what documents are padded to");
    const auto size = static_cast<std::size_t>(rules.row_length) + 1;
    whole.assign(size, 0);
    tails.assign(size, 0);
}

void LengthCounts::add(UnalignedView<std::int32_t> lengths) {
    for (std::int64_t i = 0; i < lengths.size(); ++i) {
        add(lengths[i]);
    }
}

void LengthCounts::add(std::int64_t length) {
    if (length <= 0) {
        ++empty;
        return;
    }
    if (length <= rules.row_length) {
        ++whole[static_cast<std::size_t>(rules.room_of(length))];
    } else if (rules.cuts_longer) {
        ++tails[static_cast<std::size_t>(rules.room_of(length % rules.row_length))];  // 0: no tail
        cut_rows += length / rules.row_length;
    } else {
        ++left_out;
        return;
    }
    tokens += length;
}

// Places the documents of some counts.
class Packer {
public:
    Packer(const LengthCounts& counts, Packing& packing)
        : counts_(counts),
          packing_(packing),
          row_length_(counts.rules.row_length),
          most_(counts.rules.most_documents > 0 ? counts.rules.most_documents
                                                : std::numeric_limits<std::int64_t>::max()),
          first_(static_cast<std::size_t>(row_length_) + 1, -1),
          last_(first_),
          rooms_(row_length_ + 1) {}

    void run() {
        for (std::int64_t length = row_length_; length > 0; --length) {
            open_tails(length, counts_.tails[static_cast<std::size_t>(length)]);
        }
        for (std::int64_t length = row_length_; length > 0; --length) {
            place(length, counts_.whole[static_cast<std::size_t>(length)]);
        }
        for (std::int64_t run : first_) {
            for (; run >= 0; run = runs_[static_cast<std::size_t>(run)].next) {
                finish(runs_[static_cast<std::size_t>(run)]);
            }
        }
        std::sort(packing_.runs_.begin(), packing_.runs_.end(),
                  [](const auto& a, const auto& b) { return a.first_row < b.first_row; });
    }

private:
    // Rows with the same documents so far.
    struct Open {
        std::int64_t first_row;
        std::int64_t rows;
        std::int64_t room;  // tokens of each
        std::int64_t held;  // documents of each
        std::int64_t last_part;
        std::int64_t next;  // the next run in its queue, or -1
    };

    [[nodiscard]] Open new_rows() const { return {packing_.rows_, 0, row_length_, 0, -1, -1}; }

    void open_tails(std::int64_t length, std::int64_t count) {
        if (count > 0) {
            const Open open = new_rows();
            packing_.rows_ += count;
            fill(open, count, {-1, open.first_row, 0, 1, static_cast<std::int32_t>(length), true});
        }
    }

    void place(std::int64_t length, std::int64_t left) {
        std::int64_t taken = 0;
        while (taken < left) {
            const std::int64_t room = rooms_.at_least(length);
            const std::int64_t number = room < 0 ? -1 : first_[static_cast<std::size_t>(room)];
            const Open open = number < 0 ? new_rows() : runs_[static_cast<std::size_t>(number)];
            const std::int64_t most = std::min(open.room / length, most_ - open.held);
            const std::int64_t times = std::min(most, left - taken);
            std::int64_t rows = (left - taken) / times;
            if (number < 0) {
                packing_.rows_ += rows;
            } else {
                rows = std::min(rows, open.rows);
                shrink(number, rows);
            }
            fill(open, rows,
                 {open.last_part, open.first_row, taken, times, static_cast<std::int32_t>(length),
                  false});
            taken += rows * times;
        }
    }

    // Take the first rows of the first run of a room.
    void shrink(std::int64_t number, std::int64_t rows) {
        Open& open = runs_[static_cast<std::size_t>(number)];
        const auto room = static_cast<std::size_t>(open.room);
        open.first_row += rows;
        open.rows -= rows;
        if (open.rows > 0) {
            return;
        }
        first_[room] = open.next;
        if (open.next < 0) {
            rooms_.remove(open.room);
        }
        free_.push_back(number);
    }

    // Let rows of a run take documents, and wait for more.
    void fill(Open open, std::int64_t rows, const Packing::Part& part) {
        open.rows = rows;
        open.room -= part.times * part.length;
        open.held += part.times;
        open.last_part = static_cast<std::int64_t>(packing_.parts_.size());
        open.next = -1;
        packing_.parts_.push_back(part);
        if (open.room == 0 || open.held >= most_) {
            finish(open);
            return;
        }
        std::int64_t number = static_cast<std::int64_t>(runs_.size());
        if (free_.empty()) {
            runs_.push_back(open);
        } else {
            number = free_.back();
            free_.pop_back();
            runs_[static_cast<std::size_t>(number)] = open;
        }
        const auto room = static_cast<std::size_t>(open.room);
        if (first_[room] < 0) {
            first_[room] = number;
            rooms_.add(open.room);
        } else {
            runs_[static_cast<std::size_t>(last_[room])].next = number;
        }
        last_[room] = number;
    }

    void finish(const Open& open) {
        packing_.runs_.push_back({open.first_row, open.rows, open.last_part});
    }

    const LengthCounts& counts_;
    Packing& packing_;
    const std::int64_t row_length_;
    const std::int64_t most_;
    // The queues of runs that wait, by the room of their rows, and which rooms have one.
    std::vector<std::int64_t> first_;
    std::vector<std::int64_t> last_;
    OrderedSet rooms_;
    std::vector<Open> runs_;
    std::vector<std::int64_t> free_;  // numbers of runs that are no more
};

Packing::Packing(const LengthCounts& counts) {
    Packer(counts, *this).run();
}

namespace {

struct FillEntries {
    template <Instructions>
    DISTCACHE_KERNEL void run(UnalignedView<std::int32_t> lengths, std::int64_t begin,
                              std::span<std::int64_t> out) {
        const auto size = static_cast<std::int64_t>(out.size());
        for (std::int64_t k = 0; k < size; ++k) {
            out[static_cast<std::size_t>(k)] = Entry::of(begin + k, lengths[begin + k]);
        }
    }
};

}  // namespace

void fill_entries(UnalignedView<std::int32_t> lengths, std::int64_t begin,
                  std::span<std::int64_t> out) {
    dispatched<FillEntries>(lengths, begin, out);
}

namespace {

// The documents of a group, by length: those of at most a row, then tails.
class SortedDocuments {
public:
    SortedDocuments(std::span<const std::int64_t> entries, const LengthCounts& counts)
        : row_length_(counts.rules.row_length), places_(2 * counts.whole.size(), 0) {
        const std::size_t width = counts.whole.size();
        std::int64_t count = 0;
        for (std::size_t key = 0; key < places_.size(); ++key) {
            places_[key] = count;
            count += key < width ? counts.whole[key] : counts.tails[key - width];
            tails_begin_ = key + 1 == width ? count : tails_begin_;
        }
        const auto size = static_cast<std::size_t>(std::max<std::int64_t>(count, 1));
        auto* const memory = memory_.reserve(size * sizeof(std::int32_t));
        require(memory != nullptr, "there is not enough memory for the documents of a group");
        documents_ = static_cast<std::int32_t*>(memory);
        whole_rows_.resize(static_cast<std::size_t>(count - tails_begin_));
        scatter(entries, counts.rules);
        std::copy_backward(places_.begin(), places_.end() - 1, places_.end());
        places_.front() = 0;
    }

    // The first of the documents of a length.
    [[nodiscard]] std::int64_t begin_of(std::int64_t length, bool is_tail) const {
        const auto width = static_cast<std::int64_t>(places_.size() / 2);
        return places_[static_cast<std::size_t>(is_tail ? width + length : length)];
    }
    [[nodiscard]] const std::int32_t* at(std::int64_t place) const { return documents_ + place; }
    [[nodiscard]] std::int64_t whole_rows_at(std::int64_t place) const {
        return whole_rows_[static_cast<std::size_t>(place - tails_begin_)];
    }

private:
    void scatter(std::span<const std::int64_t> entries, const PackingRules& rules) {
        const auto width = static_cast<std::int64_t>(places_.size() / 2);
        for (std::size_t i = 0; i < entries.size(); ++i) {
            if (i + prefetched < entries.size()) {
                const std::int64_t coming = Entry::length(entries[i + prefetched]);
                if (coming > 0 && coming <= row_length_) {
                    const auto place = places_[static_cast<std::size_t>(coming)];
                    __builtin_prefetch(documents_ + place, 1);
                }
            }
            const std::int64_t length = Entry::length(entries[i]);
            if (length <= 0 || (length > row_length_ && !rules.cuts_longer)) {
                continue;
            }
            const bool is_longer = length > row_length_;
            const std::int64_t room = rules.room_of(is_longer ? length % row_length_ : length);
            const std::int64_t key = is_longer ? width + room : room;
            const std::int64_t place = places_[static_cast<std::size_t>(key)]++;
            documents_[place] = static_cast<std::int32_t>(entries[i]);
            if (is_longer) {
                whole_rows_[static_cast<std::size_t>(place - tails_begin_)] =
                    static_cast<std::int32_t>(length / row_length_);
            }
        }
    }

    std::int64_t row_length_;
    std::vector<std::int64_t> places_;
    std::int64_t tails_begin_ = 0;
    HugeMemory memory_;
    std::int32_t* documents_ = nullptr;
    std::vector<std::int32_t> whole_rows_;  // of the documents with tails
};

// Writes rows one after the other.
template <class T>
class RowWriter {
public:
    RowWriter(const SortedDocuments& sorted, std::int64_t row_length, std::int64_t first_entry,
              std::span<std::int32_t> documents, std::span<T> starts)
        : sorted_(sorted),
          row_length_(row_length),
          first_entry_(first_entry),
          documents_(documents),
          starts_(starts) {}

    // Longer documents without a tail.
    void write_whole(std::int64_t count) {
        const std::int64_t begin = sorted_.begin_of(0, true);
        for (std::int64_t i = begin; i < begin + count; ++i) {
            write_rows(sorted_.whole_rows_at(i));
            documents_[entry_++] = *sorted_.at(i);
        }
    }

    void write_run(const Packing& packing, const Packing::Run& run) {
        parts_.clear();
        const Packing::Part* tail = nullptr;
        for (std::int64_t number = run.last_part; number >= 0;) {
            const Packing::Part& part = packing.part(number);
            number = part.previous;
            const std::int64_t begin = sorted_.begin_of(part.length, part.is_tail) + part.first;
            const std::int64_t first = begin + (run.first_row - part.first_row) * part.times;
            if (part.is_tail) {
                tail = &part;
                tail_ = first;
            } else {
                parts_.push_back({sorted_.at(first), part.times});
            }
        }
        std::reverse(parts_.begin(), parts_.end());
        for (std::int64_t row = 0; row < run.rows; ++row) {
            if (tail == nullptr) {
                start(0);
            } else {
                const std::int64_t whole = sorted_.whole_rows_at(tail_);
                write_rows(whole);
                start(whole * row_length_);
                documents_[entry_++] = *sorted_.at(tail_++);
            }
            for (Source& part : parts_) {
                for (std::int64_t i = 0; i < part.times; ++i) {
                    documents_[entry_++] = *part.next++;
                }
            }
        }
    }

private:
    // Documents of one length, of which each row takes some.
    struct Source {
        const std::int32_t* next;
        std::int64_t times;
    };

    void write_rows(std::int64_t count) {
        for (std::int64_t row = 0; row < count; ++row) {
            start(row * row_length_);
        }
    }

    void start(std::int64_t token) {
        starts_[at_++] = static_cast<T>(first_entry_ + static_cast<std::int64_t>(entry_));
        starts_[at_++] = static_cast<T>(token);
    }

    const SortedDocuments& sorted_;
    const std::int64_t row_length_;
    const std::int64_t first_entry_;
    const std::span<std::int32_t> documents_;
    const std::span<T> starts_;
    std::vector<Source> parts_;
    std::int64_t tail_ = 0;
    std::size_t entry_ = 0;
    std::size_t at_ = 0;
};

}  // namespace

template <class T>
void pack_documents(std::span<const std::int64_t> entries, const PackingRules& rules,
                    std::int64_t first_entry, std::span<std::int32_t> documents,
                    std::span<T> starts) {
    LengthCounts counts(rules);
    for (const std::int64_t entry : entries) {
        counts.add(Entry::length(entry));
    }
    const Packing packing(counts);
    const auto kept = static_cast<std::int64_t>(entries.size()) - counts.empty - counts.left_out;
    require(static_cast<std::int64_t>(documents.size()) == kept &&
                static_cast<std::int64_t>(starts.size()) == 2 * (counts.cut_rows + packing.rows()),
            "the rows are not those of the counts");
    const SortedDocuments sorted(entries, counts);
    RowWriter<T> writer(sorted, rules.row_length, first_entry, documents, starts);
    writer.write_whole(counts.tails.front());
    for (const Packing::Run& run : packing.runs()) {
        writer.write_run(packing, run);
    }
}

template void pack_documents(std::span<const std::int64_t>, const PackingRules&, std::int64_t,
                             std::span<std::int32_t>, std::span<std::int32_t>);
template void pack_documents(std::span<const std::int64_t>, const PackingRules&, std::int64_t,
                             std::span<std::int32_t>, std::span<std::int64_t>);

}  // namespace distcache
