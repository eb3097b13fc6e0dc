#pragma once

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/int4_embedding/int4_embedding.h"
#include "hpcdl/ops/int4_linear/int4_linear.spec.h"

namespace hpcdl::contract {

inline void int4_embedding_cases(auto& to) {
  to.add_forward("int4_embedding", "VxCxT", {"ids T<V"}, {{50304, 768, 131072}, {50304, 768, 1024}}, [](const auto& v) {
    const auto table = int4_matrix(v, "packed", "scale", v.dim('V'), v.dim('C'), 32);
    return int4_embedding(v[0], table.w, table.scale, v.none(), v.none(), {.dtype = v.dtype});
  });
}

}  // namespace hpcdl::contract
