#include "arrays.hpp"
#include "distcache/shuffle.hpp"

namespace distcache::bindings {
namespace {

template <class T>
void shuffle_as(py::array& values, Mt19937& generator) {
    const auto span = output<T>(values, "values");
    const py::gil_scoped_release release;
    shuffle(span, generator);
}

void shuffle_array(Mt19937& generator, py::array values) {
    const py::dtype dtype = values.dtype();
    if (dtype.equal(py::dtype::of<std::int32_t>())) {
        shuffle_as<std::int32_t>(values, generator);
    } else if (dtype.equal(py::dtype::of<std::uint32_t>())) {
        shuffle_as<std::uint32_t>(values, generator);
    } else {
        shuffle_as<std::int64_t>(values, generator);
    }
}

py::array_t<std::uint64_t> draw_array(Mt19937& generator, std::uint64_t first,
                                      std::uint64_t count) {
    if (count > first) {
        throw py::value_error("count must be at most first");
    }
    py::array_t<std::uint64_t> draws(static_cast<py::ssize_t>(count));
    const std::span span(draws.mutable_data(), count);
    {
        const py::gil_scoped_release release;
        draw(first, span, generator);
    }
    return draws;
}

}  // namespace

void register_random(py::module_& module) {
    py::class_<Mt19937>(module, "Mt19937")
        .def(py::init<std::uint32_t>(), py::arg("seed"))
        .def("next32", &Mt19937::next32)
        .def("next64", &Mt19937::next64)
        .def("shuffle", &shuffle_array, py::arg("values"))
        .def(
            "skip_shuffle",
            [](Mt19937& generator, std::uint64_t size) { skip_shuffle(size, generator); },
            py::arg("size"), py::call_guard<py::gil_scoped_release>())
        .def("draw", &draw_array, py::arg("first"), py::arg("count"));
}

}  // namespace distcache::bindings
