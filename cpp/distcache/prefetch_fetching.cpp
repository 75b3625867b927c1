// How a `PrefetchBuffer` gives work to those who fetch, and takes what they have fetched.

#include <algorithm>
#include <cerrno>
#include <utility>

#include "distcache/checked_file.hpp"
#include "distcache/prefetch_buffer.hpp"
#include "distcache/require.hpp"

namespace distcache {
namespace {

constexpr std::size_t most_joined = 16;                // ranges of one request
constexpr std::chrono::milliseconds search_pause{50};  // a search goes through all announced ranges

// Whether a range comes so soon after the last one that one request may fetch all from the first.
bool are_near(const SourceRange& first, const SourceRange& last, const SourceRange& next) {
    return next.source == last.source && next.begin >= last.begin + last.size &&
           next.begin - (last.begin + last.size) <= PrefetchBuffer::longest_gap &&
           next.begin + next.size - first.begin <= PrefetchBuffer::longest_request;
}

}  // namespace

std::vector<TakenRange> PrefetchBuffer::take(FetchedBy fetcher, Clock::time_point end) {
    Lock lock(mutex_);
    std::vector<Entry*> found;
    std::condition_variable& work = fetcher == FetchedBy::unpackers ? unpacking_ : work_;
    while (!closed_) {
        if (fetcher == FetchedBy::threads) {
            found = take_passed_on();
        } else if (Entry* const first = take_urgent(fetcher)) {
            found = {first};
        }
        if (found.empty()) {
            found = take_next(fetcher);
        }
        if (!found.empty() || fetcher == FetchedBy::loop || Clock::now() >= end) {
            break;
        }
        work.wait_until(lock, end);
    }
    if (!found.empty() && fetcher != FetchedBy::loop) {
        work.notify_one();  // the next thread, which finds what is left, and wakes another
    }
    return hand_out(found);
}

std::vector<TakenRange> PrefetchBuffer::take_awaited() {
    const Lock lock(mutex_);
    Entry* const first = closed_ ? nullptr : take_urgent(FetchedBy::loop);
    return first == nullptr ? std::vector<TakenRange>{} : hand_out({first});
}

std::vector<TakenRange> PrefetchBuffer::hand_out(const std::vector<Entry*>& entries) {
    std::vector<TakenRange> taken;
    for (Entry* const entry : entries) {
        taken.push_back({next_id_, entry->range});
        taken_.emplace(next_id_++, entry);
    }
    return taken;
}

std::deque<PrefetchBuffer::Entry*>& PrefetchBuffer::urgent_of(FetchedBy fetcher) {
    return fetcher == FetchedBy::unpackers ? urgent_shards_ : urgent_;
}

// A range that only its readers need gets no place: it is handed to them from memory. A shard gets
// one if there is room, since more of it may be read.
PrefetchBuffer::Entry* PrefetchBuffer::take_urgent(FetchedBy fetcher) {
    std::deque<Entry*>& urgent = urgent_of(fetcher);
    const bool is_shard = fetcher == FetchedBy::unpackers;
    while (!urgent.empty()) {
        Entry& entry = *urgent.front();
        urgent.pop_front();
        --entry.queues;
        if (entry.state == State::queued && entry.users > 0) {
            bool has_room = (entry.readings > 0 || is_shard) && make_room(entry, nullptr);
            for (auto stream = streams_.begin();
                 is_shard && entry.readings > 0 && !has_room && stream != streams_.end();
                 ++stream) {
                has_room = make_room_by_later(entry, stream->second, stream->second.first_range);
            }
            if (has_room) {
                place(entry, nullptr);
            }
            set_state(entry, State::fetching);
            return &entry;
        }
        release_if_unused(entry);
    }
    return nullptr;
}

std::vector<PrefetchBuffer::Entry*> PrefetchBuffer::take_passed_on() {
    std::vector<Entry*> found;
    while (!passed_on_.empty() && found.size() < most_joined) {
        Entry& entry = *passed_on_.front();
        if (!found.empty() && !are_near(found.front()->range, found.back()->range, entry.range)) {
            break;
        }
        passed_on_.pop_front();
        --entry.queues;
        if (entry.readings > 0) {
            found.push_back(&entry);
        } else {
            finish(entry, State::lost);
        }
    }
    return found;
}

// The next ranges of the stream that has least ahead, with their places.
std::vector<PrefetchBuffer::Entry*> PrefetchBuffer::take_next(FetchedBy fetcher) {
    std::vector<Stream*> streams;
    for (auto& [number, stream] : streams_) {
        streams.push_back(&stream);
    }
    std::sort(streams.begin(), streams.end(),
              [](const Stream* a, const Stream* b) { return a->taken < b->taken; });
    for (Stream* const stream : streams) {
        Entry* const first = next_of(*stream);
        if (first == nullptr || fetcher_of(*first) != fetcher) {
            continue;
        }
        bool has_room = make_room(*first, stream);
        if (!has_room && fetcher == FetchedBy::unpackers &&
            Clock::now() - searched_ >= search_pause) {
            has_room = make_room_by_later(*first, *stream, stream->next);
            searched_ = Clock::now();
        }
        if (!has_room) {
            return {};
        }
        std::vector<Entry*> found{first};
        place(*first, stream);
        while (found.size() < most_joined) {
            Entry* const next = next_of(*stream);
            if (next == nullptr || !are_near(first->range, found.back()->range, next->range) ||
                !fits(*next)) {
                break;
            }
            place(*next, stream);
            found.push_back(next);
        }
        return found;
    }
    return {};
}

// The next range of a stream that has to be fetched; null if there is none.
PrefetchBuffer::Entry* PrefetchBuffer::next_of(Stream& stream) {
    for (; stream.next < stream.range_count(); ++stream.next) {
        Entry* const entry = stream.range(stream.next);
        // What readers wait for is fetched already, or next.
        if (entry != nullptr && entry->state == State::queued && entry->queues == 0 &&
            Extents::rounded(entry->range.size) <= asked()) {
            return entry;
        }
    }
    return nullptr;
}

void PrefetchBuffer::store(std::uint64_t id, std::span<const std::byte> bytes, int own_file) {
    Extra own;  // closes the file, unless an entry takes it
    own.file = own_file;
    Lock lock(mutex_);
    Entry& entry = *taken_.at(id);
    const bool is_shard = fetcher_of(entry) == FetchedBy::unpackers;
    require(static_cast<std::int64_t>(bytes.size()) == entry.range.size,
            "a range has another size");
    require(is_shard || own_file < 0, "only shards have a file of their own");
    const bool has_place = entry.offset >= 0;
    lock.unlock();
    int error = is_shard && has_place && own_file < 0 ? ENOSPC : 0;
    if (has_place && error == 0) {
        std::vector<std::uint64_t> checksums = checksums_of(bytes);
        if (checksums.size() == 1) {
            entry.checksum = checksums.front();
        } else {
            const Lock again(mutex_);  // readers that come to wait may make it, too
            extra_of(entry).checksums = std::move(checksums);
        }
        error = write_all(is_shard ? own_file : file_, bytes, entry.offset);
    }
    lock.lock();
    taken_.erase(id);
    if (error != 0) {
        note_error(error, used_ - Extents::rounded(entry.range.size));
        free_place(entry);
    } else if (has_place && is_shard) {
        extra_of(entry).file = std::exchange(own.file, -1);
    }
    if (!has_place || error != 0) {
        if (entry.users == 0) {
            finish(entry, State::lost);
            return;
        }
        entry.extra->memory.assign(bytes.begin(), bytes.end());
    }
    finish(entry, State::held);
}

void PrefetchBuffer::fail(std::uint64_t id) {
    const Lock lock(mutex_);
    Entry& entry = *taken_.at(id);
    taken_.erase(id);
    finish(entry, State::lost);
}

void PrefetchBuffer::pass_on(std::uint64_t id) {
    const Lock lock(mutex_);
    Entry& entry = *taken_.at(id);
    taken_.erase(id);
    if (entry.offset < 0 || entry.readings == 0) {
        finish(entry, State::lost);
        return;
    }
    wake_readers(entry);  // who fetch it themselves: an error is theirs
    passed_on_.push_back(&entry);
    ++entry.queues;
    work_.notify_one();
}

bool PrefetchBuffer::is_wanted(std::uint64_t id) const {
    const Lock lock(mutex_);
    return taken_.at(id)->readings > 0;
}

bool PrefetchBuffer::is_awaited(std::uint64_t id) const {
    const Lock lock(mutex_);
    const Entry& entry = *taken_.at(id);
    return entry.extra != nullptr && !entry.extra->waiters.empty();
}

// Note the end of fetching a range.
void PrefetchBuffer::finish(Entry& entry, State state) {
    if (state == State::lost) {
        free_place(entry);
    }
    set_state(entry, state);
    wake_readers(entry);
    release_if_unused(entry);
}

void PrefetchBuffer::wake_readers(Entry& entry) {
    if (entry.extra == nullptr) {
        return;
    }
    for (Waiter* const waiter : std::exchange(entry.extra->waiters, {})) {
        if (--waiter->left == 0) {
            waiter->arrived.notify_one();
        }
    }
}

}  // namespace distcache
