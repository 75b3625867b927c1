#include <string>
#include <vector>

#include "catch.hpp"
#include "distcache/text_scanner.hpp"

using namespace distcache;

namespace {

std::vector<std::uint8_t> nothing_known() {
    return std::vector<std::uint8_t>(kCodePoints, 0);
}

bool holds(const TextScanner& scanner, const std::string& text) {
    std::vector<std::uint32_t> unknown;
    return !scanner.is_plain(text, nothing_known(), unknown);
}

}  // namespace

TEST_CASE("words are found wherever they are") {
    const TextScanner scanner({"<|end|>", "<|e", "</s>", "\xe2\x96\x81x", "a"});
    for (const std::string text : {"<|end|>", "<|e", "x<|e", "<<|e>", "</s>", "12</s>34",
                                   "\xe2\x96\x81x", "\xe2\x96\x81\xe2\x96\x81x", "za"}) {
        REQUIRE(holds(scanner, text));
    }
    for (const std::string text : {"", "<", "<|", "</", "</s", "< |e", "\xe2\x96\x81",
                                   "\xe2\x96\x82x", "<|\xe2\x96\x81", "bcd"}) {
        REQUIRE_FALSE(holds(scanner, text));
    }
}

TEST_CASE("without words every text is plain") {
    REQUIRE_FALSE(holds(TextScanner({}), "anything"));
}

TEST_CASE("code points are looked up") {
    const TextScanner scanner({});
    auto known = nothing_known();
    std::vector<std::uint32_t> unknown;
    const std::string text =
        "a\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbfz";
    REQUIRE(scanner.is_plain(text, known, unknown));
    REQUIRE(unknown == std::vector<std::uint32_t>{0x80, 0x7ff, 0x800, 0xffff, 0x10000, 0x10ffff});
    unknown.clear();
    for (const auto value : {0x80, 0x7ff, 0x800, 0xffff, 0x10000}) {
        known[static_cast<std::size_t>(value)] = static_cast<std::uint8_t>(Known::kPlain);
    }
    REQUIRE(scanner.is_plain(text, known, unknown));
    REQUIRE(unknown == std::vector<std::uint32_t>{0x10ffff});
    known[0x10ffff] = static_cast<std::uint8_t>(Known::kOther);
    REQUIRE_FALSE(scanner.is_plain(text, known, unknown));
}
