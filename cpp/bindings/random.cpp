#include <memory>
#include <stdexcept>

#include "arrays.hpp"
#include "distcache/instructions.hpp"
#include "distcache/permutation.hpp"
#include "generator.hpp"

namespace distcache::bindings {
namespace {

template <class T>
void shuffle_as(py::array& values, std::uint64_t stop, Generator& generator) {
    const auto span = output<T>(values, "values");
    const py::gil_scoped_release release;
    shuffle(span, stop, generator, {.space = &generator.space});
}

void require_stop(std::uint64_t stop) {
    if (stop < 1) {
        throw py::value_error("stop must be at least 1");
    }
}

void shuffle_array(Generator& generator, py::array values, std::uint64_t stop) {
    require_stop(stop);
    const py::dtype dtype = values.dtype();
    if (dtype.equal(py::dtype::of<std::int32_t>())) {
        shuffle_as<std::int32_t>(values, stop, generator);
    } else if (dtype.equal(py::dtype::of<std::uint32_t>())) {
        shuffle_as<std::uint32_t>(values, stop, generator);
    } else {
        shuffle_as<std::int64_t>(values, stop, generator);
    }
}

void skip(Generator& generator, std::uint64_t size, std::uint64_t stop) {
    require_stop(stop);
    const py::gil_scoped_release release;
    skip_shuffle(size, stop, generator);
}

template <class Position>
void gather_at(UnalignedView<std::int32_t> values, const py::array& positions,
               std::span<std::int32_t> out) {
    const auto span = input<Position>(positions, "positions");
    if (span.size() != out.size()) {
        throw py::value_error("positions and out must have the same size");
    }
    const py::gil_scoped_release release;
    require_within(span, 0, values.size(), "positions must lie within values");
    gather(values, span, out);
}

void gather_array(const py::array& values, const py::array& positions, py::array out) {
    const auto view = unaligned<std::int32_t>(values, "values");
    const auto out_span = output<std::int32_t>(out, "out");
    if (positions.dtype().equal(py::dtype::of<std::int32_t>())) {
        gather_at<std::int32_t>(view, positions, out_span);
    } else {
        gather_at<std::int64_t>(view, positions, out_span);
    }
}

py::array_t<std::uint64_t> draw_array(Generator& generator, std::uint64_t first,
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

void next_values(Permutation& permutation, py::array out) {
    const auto span = output<std::int64_t>(out, "out");
    if (span.size() > permutation.left()) {
        throw py::index_error("the permutation has not as many values left");
    }
    const py::gil_scoped_release release;
    permutation.next(span);
}

void skip_values(Permutation& permutation, std::uint64_t count) {
    if (count > permutation.left()) {
        throw py::index_error("the permutation has not as many values left");
    }
    const py::gil_scoped_release release;
    permutation.skip(count);
}

std::unique_ptr<Permutation> make_permutation(std::uint32_t seed, std::uint64_t size) {
    try {
        const py::gil_scoped_release release;
        return std::make_unique<Permutation>(seed, size);
    } catch (const std::length_error& error) {
        PyErr_SetString(PyExc_MemoryError, error.what());
        throw py::error_already_set();
    }
}

}  // namespace

void register_random(py::module_& module) {
    module.def(
        "instructions",
        [] {
            switch (best_instructions()) {
                case Instructions::avx512:
                    return "avx512";
                case Instructions::avx2:
                    return "avx2";
                case Instructions::baseline:
                    break;
            }
            return "baseline";
        },
        R"doc(Return the instruction set that the kernels use: "baseline", "avx2" or "avx512".)doc");
    py::class_<Permutation>(module, "Permutation", R"doc(
The permutation that ``torch.randperm(size)`` draws on a CPU after ``manual_seed(seed)``.

From 2**32 // 20 values on, torch's algorithm needs all draws for any value; they are made at once.

Parameters
----------
seed, size : int

Raises
------
MemoryError
    If there is not enough memory for a long permutation.
)doc")
        .def(py::init(&make_permutation), py::arg("seed"), py::arg("size"))
        .def_property_readonly("position", &Permutation::position,
                               "Number of values that have been taken or skipped.")
        .def("next", &next_values, py::arg("out"),
             "Fill `out`, int64, with the next values; IndexError if fewer are left.")
        .def("skip", &skip_values, py::arg("count"), "Skip values; IndexError if fewer are left.");
    py::class_<Generator>(module, "Mt19937", R"doc(
The generator of NumPy's legacy ``RandomState(seed)``.

Parameters
----------
seed : int
    0 <= seed < 2**32.
)doc")
        .def(py::init<std::uint32_t>(), py::arg("seed"))
        .def("next32", &Generator::next32, "Return the next 32-bit word of the stream.")
        .def("shuffle", &shuffle_array, py::arg("values"), py::arg("stop") = 1, R"doc(
Shuffle an array of int32, uint32 or int64 in place, as ``RandomState.shuffle`` does.

With `stop`, only the steps from the last position down to `stop` are made; a shuffle of the first
`stop` values would make the rest.
)doc")
        .def("skip_shuffle", &skip, py::arg("size"), py::arg("stop") = 1, R"doc(
Advance past the draws of the steps of ``shuffle``, several times faster than making them.
)doc")
        .def("draw", &draw_array, py::arg("first"), py::arg("count"), R"doc(
Return the draws of the shuffle steps first, first - 1, ..., each in [0, step].

Returns
-------
ndarray of uint64, shape (count,)

Raises
------
ValueError
    If count > first.
)doc");
    module.def("gather", &gather_array, py::arg("values"), py::arg("positions"), py::arg("out"),
               R"doc(
Compute ``out[i] = values[positions[i]]``.

Values are int32, at any address; positions int32 or int64.

Raises
------
ValueError
    If the sizes of positions and out differ.
IndexError
    If a position is not within the values.
)doc");
}

}  // namespace distcache::bindings
