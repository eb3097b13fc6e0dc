#pragma once

#include <string>

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/wire_codes/wire_codes.h"

namespace hpcdl::contract {

/// What a rank computes for a sum over two ranks.
inline void wire_codes_cases(auto& to) {
  for (const auto code : {WireCode::bf16, WireCode::int8, WireCode::int4})
    to.add_forward("wire_codes+" + std::string(wire_code_name(code)), "N", {"x N f32"}, {{1 << 24}},
                   [code](const auto& v) {
                     const auto half = v.dim('N') / 2;
                     return wire_decode(wire_encode(v[0], {2, code}), {half, 2, code, DType::f32, true});
                   });
}

}  // namespace hpcdl::contract
