#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace distcache {

inline constexpr std::size_t kCodePoints = 0x110000;

/// What is known of a code point beyond ASCII.
enum class Known : std::uint8_t { kUnknown = 0, kPlain = 1, kOther = 2 };

/// Tells texts with certain words or code points in them from plain ones.
class TextScanner {
public:
    /// @param words  UTF-8; none is empty.
    explicit TextScanner(std::vector<std::string> words);

    /// Whether a text has none of the words, and no code point that is known not to be plain.
    /// @param text     valid UTF-8.
    /// @param known    a `Known` for each of `kCodePoints`; ASCII is not looked up. Other threads
    ///                 may write it meanwhile.
    /// @param unknown  receives the code points that are unknown, each time that they occur, up to
    ///                 where the text turns out not to be plain.
    bool is_plain(std::string_view text, std::span<const std::uint8_t> known,
                  std::vector<std::uint32_t>& unknown) const;

private:
    bool begins_word(std::string_view rest) const;

    std::vector<std::string> words_;  // sorted
    // The words that begin with a byte: from `first` up to, not including, `second`.
    std::array<std::pair<std::size_t, std::size_t>, 256> range_{};
    std::array<bool, 256> stops_{};    // bytes that begin a word, or are not ASCII
    std::bitset<1U << 16U> begins_{};  // pairs of bytes that begin a word, or something longer
};

}  // namespace distcache
