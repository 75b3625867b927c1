#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace distcache {

/// The places of ranges in a file: each goes to the smallest free extent that holds it.
class Extents {
public:
    /// Bytes are given out in multiples of this, so that freed places fit others; large ranges,
    /// such as shards, whose sizes differ by little, in multiples of more.
    static constexpr std::int64_t unit = 64;
    static constexpr std::int64_t large = 8 << 20;
    static constexpr std::int64_t large_unit = 1 << 20;

    /// Bytes that a range takes.
    static std::int64_t rounded(std::int64_t size) {
        const std::int64_t multiple = size < large ? unit : large_unit;
        return (size + multiple - 1) / multiple * multiple;
    }

    /// Return the first byte of a free place; the file grows if no free extent is large enough.
    std::int64_t take(std::int64_t size);

    /// Free a place; free neighbours become one extent, and one at the end of the file shortens it.
    void release(std::int64_t offset, std::int64_t size);

    /// Whether `take` succeeds without the file growing beyond `limit` bytes.
    [[nodiscard]] bool fits(std::int64_t size, std::int64_t limit) const;

    /// Bytes of the file.
    [[nodiscard]] std::int64_t end() const { return end_; }

private:
    void add(std::int64_t offset, std::int64_t size);
    void remove(std::map<std::int64_t, std::int64_t>::iterator free);

    std::map<std::int64_t, std::int64_t> free_;              // offset and size
    std::set<std::pair<std::int64_t, std::int64_t>> sizes_;  // size and offset of the same
    std::int64_t end_ = 0;
};

}  // namespace distcache
