#pragma once

#include "hpcdl/ops/adamw8/adamw8.h"
#include "hpcdl/ops/cases.h"

namespace hpcdl::contract {

inline void adamw8_cases(auto& to) {
  auto& f = to.add_forward("adamw8", "N", {"p N", "p.grad N"}, vector_shapes(589824), [](const auto& v) {
    const auto n = v.dim('N');
    const auto input = [&](const char* name, std::int64_t size, DType d) { return v.graph.input(name, {{size}, d}); };
    const auto m = input("m", n, DType::i8), v8 = input("v", n, DType::u8);
    const auto blocks = AdamW8::blocks(n);
    const AdamW8Tensor<decltype(v.none())> t{
        v[0], v[1], m, v8, v.none(), input("m.scale", blocks, DType::f32), input("v.scale", blocks, DType::f32)};
    record_adamw8(v.graph, std::span(&t, 1), {});
    return v.none();
  });
  f.integer = [](std::string_view, std::int64_t i, const Shape&) { return i % 255 - 127; };
  f.positive = f.cpu_only = true;
}

}  // namespace hpcdl::contract
