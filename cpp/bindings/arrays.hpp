#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "distcache/unaligned.hpp"

namespace distcache::bindings {

namespace py = pybind11;

void register_random(py::module_& module);
void register_links(py::module_& module);
void register_indices(py::module_& module);
void register_corpus(py::module_& module);
void register_ledger(py::module_& module);
void register_packing(py::module_& module);
void register_prefetch(py::module_& module);
void register_samples(py::module_& module);
void register_text(py::module_& module);
void register_tokens(py::module_& module);

/// Throws TypeError unless `array` is contiguous, one- or two-dimensional as asked, and of type T.
/// Nothing is converted: a hidden copy of a large array would be a bug.
template <class T>
void require(const py::array& array, const char* name, py::ssize_t dimensions = 1) {
    if (!py::dtype::of<T>().is(array.dtype()) && !array.dtype().equal(py::dtype::of<T>())) {
        throw py::type_error(std::string(name) + " must have dtype " +
                             std::string(py::str(py::dtype::of<T>())) + ", not " +
                             std::string(py::str(array.dtype())));
    }
    if (array.ndim() != dimensions || !(array.flags() & py::array::c_style)) {
        throw py::type_error(std::string(name) + " must be contiguous with " +
                             std::to_string(dimensions) + " dimension(s)");
    }
}

inline bool is_aligned(const py::array& array) {
    return (array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0;
}

template <class T>
std::span<const T> input(const py::array& array, const char* name, py::ssize_t dimensions = 1) {
    require<T>(array, name, dimensions);
    if (!is_aligned(array)) {
        throw py::type_error(std::string(name) + " must be aligned");
    }
    return {static_cast<const T*>(array.data()), static_cast<std::size_t>(array.size())};
}

template <class T>
std::span<T> output(py::array& array, const char* name, py::ssize_t dimensions = 1) {
    require<T>(array, name, dimensions);
    if (!is_aligned(array)) {
        throw py::type_error(std::string(name) + " must be aligned");
    }
    return {static_cast<T*>(array.mutable_data()), static_cast<std::size_t>(array.size())};
}

/// An array that keeps the memory of a vector, without a copy.
template <class T>
py::array_t<T> moved(std::vector<T>&& values) {
    auto* held = new std::vector<T>(std::move(values));
    const py::capsule owner(held,
                            [](void* vector) { delete static_cast<std::vector<T>*>(vector); });
    return py::array_t<T>(static_cast<py::ssize_t>(held->size()), held->data(), owner);
}

/// Throws IndexError unless all numbers lie in [begin, end). The caller does not hold the GIL.
template <class T>
void require_within(std::span<const T> numbers, std::int64_t begin, std::int64_t end,
                    const char* message) {
    bool outside = false;  // not an exit from the loop, which would be several times as slow
    for (const T number : numbers) {
        outside |= number < begin || number >= end;
    }
    if (outside) {
        const py::gil_scoped_acquire acquire;
        throw py::index_error(message);
    }
}

/// The arrays of an `.idx` file may lie at any address.
template <class T>
UnalignedView<T> unaligned(const py::array& array, const char* name) {
    require<T>(array, name);
    return {array.data(), array.size()};
}

}  // namespace distcache::bindings
