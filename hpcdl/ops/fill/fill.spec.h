#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/program/emit.h"

namespace hpcdl::contract {

inline void fill_cases(auto& to) {
  to.add_forward("fill", "N", {}, {{67108864}, {786432}}, [](const auto& v) {
    const auto y = v.graph.temporary("y", {v.shape, v.dtype});
    const Operand operand = write_operand(y);
    const Fill::Args args{1};
    v.graph.emit(Fill::name, op_info<Fill>.forward, std::span(&operand, 1), &args, sizeof args);
    return y;
  });
  to.add_forward("fill+add_into", "N", {"y N", "x N"}, vector_shapes(), [](const auto& v) {
    const Operand operands[] = {update_operand(v[0]), read_operand(v[1])};
    v.graph.template emit<AddInto>(operands, nullptr, 0, AddInto::cost(v[1].spec()));
    return v.none();
  });
}

}  // namespace hpcdl::contract
