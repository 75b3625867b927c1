#pragma once

#include <cstdint>
#include <span>

#include "distcache/huge_memory.hpp"
#include "distcache/mt19937.hpp"

namespace distcache {

/// The permutation of 0, ..., size - 1 that torch's `randperm` draws on a CPU, from its start on.
///
/// Of `randperm_cpu` (ATen/native/TensorFactories.cpp), which has two ways:
///
/// Below 2^32 / 20 values, step i swaps position i with position i + draw % (size - i), a draw of
/// 32 bits: from then on position i stays as it is. So the first values are known after as many
/// steps, which are taken when the values are wanted. Memory holds the difference of each value
/// from its position, which is zero at first: nothing has to be filled, and only what is drawn is
/// touched.
///
/// From there on, step i puts i in the place of the value at draw % (i + 1), a draw of 64 bits, and
/// that value at i: no value is known before the last step, and all are taken at once.
class Permutation {
public:
    /// Throws std::length_error if there is not enough memory. Many values are drawn here.
    Permutation(std::uint32_t seed, std::uint64_t size);

    [[nodiscard]] std::uint64_t position() const { return position_; }
    [[nodiscard]] std::uint64_t left() const { return size_ - position_; }

    /// Write the next values. Requires that there are as many left.
    void next(std::span<std::int64_t> out);

    /// Move past the next values.
    void skip(std::uint64_t count);

private:
    template <class T>
    std::int64_t step(T* shifts);
    template <class T>
    void run(std::uint64_t count, std::int64_t* out);
    template <class T>
    void draw_all(T* values);
    void move(std::uint64_t count, std::int64_t* out);

    Mt19937 generator_;
    HugeMemory memory_;
    std::uint64_t size_;
    std::uint64_t position_ = 0;
};

}  // namespace distcache
