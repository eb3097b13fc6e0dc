// Shapes that no kernel is made for, in turns: attention with heads whose width is not a multiple of 8 in every way that
// fits, and norms of odd rows next to a copy of as many bytes. Graphs of one call; medians in us.
//   awkward > JSON      bench/results/NAME/awkward.json; bench/gpu/awkward.py adds PyTorch
//   awkward list        the names of its cases of attention

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/gpu/turns.h"
#include "hpcdl/buffer.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/ops/attention/device_attention.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/ops/matmul/device_gemm.h"
#include "hpcdl/ops/rms_norm/rms_norm.h"
#include "tools/tune/reference.h"

namespace hpcdl {
namespace {

using bench::Side;

OwnedTensor random(Stream& s, const Spec& spec, std::uint64_t seed) {
  OwnedTensor t(spec, s.device());
  lab::tune::fill_random(s, t.tensor, seed);
  return t;
}

nlohmann::ordered_json table(Stream& s, const std::string& name, std::vector<Side>& sides) {
  bench::measure(s, sides);
  nlohmann::ordered_json line;
  for (const auto& side : sides) line[side.name] = std::stod(fmt::format("{:.2f}", bench::median(side.us)));
  std::fprintf(stderr, "%s %s\n", name.c_str(), line.dump().c_str());
  return line;
}

struct Heads {
  std::int64_t batch, heads, kv_heads, tokens, width;
  bool causal = true;
  DType dtype = DType::bf16;
  bool tf32 = false, backward = true;
  std::int64_t more = 0;  // MiB of scratch
};

std::string name_of(const Heads& h, bool backward) {
  return fmt::format("attention {}x{}x{}x{}{} {}{}{} {}", h.batch, h.heads, h.tokens, h.width,
                     h.kv_heads == h.heads ? "" : fmt::format(" kv {}", h.kv_heads), dtype_name(h.dtype),
                     h.tf32 ? " tf32" : "", h.causal ? " causal" : "", backward ? "backward" : "forward") +
         (h.more > 0 ? fmt::format(" more {}", h.more) : "");
}

void attention(Stream& s, const Heads& h, nlohmann::ordered_json& all) {
  const WithNumerics numerics(s,
                              {.products = h.tf32 ? F32Products::tf32 : F32Products::exact, .atomic_sums = h.more > 0});
  const Spec q{{h.batch, h.tokens, h.heads, h.width}, h.dtype}, k{{h.batch, h.tokens, h.kv_heads, h.width}, h.dtype};
  const Attention::Args args{
      .heads = static_cast<int>(h.heads), .kv_heads = static_cast<int>(h.kv_heads), .causal = h.causal};
  const auto q_ = random(s, q, 1), k_ = random(s, k, 2), v_ = random(s, k, 3), dout = random(s, q, 4);
  const OwnedTensor out(q, s.device()), dq(q, s.device()), dk(k, s.device()), dv(k, s.device()),
      lse(Spec{{h.batch, h.heads, h.tokens}, DType::f32}, s.device()),
      scratch(Spec{{Attention::backward_scratch(q, k, k, args)[0].size() + (h.more << 18)}, DType::f32}, s.device());
  const cuda::Attend forward{out.tensor, lse.tensor, q_.tensor, k_.tensor, v_.tensor, {}, args};
  const auto times = [&](const auto& call, bool backward) {
    const auto list = cuda::attention_candidates(s, call);
    const auto picked = cuda::attention_choice(s, call);
    std::vector<Side> sides;
    std::string chosen;
    for (const auto& way : std::vector<cuda::AttentionCandidate>(list.begin(), list.end())) {
      if (way.id == picked) chosen = way.name;
      if (way.id == picked || way.name != "plain")
        sides.push_back({std::string(way.name), [&s, &call, id = way.id] { cuda::attention_with(s, call, id); }});
    }
    auto& line = all[name_of(h, backward)] = table(s, name_of(h, backward), sides);
    line["picked"] = chosen;
  };
  times(forward, false);
  if (!h.backward) return;
  cuda::AttendBackward c{forward,
                         {dq.tensor, Write::overwrite},
                         {dk.tensor, Write::overwrite},
                         {dv.tensor, Write::overwrite},
                         dout.tensor};
  c.scratch = scratch.tensor;
  times(c, true);
}

struct Rows {
  std::int64_t rows, cols;
  DType dtype = DType::bf16;
};

void norms(Stream& s, const Rows& r, nlohmann::ordered_json& all) {
  const Spec x{{r.rows, r.cols}, r.dtype}, row{{r.rows}, DType::f32}, column{{r.cols}, r.dtype};
  const auto x_ = random(s, x, 1), dy = random(s, x, 2), gamma = random(s, column, 3), beta = random(s, column, 4);
  const OwnedTensor y(x, s.device()), dx(x, s.device()), mean(row, s.device()), rstd(row, s.device()),
      dgamma(column, s.device()), dbeta(column, s.device()), scratch(detail::norm_scratch(x), s.device());
  const auto grad = [](const OwnedTensor& t) { return Grad(t.tensor, Write::overwrite); };
  std::vector<Side> sides{
      {"layer_norm",
       [&] { LayerNorm::forward(s, y.tensor, mean.tensor, rstd.tensor, x_.tensor, gamma.tensor, beta.tensor, {}); }},
      {"rms_norm", [&] { RmsNorm::forward(s, y.tensor, rstd.tensor, x_.tensor, gamma.tensor, {}); }},
      {"copy", [&] { copy(s, y.tensor, x_.tensor); }},
      {"layer_norm backward",
       [&] {
         LayerNorm::backward(s, grad(dx), grad(dgamma), grad(dbeta), x_.tensor, gamma.tensor, mean.tensor, rstd.tensor,
                             dy.tensor, scratch.tensor, {});
       }},
      {"rms_norm backward", [&] {
         RmsNorm::backward(s, grad(dx), grad(dgamma), x_.tensor, gamma.tensor, rstd.tensor, dy.tensor, scratch.tensor,
                           {});
       }}};
  const std::string name = fmt::format("norms {}x{} {}", r.rows, r.cols, dtype_name(r.dtype));
  all[name] = table(s, name, sides);
}

struct Product {
  std::int64_t m, n, k;
  bool a_transposed, b_transposed;
  DType dtype = DType::bf16;
};

void products(Stream& s, const Product& p, nlohmann::ordered_json& all) {
  const auto a = random(s, {{p.m, p.k}, p.dtype}, 1), b = random(s, {{p.k, p.n}, p.dtype}, 2);
  const OwnedTensor d(Spec{{p.m, p.n}, p.dtype}, s.device());
  const cuda::Gemm g{.m = p.m,
                     .n = p.n,
                     .k = p.k,
                     .compute = p.dtype,
                     .a = {a.tensor.data(), p.dtype, p.a_transposed ? p.m : p.k, p.a_transposed},
                     .b = {b.tensor.data(), p.dtype, p.b_transposed ? p.k : p.n, p.b_transposed},
                     .out = {.d = d.tensor.data(), .dtype = p.dtype, .ld = p.n}};
  std::vector<Side> sides;
  const auto list = cuda::gemm_candidates(s, g);
  for (const auto& way : std::vector<cuda::GemmCandidate>(list.begin(), list.end()))
    if (way.name == "plain" || way.name == "cublasLt")
      sides.push_back({std::string(way.name), [&s, &g, id = way.id] { cuda::gemm_with(s, g, id); }});
  sides.push_back({"chosen", [&s, &g] { cuda::gemm(s, g); }});
  const std::string name = fmt::format("product {}x{}x{}{}{} {}", p.m, p.n, p.k, p.a_transposed ? " tn" : "",
                                       p.b_transposed ? " nt" : "", dtype_name(p.dtype));
  all[name] = table(s, name, sides);
}

int run(bool list) {
  const std::vector<Product> small = {
      {4, 767, 768, false, false},  {4, 768, 767, false, true},    {768, 767, 4, true, false},
      {4, 768, 767, false, false},  {8, 767, 768, false, false},   {16, 767, 768, false, true},
      {32, 100, 1000, false, true}, {32, 101, 1001, false, false}, {64, 255, 255, false, false},
      {64, 64, 63, false, true},    {16, 33, 1001, false, true},   {1, 1001, 511, false, false},
      {100, 33, 4000, true, false}, {255, 255, 33, true, false},   {1000, 77, 8, true, false},
      {2, 77, 5000, false, false}};
  const std::vector<Rows> rows = {{4099, 5001},
                                  {4099, 5001, DType::f32},
                                  {8191, 8193},
                                  {16384, 3001},
                                  {16384, 1001},
                                  {30000, 1601, DType::f32},
                                  {65536, 257},
                                  {100000, 99},
                                  {2048, 5120, DType::f32},
                                  {4104, 8200},
                                  {4096, 6001, DType::f32},
                                  {2000, 12001},
                                  {64, 5001}};
  const std::vector<Heads> heads = {
      {16, 8, 8, 256, 156},
      {4, 12, 12, 1024, 20},
      {4, 12, 12, 1024, 36, false},
      {4, 12, 12, 1024, 44},
      {4, 12, 4, 1024, 50},
      {4, 16, 16, 2048, 76, false},
      {4, 16, 16, 2048, 100},
      {4, 16, 16, 4096, 100},
      {2, 16, 16, 2048, 130},
      {4, 12, 12, 1024, 44, true, DType::f16},
      {4, 12, 12, 1024, 50, true, DType::f32},
      {4, 12, 12, 1024, 50, true, DType::f32, true},
      {1, 14, 14, 2040, 184, false, DType::f32},
      {1, 14, 14, 2040, 184, false, DType::f32, true},
      {2, 8, 8, 1024, 256, true, DType::f32},
      {2, 8, 8, 16, 20},
      {2, 8, 8, 32, 36},
      {2, 8, 8, 64, 50},
      {2, 8, 8, 128, 100},
      {8, 8, 8, 32, 100, true, DType::f32},
      {2, 8, 8, 128, 50, true, DType::f32},
      {2, 16, 16, 4096, 144, true, DType::bf16, false, true, 1},
      {2, 16, 16, 4096, 144, true, DType::bf16, false, true, 200},
      {2, 16, 16, 4096, 144, true, DType::bf16, false, true, 1000},
      {2, 16, 16, 4096, 256, true, DType::bf16, false, true, 1},
      {2, 16, 16, 4096, 256, true, DType::bf16, false, true, 200},
      {2, 16, 16, 4096, 256, true, DType::bf16, false, true, 1000},
      {4, 16, 16, 2048, 256, true, DType::bf16, false, true, 1},
      {4, 16, 16, 2048, 256, true, DType::bf16, false, true, 400},
      {2, 16, 16, 4096, 192, false, DType::bf16, false, true, 1},
      {2, 16, 16, 4096, 192, false, DType::bf16, false, true, 200},
      {2, 16, 16, 4096, 192, false, DType::bf16, false, true, 1000},
  };
  if (list) {
    for (const auto& h : heads)
      for (const bool backward : {false, true})
        if (h.more == 0 && (!backward || h.backward)) std::puts(name_of(h, backward).c_str());
    return 0;
  }
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  cudaDeviceProp gpu;
  cuda::check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  nlohmann::ordered_json all{
      {"machine", {{"gpu", gpu.name}}},
      {"case",
       "graphs of one call, in turns, medians; heads: batch x heads x tokens x width; backward of a norm reads two "
       "rows and writes one, so a copy of as many bytes takes one and a half times the time of the copy"},
      {"unit", "us"}};
  for (const auto& p : small) products(s, p, all);
  for (const auto& r : rows) norms(s, r, all);
  for (const auto& h : heads) attention(s, h, all);
  std::puts(all.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace hpcdl

int main(int argc, char** argv) { return hpcdl::run(argc > 1 && std::string_view(argv[1]) == "list"); }
