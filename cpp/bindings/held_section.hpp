#pragma once

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "arrays.hpp"
#include "distcache/section.hpp"

namespace distcache::bindings {

template <class Narrow, class Wide>
std::variant<std::span<const Narrow>, std::span<const Wide>> either(const py::array& array,
                                                                    const char* name,
                                                                    py::ssize_t dimensions) {
    if (array.dtype().equal(py::dtype::of<Narrow>())) {
        return input<Narrow>(array, name, dimensions);
    }
    return input<Wide>(array, name, dimensions);
}

/// A section together with the arrays that it looks into.
struct HeldSection {
    std::vector<py::array> arrays;
    Section section;

    static HeldSection make(const py::array& document_index, const py::array& sample_index,
                            const py::array& shuffle_index, const py::array& lengths,
                            const py::array& offsets, int type_code, bool extra_token,
                            const std::optional<py::array>& shards, std::int64_t multiple) {
        const auto type = static_cast<TokenType>(type_code);
        if (type_code < 0 || type_code > 255 || token_size(type) == 0) {
            throw py::value_error("type_code must be that of an integer type");
        }
        if (multiple < 1 || multiple >= (std::int64_t{1} << 31)) {
            throw py::value_error("multiple must be from 1 to 2**31 - 1");
        }
        if (lengths.size() != offsets.size()) {
            throw py::value_error("lengths and offsets must have the same size");
        }
        std::span<const std::int64_t> bases;
        std::vector<py::array> arrays{document_index, sample_index, shuffle_index, lengths,
                                      offsets};
        if (shards) {
            bases = input<std::int64_t>(*shards, "shards");
            if (bases.empty() || !std::is_sorted(bases.begin(), bases.end())) {
                throw py::value_error("shards must ascend, and there must be one");
            }
            arrays.push_back(*shards);
        }
        return {std::move(arrays),
                {input<std::int32_t>(document_index, "document_index"),
                 either<std::int32_t, std::int64_t>(sample_index, "sample_index", 2),
                 either<std::uint32_t, std::int64_t>(shuffle_index, "shuffle_index", 1),
                 unaligned<std::int32_t>(lengths, "lengths"),
                 unaligned<std::int64_t>(offsets, "offsets"), type, extra_token ? 1 : 0, bases,
                 multiple}};
    }
};

}  // namespace distcache::bindings
