#pragma once
// How `ops/X/X.spec.h` says at which shapes its op is timed, by bench, roofline and profile (tools/cases.h):
//
//   inline void relu_cases(auto& to) {
//     to.add("relu", "RxC", {"x RC"}, plane_shapes(), [](const auto& v) { return relu(v[0]); });
//   }
//
// adds a family: the op or a variant of it ("gelu+erf"), what the numbers of its shapes are, its operands, the shapes,
// and a function that records it and returns the output that has a gradient. add_forward() is for an op without a
// gradient. Both return the family, whose other members (CaseFamily) may be set.
//
// An operand is a name and its dims: "w O33I" has the dims O, 3, 3 and I, and a gradient if the graph records
// gradients; a product of dims stands in parentheses. "table TD f32": an input of that type without a gradient. "m N
// master": f32 with a gradient. "ids T<V": i32 below V; "slots T<V i64". CaseFamily::integer gives other integers.
//
// The function gets its operands in their order, v[0], or by name, v["bias"], which is absent if it was not described;
// a dim by its letter, v.dim('C'); and v.graph, v.shape and v.dtype.

#include <string>
#include <vector>

#include "hpcdl/shape.h"

namespace hpcdl::contract {

// The first shape is four times as large as a cache of 32 MiB even in bf16, so that no data of one run are left for
// the next; the others are those of GPT-2 124M with 1024 tokens, where nothing else is said.
inline std::vector<Shape> plane_shapes(const Shape& other = {1024, 3072}) { return {{8192, 4096}, other}; }
inline std::vector<Shape> vector_shapes(std::int64_t other = 786432) { return {{33554432}, {other}}; }

/// Images of layers of SimpleCNN at batch 128.
inline std::vector<Shape> image_shapes() { return {{128, 32, 32, 64}, {128, 16, 16, 128}, {128, 8, 8, 256}}; }

}  // namespace hpcdl::contract
