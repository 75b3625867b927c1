#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "arrays.hpp"
#include "distcache/idx.hpp"
#include "distcache/mapping.hpp"
#include "distcache/ranges.hpp"

namespace distcache::bindings {
namespace {

SequenceFacts check(const py::array& lengths, const py::array& offsets, std::int64_t begin,
                    std::int64_t end, std::int64_t item_size) {
    const auto length_view = unaligned<std::int32_t>(lengths, "lengths");
    const auto offset_view = unaligned<std::int64_t>(offsets, "offsets");
    if (begin < 0 || end > length_view.size() || length_view.size() != offset_view.size()) {
        throw py::value_error("[begin, end) must lie within lengths and offsets of equal size");
    }
    const py::gil_scoped_release release;
    return check_sequences(length_view, offset_view, begin, end, item_size);
}

std::pair<std::int64_t, std::int64_t> outside(const py::array& lengths, const py::array& offsets,
                                              std::int64_t begin, std::int64_t end,
                                              std::int64_t item_size, std::int64_t size) {
    const auto length_view = unaligned<std::int32_t>(lengths, "lengths");
    const auto offset_view = unaligned<std::int64_t>(offsets, "offsets");
    if (begin < 0 || end > length_view.size() || length_view.size() != offset_view.size()) {
        throw py::value_error("[begin, end) must lie within lengths and offsets of equal size");
    }
    const py::gil_scoped_release release;
    const OutsideFacts facts = find_outside(length_view, offset_view, begin, end, item_size, size);
    return {facts.count, facts.first};
}

std::pair<std::int64_t, int> read_ranges_into(int descriptor, const py::array& begins,
                                              const py::array& sizes, py::array out) {
    const auto begin_span = input<std::int64_t>(begins, "begins");
    const auto size_span = input<std::int64_t>(sizes, "sizes");
    const auto bytes = output<std::uint8_t>(out, "out");
    std::int64_t total = 0;
    for (const std::int64_t size : size_span) {
        if (size < 0 || size > static_cast<std::int64_t>(bytes.size()) - total) {
            throw py::value_error("sizes must not be negative, and must fit into out together");
        }
        total += size;
    }
    if (begin_span.size() != size_span.size()) {
        throw py::value_error("begins and sizes must have equal size");
    }
    const py::gil_scoped_release release;
    const RangesOutcome outcome = read_ranges(descriptor, begin_span, size_span, bytes.data());
    return {outcome.done, outcome.error};
}

std::int64_t descent(const py::array& bounds, std::int64_t begin, std::int64_t end) {
    const auto view = unaligned<std::int64_t>(bounds, "bounds");
    if (begin < 0 || end > view.size()) {
        throw py::value_error("[begin, end) must lie within bounds");
    }
    const py::gil_scoped_release release;
    return first_descent(view, begin, end);
}

std::unique_ptr<Mapping> map(int descriptor, std::int64_t size) {
    try {
        return std::make_unique<Mapping>(descriptor, static_cast<std::size_t>(size));
    } catch (const std::system_error& error) {
        errno = error.code().value();
        PyErr_SetFromErrno(PyExc_OSError);
        throw py::error_already_set();
    }
}

void release(const Mapping& mapping, std::int64_t begin, std::int64_t end) {
    mapping.release(static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
}

}  // namespace

void register_corpus(py::module_& module) {
    py::class_<SequenceFacts>(module, "SequenceFacts", R"doc(
What `check_sequences` has found: sums, and counts and first places of faults.
)doc")
        .def_readonly("tokens", &SequenceFacts::tokens)
        .def_readonly("empty", &SequenceFacts::empty)
        .def_readonly("negative_count", &SequenceFacts::negative_count)
        .def_readonly("first_negative", &SequenceFacts::first_negative)
        .def_readonly("misplaced_count", &SequenceFacts::misplaced_count)
        .def_readonly("first_misplaced", &SequenceFacts::first_misplaced);
    py::class_<Mapping>(module, "Mapping", py::buffer_protocol(), R"doc(
The bytes of an open file, mapped for reading, as a buffer.

Unlike ``mmap.mmap`` it keeps no descriptor. Where the file is truncated or its filesystem fails,
bytes read as zeros and `intact` becomes false, instead of a SIGBUS that ends the process.

Parameters
----------
descriptor, size : int

Raises
------
OSError
    If the file cannot be mapped.
)doc")
        .def(py::init(&map), py::arg("descriptor"), py::arg("size"))
        .def("__len__", [](const Mapping& mapping) { return mapping.bytes().size(); })
        .def_property_readonly("intact", &Mapping::is_intact, "Whether all bytes could be read.")
        .def_static("faults", &Mapping::faults,
                    "Return the number of faults of all mappings of this process.")
        .def("release", &release, py::arg("begin"), py::arg("end"), R"doc(
Drop the pages of bytes [begin, end) from this process; the page cache keeps them.
)doc")
        .def_buffer([](const Mapping& mapping) {
            const auto bytes = mapping.bytes();
            return py::buffer_info(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                   static_cast<py::ssize_t>(bytes.size()));
        });
    module.def("check_sequences", &check, py::arg("lengths"), py::arg("offsets"), py::arg("begin"),
               py::arg("end"), py::arg("item_size"), R"doc(
Check sequences [begin, end) of an `.idx`: lengths against offsets.

Parameters
----------
lengths : ndarray of int32, shape (sequences,)
offsets : ndarray of int64, shape (sequences,)
begin, end : int
item_size : int
    Bytes per token.

Returns
-------
SequenceFacts
)doc");
    module.def("find_outside", &outside, py::arg("lengths"), py::arg("offsets"), py::arg("begin"),
               py::arg("end"), py::arg("item_size"), py::arg("size"), R"doc(
Count the sequences [begin, end) of a view that do not lie within `size` bytes.

Parameters
----------
lengths : ndarray of int32, shape (sequences,)
    None negative.
offsets : ndarray of int64, shape (sequences,)
begin, end : int
item_size : int
    Bytes per token.
size : int
    Bytes of the `.bin`.

Returns
-------
count, first : int
    The first is -1 if there is none.
)doc");
    module.def("read_ranges", &read_ranges_into, py::arg("descriptor"), py::arg("begins"),
               py::arg("sizes"), py::arg("out"), R"doc(
Read ranges of bytes of an open file, one after the other; adjacent ones are read together.

Parameters
----------
descriptor : int
begins, sizes : ndarray of int64, shape (ranges,)
    In bytes.
out : ndarray of uint8
    Receives them all.

Returns
-------
done, error : int
    The bytes that were read; 0, an error number of pread, or -1 if the file ends too early.
)doc");
    module.def("first_descent", &descent, py::arg("bounds"), py::arg("begin"), py::arg("end"),
               R"doc(
Return the first i in [begin, end) with bounds[i] < bounds[i - 1], int64, or -1.
)doc");
}

}  // namespace distcache::bindings
