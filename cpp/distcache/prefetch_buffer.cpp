#include "distcache/prefetch_buffer.hpp"

#include <fcntl.h>

#include <algorithm>
#include <random>
#include <utility>

#include "distcache/checked_file.hpp"
#include "distcache/require.hpp"

namespace distcache {
namespace {

constexpr std::int64_t compared_at_once = 1 << 20;  // bytes of a shard

}  // namespace

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

std::int64_t PrefetchBuffer::add_source(FetchedBy fetcher, std::int64_t whole) {
    require(whole > 0 || fetcher != FetchedBy::unpackers, "a shard has a size");
    const Lock lock(mutex_);
    sources_.push_back({fetcher, whole});
    ++sources_of_[static_cast<std::size_t>(fetcher)];
    return static_cast<std::int64_t>(sources_.size()) - 1;
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
    wake_fetchers();
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
        const auto [fetcher, whole] = sources_[static_cast<std::size_t>(range.source)];
        require(fetcher != FetchedBy::unpackers || (range.begin == 0 && range.size == whole),
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
    wake_fetchers();
}

void PrefetchBuffer::finish_readings(std::span<const ReadingNumber> readings) {
    const Lock lock(mutex_);
    for (const ReadingNumber& ended : readings) {
        if (const auto found = streams_.find(ended.stream); found != streams_.end()) {
            finish_reading(found->second, ended.reading);
        }
    }
    if (counts_[static_cast<std::size_t>(State::queued)] > 0) {
        wake_fetchers();  // there may be room
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

std::vector<int> PrefetchBuffer::open_shards(std::span<const std::int64_t> sources,
                                             Clock::time_point end) {
    std::vector<SourceRange> ranges;
    std::vector<std::size_t> numbers;
    {
        const Lock lock(mutex_);
        for (std::size_t i = 0; i < sources.size(); ++i) {
            const std::int64_t source = sources[i];
            require(source >= 0 && static_cast<std::size_t>(source) < sources_.size() &&
                        sources_[static_cast<std::size_t>(source)].fetcher == FetchedBy::unpackers,
                    "there is no such shard");
            const SourceRange whole{source, 0, sources_[static_cast<std::size_t>(source)].whole};
            if (may_have_place(whole)) {
                ranges.push_back(whole);
                numbers.push_back(i);
            }
        }
    }
    std::vector<FetchStatus> outcome;
    const std::vector<Entry*> used = use(ranges, end, outcome);
    std::vector<int> files(sources.size(), -1);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        if (used[i] != nullptr && used[i]->offset >= 0 && is_intact(*used[i])) {
            files[numbers[i]] = ::fcntl(file_of(*used[i]), F_DUPFD_CLOEXEC, 0);
        }
    }
    release(used);
    return files;
}

// Whether a shard has a place, or may get one: else it would be unpacked for this reader alone, and
// again when it copies.
bool PrefetchBuffer::may_have_place(const SourceRange& whole) {
    const Entry* const entry = find(whole);
    return (entry != nullptr && (entry->offset >= 0 || entry->readings > 0)) || !spare_.empty() ||
           used_ + Extents::rounded(whole.size) <= budget();
}

// Whether the disk returns what was written.
bool PrefetchBuffer::is_intact(const Entry& entry) const {
    static thread_local std::vector<std::byte> buffer;
    const auto checksums = checksums_in(entry);
    std::span<const std::byte> bytes;
    for (std::int64_t begin = 0; begin < entry.range.size; begin += compared_at_once) {
        const std::int64_t end = std::min(begin + compared_at_once, entry.range.size);
        if (!read_checked(file_of(entry), entry.offset, entry.range.size, checksums, begin, end,
                          buffer, bytes)) {
            return false;
        }
    }
    return true;
}

// The checksums of the blocks of a range that has a place.
std::span<const std::uint64_t> PrefetchBuffer::checksums_in(const Entry& entry) {
    return entry.range.size > checked_block ? std::span<const std::uint64_t>(entry.extra->checksums)
                                            : std::span<const std::uint64_t>(&entry.checksum, 1);
}

// Use the entries of ranges, as soon as they are there; null for those that did not come.
std::vector<PrefetchBuffer::Entry*> PrefetchBuffer::use(std::span<const SourceRange> ranges,
                                                        Clock::time_point end,
                                                        std::vector<FetchStatus>& outcome) {
    outcome.assign(ranges.size(), FetchStatus::missing);
    std::vector<Entry*> claimed(ranges.size(), nullptr);
    Waiter waiter;
    Lock lock(mutex_);
    require_sound(ranges);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        claimed[i] = claim(ranges[i], waiter);
    }
    ++waiting_;
    if (!urgent_.empty() || !urgent_shards_.empty()) {
        wake_fetchers();
    }
    waiter.arrived.wait_until(lock, end, [&] { return waiter.left == 0 || closed_; });
    --waiting_;
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

// Let a reader use an entry, which it waits for if that is not held; null if the reader's thread
// has to fetch it.
PrefetchBuffer::Entry* PrefetchBuffer::claim(const SourceRange& range, Waiter& waiter) {
    const auto [fetcher, whole] = sources_[static_cast<std::size_t>(range.source)];
    Entry* entry = whole > 0 ? find({range.source, 0, whole}) : nullptr;
    if (entry == nullptr) {
        entry = find(range);
    }
    // What was passed on and is not taken yet is fetched by its reader, who does not wait for a
    // thread that may have to wait for a store.
    const bool is_ahead =
        entry != nullptr &&
        (entry->state == State::held || (entry->state == State::fetching && entry->queues == 0));
    ++(is_ahead ? hits_ : misses_);
    const bool is_queued = entry == nullptr || entry->state == State::queued;
    if (closed_ || (!is_ahead && !(is_queued && fetcher != FetchedBy::threads))) {
        return nullptr;
    }
    if (entry == nullptr) {
        entry = &find_or_add(fetcher == FetchedBy::unpackers ? SourceRange{range.source, 0, whole}
                                                             : range);
    }
    if (entry->state == State::queued && entry->queues == 0) {
        urgent_of(fetcher).push_back(entry);
        ++entry->queues;
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
        if (!read_checked(file_of(entry), entry.offset, entry.range.size, checksums_in(entry),
                          begin, end, buffer, bytes)) {
            return FetchStatus::missing;
        }
    }
    return write_all(file, bytes, range.begin) == 0 ? FetchStatus::copied : FetchStatus::failed;
}

void PrefetchBuffer::on_work(std::function<void()> wake) {
    const Lock lock(mutex_);
    wake_loop_ = std::move(wake);
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
    unpacking_.notify_all();
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

FetchedBy PrefetchBuffer::fetcher_of(const Entry& entry) const {
    return sources_[static_cast<std::size_t>(entry.range.source)].fetcher;
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
        spare_.erase(entry.place_of_spare);
        entry.spare = false;
    }
    return entry;
}

// The file in which a range has its place.
int PrefetchBuffer::file_of(const Entry& entry) const {
    return fetcher_of(entry) == FetchedBy::unpackers ? entry.extra->file : file_;
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

void PrefetchBuffer::wake_fetchers() {
    if (sources_of_[static_cast<std::size_t>(FetchedBy::threads)] > 0 || !passed_on_.empty()) {
        work_.notify_one();
    }
    if (sources_of_[static_cast<std::size_t>(FetchedBy::unpackers)] > 0) {
        unpacking_.notify_one();
    }
    if (wake_loop_) {
        wake_loop_();
    }
}

}  // namespace distcache
