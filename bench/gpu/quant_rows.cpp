// Rows of x in bf16 times quantised matrices, compared with the same product of bf16 weights through cuBLASLt. Graphs
// of consecutive products, each with its own weights, which together exceed L2, in turns; medians. Every result is
// compared with that of the decoded weights; decoding alone is compared with a copy of as many bytes.
//   quant_rows [--tiles] [ROWSxNxK...] > JSON      bench/results/NAME/quant_rows.json
// --tiles: each shape of blocks, too.

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/gpu/turns.h"
#include "hpcdl/buffer.h"
#include "hpcdl/ops/matmul/device_gemm.h"
#include "hpcdl/ops/quant_linear/quant_decode.h"
#include "hpcdl/ops/quant_linear/quant_linear.h"
#include "hpcdl/ops/quant_linear/quant_tiles.h"
#include "hpcdl/rng.h"
#include "tools/tune/reference.h"

namespace hpcdl {
namespace {

using bench::Side;

constexpr double kRotatedBytes = 160 << 20;

/// A matrix on a GPU whose rows repeat those of a few.
struct Matrix {
  QuantFormat format;
  QuantParts<OwnedTensor> own;

  Matrix(Stream& s, QuantFormat f, std::int64_t n, std::int64_t k, std::uint64_t seed) : format(f) {
    const auto few = std::min<std::int64_t>(n, 48);
    const auto all = quant_parts(f, n, k), drawn = quant_parts(f, few, k);
    const auto fill = [&](OwnedTensor& to, const Spec& whole, const Spec& part) {
      if (!whole) return;
      to = OwnedTensor(whole, s.device());
      if (whole.dtype == DType::f32) return lab::tune::fill_random(s, to.tensor, seed);
      const OwnedTensor bytes = draw(part, seed);
      for (std::int64_t at = 0; at < whole.bytes(); at += part.bytes()) {
        const Spec piece{{std::min(part.bytes(), whole.bytes() - at)}, DType::u8};
        copy(s, Tensor(static_cast<std::byte*>(to.tensor.data()) + at, piece, s.device()),
             View(bytes.tensor.data(), piece));
      }
      s.synchronize();
    };
    fill(own.codes, all.codes, drawn.codes), fill(own.scale, all.scale, drawn.scale);
    fill(own.outer, all.outer, drawn.outer), fill(own.table, all.table, drawn.table);
  }
  /// Any bytes, but scales in blocks are finite: an exponent near that of 1/8.
  OwnedTensor draw(const Spec& spec, std::uint64_t seed) const {
    OwnedTensor t(spec);
    auto* bytes = static_cast<std::uint8_t*>(t.tensor.data());
    const Rng rng{seed, 7};
    for (std::int64_t i = 0; i < spec.bytes(); ++i)
      bytes[i] = static_cast<std::uint8_t>(rng.bits(static_cast<std::uint64_t>(i)));
    const auto info = quant_format_info(format);
    if (!info.scales_in_blocks) return t;
    for (std::int64_t b = 0; b < spec.bytes(); b += info.block_bytes)
      for (const int at : format == QuantFormat::q6_k   ? std::vector{209}
                          : format == QuantFormat::q4_k ? std::vector{1, 3}
                                                        : std::vector{1})
        bytes[b + at] = static_cast<std::uint8_t>((bytes[b + at] & 0x83) | 0x30);
    return t;
  }
  QuantMatrix matrix() const {
    return {format, {own.codes.tensor, own.scale.tensor, own.outer.tensor, own.table.tensor}};
  }
  std::int64_t bytes() const { return own.codes.tensor.bytes() + (own.scale.tensor ? own.scale.tensor.bytes() : 0); }
};

/// |a - b| / |b|.
double distance(Stream& s, View a, View b) {
  OwnedTensor x(a.spec()), y(b.spec());
  copy(s, x.tensor, a), copy(s, y.tensor, b);
  s.synchronize();
  double apart = 0, size = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const double u = static_cast<float>(x.tensor.ptr<bf16>()[i]), v = static_cast<float>(y.tensor.ptr<bf16>()[i]);
    apart += (u - v) * (u - v), size += v * v;
  }
  return std::sqrt(apart / size);
}

/// All formats with weights (N, K).
struct Bench {
  Stream& s;
  std::int64_t n, k;
  std::vector<OwnedTensor> dense;
  std::vector<std::vector<Matrix>> quantized;

