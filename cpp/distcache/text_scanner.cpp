#include "distcache/text_scanner.hpp"

#include <algorithm>
#include <cassert>

namespace distcache {
namespace {

struct CodePoint {
    std::uint32_t value;
    std::size_t size;  // bytes
};

std::uint32_t byte_of(std::string_view text, std::size_t place) {
    return static_cast<unsigned char>(text[place]);
}

// The code point at the beginning of valid UTF-8 that is not ASCII.
CodePoint decode(std::string_view rest) {
    const std::uint32_t lead = byte_of(rest, 0);
    const std::size_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    assert(lead >= 0xc2 && rest.size() >= size);
    std::uint32_t value = lead & (0x7fU >> size);
    for (std::size_t i = 1; i < size; ++i) {
        value = value << 6 | (byte_of(rest, i) & 0x3fU);
    }
    return {value, size};
}

}  // namespace

TextScanner::TextScanner(std::vector<std::string> words) : words_(std::move(words)) {
    std::sort(words_.begin(), words_.end());
    std::fill(stops_.begin() + 0x80, stops_.end(), true);
    for (std::size_t i = 0; i < words_.size(); ++i) {
        assert(!words_[i].empty());
        const std::uint32_t byte = byte_of(words_[i], 0);
        if (range_[byte].first == range_[byte].second) {
            range_[byte].first = i;
        }
        range_[byte].second = i + 1;
        stops_[byte] = true;
        const bool alone = words_[i].size() == 1;
        for (std::uint32_t next = 0; next < 256; ++next) {
            if (alone || next == byte_of(words_[i], 1)) {
                begins_.set(byte << 8U | next);
            }
        }
    }
}

bool TextScanner::is_plain(std::string_view text, std::span<const std::uint8_t> known,
                           std::vector<std::uint32_t>& unknown) const {
    assert(known.size() == kCodePoints);
    for (std::size_t at = 0; at < text.size();) {
        const std::uint32_t byte = byte_of(text, at);
        if (!stops_[byte]) {
            ++at;
            continue;
        }
        const auto rest = text.substr(at);
        const std::uint32_t next = rest.size() > 1 ? byte_of(rest, 1) : 0;
        if (begins_[byte << 8U | next] && begins_word(rest)) {
            return false;
        }
        if (byte < 0x80) {
            ++at;
            continue;
        }
        const auto [value, size] = decode(rest);
        const auto state = static_cast<Known>(__atomic_load_n(&known[value], __ATOMIC_RELAXED));
        if (state == Known::kOther) {
            return false;
        }
        if (state == Known::kUnknown) {
            unknown.push_back(value);
        }
        at += size;
    }
    return true;
}

bool TextScanner::begins_word(std::string_view rest) const {
    auto [low, high] = range_[byte_of(rest, 0)];
    // All words of the range begin as the rest does, up to the depth; the shortest is the first.
    for (std::size_t depth = 1; low < high; ++depth) {
        if (words_[low].size() == depth) {
            return true;
        }
        if (rest.size() == depth) {
            return false;
        }
        const auto byte = byte_of(rest, depth);
        const std::string* const begin = words_.data();
        const auto* const first = std::partition_point(
            begin + low, begin + high,
            [&](const std::string& word) { return byte_of(word, depth) < byte; });
        const auto* const last = std::partition_point(
            first, begin + high,
            [&](const std::string& word) { return byte_of(word, depth) == byte; });
        low = static_cast<std::size_t>(first - begin);
        high = static_cast<std::size_t>(last - begin);
    }
    return false;
}

}  // namespace distcache
