#include "distcache/extents.hpp"

#include <iterator>

namespace distcache {

std::int64_t Extents::take(std::int64_t size) {
    size = rounded(size);
    const auto smallest = sizes_.lower_bound({size, 0});
    if (smallest == sizes_.end()) {
        const std::int64_t offset = end_;
        end_ += size;
        return offset;
    }
    const auto [found, offset] = *smallest;
    remove(free_.find(offset));
    if (found > size) {
        add(offset + size, found - size);
    }
    return offset;
}

void Extents::release(std::int64_t offset, std::int64_t size) {
    size = rounded(size);
    const auto after = free_.lower_bound(offset);
    if (after != free_.end() && after->first == offset + size) {
        size += after->second;
        remove(after);
    }
    const auto following = free_.lower_bound(offset);
    if (following != free_.begin()) {
        const auto before = std::prev(following);
        if (before->first + before->second == offset) {
            offset = before->first;
            size += before->second;
            remove(before);
        }
    }
    if (offset + size == end_) {
        end_ = offset;
    } else {
        add(offset, size);
    }
}

bool Extents::fits(std::int64_t size, std::int64_t limit) const {
    size = rounded(size);
    return sizes_.lower_bound({size, 0}) != sizes_.end() || size <= limit - end_;
}

void Extents::add(std::int64_t offset, std::int64_t size) {
    free_.emplace(offset, size);
    sizes_.emplace(size, offset);
}

void Extents::remove(std::map<std::int64_t, std::int64_t>::iterator free) {
    sizes_.erase({free->second, free->first});
    free_.erase(free);
}

}  // namespace distcache
