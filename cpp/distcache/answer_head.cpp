#include "distcache/answer_head.hpp"

#include <algorithm>
#include <charconv>

namespace distcache {
namespace {

constexpr std::size_t longest_head = 64 << 10;

char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same_name(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
        text.remove_prefix(1);
    }
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) {
        text.remove_suffix(1);
    }
    return text;
}

// The number that all of a text is; -1 if it is none.
std::int64_t number(std::string_view text) {
    std::int64_t value = -1;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    return error == std::errc() && stop == end && value >= 0 ? value : -1;
}

// "bytes FIRST-LAST/TOTAL"
void parse_range(std::string_view text, AnswerHead& head) {
    constexpr std::string_view unit = "bytes ";
    const auto dash = text.find('-');
    const auto slash = text.find('/');
    if (!text.starts_with(unit) || dash == std::string_view::npos ||
        slash == std::string_view::npos || slash < dash) {
        return;
    }
    head.first = number(text.substr(unit.size(), dash - unit.size()));
    head.last = number(text.substr(dash + 1, slash - dash - 1));
    head.total = number(text.substr(slash + 1));
}

void parse_field(std::string_view line, AnswerHead& head) {
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) {
        return;
    }
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (same_name(name, "content-length")) {
        head.length = number(value);
    } else if (same_name(name, "etag")) {
        head.tag = value;
    } else if (same_name(name, "content-range")) {
        parse_range(value, head);
    } else if (same_name(name, "connection")) {
        head.closes = head.closes || same_name(value, "close");
    } else if (same_name(name, "transfer-encoding") || same_name(name, "content-encoding")) {
        head.is_plain = head.is_plain && same_name(value, "identity");
    }
}

}  // namespace

std::optional<AnswerHead> parse_head(std::string_view bytes) {
    constexpr std::string_view version = "HTTP/1.";
    AnswerHead head;
    head.closes = true;
    if (!bytes.starts_with(version.substr(0, std::min(bytes.size(), version.size())))) {
        return head;
    }
    const auto end = bytes.find("\r\n\r\n");
    if (end == std::string_view::npos) {
        return bytes.size() > longest_head ? std::optional(head) : std::nullopt;
    }
    head.size = end + 4;
    std::string_view lines = bytes.substr(0, end);
    const std::string_view first = lines.substr(0, lines.find("\r\n"));
    if (first.size() < 12) {
        return head;
    }
    head.closes = first[7] != '1';  // HTTP/1.0
    head.status = static_cast<int>(std::max<std::int64_t>(number(first.substr(9, 3)), 0));
    lines.remove_prefix(first.size());
    while (!lines.empty()) {
        lines.remove_prefix(2);
        const auto line = lines.substr(0, lines.find("\r\n"));
        parse_field(line, head);
        lines.remove_prefix(line.size());
    }
    return head;
}

}  // namespace distcache
