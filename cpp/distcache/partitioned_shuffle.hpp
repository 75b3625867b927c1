#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "distcache/shuffle.hpp"
#include "draws.hpp"

namespace distcache {

/// A shuffle of more values than the caches hold, without their random accesses to memory.
///
/// Values are divided into regions that fit into a core's cache. The steps of a block, from `first`
/// down to `last`, are taken in three passes, each of which goes through memory in order:
///
/// 1. Send: each step appends its value to a list of the region that holds the value it is to be
///    swapped with. A region's own steps are taken once what was sent to it has been scattered, so
///    that their values are right.
/// 2. Scatter: the lists of the regions below the block are swapped in, one region after the other:
///    the value that was sent takes its place, and the one that was there the place in the list.
/// 3. Gather: each step takes the next value of the list that it has sent to.
///
/// All swaps with one position happen in the order of the steps, and so the result is the same.
template <class T>
class PartitionedShuffle {
public:
    static constexpr std::uint64_t most_regions = 0xffff;

    PartitionedShuffle(T* values, std::uint64_t size, Mt19937& generator, Instructions instructions,
                       const Partitioning& partitioning)
        : values_(values),
          bits_(partitioning.region_bits),
          fraction_(partitioning.fraction),
          generator_(generator),
          instructions_(instructions),
          regions_(static_cast<std::size_t>((size - 1) >> bits_) + 1),
          capacity_(capacity_of(partitioning)),
          longest_(static_cast<std::size_t>(size / fraction_) + 1),
          begins_(regions_),
          ends_(regions_),
          limits_(regions_) {}

    /// The bytes of memory that the lists take.
    [[nodiscard]] std::size_t space() const {
        return regions_ * capacity_ * sizeof(Parcel) + longest_ * sizeof(std::uint16_t);
    }

    void use(void* space) {
        parcels_ = static_cast<Parcel*>(space);
        sent_to_ = reinterpret_cast<std::uint16_t*>(parcels_ + regions_ * capacity_);
    }

    /// Takes a block of the steps from `size` - 1 down to `stop`, and returns how many values are
    /// left, of which none has been moved by a step that is still to come.
    std::uint64_t block(std::uint64_t size, std::uint64_t stop) {
        const std::uint64_t wanted = std::min<std::uint64_t>(size / fraction_, longest_);
        lowest_ = std::max(size - wanted, stop);
        for (std::size_t r = 0; r < regions_; ++r) {
            begins_[r] = ends_[r] = parcels_ + r * capacity_;
            limits_[r] = begins_[r] + capacity_ - block_steps;
        }
        const std::uint64_t last = send(size);
        assert(lowest_ <= last && last < size);  // a block always makes progress
        for (std::size_t r = 0; r < last >> bits_; ++r) {
            scatter(r, std::uint64_t{1} << bits_);
        }
        gather(size, last);
        return last;
    }

private:
    static constexpr std::size_t ahead = 192;  // bytes from a list's end to what is prefetched
    static constexpr std::uint16_t unsent = 0xffff;

    // Packed: lists of 8-byte values take a quarter less of memory.
    struct __attribute__((packed, aligned(4))) Parcel {
        T value;
        std::uint32_t offset;  // of the position in its region
    };

    // What a list is expected to get, far more deviation than there will be, and one more block.
    static std::size_t capacity_of(const Partitioning& partitioning) {
        if (partitioning.list > 0) {
            return partitioning.list;
        }
        const double mean = static_cast<double>(std::uint64_t{1} << partitioning.region_bits) /
                            static_cast<double>(partitioning.fraction - 1);
        return static_cast<std::size_t>(mean + 8 * std::sqrt(mean)) + 2 * block_steps;
    }

    // The first pass, from `size` - 1 down to `lowest_` or until a list is full.
    std::uint64_t send(std::uint64_t size) {
        std::uint64_t left = size;
        for (bool full = false; left > lowest_ && !full;) {
            const std::uint64_t region = (left - 1) >> bits_;
            const std::uint64_t begin = region << bits_;
            scatter(static_cast<std::size_t>(region), left - begin);
            const std::uint64_t stop = std::max(begin, lowest_);
            while (left > stop && !full) {
                left -= send_some(left, stop, static_cast<std::uint32_t>(region), full);
            }
        }
        return left;
    }

