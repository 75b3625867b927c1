#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace distcache {

/// The bytes of an open file, mapped for reading. It does not keep the file's descriptor, of which
/// a process has few.
///
/// Where the file can no longer be read, because it has been cut short or its filesystem fails, the
/// kernel sends SIGBUS. From the first mapping on, this is handled: the bytes from there on read as
/// zeros, and the mapping is no longer intact. Signals of other addresses continue to whoever
/// handled them before.
///
/// Where a mapping is refused (EPERM, ENOMEM, ENODEV), a file of at most 2 GiB is read into memory.
class Mapping {
public:
    /// Throws std::system_error if the file can neither be mapped nor read.
    Mapping(int descriptor, std::size_t size);
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();

    [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

    /// Whether all that was read so far are the bytes of the file.
    [[nodiscard]] bool is_intact() const;

    /// Drop the pages of bytes [begin, end) from this process; the page cache keeps them.
    void release(std::size_t begin, std::size_t end) const;

    /// How often any mapping of this process could not be read.
    static std::uint64_t faults();

    /// Whether the file was read into memory, since it could not be mapped.
    [[nodiscard]] bool is_copy() const { return copy_ != nullptr; }

private:
    /// Read the whole file; false if that fails.
    bool read_all(int descriptor);

    std::unique_ptr<std::byte[]> copy_;
    bool cut_ = false;
    std::byte* data_ = nullptr;
    std::size_t size_;
    std::size_t slot_ = 0;
};

}  // namespace distcache
