#include <pybind11/stl.h>

#include <cmath>

#include "arrays.hpp"
#include "distcache/blend.hpp"
#include "distcache/sample_index.hpp"

namespace distcache::bindings {
namespace {

template <class T>
std::int64_t emit_as(std::span<const std::int64_t> entries, std::int64_t slice_begin,
                     SampleShape shape, Cursor& cursor, py::array& pairs) {
    const auto span = output<T>(pairs, "pairs", 2);
    const py::gil_scoped_release release;
    return emit_boundaries(entries, slice_begin, shape, cursor, span);
}

std::int64_t emit(const py::array& entries, std::int64_t slice_begin, std::int64_t sequence_length,
                  bool extra_token, Cursor& cursor, py::array pairs) {
    const auto span = input<std::int64_t>(entries, "entries");
    const auto consumed = cursor.position - slice_begin;
    if (sequence_length < 1 || consumed < 0 || consumed > entries.size()) {
        throw py::value_error("sequence_length must be positive and the cursor within the slice");
    }
    const SampleShape shape{sequence_length, extra_token ? 1 : 0};
    if (pairs.dtype().equal(py::dtype::of<std::int32_t>())) {
        return emit_as<std::int32_t>(span, slice_begin, shape, cursor, pairs);
    }
    return emit_as<std::int64_t>(span, slice_begin, shape, cursor, pairs);
}

void fill(const py::array& lengths, std::int64_t begin, py::array out) {
    const auto view = unaligned<std::int32_t>(lengths, "lengths");
    const auto span = output<std::int64_t>(out, "out");
    if (begin < 0 || begin > view.size() - static_cast<std::int64_t>(span.size())) {
        throw py::value_error("there must be a length for each entry");
    }
    const py::gil_scoped_release release;
    fill_entries(view, begin, span);
}

Blender by_weight(const py::array& weights) {
    const auto span = input<double>(weights, "weights");
    for (const double weight : span) {
        if (!(weight >= 0) || !std::isfinite(weight)) {
            throw py::value_error("weights must be finite and not negative");
        }
    }
    return Blender(span);
}

Blender exhaustive(const py::array& sizes) {
    const auto span = input<std::int64_t>(sizes, "sizes");
    std::int64_t left = std::int64_t{1} << 62;
    for (const std::int64_t size : span) {
        if (size < 0 || size > left) {
            throw py::value_error("sizes must not be negative, nor more than 2^62 together");
        }
        left -= size;
    }
    return Blender::exhaustive(span);
}

void next(Blender& blender, py::array corpora, py::array samples) {
    const auto corpus_span = output<std::int16_t>(corpora, "corpora");
    const auto sample_span = output<std::int64_t>(samples, "samples");
    if (corpus_span.size() != sample_span.size()) {
        throw py::value_error("corpora and samples must have the same size");
    }
    blender.require_steps(static_cast<std::int64_t>(corpus_span.size()));
    const py::gil_scoped_release release;
    blender.next(corpus_span, sample_span);
}

void resume(Blender& blender, const py::array& taken) {
    blender.resume(input<std::int64_t>(taken, "taken"));
}

void skip(Blender& blender, std::int64_t steps) {
    blender.require_steps(steps);
    const py::gil_scoped_release release;
    blender.skip(steps);
}

}  // namespace

void register_indices(py::module_& module) {
    py::class_<Cursor>(module, "Cursor")
        .def(py::init<std::int64_t, std::int64_t, std::int64_t>(), py::arg("position"),
             py::arg("token"), py::arg("sample"))
        .def_readonly("position", &Cursor::position)
        .def_readonly("token", &Cursor::token)
        .def_readonly("sample", &Cursor::sample);
    module.def("emit_boundaries", &emit, py::arg("entries"), py::arg("slice_begin"),
               py::arg("sequence_length"), py::arg("extra_token"), py::arg("cursor"),
               py::arg("pairs"));
    module.def("fill_entries", &fill, py::arg("lengths"), py::arg("begin"), py::arg("out"));
    py::class_<Blender>(module, "Blender")
        .def_static("by_weight", &by_weight, py::arg("weights"))
        .def_static("exhaustive", &exhaustive, py::arg("sizes"))
        .def("next", &next, py::arg("corpora"), py::arg("samples"))
        .def("skip", &skip, py::arg("steps"))
        .def("resume", &resume, py::arg("taken"))
        .def_property_readonly("taken", &Blender::taken);
}

}  // namespace distcache::bindings