  Bench(Stream& stream, std::int64_t n_, std::int64_t k_) : s(stream), n(n_), k(k_) {
    const auto sets = std::clamp(static_cast<int>(kRotatedBytes / (0.5 * static_cast<double>(n * k))) + 1, 2, 12);
    for (int f = 0; f < kQuantFormats; ++f) {
      const auto format = static_cast<QuantFormat>(f);
      quantized.emplace_back();
      for (int i = 0; i < sets && k % quant_format_info(format).block == 0; ++i)
        quantized.back().emplace_back(s, format, n, k, static_cast<std::uint64_t>(i) + 1);
    }
    for (int i = 0; i < sets; ++i) {
      dense.emplace_back(Spec{{n, k}, DType::bf16}, s.device());
      lab::tune::fill_random(s, dense.back().tensor, static_cast<std::uint64_t>(i));
    }
  }
  cuda::Gemm gemm(View x, View w, Tensor y) const {
    return {.m = x.rows(),
            .n = n,
            .k = k,
            .compute = DType::bf16,
            .a = {x.data(), DType::bf16, k},
            .b = {w.data(), DType::bf16, k, true},
            .out = {.d = y.data(), .dtype = DType::bf16, .ld = n}};
  }
  void multiply(Tensor y, View x, const QuantMatrix& w) const { cuda::quant_linear(s, y, x, w, {}, {}, {}); }

