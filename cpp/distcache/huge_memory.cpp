#include "distcache/huge_memory.hpp"

#include <sys/mman.h>

namespace distcache {

HugeMemory::~HugeMemory() {
    if (data_ != nullptr) {
        ::munmap(data_, size_);
    }
}

void* HugeMemory::reserve(std::size_t size) {
    if (size > size_) {
        void* data =
            ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED) {
            return nullptr;
        }
        ::madvise(data, size, MADV_HUGEPAGE);
        if (data_ != nullptr) {
            ::munmap(data_, size_);
        }
        data_ = data;
        size_ = size;
    }
    return data_;
}

}  // namespace distcache
