#include "distcache/sample_index.hpp"

#include <cassert>
#include <cstddef>

namespace distcache {

void look_up_lengths(std::span<const std::uint16_t> narrow, UnalignedView<std::int32_t> lengths,
                     std::int64_t begin, std::span<const std::int32_t> sequences,
                     std::span<std::int32_t> out) {
    assert(out.size() == sequences.size());
    constexpr std::size_t ahead = 64;  // sequences between a prefetch and its use
    const auto place = [&](std::size_t i) {
        return static_cast<std::size_t>(sequences[i] - begin);
    };
    for (std::size_t i = 0; i < sequences.size(); ++i) {
        if (i + ahead < sequences.size()) {
            __builtin_prefetch(narrow.data() + place(i + ahead));
        }
        assert(place(i) < narrow.size());
        const std::int32_t sequence = sequences[i];  // which `out` may overwrite
        const std::uint16_t length = narrow[place(i)];
        out[i] = length;
        if (length == too_long) [[unlikely]] {
            out[i] = lengths[sequence];
        }
    }
}

template <class T>
std::int64_t emit_boundaries(std::span<const std::int32_t> lengths, std::int64_t slice_begin,
                             SampleShape shape, Cursor& cursor, std::span<T> pairs) {
    assert(cursor.position >= slice_begin && cursor.token >= 0 && shape.sequence_length > 0);
    const std::int64_t wanted = shape.token_of(cursor.sample);
    // The next boundary is never behind the tokens that have been consumed.
    assert(wanted >= cursor.token || cursor.sample == 0);
    T* out = pairs.data();
    T* const out_end = out + pairs.size() / 2 * 2;
    const auto size = static_cast<std::int64_t>(lengths.size());
    std::int64_t local = cursor.position - slice_begin;
    std::int64_t left = wanted - cursor.token;  // tokens from the document on to the boundary
    const auto length_at = [&](std::int64_t i) {
        return std::int64_t{lengths[static_cast<std::size_t>(i)]};
    };
    const auto write = [&] {
        out[0] = static_cast<T>(slice_begin + local);
        out[1] = static_cast<T>(left + 1 - shape.extra_token);
    };
    // A branch at each boundary would be mispredicted. This loop writes a pair for every document,
    // and keeps it if the document holds the boundary.
    for (; local < size && out != out_end; ++local) {
        const std::int64_t length = length_at(local);
        write();
        const std::int64_t beyond = left - length;
        out += 2 * std::ptrdiff_t{beyond < 0};
        left = beyond + (shape.sequence_length & -std::int64_t{beyond < 0});
        if (left < 0) [[unlikely]] {  // it holds more than one
            left += length;
            for (; left < length && out != out_end; left += shape.sequence_length) {
                write();
                out += 2;
            }
            if (left < length) {
                break;
            }
            left -= length;
        }
    }
    // The pairs are full: all that has no boundary is consumed.
    for (; local < size && left >= length_at(local); ++local) {
        left -= length_at(local);
    }
    const std::int64_t emitted = (out - pairs.data()) / 2;
    const std::int64_t next = cursor.sample + emitted;
    cursor = {slice_begin + local, shape.token_of(next) - left, next};
    return emitted;
}

template std::int64_t emit_boundaries(std::span<const std::int32_t>, std::int64_t, SampleShape,
                                      Cursor&, std::span<std::int32_t>);
template std::int64_t emit_boundaries(std::span<const std::int32_t>, std::int64_t, SampleShape,
                                      Cursor&, std::span<std::int64_t>);

}  // namespace distcache
