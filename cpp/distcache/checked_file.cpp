#include "distcache/checked_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

namespace distcache {
namespace {

constexpr std::uint64_t first_prime = 0x9E3779B185EBCA87;
constexpr std::uint64_t second_prime = 0xC2B2AE3D27D4EB4F;

std::uint64_t mixed(std::uint64_t lane, std::uint64_t word) {
    return std::rotl(lane + word * second_prime, 31) * first_prime;
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
    std::array<std::uint64_t, 4> lanes{first_prime, second_prime, 0, ~first_prime};
    const std::uint64_t size = bytes.size();
    while (!bytes.empty()) {
        std::array<std::uint64_t, 4> words{};
        const std::size_t count = std::min(bytes.size(), sizeof words);
        std::memcpy(words.data(), bytes.data(), count);
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            lanes[i] = mixed(lanes[i], words[i]);
        }
        bytes = bytes.subspan(count);
    }
    std::uint64_t sum = size;
    for (const std::uint64_t lane : lanes) {
        sum = mixed(sum, lane);
    }
    return sum ^ (sum >> 29);
}

bool read_all(int file, std::span<std::byte> bytes, std::int64_t offset) {
    while (!bytes.empty()) {
        const ssize_t found = ::pread(file, bytes.data(), bytes.size(), offset);
        if (found < 0 && errno == EINTR) {
            continue;
        }
        if (found <= 0) {
            return false;
        }
        bytes = bytes.subspan(static_cast<std::size_t>(found));
        offset += found;
    }
    return true;
}

}  // namespace

std::vector<std::uint64_t> checksums_of(std::span<const std::byte> bytes) {
    std::vector<std::uint64_t> checksums;
    while (!bytes.empty()) {
        const auto block = bytes.first(std::min<std::size_t>(checked_block, bytes.size()));
        checksums.push_back(checksum(block));
        bytes = bytes.subspan(block.size());
    }
    return checksums;
}

int write_all(int file, std::span<const std::byte> bytes, std::int64_t offset) {
    while (!bytes.empty()) {
        const ssize_t written = ::pwrite(file, bytes.data(), bytes.size(), offset);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return written < 0 ? errno : EIO;
        }
        bytes = bytes.subspan(static_cast<std::size_t>(written));
        offset += written;
    }
    return 0;
}

bool read_checked(int file, std::int64_t offset, std::int64_t written,
                  std::span<const std::uint64_t> checksums, std::int64_t begin, std::int64_t end,
                  std::vector<std::byte>& buffer, std::span<const std::byte>& found) {
    const std::int64_t first = begin / checked_block * checked_block;
    const std::int64_t last =
        std::min((end + checked_block - 1) / checked_block * checked_block, written);
    buffer.resize(static_cast<std::size_t>(last - first));
    if (!read_all(file, buffer, offset + first)) {
        return false;
    }
    const auto expected = checksums.subspan(static_cast<std::size_t>(first / checked_block));
    const auto blocks = checksums_of(buffer);
    if (!std::equal(blocks.begin(), blocks.end(), expected.begin())) {
        return false;
    }
    found = std::span<const std::byte>(buffer).subspan(static_cast<std::size_t>(begin - first),
                                                       static_cast<std::size_t>(end - begin));
    return true;
}

}  // namespace distcache
