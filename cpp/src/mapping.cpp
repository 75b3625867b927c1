#include "distcache/mapping.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace distcache {

Mapping::Mapping(int descriptor, std::size_t size) : size_(size) {
    if (size == 0) {
        return;  // nothing can be mapped of nothing
    }
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED) {
        throw std::system_error(errno, std::generic_category(), "mmap");
    }
    data_ = static_cast<std::byte*>(address);
}

Mapping::~Mapping() {
    if (data_ != nullptr) {
        ::munmap(data_, size_);
    }
}

void Mapping::release(std::size_t begin, std::size_t end) const {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t first = begin / page * page;
    if (const std::size_t last = std::min(end, size_); last > first) {
        ::madvise(data_ + first, last - first, MADV_DONTNEED);
    }
}

}  // namespace distcache
