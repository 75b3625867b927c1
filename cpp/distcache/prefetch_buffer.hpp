#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "distcache/extents.hpp"

namespace distcache {

/// Bytes [begin, begin + size) of a source.
struct SourceRange {
    std::int64_t source;
    std::int64_t begin;
    std::int64_t size;

    bool operator==(const SourceRange&) const = default;
};

/// A reading of a stream.
struct ReadingNumber {
    std::int64_t stream;
    std::int64_t reading;
};

/// A range that a thread has taken, to fetch it.
struct TakenRange {
    std::uint64_t id;  ///< for `store` and `fail`
    SourceRange range;
    bool urgent;  ///< whether a reader waits for it
};

/// What became of a range that a reader asked for.
enum class FetchStatus : std::uint8_t {
    copied,      ///< it is in the reader's file
    failed,      ///< it could not be fetched
    late,        ///< it was on its way when the time was over
    damaged,     ///< the disk returns other bytes than were written
    unwritable,  ///< the reader's file does not take it
};

/// The ranges that a node's processes will read, and those of them that are on its disk already.
///
/// A stream is what one process will read: readings, numbered from 0, of some ranges each. They are
/// fetched in this order, as far ahead as the budget allows: the greatest that an open stream asks
/// for, or else a usual one. A range is held once, however many readings there are of it. After the
/// last one it is spare: it stays until its place is needed, the least recently read range first.
///
/// Each stream may have its share of the budget: the budget divided by the open streams. What a
/// stream does not need is lent to others; when it does, the one with the most beyond its own share
/// discards the ranges that it will read last.
///
/// From any thread, but for the constructor and the destructor.
class PrefetchBuffer {
public:
    using Clock = std::chrono::steady_clock;

    /// The most bytes of neighbours that one request fetches, and of a gap between two of them.
    static constexpr std::int64_t longest_request = 8 << 20;
    static constexpr std::int64_t longest_gap = 512;

    /// The most bytes of a range: whole shards and documents are far below.
    static constexpr std::int64_t longest_range = std::int64_t{1} << 40;

    /// What is ahead is written to an open file, which nothing else uses. It remains the caller's.
    explicit PrefetchBuffer(int descriptor);
    PrefetchBuffer(const PrefetchBuffer&) = delete;
    PrefetchBuffer& operator=(const PrefetchBuffer&) = delete;
    ~PrefetchBuffer();

    /// Add a source; `whole` is its size if all of it may have been announced as one range, from
    /// which any part is served, else 0. A packed source, a compressed shard, is always fetched
    /// whole, by few threads at a time.
    std::int64_t add_source(std::int64_t whole, bool packed);

    /// Set how many packed sources are fetched at a time.
    void set_unpackers(std::int64_t count);

    /// Set the bytes that may be ahead where no stream asks for any: of shards that nobody
    /// announced.
    void set_usual_budget(std::int64_t budget);

    std::int64_t open_stream();
    void close_stream(std::int64_t stream);

    /// Add readings to a stream: reading i has the ranges up to `ends[i]`. Throws
    /// std::out_of_range if the arguments do not fit one another.
    void announce(std::int64_t stream, std::span<const SourceRange> ranges,
                  std::span<const std::int64_t> ends, std::int64_t budget);

    /// Note that readings are over; of a stream that is closed, nothing.
    void finish_readings(std::span<const ReadingNumber> readings);

    /// Copy ranges into files, at their own offsets, as soon as they are there.
    std::vector<FetchStatus> fetch(std::span<const SourceRange> ranges, std::span<const int> files,
                                   Clock::time_point end);

    /// Take ranges of one source that are close to one another: those that readers wait for, or
    /// else, if `ahead` says so, those that come next. Waits for some until `end`.
    std::vector<TakenRange> take(Clock::time_point end, bool ahead);

    /// Write a range that was taken.
    void store(std::uint64_t id, std::span<const std::byte> bytes);

    /// Discard a range that was taken: those who wait for it get `failed`. The next reader that
    /// comes lets it be fetched again.
    void fail(std::uint64_t id);

    /// Let all who wait return.
    void close();

