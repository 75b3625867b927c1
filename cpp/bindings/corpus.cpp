#include <cerrno>
#include <memory>
#include <system_error>

#include "arrays.hpp"
#include "distcache/idx.hpp"
#include "distcache/mapping.hpp"

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
    py::class_<SequenceFacts>(module, "SequenceFacts")
        .def_readonly("tokens", &SequenceFacts::tokens)
        .def_readonly("empty", &SequenceFacts::empty)
        .def_readonly("negative_count", &SequenceFacts::negative_count)
        .def_readonly("first_negative", &SequenceFacts::first_negative)
        .def_readonly("misplaced_count", &SequenceFacts::misplaced_count)
        .def_readonly("first_misplaced", &SequenceFacts::first_misplaced);
    py::class_<Mapping>(module, "Mapping", py::buffer_protocol())
        .def(py::init(&map), py::arg("descriptor"), py::arg("size"))
        .def("__len__", [](const Mapping& mapping) { return mapping.bytes().size(); })
        .def_property_readonly("intact", &Mapping::is_intact)
        .def_static("faults", &Mapping::faults)
        .def("release", &release, py::arg("begin"), py::arg("end"))
        .def_buffer([](const Mapping& mapping) {
            const auto bytes = mapping.bytes();
            return py::buffer_info(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                   static_cast<py::ssize_t>(bytes.size()));
        });
    module.def("check_sequences", &check, py::arg("lengths"), py::arg("offsets"), py::arg("begin"),
               py::arg("end"), py::arg("item_size"));
    module.def("first_descent", &descent, py::arg("bounds"), py::arg("begin"), py::arg("end"));
}

}  // namespace distcache::bindings
