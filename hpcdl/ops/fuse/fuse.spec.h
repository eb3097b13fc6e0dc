#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/fuse/probe.h"
#include "hpcdl/program/emit.h"
#include "hpcdl/program/on.h"

namespace hpcdl::contract {

/// y = gelu(2 x + bias) + x, composed at compile time into one pass.
inline void fuse_cases(auto& to) {
  to.add_forward("fuse", "RxC", {"x RC", "bias C"}, plane_shapes(), [](const auto& v) {
    const auto y = v.graph.temporary("fuse", v[0].spec());
    const Operand operands[] = {write_operand(y), read_operand(v[0]), read_operand(v[1])};
    const RunFn run = [](Stream& stream, const Grad* t, const void*) {
      on(stream, [&](auto isa, Pool& pool) {
        fuse::probe(isa, pool, fuse::Probe::scale_bias_gelu_residual, t[0], t[1], t[2], t[2]);
      });
    };
    v.graph.emit("fuse", run, operands, nullptr, 0, {.operations = 15.0 * static_cast<double>(y.spec().size())});
    return y;
  });
}

}  // namespace hpcdl::contract
