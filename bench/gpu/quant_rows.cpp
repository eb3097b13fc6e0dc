// Rows of x in bf16 times quantised matrices, compared with the same product of bf16 weights through cuBLASLt. Graphs
// of consecutive products, each with its own weights, which together exceed L2, in turns; medians. Every result is
// compared with that of the decoded weights; decoding alone is compared with a copy of as many bytes.
//   quant_rows [--tiles] [--formats A,B...] [ROWSxNxK...] > JSON      bench/results/NAME/quant_rows.json
// --tiles: each shape of blocks, too. --formats: these alone.

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/gpu/turns.h"
#include "hpcdl/buffer.h"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/matmul/device_gemm.h"
#include "hpcdl/ops/quant_linear/quant_decode.h"
#include "hpcdl/ops/quant_linear/quant_linear.h"
#include "hpcdl/ops/quant_linear/quant_tiles.h"
#include "hpcdl/ops/quant_linear/quant_wide.h"
#include "hpcdl/ops/quant_linear/rotate_rows.h"
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
      const OwnedTensor bytes = draw(part, seed, &to == &own.scale);
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
  /// Any bytes, but scales of F16 in blocks and of E8M0 have exponents near that of 1/8.
  OwnedTensor draw(const Spec& spec, std::uint64_t seed, bool is_scale) const {
    OwnedTensor t(spec);
    auto* bytes = static_cast<std::uint8_t*>(t.tensor.data());
    const Rng rng{seed, 7};
    for (std::int64_t i = 0; i < spec.bytes(); ++i)
      bytes[i] = static_cast<std::uint8_t>(rng.bits(static_cast<std::uint64_t>(i)));
    const auto info = quant_format_info(format);
    if (is_scale && info.scale == DType::u8)
      for (std::int64_t i = 0; i < spec.bytes(); ++i) bytes[i] = static_cast<std::uint8_t>(120 + bytes[i] % 8);
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

  /// `formats`: ",A,B,", or empty for all.
  Bench(Stream& stream, std::int64_t n_, std::int64_t k_, const std::string& formats) : s(stream), n(n_), k(k_) {
    const auto sets = std::clamp(static_cast<int>(kRotatedBytes / (0.5 * static_cast<double>(n * k))) + 1, 2, 12);
    for (int f = 0; f < kQuantFormats; ++f) {
      const auto format = static_cast<QuantFormat>(f);
      if (!formats.empty() && formats.find(fmt::format(",{},", quant_format_info(format).name)) == formats.npos)
        continue;
      if (format == QuantFormat::fp4 || format == QuantFormat::fp4_double) continue;  // as nf4, with other values
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
  void multiply(Tensor y, View x, const QuantMatrix& w) const { cuda::quant_linear(s, y, x, w, {}, {}, true); }

  /// The product by panels of W that are decoded to so many bytes at a time.
  void by_panels(Tensor y, View x, const QuantMatrix& w, std::int64_t bytes) const {
    void* const memory = cuda::workspace(s, 1);
    const std::int64_t share = bytes / (2 * k) / 256 * 256;
    for (std::int64_t first = 0; first < n; first += share) {
      const std::int64_t rows = std::min(share, n - first);
      cuda::quant_decode(s, memory, DType::bf16, w, first, rows, 0, k);
      auto g = gemm(x, View(memory, {{rows, k}, DType::bf16}, s.device()), y);
      g.n = rows, g.out.d = y.ptr<bf16>() + first;
      cuda::gemm(s, g);
    }
  }
  /// Whether products agree with those of decoded weights: that of the op, and those of every shape of wide blocks.
  void check(View x, Tensor y, Tensor wanted, const Matrix& m, bool wide) {
    const OwnedTensor decoded(Spec{{n, k}, DType::bf16}, s.device());
    cuda::quant_decode(s, decoded.tensor.data(), DType::bf16, m.matrix(), 0, n, 0, k);
    cuda::gemm(s, gemm(x, decoded.tensor, wanted));
    multiply(y, x, m.matrix());
    compare(x, y, wanted, m, "");
    if (!wide || !cuda::quant_wide_can(s, x, m.matrix())) return;
    const OwnedTensor rotated(x.spec(), s.device());
    if (quant_format_info(m.format).rotated) {
      cuda::rotate_rows(s, rotated.tensor.data(), DType::bf16, x);
      x = rotated.tensor;
    }
    each_wide(x.rows(), [&](cuda::WideShape shape) {
      cuda::check(cudaMemsetAsync(y.data(), 0, static_cast<std::size_t>(y.bytes()), cuda::queue(s)), "cudaMemset");
      cuda::quant_wide(s, y, x, m.matrix(), {}, {}, true, shape);
      compare(x, y, wanted, m, fmt::format(" wide {}/{}", shape.cols, shape.splits));
    });
  }
  void compare(View x, View y, View wanted, const Matrix& m, const std::string& way) {
    const double d = distance(s, y, wanted);
    if (!(d < 0.006))
      std::fprintf(stderr, "WRONG: %s%s %ldx%ldx%ld differs by %g\n",
                   std::string(quant_format_info(m.format).name).c_str(), way.c_str(), static_cast<long>(x.rows()),
                   static_cast<long>(n), static_cast<long>(k), d);
  }
  template <class F> void each_wide(std::int64_t count, F&& f) const {
    for (const int cols : cuda::kWideCols)
      for (int splits = 1; splits <= cuda::kMostWideSplits; splits *= 2)
        if (cols < 2 * count && (splits == 1 || n < 132 * 64)) f(cuda::WideShape{cols, splits});
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
      if (checked) check(x.tensor, y.tensor, wanted.tensor, set[0], tiles && count > 8);
      sides.push_back({std::string(quant_format_info(set[0].format).name), [&] {
                         for (auto& w : set) multiply(y.tensor, x.tensor, w.matrix());
                       }});
      const std::string name(quant_format_info(set[0].format).name);
      if (tiles && count > 8 && cuda::quant_wide_can(s, x.tensor, set[0].matrix()))
        each_wide(count, [&](cuda::WideShape shape) {
          sides.push_back({fmt::format("{} wide {}/{}", name, shape.cols, shape.splits), [&, shape] {
                             for (auto& w : set)
                               cuda::quant_wide(s, y.tensor, x.tensor, w.matrix(), {}, {}, true, shape);
                           }});
        });
      for (const std::int64_t mib : {12, 16, 24, 32, 48, 64})
        if (tiles && count > 64 && n * k * 2 > mib << 20)
          sides.push_back({fmt::format("{} panels {}", name, mib), [&, mib] {
                             for (auto& w : set) by_panels(y.tensor, x.tensor, w.matrix(), mib << 20);
                           }});
      for (int shape = 1; tiles && count <= 128 && shape < cuda::kTileShapes; ++shape)
        sides.push_back({fmt::format("{} {}", name, shape), [&, shape] {
                           for (auto& w : set)
                             cuda::quant_tiles(s, y.tensor, x.tensor, w.matrix(), {}, {}, true, shape);
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
  bool tiles = false;
  std::string formats;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    if (word == "--tiles") {
      tiles = true;
      continue;
    }
    if (word == "--formats" && i + 1 < argc) {
      formats = fmt::format(",{},", argv[++i]);
      continue;
    }
    long m = 0, n = 0, k = 0;
    require(std::sscanf(argv[i], "%ldx%ldx%ld", &m, &n, &k) == 3, "bench", "expected ROWSxNxK, got {}", argv[i]);
    if (!shapes.empty() && shapes.back().n == n && shapes.back().k == k) shapes.back().rows.push_back(m);
    else shapes.push_back({n, k, {m}});
  }
  const std::vector<std::int64_t> rows{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 4096};
  if (shapes.empty())
    shapes = {{28672, 8192, rows},         {4096, 14336, rows},      {4096, 4096, rows},
              {131072, 4096, {1, 16, 64}}, {5001, 2816, {1, 7, 33}}, {333, 4160, {1, 7, 33, 100}}};
  for (const auto& shape : shapes) {
    Bench bench(s, shape.n, shape.k, formats);
    for (const auto m : shape.rows) {
      const auto name = fmt::format("{}x{}x{}", m, shape.n, shape.k);
      all[name] = bench.rows(m, m <= 512, tiles && m <= 4096);
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