    std::size_t send_some(std::uint64_t left, std::uint64_t stop, std::uint32_t region,
                          bool& full) {
        const auto first = static_cast<std::uint32_t>(left - 1);
        const std::size_t count =
            steps_with_one_mask(first, std::min<std::uint64_t>(block_steps, left - stop));
        draw_narrow(first, count, draws_.data(), generator_, instructions_);
        const std::uint32_t within = (std::uint32_t{1} << bits_) - 1;
        Parcel** const ends = ends_.data();
        Parcel* const* const limits = limits_.data();
        std::uint16_t* const sent_to = sent_to_ + (first - lowest_);
        for (std::size_t k = 0; k < count; ++k) {
            const std::uint32_t drawn = draws_[k];
            const std::uint32_t target = drawn >> bits_;
            if (__builtin_expect(target == region, 0)) {
                std::swap(values_[first - k], values_[drawn]);
                *(sent_to - k) = unsent;
                continue;
            }
            assert(target < region && ends[target] < parcels_ + (target + 1) * capacity_);
            Parcel* const parcel = ends[target];
            ends[target] = parcel + 1;
            full |= parcel == limits[target];  // there is room for one more block of steps
            __builtin_prefetch(reinterpret_cast<const char*>(parcel) + ahead, 1);
            parcel->value = values_[first - k];
            parcel->offset = drawn & within;
            *(sent_to - k) = static_cast<std::uint16_t>(target);
        }
        return count;
    }

    // The second pass over one region of `size` values.
    void scatter(std::size_t region, std::uint64_t size) {
        T* const values = values_ + (static_cast<std::uint64_t>(region) << bits_);
        prefetch(values, size, static_cast<std::uint64_t>(ends_[region] - begins_[region]));
        for (Parcel* parcel = begins_[region]; parcel != ends_[region]; ++parcel) {
            const T value = values[parcel->offset];
            values[parcel->offset] = parcel->value;
            parcel->value = value;
        }
    }

    // Reads in order, which processors foresee, before accesses that they cannot foresee.
    static void prefetch(const T* values, std::uint64_t size, std::uint64_t accesses) {
        constexpr std::uint64_t line = 64 / sizeof(T);
        if (accesses < size / (8 * line)) {
            return;
        }
        T read{};
        for (std::uint64_t k = 0; k < size; k += line) {
            read = static_cast<T>(read ^ values[k]);
        }
        asm volatile("" : : "r"(read));
    }

    // The third pass.
    void gather(std::uint64_t size, std::uint64_t last) {
        std::copy(begins_.begin(), begins_.end(), ends_.begin());
        Parcel** const ends = ends_.data();
        for (std::uint64_t i = size; i-- > last;) {
            const std::uint16_t target = sent_to_[i - lowest_];
            if (__builtin_expect(target == unsent, 0)) {
                continue;
            }
            Parcel* const parcel = ends[target];
            ends[target] = parcel + 1;
            __builtin_prefetch(reinterpret_cast<const char*>(parcel) + ahead);
            values_[i] = parcel->value;
        }
    }

    T* values_;
    unsigned bits_;
    std::uint64_t fraction_;
    Mt19937& generator_;
    Instructions instructions_;
    std::size_t regions_;
    std::size_t capacity_;  // parcels of a list
    std::size_t longest_;   // steps of a block
    std::uint64_t lowest_ = 0;
    Parcel* parcels_ = nullptr;
    std::uint16_t* sent_to_ = nullptr;  // the region of each step of the block, from `lowest_` on
    std::vector<Parcel*> begins_;
    std::vector<Parcel*> ends_;
    std::vector<Parcel*> limits_;
    std::array<std::uint32_t, block_steps + draw_slack> draws_;
};

}  // namespace distcache
