#include "distcache/links.hpp"

#include "arrays.hpp"
#include "generator.hpp"

namespace distcache::bindings {
namespace {

void require_that(bool condition, const char* what) {
    if (!condition) {
        throw py::value_error(what);
    }
}

std::size_t draw_within(Generator& generator, std::uint32_t first, std::uint32_t begin,
                        std::uint32_t end, py::array steps, py::array draws) {
    const auto step_span = output<std::uint32_t>(steps, "steps");
    const auto draw_span = output<std::uint32_t>(draws, "draws");
    require_that(begin <= end && first != no_link && step_span.size() == draw_span.size() &&
                     step_span.size() <= first,
                 "steps and draws must have equal sizes of at most `first`");
    const py::gil_scoped_release release;
    return draws_within(first, static_cast<std::uint32_t>(step_span.size()), begin, end, step_span,
                        draw_span, generator);
}

void link(const py::array& steps, const py::array& draws, std::uint32_t begin, py::array latest,
          py::array links) {
    const auto step_span = input<std::uint32_t>(steps, "steps");
    const auto draw_span = input<std::uint32_t>(draws, "draws");
    const auto latest_span = output<std::uint32_t>(latest, "latest");
    const auto link_span = output<std::uint32_t>(links, "links");
    bool sound = step_span.size() == draw_span.size() && step_span.size() == link_span.size();
    for (const std::uint32_t drawn : draw_span) {
        sound = sound && drawn >= begin && drawn - begin < latest_span.size();
    }
    require_that(sound, "draws must be of positions that latest has, one for each step and link");
    const py::gil_scoped_release release;
    link_steps(step_span, draw_span, begin, latest_span, link_span);
}

py::tuple group(const py::array& keys, const py::array& bounds) {
    const auto key_span = input<std::uint32_t>(keys, "keys");
    const auto bound_span = input<std::int64_t>(bounds, "bounds");
    require_that(bound_span.size() > 1 && bound_span.size() < 0xffff, "there must be ranges");
    for (const std::uint32_t key : key_span) {
        require_that(key >= bound_span.front() && key < bound_span.back(),
                     "keys must lie within the bounds");
    }
    py::array_t<std::uint32_t> order(keys.size());
    py::array_t<std::int64_t> counts(bounds.size() - 1);
    const std::span order_span(order.mutable_data(), key_span.size());
    const std::span count_span(counts.mutable_data(), bound_span.size() - 1);
    {
        const py::gil_scoped_release release;
        group_by_range(key_span, bound_span, order_span, count_span);
    }
    return py::make_tuple(order, counts);
}

}  // namespace

void register_links(py::module_& module) {
    module.attr("NO_LINK") = no_link;
    module.def("draws_within", &draw_within, py::arg("generator"), py::arg("first"),
               py::arg("begin"), py::arg("end"), py::arg("steps"), py::arg("draws"), R"doc(
Find the shuffle steps first, first - 1, ... whose draw lies in [begin, end).

As many steps are looked at as `steps` and `draws`, uint32, have room for; the generator advances
past all of them.

Returns
-------
int
    How many steps and draws were written.
)doc");
    module.def("link_steps", &link, py::arg("steps"), py::arg("draws"), py::arg("begin"),
               py::arg("latest"), py::arg("links"), R"doc(
Link each step to the latest earlier step with the same draw.

cpp/distcache/links.hpp explains how the links lead to the shuffled positions.

Parameters
----------
steps, draws : ndarray of uint32, shape (steps,)
    In the order of the shuffle.
begin : int
    The first position of `latest`.
latest : ndarray of uint32, shape (positions,)
    For each position the latest step that drew it so far, or `NO_LINK`; updated.
links : ndarray of uint32, shape (steps,)
    Written.
)doc");
    module.def("group_by_range", &group, py::arg("keys"), py::arg("bounds"), R"doc(
Group keys by the ranges [bounds[r], bounds[r + 1]) that they lie in.

Returns
-------
order : ndarray of uint32, shape (keys,)
    That sorts the keys by range, and keeps their order within a range.
counts : ndarray of int64, shape (ranges,)
)doc");
}

}  // namespace distcache::bindings
