#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "hpcdl/ops/attention/attention.spec.h"
#include "hpcdl/ops/document_attention/document_attention.h"

namespace hpcdl::contract {

/// out and lse: those of attention for each document by itself.
inline void document_attention_reference(Outputs out, Inputs in, const DocumentAttention::Args& a) {
  const auto B = in[0].dim(0), T = in[0].dim(1);
  const Values& positions = in[3];
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t begin = 0, end = 0; begin < T; begin = end) {
      for (end = begin + 1; end < T && positions[b * T + end] != 0;) ++end;
      const auto n = end - begin;
      std::array<Values, 3> one;
      for (std::size_t i = 0; i < one.size(); ++i) {
        const auto width = in[i].dim(2), first = (b * T + begin) * width;
        one[i].spec = {{1, n, width}, in[i].spec.dtype};
        one[i].v.assign(in[i].v.begin() + first, in[i].v.begin() + first + n * width);
      }
      std::array<Expected, 2> found{Expected(one[0].spec), Expected({{1, a.heads, n}, DType::f32})};
      attention_reference(found, one, a.of_document());
      for (std::size_t o = 0; o < found.size() && o < out.size(); ++o) {
        for (std::int64_t i = 0; i < found[o].size(); ++i) {
          const auto at = static_cast<std::size_t>(i);
          const auto to = o == 0 ? (b * T + begin) * in[0].dim(2) + i : (b * a.heads + i / n) * T + begin + i % n;
          out[o].set(to, found[o].value[at], found[o].scale[at], found[o].stored[at]);
        }
      }
    }
}

/// Documents of 64 to 576 tokens.
inline void document_attention_cases(auto& to) {
  auto& family = to.add("document_attention", "BxTxHxD", {"q BT(HD)", "k BT(HD)", "v BT(HD)", "positions BT<T"},
                        {{8, 1024, 12, 64}}, [](const auto& v) {
                          return document_attention(v[0], v[1], v[2], v[3], {.heads = static_cast<int>(v.dim('H'))});
                        });
  family.integer = [](std::string_view, std::int64_t i, const Shape& s) {
    const auto place = i % s[1] % 640;  // a short one and a long one in turns
    return place < 64 ? place : place - 64;
  };
}

}  // namespace hpcdl::contract
