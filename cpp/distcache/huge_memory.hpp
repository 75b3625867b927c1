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

    /// At least `size` bytes, whose contents are kept only if the memory does not grow; null if
    /// there is none.
    void* reserve(std::size_t size);

private:
    void* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace distcache
