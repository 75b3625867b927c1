// Who may have what of the budget of a `PrefetchBuffer`.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "distcache/prefetch_buffer.hpp"

namespace distcache {
namespace {

constexpr std::size_t most_spare = 1 << 20;
constexpr std::chrono::seconds full_pause{60};  // until a full disk is written to again

}  // namespace

// Give a range a place in the file, where it takes the share of a stream, or nobody's.
void PrefetchBuffer::place(Entry& entry, Stream* stream) {
    const std::int64_t size = Extents::rounded(entry.range.size);
    entry.offset = extents_.take(size);
    file_size_ = std::max(file_size_, extents_.end());
    used_ += size;
    if (stream != nullptr) {
        entry.owner = stream->number;
        stream->taken += size;
    }
    set_state(entry, State::fetching);
}

// Make room for a range: of spare ones, and for a stream that is below its share also of the stream
// that has most beyond its own. Returns whether there is room.
bool PrefetchBuffer::make_room(const Entry& entry, const Stream* stream) {
    while (!fits(entry) && !spare_.empty()) {
        discard_spare();
    }
    if (stream == nullptr || fits(entry)) {
        return fits(entry);
    }
    const std::int64_t share = budget() / static_cast<std::int64_t>(streams_.size());
    if (stream->taken + Extents::rounded(entry.range.size) > share) {
        return false;
    }
    const auto most = std::max_element(
        streams_.begin(), streams_.end(),
        [](const auto& a, const auto& b) { return a.second.taken < b.second.taken; });
    Stream& from = most->second;
    std::int64_t furthest = std::min(from.next, from.range_count());
    while (from.taken > share && !fits(entry) && furthest > from.first_range) {
        Entry* const last = from.range(--furthest);
        // What is read more than once may be needed sooner by another reading.
        if (last != nullptr && last->state == State::held && last->owner == from.number &&
            last->users == 0 && last->readings == 1) {
            free_place(*last);
            set_state(*last, State::queued);
            from.next = furthest;
        }
    }
    return fits(entry);
}

// Make room for a shard that a stream reads at a position, by discarding what only this stream
// reads again later: the last of it first. What is read once is always needed sooner than what
// comes next.
bool PrefetchBuffer::make_room_by_later(const Entry& entry, Stream& stream, std::int64_t position) {
    struct Use {
        std::int64_t first;
        std::uint32_t count;
    };
    std::unordered_map<Entry*, Use> uses;
    for (std::int64_t number = stream.first_range; number < stream.range_count(); ++number) {
        if (Entry* const found = stream.range(number); found != nullptr) {
            ++uses.try_emplace(found, Use{number, 0}).first->second.count;
        }
    }
    std::vector<std::pair<std::int64_t, Entry*>> later;
    for (const auto& [found, use] : uses) {
        if (use.first > position && found->state == State::held && found->offset >= 0 &&
            found->users == 0 && found->readings == use.count) {
            later.emplace_back(use.first, found);
        }
    }
    std::sort(later.begin(), later.end());
    while (!fits(entry) && !later.empty()) {
        const auto [first, last] = later.back();
        later.pop_back();
        free_place(*last);
        set_state(*last, State::queued);
        stream.next = std::min(stream.next, first);
    }
    return fits(entry);
}

// Let an entry that nobody reads now go, or become spare.
void PrefetchBuffer::release_if_unused(Entry& entry) {
    if (entry.users > 0 || entry.queued || entry.state == State::fetching) {
        return;
    }
    if (entry.state == State::held && entry.offset < 0) {  // in memory, which is for its readers
        entry.extra->memory = {};
        set_state(entry, State::queued);
    }
    if (entry.readings > 0) {
        return;
    }
    if (entry.state != State::held) {
        free_place(entry);
        --counts_[static_cast<std::size_t>(entry.state)];
        entries_.erase(entry.range);
        return;
    }
    if (entry.spare) {
        spare_.erase(entry.lru_position);
    }
    disown(entry);
    entry.spare = true;
    entry.lru_position = spare_.insert(spare_.end(), &entry);
    while (!spare_.empty() && (spare_.size() > most_spare || used_ > budget())) {
        discard_spare();
    }
}

// Discard the range that was read least recently, of those that nobody will read.
void PrefetchBuffer::discard_spare() {
    Entry& entry = *spare_.front();
    spare_.pop_front();
    entry.spare = false;
    if (entry.users > 0) {
        return;  // somebody reads it, who has not announced it
    }
    free_place(entry);
    --counts_[static_cast<std::size_t>(entry.state)];
    entries_.erase(entry.range);
}

void PrefetchBuffer::disown(Entry& entry) {
    if (const auto owner = streams_.find(entry.owner); owner != streams_.end()) {
        owner->second.taken -= Extents::rounded(entry.range.size);
    }
    entry.owner = 0;
}

void PrefetchBuffer::free_place(Entry& entry) {
    if (entry.offset < 0) {
        return;
    }
    used_ -= Extents::rounded(entry.range.size);
    disown(entry);
    extents_.release(std::exchange(entry.offset, -1), entry.range.size);
    // The disk gets large ends of the file back, and all of it when nothing is ahead.
    if (extents_.end() == 0 || file_size_ - extents_.end() > longest_request) {
        if (::ftruncate(file_, extents_.end()) == 0) {
            file_size_ = extents_.end();
        }
    }
}

bool PrefetchBuffer::fits(const Entry& entry) const {
    const std::int64_t limit = budget();
    return used_ + Extents::rounded(entry.range.size) <= limit &&
           extents_.fits(entry.range.size, limit);
}

std::int64_t PrefetchBuffer::asked() const {
    std::int64_t most = 0;
    for (const auto& [number, stream] : streams_) {
        most = std::max(most, stream.budget);
    }
    return most > 0 ? most : usual_budget_;
}

std::int64_t PrefetchBuffer::budget() const {
    return Clock::now() < retry_writes_at_ ? std::min(asked(), room_) : asked();
}

void PrefetchBuffer::note_error(int error, std::int64_t room) {
    error_ = error;
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
        room_ = std::max<std::int64_t>(room, 0);
        retry_writes_at_ = Clock::now() + full_pause;
    }
}

}  // namespace distcache
