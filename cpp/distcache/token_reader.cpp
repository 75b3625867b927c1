#include "distcache/token_reader.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "distcache/dispatch.hpp"
#include "distcache/require.hpp"

namespace distcache {
namespace {

// Inlined into every version of its caller.
template <class T>
[[gnu::always_inline]] inline void widen(const unsigned char* bytes, std::size_t count,
                                         std::int64_t* out) {
    for (std::size_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
        out[i] = static_cast<std::int64_t>(value);
    }
}

struct WidenAs {
    template <Instructions>
    DISTCACHE_KERNEL void run(TokenType type, const unsigned char* bytes, std::size_t count,
                              std::int64_t* out) {
        switch (type) {
            case TokenType::u8:
                return widen<std::uint8_t>(bytes, count, out);
            case TokenType::i8:
                return widen<std::int8_t>(bytes, count, out);
            case TokenType::i16:
                return widen<std::int16_t>(bytes, count, out);
            case TokenType::i32:
                return widen<std::int32_t>(bytes, count, out);
            case TokenType::i64:
                return widen<std::int64_t>(bytes, count, out);
            case TokenType::u16:
                return widen<std::uint16_t>(bytes, count, out);
        }
    }
};

}  // namespace

void TokenReader::locate(const Section& section, std::span<const Part> parts,
                         Descriptors descriptors) {
    const bool whole = section.shards.empty() && descriptors.size() == 1;  // one file has all parts
    require(whole || descriptors.size() == parts.size(),
            "the open files are not those of the sample's parts");
    places_.clear();
    const std::int64_t token_bytes = token_size(section.type);
    for (std::size_t k = 0; k < parts.size(); ++k) {
        const std::int64_t begin = parts[k].begin;
        const std::int64_t size = parts[k].tokens * token_bytes;
        std::int64_t base = 0;
        if (!section.shards.empty() && size > 0) {
            base = section.shards[static_cast<std::size_t>(shard_of(section, begin))];
        }
        places_.push_back({descriptors[whole ? 0 : k], begin - base, size});
    }
}

template <class Take>
ReadOutcome TokenReader::read_each(const Section& section, std::span<const Part> parts,
                                   Descriptors descriptors, Take take) {
    waited_ = false;
    locate(section, parts, descriptors);
    for (std::size_t k = 0; k < parts.size(); ++k) {
        const auto bytes = static_cast<std::size_t>(places_[k].size);
        bytes_.resize(std::max(bytes_.size(), bytes));
        for (std::size_t done = 0; done < bytes;) {
            const ssize_t count = read_some(k, done);
            if (count < 0 && errno == EINTR) {
                continue;
            }
            if (count <= 0) {
                return {count < 0 ? errno : ReadOutcome::file_ends,
                        places_[k].begin + static_cast<std::int64_t>(done), k};
            }
            done += static_cast<std::size_t>(count);
        }
        take(k, bytes_.data(), bytes);
    }
    return {};
}

ReadOutcome TokenReader::read(const Section& section, std::span<const Part> parts,
                              Descriptors descriptors, std::int64_t* out) {
    return read_each(section, parts, descriptors,
                     [&](std::size_t k, const unsigned char* bytes, std::size_t /*size*/) {
                         const std::int64_t tokens = parts[k].tokens;
                         dispatched<WidenAs>(section.type, bytes, static_cast<std::size_t>(tokens),
                                             out);
                         out += tokens;
                     });
}

ReadOutcome TokenReader::read_bytes(const Section& section, std::span<const Part> parts,
                                    Descriptors descriptors, std::uint8_t* out) {
    return read_each(section, parts, descriptors,
                     [&](std::size_t /*k*/, const unsigned char* bytes, std::size_t size) {
                         out = std::copy_n(bytes, size, out);
                     });
}

ssize_t TokenReader::read_some(std::size_t part, std::size_t done) {
    const auto [descriptor, begin, size] = places_[part];
    const std::int64_t offset = begin + static_cast<std::int64_t>(done);
    const std::size_t left = static_cast<std::size_t>(size) - done;
    // One read of a sample says enough: refusable reads cost more.
    if (part == 0 && done == 0 && can_refuse_) {
        iovec piece{bytes_.data(), left};
        const ssize_t count = ::preadv2(descriptor, &piece, 1, offset, RWF_NOWAIT);
        // Linux 5.9 and 5.10 may answer 0 where the file does not end: see preadv2(2).
        if (count > 0 || (count < 0 && errno == EINTR)) {
            return count;
        }
        waited_ = count == 0 || errno == EAGAIN;
        can_refuse_ = waited_ || (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL);
        if (waited_) {
            announce_from(part);
        }
    }
    return ::pread(descriptor, bytes_.data() + done, left, offset);
}

void TokenReader::announce_from(std::size_t part) const {
    for (; part < places_.size(); ++part) {
        const auto [descriptor, begin, size] = places_[part];
        ::posix_fadvise(descriptor, begin, size, POSIX_FADV_WILLNEED);
    }
}

void TokenReader::announce(const Section& section, std::span<const Part> parts,
                           Descriptors descriptors) {
    locate(section, parts, descriptors);
    announce_from(0);
}

}  // namespace distcache
