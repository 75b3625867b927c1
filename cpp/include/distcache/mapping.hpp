#pragma once

#include <cstddef>
#include <span>

namespace distcache {

/// The bytes of an open file, mapped for reading. It does not keep the file's descriptor, of which
/// a process has few.
class Mapping {
public:
    /// Throws std::system_error if the file cannot be mapped.
    Mapping(int descriptor, std::size_t size);
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();

    [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

    /// Drop the pages of bytes [begin, end) from this process; the page cache keeps them.
    void release(std::size_t begin, std::size_t end) const;

private:
    std::byte* data_ = nullptr;
    std::size_t size_;
};

}  // namespace distcache
