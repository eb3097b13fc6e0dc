// One row of x times 4-bit weights, in every possible way, compared with kernels that only move the same bytes: graphs
// of consecutive products, each with its own weights, which together exceed L2 several times, in turns; medians.
// The choices of int4_built_in (hpcdl/ops/int4_linear/int4_linear.cu) are based on its table.
//   int4_row [N K [GROUP]] > JSON      bench/results/NAME/int4_row.json
//   int4_row once N K                  each way once, for a profiler

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/gpu/turns.h"
#include "hpcdl/buffer.h"
#include "hpcdl/core/cuda_runtime.h"
#include "hpcdl/ops/int4_linear/int4_ways.h"
#include "hpcdl/stream.h"
#include "tools/tune/reference.h"

namespace hpcdl {
namespace {

using bench::Side;

constexpr int kThreads = 512;
constexpr double kRotatedBytes = 200 << 20;

__global__ void __launch_bounds__(kThreads) copy_pieces(const uint4* from, uint4* to, std::int64_t n) {
  for (std::int64_t i = blockIdx.x * kThreads + threadIdx.x; i < n; i += gridDim.x * std::int64_t{kThreads})
    to[i] = from[i];
}
__global__ void __launch_bounds__(kThreads) read_pieces(const uint4* from, std::int64_t n, unsigned* to) {
  unsigned sum = 0;
  for (std::int64_t i = blockIdx.x * kThreads + threadIdx.x; i < n; i += gridDim.x * std::int64_t{kThreads})
    sum ^= from[i].x ^ from[i].y ^ from[i].z ^ from[i].w;
  if (sum == 0x12345) *to = sum;
}

struct Case {
  std::int64_t n, k, group = 64;
  bool offsets = false;
};

/// Operands of one product.
struct Operands {
  OwnedTensor packed, scale, y;
  Operands(Stream& s, const Case& p, std::uint64_t seed)
      : packed(int4::packed_spec(p.n, p.k), s.device()),
        scale(int4::scale_spec(p.n, p.k, p.group), s.device()),
        y(Spec{{1, p.n}, DType::bf16}, s.device()) {
    lab::tune::fill_random(s, packed.tensor, seed), lab::tune::fill_random(s, scale.tensor, seed + 1);
  }
};

/// Every way with constant weights, then the one that is chosen without that knowledge, then kernels that move the same
/// bytes.
std::vector<Side> sides_of(Stream& s, const Case& p, const OwnedTensor& x, std::vector<Operands>& sets,
                           const OwnedTensor& target, std::int64_t bytes) {
  const auto weight = [&p](const Operands& o) {
    return int4::Weight{o.packed.tensor, o.scale.tensor, p.offsets ? View(o.scale.tensor) : View()};
  };
  const auto product = [&s, &x, &sets, weight](int way, bool constant) {
    return [&s, &x, &sets, weight, way, constant] {
      for (auto& o : sets)
        cuda::int4_linear_by(way, s, o.y.tensor, x.tensor, weight(o), {}, {}, {}, {.constant_weights = constant});
    };
  };
  std::vector<Side> sides;
  const auto shape = [&](bool constant) {
    return cuda::int4_shape(s, sets[0].y.tensor, x.tensor, weight(sets[0]), {}, {.constant_weights = constant});
  };
  for (const auto& way : cuda::int4_ways(s, shape(true)))
    if (!way.name.starts_with("rows") && !way.name.starts_with("tiles"))  // of one row
      sides.push_back({std::string(way.name), product(way.id, true)});
  sides.push_back({"weights that may change", product(cuda::int4_built_in(s, shape(false)), false)});
  auto* to = static_cast<uint4*>(target.tensor.data());
  sides.push_back({"copy of as few bytes", [&s, &sets, to, bytes] {
                     for (auto& o : sets)
                       copy_pieces<<<264, kThreads, 0, cuda::queue(s)>>>(o.packed.tensor.ptr<uint4>(), to, bytes / 32);
                   }});
  sides.push_back({"read of as few bytes", [&s, &sets, to] {
                     for (auto& o : sets)
                       read_pieces<<<528, kThreads, 0, cuda::queue(s)>>>(
                           o.packed.tensor.ptr<uint4>(), o.packed.tensor.bytes() / 16, reinterpret_cast<unsigned*>(to));
                   }});
  return sides;
}

nlohmann::ordered_json table(Stream& s, const Case& p) {
  const OwnedTensor x(Spec{{1, p.k}, DType::bf16}, s.device());
  lab::tune::fill_random(s, x.tensor, 1);
  const std::int64_t weights = p.n * p.k / 2 + p.n * p.k / p.group * (p.offsets ? 4 : 2),
                     bytes = weights + 2 * (p.n + p.k);
  std::vector<Operands> sets;
  for (int i = 0; i < std::clamp(static_cast<int>(kRotatedBytes / static_cast<double>(weights)) + 1, 2, 64); ++i)
    sets.emplace_back(s, p, 2 * static_cast<std::uint64_t>(i) + 2);
  const OwnedTensor target(Spec{{bytes}, DType::u8}, s.device());
  auto sides = sides_of(s, p, x, sets, target, bytes);
  bench::measure(s, sides);
  nlohmann::ordered_json line{{"bytes", bytes}};
  const auto picked = cuda::int4_built_in(
      s, cuda::int4_shape(s, sets[0].y.tensor, x.tensor, {sets[0].packed.tensor, sets[0].scale.tensor, {}}, {},
                          {.constant_weights = true}));
  for (const auto& way : cuda::int4_ways(s, {.rows = 1, .n = p.n, .k = p.k, .group = p.group, .constant = true}))
    if (way.id == picked) line["picked"] = std::string(way.name);
  for (const auto& side : sides)
    line[side.name] = std::stod(fmt::format("{:.3f}", bench::median(side.us) / static_cast<double>(sets.size())));
  return line;
}

std::string name_of(const Case& p) {
  return fmt::format("N{} K{}{}{}", p.n, p.k, p.group == 64 ? "" : fmt::format(" groups of {}", p.group),
                     p.offsets ? " offsets" : "");
}

void once(Stream& s, const Case& p) {
  const OwnedTensor x(Spec{{1, p.k}, DType::bf16}, s.device());
  lab::tune::fill_random(s, x.tensor, 1);
  std::vector<Operands> sets;
  sets.emplace_back(s, p, 2), sets.emplace_back(s, p, 4);
  const OwnedTensor target(Spec{{p.n * p.k}, DType::u8}, s.device());
  for (auto& side : sides_of(s, p, x, sets, target, p.n * p.k / 2)) side.queue();
  s.synchronize();
}

int run(int argc, char** argv) {
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  if (argc == 4 && std::string_view(argv[1]) == "once") {
    once(s, {std::atoll(argv[2]), std::atoll(argv[3])});
    return 0;
  }
  std::vector<Case> shapes = {
      {4096, 4096},      {4096, 2048},           {1024, 4096},          {2048, 4096},  {8192, 4096},   {14336, 4096},
      {6144, 4096},      {3072, 3072},           {2048, 2048},          {768, 768},    {2304, 768},    {3072, 768},
      {768, 3072},       {50304, 768},           {5632, 2048},          {32000, 4096}, {128256, 4096}, {4096, 4096, 32},
      {4096, 4096, 128}, {4096, 4096, 64, true}, {4096, 4096, 32, true}};
  if (argc >= 3) shapes = {{std::atoll(argv[1]), std::atoll(argv[2]), argc > 3 ? std::atoll(argv[3]) : 64}};
  cudaDeviceProp gpu;
  cuda::check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  nlohmann::ordered_json all{
      {"machine", {{"gpu", gpu.name}}},
      {"case",
       "INT4, one row of x in bf16, groups of 64 unless said; graphs of products one after the "
       "other, each on weights of its own, in turns with kernels that move as many bytes; medians"},
      {"unit", "us"}};
  for (const auto& p : shapes) {
    all[name_of(p)] = table(s, p);
    std::fprintf(stderr, "%s %s\n", name_of(p).c_str(), all[name_of(p)].dump().c_str());
  }
  std::puts(all.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace hpcdl

int main(int argc, char** argv) { return hpcdl::run(argc, argv); }
