#include "distcache/prefetch_buffer.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include "distcache/checked_file.hpp"
#include "distcache/require.hpp"

namespace distcache {

std::size_t PrefetchBuffer::Hash::operator()(const SourceRange& range) const {
    auto hash = static_cast<std::uint64_t>(range.begin) * 0x9E3779B97F4A7C15;
    hash ^= static_cast<std::uint64_t>(range.source) * 0xC2B2AE3D27D4EB4F;
    hash ^= static_cast<std::uint64_t>(range.size) << 20;
    return hash ^ (hash >> 31);
}

PrefetchBuffer::PrefetchBuffer(int descriptor) : file_(descriptor) {
    std::random_device random;  // readings of an earlier process do not count as those of this one
    next_stream_ = static_cast<std::int64_t>((std::uint64_t{random()} << 30 | random()) >> 1) + 1;
}

PrefetchBuffer::~PrefetchBuffer() = default;

std::int64_t PrefetchBuffer::add_source(std::int64_t whole, bool packed) {
    require(whole > 0 || !packed, "a shard has a size");
    const Lock lock(mutex_);
    sources_.push_back({whole, packed});
    return static_cast<std::int64_t>(sources_.size()) - 1;
}

void PrefetchBuffer::set_unpackers(std::int64_t count) {
    const Lock lock(mutex_);
    unpackers_ = count;
}

void PrefetchBuffer::set_usual_budget(std::int64_t budget) {
    const Lock lock(mutex_);
    usual_budget_ = budget;
}

std::int64_t PrefetchBuffer::open_stream() {
    const Lock lock(mutex_);
    const std::int64_t number = next_stream_++;
    streams_[number].number = number;
    return number;
}

void PrefetchBuffer::close_stream(std::int64_t stream) {
    const Lock lock(mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) {
        return;
    }
    const Stream closed = std::move(found->second);
    streams_.erase(found);
    for (Entry* const entry : closed.ranges) {
        if (entry != nullptr) {
            --entry->readings;
            release_if_unused(*entry);
        }
    }
    while (!spare_.empty() && used_ > asked()) {
        discard_spare();
    }
    work_.notify_one();
}

void PrefetchBuffer::announce(std::int64_t stream, std::span<const SourceRange> ranges,
                              std::span<const std::int64_t> ends, std::int64_t budget) {
    const Lock lock(mutex_);
    const auto found = streams_.find(stream);
    require(found != streams_.end(), "there is no such stream");
    const auto count = static_cast<std::int64_t>(ranges.size());
    require(std::is_sorted(ends.begin(), ends.end()) &&
                (ends.empty() ? count == 0 : ends.front() >= 0 && ends.back() == count),
            "readings do not fit their ranges");
    require_sound(ranges);
    for (const SourceRange& range : ranges) {
        const auto [whole, packed] = sources_[static_cast<std::size_t>(range.source)];
        require(!packed || (range.begin == 0 && range.size == whole),
                "a shard is announced as a whole");
    }
    Stream& to = found->second;
    to.budget = std::max(to.budget, budget);
    const std::int64_t before = to.range_count();
    for (const SourceRange& range : ranges) {
        Entry& entry = find_or_add(range);
        ++entry.readings;
        to.ranges.push_back(&entry);
    }
    for (const std::int64_t end : ends) {
        to.readings.push_back({before + end, false});
    }
    work_.notify_one();
}

void PrefetchBuffer::finish_readings(std::span<const ReadingNumber> readings) {
    const Lock lock(mutex_);
    for (const ReadingNumber& ended : readings) {
        if (const auto found = streams_.find(ended.stream); found != streams_.end()) {
            finish_reading(found->second, ended.reading);
        }
    }
    if (counts_[static_cast<std::size_t>(State::queued)] > 0) {
        work_.notify_one();  // there may be room
    }
}

void PrefetchBuffer::finish_reading(Stream& stream, std::int64_t reading) {
    if (reading < stream.first_reading || reading >= stream.reading_count()) {
        return;
    }
    auto& ended = stream.readings[static_cast<std::size_t>(reading - stream.first_reading)];
    if (ended.over) {
        return;
    }
    ended.over = true;
    for (std::int64_t number = stream.begin_of(reading); number < ended.end; ++number) {
        Entry& entry = *std::exchange(stream.range(number), nullptr);
        --entry.readings;
        release_if_unused(entry);
    }
    while (!stream.readings.empty() && stream.readings.front().over) {
        const std::int64_t end = stream.readings.front().end;
        stream.ranges.erase(stream.ranges.begin(),
                            stream.ranges.begin() + (end - stream.first_range));
        stream.first_range = end;
        stream.next = std::max(stream.next, end);
        stream.readings.pop_front();
        ++stream.first_reading;
    }
}

std::vector<FetchStatus> PrefetchBuffer::fetch(std::span<const SourceRange> ranges,
                                               std::span<const int> files, Clock::time_point end) {
    require(ranges.size() == files.size(), "each range needs a file");
    std::vector<FetchStatus> outcome;
    const std::vector<Entry*> used = use(ranges, end, outcome);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        if (used[i] != nullptr) {
            outcome[i] = copy(*used[i], ranges[i], files[i]);
        }
    }
    release(used);
    return outcome;
}

