#pragma once

#include <cstddef>

namespace distcache {

/// Memory without a type, in huge pages where there are any; it is touched when it is used.
class HugeMemory {
public:
    HugeMemory() = default;
    ~HugeMemory();
    HugeMemory(const HugeMemory&) = delete;
    HugeMemory& operator=(const HugeMemory&) = delete;

    /// At least `size` bytes, and what they held if they are no more than before; null if there is
    /// no memory.
    void* reserve(std::size_t size);

private:
    void* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace distcache
