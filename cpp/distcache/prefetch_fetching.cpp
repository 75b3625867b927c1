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

std::vector<TakenRange> PrefetchBuffer::take(Clock::time_point end, bool ahead) {
    Lock lock(mutex_);
    std::vector<Entry*> found;
    bool urgent = false;
    while (!closed_) {
        found = take_urgent();
        urgent = !found.empty();
        if (!urgent && ahead) {
            found = take_next();
        }
        if (!found.empty() || Clock::now() >= end) {
            break;
        }
        (ahead ? work_ : urgent_work_).wait_until(lock, end);
    }
    if (!found.empty()) {
        unpacking_ += is_packed(*found.front());
        work_.notify_one();  // the next thread, which finds what is left, and wakes another
        if (!urgent_.empty()) {
            urgent_work_.notify_one();
        }
    }
    std::vector<TakenRange> taken;
    for (Entry* const entry : found) {
        taken.push_back({next_id_, entry->range, urgent});
        taken_.emplace(next_id_++, entry);
    }
    return taken;
}

// Whether a thread may begin with an entry: few unpack at a time.
bool PrefetchBuffer::may_take(const Entry& entry) const {
    return !is_packed(entry) || unpacking_ < unpackers_;
}

// A range that only its readers need gets no place: it is handed to them from memory. A shard gets
// one if there is room, since more of it may be read.
std::vector<PrefetchBuffer::Entry*> PrefetchBuffer::take_urgent() {
    std::vector<Entry*> found;
    for (auto next = urgent_.begin(); next != urgent_.end() && found.size() < most_joined;) {
        Entry& entry = **next;
        const bool is_over = entry.state != State::queued || entry.users == 0;
        if (!is_over && !may_take(entry)) {
            ++next;
            continue;
        }
        if (!is_over && !found.empty() &&
            !are_near(found.front()->range, found.back()->range, entry.range)) {
            break;
        }
        next = urgent_.erase(next);
        entry.queued = false;
        if (is_over) {
            release_if_unused(entry);
            continue;
        }
        if (make_room_for_waiting(entry)) {
            place(entry, nullptr);
        }
        set_state(entry, State::fetching);
        found.push_back(&entry);
    }
    return found;
}

bool PrefetchBuffer::make_room_for_waiting(const Entry& entry) {
    const bool packed = is_packed(entry);
    bool has_room = (entry.readings > 0 || packed) && make_room(entry, nullptr);
    if (packed && entry.readings > 0) {
        for (auto& [number, stream] : streams_) {
            has_room = has_room || make_room_by_later(entry, stream, stream.first_range);
        }
    }
    return has_room;
}

// The next ranges of the stream that has least ahead, with their places.
std::vector<PrefetchBuffer::Entry*> PrefetchBuffer::take_next() {
    std::vector<Stream*> streams;
    for (auto& [number, stream] : streams_) {
        streams.push_back(&stream);
    }
    std::sort(streams.begin(), streams.end(),
              [](const Stream* a, const Stream* b) { return a->taken < b->taken; });
    for (Stream* const stream : streams) {
        Entry* const first = next_of(*stream);
        if (first == nullptr || !may_take(*first)) {
            continue;
        }
        bool has_room = make_room(*first, stream);
        if (!has_room && is_packed(*first) && Clock::now() - last_search_ >= search_pause) {
            has_room = make_room_by_later(*first, *stream, stream->next);
            last_search_ = Clock::now();
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
        if (entry != nullptr && entry->state == State::queued && !entry->queued &&
            Extents::rounded(entry->range.size) <= asked()) {
            return entry;
        }
    }
    return nullptr;
}

void PrefetchBuffer::store(std::uint64_t id, std::span<const std::byte> bytes) {
    Lock lock(mutex_);
    Entry& entry = *taken_.at(id);
    require(static_cast<std::int64_t>(bytes.size()) == entry.range.size,
            "a range has another size");
    const bool has_place = entry.offset >= 0;
    lock.unlock();
    int error = 0;
    if (has_place) {
        std::vector<std::uint64_t> checksums = checksums_of(bytes);
        if (checksums.size() == 1) {
            entry.checksum = checksums.front();
        } else {
            const Lock again(mutex_);  // readers that come to wait may make it, too
            extra_of(entry).checksums = std::move(checksums);
        }
        error = write_all(file_, bytes, entry.offset);
    }
    lock.lock();
    end_of(id, entry);
    if (error != 0) {
        note_error(error, used_ - Extents::rounded(entry.range.size));
        free_place(entry);
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
    end_of(id, entry);
    finish(entry, State::lost);
}

// A thread is done with a range that it has taken.
void PrefetchBuffer::end_of(std::uint64_t id, const Entry& entry) {
    taken_.erase(id);
    if (is_packed(entry)) {
        --unpacking_;
        work_.notify_one();
    }
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