// Use the entries of ranges, as soon as they are there; null for those that did not come.
std::vector<PrefetchBuffer::Entry*> PrefetchBuffer::use(std::span<const SourceRange> ranges,
                                                        Clock::time_point end,
                                                        std::vector<FetchStatus>& outcome) {
    outcome.assign(ranges.size(), FetchStatus::failed);
    std::vector<Entry*> claimed(ranges.size(), nullptr);
    Waiter waiter;
    Lock lock(mutex_);
    require_sound(ranges);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        claimed[i] = claim(ranges[i], waiter);
    }
    if (!urgent_.empty()) {
        work_.notify_one();
        urgent_work_.notify_one();
    }
    waiter.arrived.wait_until(lock, end, [&] { return waiter.left == 0 || closed_; });
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        if (claimed[i] == nullptr || claimed[i]->state == State::held) {
            continue;
        }
        if (claimed[i]->extra != nullptr && std::erase(claimed[i]->extra->waiters, &waiter) > 0) {
            outcome[i] = FetchStatus::late;
        }
        --claimed[i]->users;
        release_if_unused(*std::exchange(claimed[i], nullptr));
    }
    return claimed;
}

void PrefetchBuffer::release(const std::vector<Entry*>& used) {
    const Lock lock(mutex_);
    for (Entry* const entry : used) {
        if (entry != nullptr) {
            --entry->users;
            release_if_unused(*entry);
        }
    }
}

// Let a reader use an entry, which it waits for if that is not held; null if nobody fetches any
// more.
PrefetchBuffer::Entry* PrefetchBuffer::claim(const SourceRange& range, Waiter& waiter) {
    const auto [whole, packed] = sources_[static_cast<std::size_t>(range.source)];
    Entry* entry = whole > 0 ? find({range.source, 0, whole}) : nullptr;
    if (entry == nullptr) {
        entry = find(range);
    }
    const bool is_ahead =
        entry != nullptr && (entry->state == State::held || entry->state == State::fetching);
    ++(is_ahead ? hits_ : misses_);
    if (closed_) {
        return nullptr;
    }
    if (entry == nullptr) {
        entry = &find_or_add(packed ? SourceRange{range.source, 0, whole} : range);
    }
    if (entry->state == State::lost) {
        set_state(*entry, State::queued);
    }
    if (entry->state == State::queued && !entry->queued) {
        urgent_.push_back(entry);
        entry->queued = true;
    }
    ++entry->users;
    if (entry->state != State::held) {
        extra_of(*entry).waiters.push_back(&waiter);
        ++waiter.left;
    }
    return entry;
}

FetchStatus PrefetchBuffer::copy(const Entry& entry, const SourceRange& range, int file) const {
    const std::int64_t begin = range.begin - entry.range.begin;
    const std::int64_t end = begin + range.size;
    static thread_local std::vector<std::byte> buffer;
    std::span<const std::byte> bytes;
    if (entry.offset < 0) {
        bytes = std::span<const std::byte>(entry.extra->memory)
                    .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(range.size));
    } else {
        const auto checksums = entry.range.size > checked_block
                                   ? std::span<const std::uint64_t>(entry.extra->checksums)
                                   : std::span<const std::uint64_t>(&entry.checksum, 1);
        if (!read_checked(file_, entry.offset, entry.range.size, checksums, begin, end, buffer,
                          bytes)) {
            return FetchStatus::damaged;
        }
    }
    return write_all(file, bytes, range.begin) == 0 ? FetchStatus::copied : FetchStatus::unwritable;
}

void PrefetchBuffer::close() {
    const Lock lock(mutex_);
    closed_ = true;
    for (auto& [range, entry] : entries_) {
        if (entry.extra != nullptr) {
            for (Waiter* const waiter : entry.extra->waiters) {
                waiter->arrived.notify_one();
            }
        }
    }
    work_.notify_all();
    urgent_work_.notify_all();
}

PrefetchBuffer::Status PrefetchBuffer::status() const {
    const Lock lock(mutex_);
    return {static_cast<std::int64_t>(streams_.size()),
            budget(),
            used_,
            counts_[static_cast<std::size_t>(State::queued)],
            counts_[static_cast<std::size_t>(State::held)],
            hits_,
            misses_,
            error_};
}

void PrefetchBuffer::require_sound(std::span<const SourceRange> ranges) const {
    for (const SourceRange& range : ranges) {
        require(range.source >= 0 && static_cast<std::size_t>(range.source) < sources_.size(),
                "there is no such source");
        const std::int64_t whole = sources_[static_cast<std::size_t>(range.source)].whole;
        require(range.begin >= 0 && range.size > 0 && range.size <= longest_range &&
                    range.begin <= INT64_MAX - range.size &&
                    (whole == 0 || range.begin + range.size <= whole),
                "a range is outside of its source");
    }
}

bool PrefetchBuffer::is_packed(const Entry& entry) const {
    return sources_[static_cast<std::size_t>(entry.range.source)].packed;
}

PrefetchBuffer::Entry* PrefetchBuffer::find(const SourceRange& range) {
    const auto found = entries_.find(range);
    return found == entries_.end() ? nullptr : &found->second;
}

PrefetchBuffer::Entry& PrefetchBuffer::find_or_add(const SourceRange& range) {
    const auto [found, is_new] = entries_.try_emplace(range);
    Entry& entry = found->second;
    if (is_new) {
        entry.range = range;
        ++counts_[static_cast<std::size_t>(State::queued)];
    } else if (entry.spare) {
        spare_.erase(entry.lru_position);
        entry.spare = false;
    }
    return entry;
}

PrefetchBuffer::Extra& PrefetchBuffer::extra_of(Entry& entry) {
    if (entry.extra == nullptr) {
        entry.extra = std::make_unique<Extra>();
    }
    return *entry.extra;
}

void PrefetchBuffer::set_state(Entry& entry, State state) {
    --counts_[static_cast<std::size_t>(entry.state)];
    ++counts_[static_cast<std::size_t>(state)];
    entry.state = state;
}

}  // namespace distcache
