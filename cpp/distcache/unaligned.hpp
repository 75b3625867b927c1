#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace distcache {

static_assert(std::endian::native == std::endian::little, "files are read as they are");

/// A view of little-endian numbers that may lie at any address.
///
/// The header of an `.idx` file has 34 bytes, which leaves each of its arrays unaligned; loading
/// bytewise is the only access that is defined for them.
template <class T>
class UnalignedView {
public:
    UnalignedView(const void* data, std::int64_t size)
        : data_(static_cast<const std::byte*>(data)), size_(size) {}

    [[nodiscard]] std::int64_t size() const { return size_; }

    [[nodiscard]] T operator[](std::int64_t i) const {
        T value;
        std::memcpy(&value, address(i), sizeof(T));
        return value;
    }

    /// Begin to load a value that is needed soon; an index outside of the view loads nothing.
    void prefetch(std::int64_t i) const {
        const auto begin = reinterpret_cast<std::uintptr_t>(data_);
        __builtin_prefetch(
            reinterpret_cast<const void*>(begin + static_cast<std::uintptr_t>(i) * sizeof(T)));
    }

private:
    [[nodiscard]] const std::byte* address(std::int64_t i) const {
        return data_ + static_cast<std::size_t>(i) * sizeof(T);
    }

    const std::byte* data_;
    std::int64_t size_;
};

}  // namespace distcache
