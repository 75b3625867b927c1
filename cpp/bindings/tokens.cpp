#include "distcache/tokens.hpp"

#include <limits>
#include <tuple>

#include "arrays.hpp"

namespace distcache::bindings {
namespace {

template <class T>
struct Type {
    using type = T;
};

template <class... T>
using Types = std::tuple<Type<T>...>;

using Inputs = Types<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::uint32_t,
                     std::int32_t, std::uint64_t, std::int64_t>;
using Outputs =
    Types<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t, std::int64_t>;

/// Calls `action` with the one of some types that an array has.
template <class Action, class... T>
std::int64_t with_type(const py::array& array, const char* name, std::tuple<T...>,
                       const Action& action) {
    std::int64_t result = 0;
    const bool found =
        ((array.dtype().equal(py::dtype::of<typename T::type>()) && (result = action(T{}), true)) ||
         ...);
    if (!found) {
        throw py::type_error(std::string(name) + " must be integers of a type that holds tokens");
    }
    return result;
}

std::int64_t narrow(const py::array& values, std::uint64_t limit, py::array& out) {
    if (values.size() != out.size()) {
        throw py::value_error("values and out must have equal size");
    }
    return with_type(values, "values", Inputs{}, [&](auto from) {
        using From = typename decltype(from)::type;
        const auto read = input<From>(values, "values");
        return with_type(out, "out", Outputs{}, [&](auto to) {
            using To = typename decltype(to)::type;
            const auto write = output<To>(out, "out");
            if (limit > static_cast<std::uint64_t>(std::numeric_limits<To>::max()) + 1) {
                throw py::value_error("limit must fit into the type of out");
            }
            const py::gil_scoped_release release;
            return narrow_tokens<From, To>(read, limit, write);
        });
    });
}

std::int64_t outside(const py::array& values, std::uint64_t limit) {
    return with_type(values, "values", Inputs{}, [&](auto from) {
        using From = typename decltype(from)::type;
        const auto read = input<From>(values, "values");
        const py::gil_scoped_release release;
        return first_outside<From>(read, limit);
    });
}

}  // namespace

void register_tokens(py::module_& module) {
    module.def("narrow_tokens", &narrow, py::arg("values"), py::arg("limit"), py::arg("out"), R"doc(
Copy tokens, integers of any type, into an array of a type that a `.bin` may have.

Returns
-------
int
    The index of the first token that is not in [0, limit), or -1. What is copied from there on is
    undefined.

Raises
------
ValueError
    If the limit is beyond what the type of `out` holds.
)doc");
    module.def("first_outside", &outside, py::arg("values"), py::arg("limit"), R"doc(
Return the index of the first token that is not in [0, limit), or -1.
)doc");
}

}  // namespace distcache::bindings