  /// Whether products agree with those of decoded weights.
  void check(View x, Tensor y, Tensor wanted, const Matrix& m) {
    const OwnedTensor decoded(Spec{{n, k}, DType::bf16}, s.device());
    cuda::quant_decode(s, decoded.tensor.data(), DType::bf16, m.matrix(), 0, n, 0, k);
    cuda::gemm(s, gemm(x, decoded.tensor, wanted));
    multiply(y, x, m.matrix());
    const double d = distance(s, y, wanted);
    if (!(d < 0.006))
      std::fprintf(stderr, "WRONG: %s %ldx%ldx%ld differs by %g\n",
                   std::string(quant_format_info(m.format).name).c_str(), static_cast<long>(x.rows()),
                   static_cast<long>(n), static_cast<long>(k), d);
  }
  nlohmann::ordered_json rows(std::int64_t count, bool checked, bool tiles) {
    const OwnedTensor x(Spec{{count, k}, DType::bf16}, s.device()), y(Spec{{count, n}, DType::bf16}, s.device()),
        wanted(y.tensor.spec(), s.device());
    lab::tune::fill_random(s, x.tensor, 1);
    std::vector<Side> sides;
    const auto g = gemm(x.tensor, dense[0].tensor, y.tensor);
    for (const auto& c : cuda::gemm_candidates(s, g))
      if (c.name.find("ublas") != std::string_view::npos || c.name.find("BLAS") != std::string_view::npos)
        sides.push_back({"bf16 cuBLASLt", [&, id = c.id] {
                           for (auto& w : dense) cuda::gemm_with(s, gemm(x.tensor, w.tensor, y.tensor), id);
                         }});
    if (sides.empty()) fail("bench", "expected cuBLASLt, which this machine does not have");
    for (auto& set : quantized) {
      if (set.empty()) continue;
      if (checked) check(x.tensor, y.tensor, wanted.tensor, set[0]);
      sides.push_back({std::string(quant_format_info(set[0].format).name), [&] {
                         for (auto& w : set) multiply(y.tensor, x.tensor, w.matrix());
                       }});
      for (int shape = 1; tiles && shape < cuda::kTileShapes; ++shape)
        sides.push_back(
            {fmt::format("{} {}", sides.back().name.substr(0, sides.back().name.find(' ')), shape), [&, shape] {
               for (auto& w : set) cuda::quant_tiles(s, y.tensor, x.tensor, w.matrix(), {}, {}, shape);
             }});
    }
    bench::measure(s, sides, 5, 1500);
    nlohmann::ordered_json line;
    const double peer = bench::median(sides[0].us);
    for (const auto& side : sides) {
      const double us = bench::median(side.us);
      line[side.name] = {{"us", round2(us / static_cast<double>(dense.size()))}, {"ratio", round2(peer / us)}};
    }
    return line;
  }
  /// Decoding to bf16, and copies between buffers with as many bytes read and written.
  nlohmann::ordered_json decoding() {
    nlohmann::ordered_json line;
    for (auto& set : quantized) {
      if (set.empty()) continue;
      const std::int64_t copied = (set[0].bytes() + dense[0].tensor.bytes()) / 2;
      const View from(dense[1].tensor.data(), {{copied}, DType::u8}, s.device());
      const Tensor to(dense[0].tensor.data(), {{copied}, DType::u8}, s.device());
      std::vector<Side> sides;
      sides.push_back({"copy", [&] { copy(s, to, from); }});
      sides.push_back({"decoding", [&] {
                         cuda::quant_decode(s, dense[0].tensor.data(), DType::bf16, set[0].matrix(), 0, n, 0, k);
                       }});
      bench::measure(s, sides, 5, 1500);
      const double us = bench::median(sides[1].us);
      line[std::string(quant_format_info(set[0].format).name)] = {{"us", round2(us)},
                                                                  {"of copy", round2(bench::median(sides[0].us) / us)}};
    }
    return line;
  }
  static double round2(double v) { return std::round(v * 100) / 100; }
};

int run(int argc, char** argv) {
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  cudaDeviceProp gpu;
  cuda::check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  nlohmann::ordered_json all{{"machine", {{"gpu", gpu.name}}},
                             {"case",
                              "x in bf16 times quantised weights, against bf16 weights through cuBLASLt; graphs of "
                              "products one after the other, each on weights of its own, in turns; medians"}};
  struct Shape2 {
    std::int64_t n, k;
    std::vector<std::int64_t> rows;
  };
  std::vector<Shape2> shapes;
  const bool tiles = argc > 1 && std::string_view(argv[1]) == "--tiles";
  for (int i = tiles ? 2 : 1; i < argc; ++i) {
    long m = 0, n = 0, k = 0;
    require(std::sscanf(argv[i], "%ldx%ldx%ld", &m, &n, &k) == 3, "bench", "expected ROWSxNxK, got {}", argv[i]);
    shapes.push_back({n, k, {m}});
  }
  const std::vector<std::int64_t> rows{1, 2, 4, 8, 16, 32, 64, 128, 512, 4096};
  if (shapes.empty())
    shapes = {{28672, 8192, rows},
              {4096, 14336, rows},
              {4096, 4096, rows},
              {131072, 4096, {1, 16, 64}},
              {5001, 2816, {1, 7, 33}}};
  for (const auto& shape : shapes) {
    Bench bench(s, shape.n, shape.k);
    for (const auto m : shape.rows) {
      const auto name = fmt::format("{}x{}x{}", m, shape.n, shape.k);
      all[name] = bench.rows(m, m <= 128, tiles && m <= 256);
      std::fprintf(stderr, "%s %s\n", name.c_str(), all[name].dump().c_str());
    }
    const auto name = fmt::format("decoding {}x{}", shape.n, shape.k);
    all[name] = bench.decoding();
    std::fprintf(stderr, "%s %s\n", name.c_str(), all[name].dump().c_str());
  }
  std::puts(all.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace hpcdl

int main(int argc, char** argv) { return hpcdl::run(argc, argv); }
