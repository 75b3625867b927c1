#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace distcache {

/// Bytes that have one checksum.
inline constexpr std::int64_t checked_block = 16 << 10;

/// The checksum of each block of some bytes, which finds damage in memory or on a disk. It is
/// written to no file: four lanes of multiply and rotate, as in the 64-bit variant of xxHash.
std::vector<std::uint64_t> checksums_of(std::span<const std::byte> bytes);

/// Write all bytes; returns an error number, or 0.
int write_all(int file, std::span<const std::byte> bytes, std::int64_t offset);

/// Read bytes [begin, end) of what was written at `offset`, with its checksums, into `buffer`.
/// Returns false if they cannot be read, or are damaged.
bool read_checked(int file, std::int64_t offset, std::int64_t written,
                  std::span<const std::uint64_t> checksums, std::int64_t begin, std::int64_t end,
                  std::vector<std::byte>& buffer, std::span<const std::byte>& found);

}  // namespace distcache