    struct Status {
        std::int64_t streams, budget, used, queued, held, hits, misses;
        int error;  ///< the last error number of writing
    };
    [[nodiscard]] Status status() const;

private:
    struct Source {
        std::int64_t whole;
        bool packed;
    };
    struct Hash {
        std::size_t operator()(const SourceRange& range) const;
    };
    // A reader that waits for some ranges.
    struct Waiter {
        std::size_t left = 0;
        std::condition_variable arrived;
    };
    enum class State : std::uint8_t { queued, fetching, held, lost };
    // What few entries have.
    struct Extra {
        std::vector<Waiter*> waiters;
        std::vector<std::byte> memory;         // the bytes, where there is no place in the file
        std::vector<std::uint64_t> checksums;  // of each block, where there are several
    };
    // A range that is ahead, or that somebody will read or reads. There may be millions.
    struct Entry {
        SourceRange range;
        std::int64_t owner = 0;      // the stream whose share it takes, or 0
        std::int64_t offset = -1;    // in the file
        std::uint64_t checksum = 0;  // of its only block
        std::unique_ptr<Extra> extra;
        std::list<Entry*>::iterator lru_position;
        std::uint32_t readings = 0;  // that were announced and are not over
        std::uint32_t users = 0;     // readers that wait for it, or copy it
        bool queued = false;         // whether it is among the urgent ones
        bool spare = false;
        State state = State::queued;
    };
    // What one process will read.
    struct Stream {
        std::int64_t number;
        std::int64_t budget = 0;
        std::int64_t taken = 0;  // bytes of the file, of the entries that it owns
        struct Reading {
            std::int64_t end;  // number of the first range after its own
            bool over;
        };
        // From the first reading on that is not over. Numbers of ranges count from the stream's
        // first.
        std::deque<Reading> readings;
        std::deque<Entry*> ranges;  // null for those of readings that are over
        std::int64_t first_reading = 0;
        std::int64_t first_range = 0;
        std::int64_t next = 0;  // the first range that may have to be fetched

        [[nodiscard]] std::int64_t range_count() const {
            return first_range + static_cast<std::int64_t>(ranges.size());
        }
        [[nodiscard]] std::int64_t reading_count() const {
            return first_reading + static_cast<std::int64_t>(readings.size());
        }
        Entry*& range(std::int64_t number_of_range) {
            return ranges[static_cast<std::size_t>(number_of_range - first_range)];
        }
        [[nodiscard]] std::int64_t begin_of(std::int64_t reading) const {
            return reading == first_reading
                       ? first_range
                       : readings[static_cast<std::size_t>(reading - first_reading - 1)].end;
        }
    };
    using Lock = std::unique_lock<std::mutex>;

    void require_sound(std::span<const SourceRange> ranges) const;
    [[nodiscard]] bool is_packed(const Entry& entry) const;
    [[nodiscard]] bool may_take(const Entry& entry) const;
    [[nodiscard]] Entry* find(const SourceRange& range);
    Entry& find_or_add(const SourceRange& range);
    void set_state(Entry& entry, State state);
    void release_if_unused(Entry& entry);
    void free_place(Entry& entry);
    void disown(Entry& entry);
    void wake_readers(Entry& entry);
    void discard_spare();
    void finish_reading(Stream& stream, std::int64_t reading);
    Entry* claim(const SourceRange& range, Waiter& waiter);
    std::vector<Entry*> use(std::span<const SourceRange> ranges, Clock::time_point end,
                            std::vector<FetchStatus>& outcome);
    void release(const std::vector<Entry*>& used);
    Extra& extra_of(Entry& entry);
    FetchStatus copy(const Entry& entry, const SourceRange& range, int file) const;
    std::vector<Entry*> take_urgent();
    bool make_room_for_waiting(const Entry& entry);
    std::vector<Entry*> take_next();
    Entry* next_of(Stream& stream);
    void place(Entry& entry, Stream* stream);
    bool make_room(const Entry& entry, const Stream* stream);
    bool make_room_by_later(const Entry& entry, Stream& stream, std::int64_t position);
    [[nodiscard]] bool fits(const Entry& entry) const;
    [[nodiscard]] std::int64_t asked() const;
    [[nodiscard]] std::int64_t budget() const;
    void note_error(int error, std::int64_t room);
    void end_of(std::uint64_t id, const Entry& entry);
    void finish(Entry& entry, State state);

    const int file_;
    mutable std::mutex mutex_;
    std::condition_variable work_;         // for threads that also take what comes next
    std::condition_variable urgent_work_;  // for those that take only what readers wait for
    bool closed_ = false;
    std::vector<Source> sources_;
    std::unordered_map<SourceRange, Entry, Hash> entries_;
    std::list<Entry*> spare_;  // the least recently read first
    std::unordered_map<std::int64_t, Stream> streams_;
    std::unordered_map<std::uint64_t, Entry*> taken_;
    std::deque<Entry*> urgent_;  // readers wait for them
    std::int64_t unpackers_ = 1;
    std::int64_t unpacking_ = 0;  // packed sources that are being fetched
    Extents extents_;
    std::int64_t usual_budget_ = 0;
    std::int64_t used_ = 0;
    std::int64_t file_size_ = 0;
    std::int64_t next_stream_;
    std::uint64_t next_id_ = 1;
    std::array<std::int64_t, 4> counts_{};  // of entries in each state
    std::int64_t hits_ = 0;
    std::int64_t misses_ = 0;
    int error_ = 0;
    std::int64_t room_ = 0;  // bytes that a full disk has held
    Clock::time_point retry_writes_at_{};
    Clock::time_point last_search_{};  // for what is read later
};

}  // namespace distcache
