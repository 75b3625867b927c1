#include "distcache/permutation.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <stdexcept>

namespace distcache {
namespace {

constexpr std::uint64_t wide_from = std::numeric_limits<std::uint32_t>::max() / 20;
constexpr std::uint64_t narrow_to = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t ahead = 256;  // draws whose places are fetched before they are used

}  // namespace

Permutation::Permutation(std::uint32_t seed, std::uint64_t size) : generator_(seed), size_(size) {
    const bool narrow = size <= narrow_to;
    if (size == 0) {
        return;
    }
    void* const memory =
        memory_.reserve(size * (narrow ? sizeof(std::int32_t) : sizeof(std::int64_t)));
    if (memory == nullptr) {
        throw std::length_error("not enough memory for a permutation");
    }
    if (size >= wide_from) {
        narrow ? draw_all(static_cast<std::int32_t*>(memory))
               : draw_all(static_cast<std::int64_t*>(memory));
    }
}

template <class T>
void Permutation::draw_all(T* values) {
    std::array<std::uint64_t, ahead> places{};
    for (std::uint64_t first = 0; first < size_; first += ahead) {
        const std::uint64_t count = std::min(ahead, size_ - first);
        for (std::uint64_t k = 0; k < count; ++k) {
            places[k] = generator_.next64() % (first + k + 1);
            __builtin_prefetch(values + places[k], 1);
        }
        for (std::uint64_t k = 0; k < count; ++k) {
            values[first + k] = values[places[k]];
            values[places[k]] = static_cast<T>(first + k);
        }
    }
}

template <class T>
std::int64_t Permutation::step(T* shifts) {
    assert(position_ < size_);
    const std::uint64_t distance = generator_.next32() % left();
    T& here = shifts[position_];
    T& there = shifts[position_ + distance];
    const auto moved = static_cast<T>(distance);
    const T drawn = static_cast<T>(there + moved);
    there = static_cast<T>(here - moved);
    here = drawn;
    return static_cast<std::int64_t>(position_++) + drawn;
}

template <class T>
void Permutation::run(std::uint64_t count, std::int64_t* out) {
    auto* const values = static_cast<T*>(memory_.reserve(0));
    if (size_ >= wide_from) {
        if (out != nullptr) {
            std::copy_n(values + position_, count, out);
        }
        position_ += count;
        return;
    }
    for (std::uint64_t k = 0; k < count; ++k) {
        const std::int64_t value = step(values);
        if (out != nullptr) {
            out[k] = value;
        }
    }
}

void Permutation::move(std::uint64_t count, std::int64_t* out) {
    size_ <= narrow_to ? run<std::int32_t>(count, out) : run<std::int64_t>(count, out);
}

void Permutation::next(std::span<std::int64_t> out) {
    move(out.size(), out.data());
}

void Permutation::skip(std::uint64_t count) {
    move(count, nullptr);
}

}  // namespace distcache
