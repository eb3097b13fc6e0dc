// Attention within the documents of packed rows, forward and backward: microseconds for several numbers of documents of
// equal and of random lengths, and for attention to all earlier keys of a row, in turns.
//   documents [ROUNDS] > lines of JSON

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/gpu/turns.h"
#include "hpcdl/buffer.h"
#include "hpcdl/ops/document_attention/document_attention.h"
#include "tools/tune/reference.h"

namespace hpcdl {
namespace {

struct Shape {
  std::int64_t batch, tokens, heads, kv_heads, width;
  DType type = DType::bf16;
};
constexpr Shape kShapes[] = {{4, 4096, 16, 16, 64},
                             {4, 4096, 16, 16, 128},
                             {2, 8192, 32, 8, 128},
                             {16, 1024, 12, 12, 64},
                             {1, 65536, 8, 2, 128},
                             {2, 4096, 8, 8, 256},
                             {4, 2048, 12, 12, 64, DType::f32}};

/// The positions of tokens in `documents` documents a row, whose lengths are equal or drawn.
OwnedTensor positions_of(Stream& s, const Shape& z, std::int64_t documents, bool drawn) {
  OwnedTensor here({{z.batch, z.tokens}, DType::i32}), there(here.tensor.spec(), s.device());
  std::mt19937 random(1);
  for (std::int64_t b = 0; b < z.batch; ++b) {
    std::vector<std::int64_t> starts{0};
    for (std::int64_t i = 1; i < documents; ++i)
      starts.push_back(drawn ? static_cast<std::int64_t>(random() % static_cast<unsigned>(z.tokens))
                             : i * z.tokens / documents);
    std::sort(starts.begin(), starts.end());
    std::int32_t at = 0;
    for (std::int64_t t = 0; t < z.tokens; ++t) {
      if (std::binary_search(starts.begin(), starts.end(), t)) at = 0;
      here.tensor.ptr<std::int32_t>()[b * z.tokens + t] = at++;
    }
  }
  copy(s, there.tensor, here.tensor);
  s.synchronize();
  return there;
}

struct Rows {
  std::string name;
  OwnedTensor positions;
};

nlohmann::ordered_json measured(Stream& s, const Shape& z, int rounds) {
  const Spec of_queries{{z.batch, z.tokens, z.heads * z.width}, z.type},
      of_keys{{z.batch, z.tokens, z.kv_heads * z.width}, z.type}, of_positions{{z.batch, z.tokens}, DType::i32};
  const auto on_device = [&](const Spec& spec) { return OwnedTensor(spec, s.device()); };
  const auto q = on_device(of_queries), k = on_device(of_keys), v = on_device(of_keys), dout = on_device(of_queries),
             out = on_device(of_queries), dq = on_device(of_queries), dk = on_device(of_keys), dv = on_device(of_keys),
             lse = on_device({{z.batch, z.heads, z.tokens}, DType::f32});
  std::uint64_t seed = 0;
  for (const auto* x : {&q, &k, &v, &dout}) lab::tune::fill_random(s, x->tensor, ++seed);
  const DocumentAttention::Args a{.heads = static_cast<int>(z.heads), .kv_heads = static_cast<int>(z.kv_heads)};
  const auto needed = DocumentAttention::backward_scratch(of_queries, of_keys, of_keys, of_positions, a);
  const auto bounds = on_device(needed[0]), scratch = on_device(needed[1]);
  std::vector<Rows> rows;
  for (const std::int64_t n : {1, 8, 64}) rows.push_back({std::to_string(n), positions_of(s, z, n, false)});
  rows.push_back({"8 drawn", positions_of(s, z, 8, true)});

  const auto to = [](const OwnedTensor& x) { return Grad(x.tensor, Write::overwrite); };
  nlohmann::ordered_json row{{"batch", z.batch},       {"tokens", z.tokens}, {"heads", z.heads},
                             {"kv_heads", z.kv_heads}, {"width", z.width},   {"type", dtype_name(z.type)}};
  for (const bool backward : {false, true}) {
    std::vector<bench::Side> sides;
    sides.push_back({"attention", [&] {
                       if (backward)
                         Attention::backward(s, to(dq), to(dk), to(dv), q.tensor, k.tensor, v.tensor, out.tensor,
                                             lse.tensor, dout.tensor, scratch.tensor, a.of_document());
                       else
                         Attention::forward(s, out.tensor, lse.tensor, q.tensor, k.tensor, v.tensor, {},
                                            a.of_document());
                     }});
    for (const auto& r : rows)
      sides.push_back({r.name, [&] {
                         if (backward)
                           DocumentAttention::backward(s, to(dq), to(dk), to(dv), q.tensor, k.tensor, v.tensor,
                                                       r.positions.tensor, out.tensor, lse.tensor, dout.tensor,
                                                       bounds.tensor, scratch.tensor, a);
                         else
                           DocumentAttention::forward(s, out.tensor, lse.tensor, q.tensor, k.tensor, v.tensor,
                                                      r.positions.tensor, bounds.tensor, a);
                       }});
    bench::measure(s, sides, rounds, 2000);
    auto& to_row = row[backward ? "backward_us" : "forward_us"];
    for (const auto& side : sides) to_row[side.name] = std::round(bench::median(side.us) * 10) / 10;
  }
  return row;
}

int run(int rounds) {
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  for (const auto& z : kShapes) std::puts(measured(s, z, rounds).dump().c_str()), std::fflush(stdout);
  return 0;
}

}  // namespace
}  // namespace hpcdl

int main(int argc, char** argv) {
  if (hpcdl::cuda_devices() == 0) return std::puts("documents: no GPU"), 1;
  return hpcdl::run(argc > 1 ? std::atoi(argv[1]) : 7);
}
