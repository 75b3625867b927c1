#include "distcache/sample_index.hpp"

#include <algorithm>

namespace distcache {
namespace {

constexpr std::int64_t ahead = 48;  // documents between a prefetch of a length and its use

}  // namespace

std::int64_t sum_lengths(DocumentLengths lengths,
                         std::span<const std::int32_t> documents) {
    const auto size = static_cast<std::int64_t>(documents.size());
    const std::int64_t prefetched = std::max<std::int64_t>(size - ahead, 0);
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < prefetched; ++i) {
        lengths.prefetch(documents[static_cast<std::size_t>(i + ahead)]);
        sum += lengths.of(documents[static_cast<std::size_t>(i)]);
    }
    for (std::int64_t i = prefetched; i < size; ++i) {
        sum += lengths.of(documents[static_cast<std::size_t>(i)]);
    }
    return sum;
}

template <class T>
std::int64_t emit_boundaries(DocumentLengths lengths,
                             std::span<const std::int32_t> documents, std::int64_t slice_begin,
                             SampleShape shape, Cursor& cursor, std::span<T> pairs) {
    const auto size = static_cast<std::int64_t>(documents.size());
    T* out = pairs.data();
    T* const out_end = out + pairs.size() / 2 * 2;
    std::int64_t wanted = shape.token_of(cursor.sample);
    std::int64_t local = cursor.position - slice_begin;
    std::int64_t token = cursor.token;
    const auto step = [&](std::int64_t length) {
        const std::int64_t end = token + length;
        while (wanted < end) {
            if (out == out_end) {
                return false;
            }
            *out++ = static_cast<T>(slice_begin + local);
            *out++ = static_cast<T>(wanted - token + 1 - shape.extra_token);
            wanted += shape.sequence_length;
        }
        token = end;
        ++local;
        return true;
    };
    bool room = true;
    while (room && local < size - ahead) {
        lengths.prefetch(documents[static_cast<std::size_t>(local + ahead)]);
        room = step(lengths.of(documents[static_cast<std::size_t>(local)]));
    }
    while (room && local < size) {
        room = step(lengths.of(documents[static_cast<std::size_t>(local)]));
    }
    const std::int64_t emitted = (out - pairs.data()) / 2;
    cursor = {slice_begin + local, token, cursor.sample + emitted};
    return emitted;
}

template std::int64_t emit_boundaries(DocumentLengths, std::span<const std::int32_t>,
                                      std::int64_t, SampleShape, Cursor&, std::span<std::int32_t>);
template std::int64_t emit_boundaries(DocumentLengths, std::span<const std::int32_t>,
                                      std::int64_t, SampleShape, Cursor&, std::span<std::int64_t>);

}  // namespace distcache
