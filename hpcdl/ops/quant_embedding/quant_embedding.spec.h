#pragma once

#include <limits>
#include <string>

#include "hpcdl/ops/cases.h"
#include "hpcdl/ops/quant_embedding/quant_embedding.h"
#include "hpcdl/ops/quant_linear/quant_values.h"

namespace hpcdl::contract {

/// W[ids], plus rows of the positions; NaN for an id that W does not have.
inline void quant_embedding_reference(Outputs out, Inputs in, const QuantEmbedding::Args& a) {
  const QuantValues w{a.format, in[1], in[2], in[3], in[4]};
  const auto k = w.k();
  for (std::int64_t i = 0; i < in[0].size(); ++i) {
    const auto id = static_cast<std::int64_t>(in[0][i]);
    const auto at = in[6] ? static_cast<std::int64_t>(in[6][i]) : i % in[0].dim(-1);
    for (std::int64_t c = 0; c < k; ++c) {
      Sum y;
      if (id < 0 || id >= w.n()) y.add(std::numeric_limits<double>::quiet_NaN());
      else y = w.terms(id, c);
      if (in[5]) y.add(in[5][at * k + c]);
      y.put(out[0], i * k + c);
    }
  }
}

inline void quant_embedding_cases(auto& to) {
  for (const auto format : {QuantFormat::q8_0, QuantFormat::q4_k, QuantFormat::q6_k}) {
    const auto name = "quant_embedding+" + std::string(quant_format_info(format).name);
    auto& family =
        to.add_forward(name, "NxKxT", {"ids T<N"}, {{50304, 768, 131072}, {50304, 768, 1024}}, [format](const auto& v) {
          return quant_embedding(v[0], quant_inputs(v, format), v.none(), v.none(),
                                 {.format = format, .dtype = v.dtype});
        });
    family.nearest_supported = [block = quant_format_info(format).block](Shape s) {
      s[1] = (s[1] + block - 1) / block * block;
      return s;
    };
  }
}

}  // namespace hpcdl::contract
