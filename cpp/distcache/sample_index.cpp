#include "distcache/sample_index.hpp"

#include <cassert>

#include "distcache/dispatch.hpp"

namespace distcache {
namespace {

struct FillEntries {
    template <Instructions>
    DISTCACHE_KERNEL void run(UnalignedView<std::int32_t> lengths, std::int64_t begin,
                              std::span<std::int64_t> out) {
        const auto size = static_cast<std::int64_t>(out.size());
        for (std::int64_t k = 0; k < size; ++k) {
            out[static_cast<std::size_t>(k)] = Entry::of(begin + k, lengths[begin + k]);
        }
    }
};

}  // namespace

void fill_entries(UnalignedView<std::int32_t> lengths, std::int64_t begin,
                  std::span<std::int64_t> out) {
    dispatched<FillEntries>(lengths, begin, out);
}

template <class T>
std::int64_t emit_boundaries(std::span<const std::int64_t> entries, std::int64_t slice_begin,
                             SampleShape shape, Cursor& cursor, std::span<T> pairs) {
    assert(cursor.position >= slice_begin && cursor.token >= 0 && shape.sequence_length > 0);
    T* out = pairs.data();
    T* const out_end = out + pairs.size() / 2 * 2;
    const auto size = static_cast<std::int64_t>(entries.size());
    std::int64_t wanted = shape.token_of(cursor.sample);
    std::int64_t token = cursor.token;
    std::int64_t local = cursor.position - slice_begin;
    bool room = true;
    while (local < size) {
        // The next boundary is never behind the tokens that have been consumed.
        assert(wanted >= token || cursor.sample == 0);
        const std::int64_t end = token + Entry::length(entries[static_cast<std::size_t>(local)]);
        while (wanted < end && (room = out != out_end)) {
            *out++ = static_cast<T>(slice_begin + local);
            *out++ = static_cast<T>(wanted - token + 1 - shape.extra_token);
            wanted += shape.sequence_length;
        }
        if (!room) {
            break;
        }
        token = end;
        ++local;
    }
    const std::int64_t emitted = (out - pairs.data()) / 2;
    cursor = {slice_begin + local, token, cursor.sample + emitted};
    return emitted;
}

template std::int64_t emit_boundaries(std::span<const std::int64_t>, std::int64_t, SampleShape,
                                      Cursor&, std::span<std::int32_t>);
template std::int64_t emit_boundaries(std::span<const std::int64_t>, std::int64_t, SampleShape,
                                      Cursor&, std::span<std::int64_t>);

}  // namespace distcache
