#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distcache/section.hpp"

namespace distcache {

/// How reading tokens ended: 0, an error number, or `file_ends`.
struct ReadOutcome {
    static constexpr int file_ends = -1;
    int error = 0;
    std::int64_t offset = 0;  ///< the byte of the file
    std::size_t part = 0;     ///< the part of the sample that could not be read
};

/// Open files with the tokens of a sample: one for each part, or the `.bin` with all of them.
using Descriptors = std::span<const std::int32_t>;

/// Reads the tokens of parts from files, with buffers that are kept from one sample to the next.
class TokenReader {
public:
    /// Reads the tokens of parts, one after the other, to `out`. Throws std::out_of_range if there
    /// is no file for a part.
    ReadOutcome read(const Section& section, std::span<const Part> parts, Descriptors descriptors,
                     std::int64_t* out);

    /// Reads the bytes of parts of a section of u8, as they are.
    ReadOutcome read_bytes(const Section& section, std::span<const Part> parts,
                           Descriptors descriptors, std::uint8_t* out);

    /// Whether the last parts were not in memory. The disk is then asked for all of them at once,
    /// where the filesystem can say so without waiting.
    [[nodiscard]] bool waited() const { return waited_; }

    /// Asks the disk for parts that will be read. Throws as `read` does.
    void announce(const Section& section, std::span<const Part> parts, Descriptors descriptors);

    /// Asks again whether reads can be refused: files of another filesystem follow.
    void restart() { can_refuse_ = true; }

private:
    /// Bytes of a file with the tokens of a part.
    struct Place {
        int descriptor;
        std::int64_t begin;
        std::int64_t size;
    };

    /// Calls `take` with the number and the bytes of each part, in order.
    template <class Take>
    ReadOutcome read_each(const Section& section, std::span<const Part> parts,
                          Descriptors descriptors, Take take);
    void locate(const Section& section, std::span<const Part> parts, Descriptors descriptors);
    /// Reads bytes of a part after the first `done`; what the kernel does not have is announced.
    ssize_t read_some(std::size_t part, std::size_t done);
    void announce_from(std::size_t part) const;

    bool waited_ = false;
    bool can_refuse_ = true;  // a read that would wait for the disk
    std::vector<Place> places_;
    std::vector<unsigned char> bytes_;
};

}  // namespace distcache
