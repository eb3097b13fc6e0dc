// Some rows of x in bf16 times 4-bit weights, compared with the same product of bf16 weights: through cuBLASLt and by
// the kernel that gemm() chooses. Graphs of consecutive products, each with its own weights, which together exceed L2
// several times, in turns; medians. Every result is compared with that of bf16.
//   int4_rows [--tiles] [--exact] [ROWSxNxK/GROUP ...] > JSON      bench/results/NAME/int4_rows.json
//   --tiles: each tile of the widened product, too. --exact: weights are not rounded. --steps: instead, what a step of
//   each tile takes on a full GPU, and what a block takes besides, by the number of blocks that divide K.

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/gpu/turns.h"
#include "hpcdl/buffer.h"
#include "hpcdl/ops/int4_linear/int4_widen.h"
#include "hpcdl/ops/int4_linear/int4_widened.h"
#include "hpcdl/ops/matmul/cublas_lt.h"
#include "hpcdl/ops/matmul/device_gemm.h"
#include "tools/tune/reference.h"

namespace hpcdl {
namespace {

using bench::Side;

constexpr double kRotatedBytes = 160 << 20;

struct Case {
  std::int64_t rows, n, k, group = 64;
};

/// One matrix, in 4 bits and in bf16.
struct Weights {
  OwnedTensor packed, scale, dense;
  Weights(Stream& s, const Case& p, std::uint64_t seed)
      : packed(int4::packed_spec(p.n, p.k), s.device()),
        scale(int4::scale_spec(p.n, p.k, p.group), s.device()),
        dense(Spec{{p.n, p.k}, DType::bf16}, s.device()) {
    lab::tune::fill_random(s, packed.tensor, seed), lab::tune::fill_random(s, scale.tensor, seed + 1);
    cuda::int4_widen(s, dense.tensor.data(), DType::bf16, weight(), 0, p.n);
  }
  int4::Weight weight() const { return {packed.tensor, scale.tensor, {}}; }
};

/// |a - b| / |b| of the last rows.
double distance(Stream& s, View all, View of_all) {
  const std::int64_t rows = std::min(all.rows(), std::max<std::int64_t>(1, (1 << 19) / all.cols())),
                     from = (all.rows() - rows) * all.cols();
  const Spec spec{{rows, all.cols()}, DType::bf16};
  const View a(all.ptr<bf16>() + from, spec, s.device()), b(of_all.ptr<bf16>() + from, spec, s.device());
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

struct Bench {
  Stream& s;
  Case p;
  OwnedTensor x, y, wanted;
  std::array<OwnedTensor, 3> scratch;
  std::vector<Weights> sets;

  Bench(Stream& s_, const Case& p_)
      : s(s_),
        p(p_),
        x(Spec{{p.rows, p.k}, DType::bf16}, s.device()),
        y(Spec{{p.rows, p.n}, DType::bf16}, s.device()),
        wanted(y.tensor.spec(), s.device()) {
    lab::tune::fill_random(s, x.tensor, 1);
    const int count = static_cast<int>(kRotatedBytes / (0.53 * static_cast<double>(p.n * p.k))) + 1;
    for (int i = 0; i < std::clamp(count, 2, 12); ++i) sets.emplace_back(s, p, 2 * static_cast<std::uint64_t>(i) + 2);
    const auto specs =
        Int4Linear::scratch(x.tensor.spec(), sets[0].packed.tensor.spec(), sets[0].scale.tensor.spec(), {}, {}, {}, {});
    for (std::size_t i = 0; i < specs.size(); ++i) scratch[i] = OwnedTensor(specs[i], s.device());
  }
  cuda::Gemm gemm(const Weights& w, Tensor to) const {
    return {.m = p.rows,
            .n = p.n,
            .k = p.k,
            .compute = DType::bf16,
            .a = {x.tensor.data(), DType::bf16, p.k},
            .b = {w.dense.tensor.data(), DType::bf16, p.k, true},
            .out = {.d = to.data(), .dtype = DType::bf16, .ld = p.n}};
  }
  template <class F> Side side(std::string name, F f) {
    return {std::move(name), [this, f] {
              for (auto& w : sets) f(w);
            }};
  }
  nlohmann::ordered_json run(bool tiles, bool exact) {
    const Int4Linear::Args args{.exact = exact, .constant_weights = true};
    const auto by_tile = [this, args](const cuda::WidenedTile& t, Weights& w) {
      cuda::int4_linear_widened(t, s, y.tensor, x.tensor, w.weight(), {}, {}, args);
    };
    std::vector<Side> sides;
    sides.push_back(side("int4", [this, args](Weights& w) {
      cuda::int4_linear(s, y.tensor, x.tensor, w.weight(), {}, {},
                        {scratch[0].tensor, scratch[1].tensor, scratch[2].tensor}, args);
    }));
    int library = -1;
    for (const auto& c : cuda::gemm_candidates(s, gemm(sets[0], y.tensor)))
      if (c.name.find("ublas") != std::string_view::npos || c.name.find("BLAS") != std::string_view::npos)
        library = c.id;
    if (library >= 0)
      sides.push_back(
          side("bf16 cuBLASLt", [this, library](Weights& w) { cuda::gemm_with(s, gemm(w, wanted.tensor), library); }));
    sides.push_back(side("bf16 chosen", [this](Weights& w) { cuda::gemm(s, gemm(w, wanted.tensor)); }));
    if (tiles && p.rows > 8 && cuda::fits_widened(s, x.tensor, sets[0].weight())) {
      for (auto t : cuda::widened_tiles(exact))
        for (int splits : {1, 2, 3, 4, 6, 8})
          if (splits * 128 <= p.k && t.cols < 2 * p.rows) {
            t.splits = splits;
            sides.push_back(side(cuda::name_of(t), [by_tile, t](Weights& w) { by_tile(t, w); }));
          }
    }
    for (auto& side : sides) {
      sides[1].queue(), side.queue();
      s.synchronize();
      const double d = distance(s, y.tensor, wanted.tensor);
      if (!side.name.starts_with("bf16") && !(d < (side.name == "int4" && p.rows <= 32 ? 0.02 : 0.004)))
        std::fprintf(stderr, "WRONG: %s differs by %g\n", side.name.c_str(), d);
    }
    bench::measure(s, sides, tiles ? 3 : 5, 3000);
    nlohmann::ordered_json line;
    double peer = 1e30;
    for (const auto& side : sides) {
      const double us = bench::median(side.us) / static_cast<double>(sets.size());
      line[side.name] = std::stod(fmt::format("{:.2f}", us));
      if (side.name.starts_with("bf16")) peer = std::min(peer, us);
    }
    line["tile"] = cuda::name_of(cuda::widened_plan(s, p.rows, p.n, p.k, exact), p.n);
    line["ratio"] = std::stod(fmt::format("{:.3f}", peer / line["int4"].get<double>()));
    return line;
  }
};

/// Microseconds of one product with this tile.
double time_of(Stream& s, const Case& p, const cuda::WidenedTile& t) {
  Bench b(s, p);
  std::vector<Side> sides;
  sides.push_back(b.side("", [&](Weights& w) {
    cuda::int4_linear_widened(t, s, b.y.tensor, b.x.tensor, w.weight(), {}, {},
                              {.exact = t.exact, .constant_weights = true});
  }));
  bench::measure(s, sides, 3, 1500);
  return bench::median(sides[0].us) / static_cast<double>(b.sets.size());
}

/// Places of one tile fill the GPU `share`-fold; from the times at two lengths of K.
void time_steps(Stream& s, const cuda::WidenedTile& t, double share) {
  constexpr std::int64_t kShort = 4096, kLong = 8192;
  const auto clusters = static_cast<std::int64_t>(share * cuda::widened_blocks(s, t)) / t.splits;
  const std::int64_t n = clusters * 64 * t.row_sets;
  const double few = time_of(s, {t.cols, n, kShort, 32}, t), more = time_of(s, {t.cols, n, kLong, 32}, t);
  const double steps = static_cast<double>((kLong - kShort) / 64) / t.splits, step = (more - few) / steps;
  std::printf(" %s %.3f+%.1f", share == 1 ? fmt::format("/{}", t.splits).c_str() : fmt::format("x{:g}", share).c_str(),
              step, few - step * static_cast<double>(kShort / 64) / t.splits);
}

void time_steps(Stream& s) {
  for (const bool exact : {false, true})
    for (auto t : cuda::widened_tiles(exact)) {
      std::printf("%s%s", "", cuda::name_of(t).c_str());
      for (t.splits = 1; t.splits <= cuda::kMostSplits; t.splits *= 2) time_steps(s, t, 1);
      t.splits = 1;
      time_steps(s, t, cuda::widened_blocks(s, t) > 200 ? 0.5 : 3);
      std::puts("");
    }
}

std::vector<Case> shapes() {
  std::vector<Case> all;
  for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{4096, 4096},
                             {11008, 4096},
                             {4096, 11008},
                             {128256, 4096},
                             {2048, 5632},
                             {5632, 2048}})
    for (std::int64_t rows : {2, 4, 8, 16, 32, 48, 64, 128, 256, 512, 1024})
      if (n < 100000 || (rows % 64 == 0 && rows <= 512)) all.push_back({rows, n, k});
  for (std::int64_t rows : {33, 65, 96, 129, 200, 257}) all.push_back({rows, 11008, 4096});
  for (std::int64_t group : {32, 128}) all.push_back({64, 4096, 4096, group}), all.push_back({256, 11008, 4096, group});
  for (std::int64_t rows : {16, 64, 256})
    all.push_back({rows, 4095, 4096 + 32, 32}), all.push_back({rows, 5001, 2048 + 64});
  return all;
}

/// ROWSxNxK/GROUP
Case case_of(const char* text) {
  Case c;
  char end = 0;
  require(
      std::sscanf(text, "%" SCNd64 "x%" SCNd64 "x%" SCNd64 "/%" SCNd64 "%c", &c.rows, &c.n, &c.k, &c.group, &end) == 4,
      "int4_rows", "expected a product like 512x4096x4096/32, got {}", text);
  return c;
}

int run(int argc, char** argv) {
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  bool tiles = false, exact = false, steps = false;
  std::vector<Case> cases;
  for (int i = 1; i < argc; ++i)
    if (argv[i] == std::string_view("--tiles")) tiles = true;
    else if (argv[i] == std::string_view("--exact")) exact = true;
    else if (argv[i] == std::string_view("--steps")) steps = true;
    else cases.push_back(case_of(argv[i]));
  if (steps) return time_steps(s), 0;
  if (cases.empty()) cases = shapes();
  cudaDeviceProp gpu;
  cuda::check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  nlohmann::ordered_json all{
      {"machine", {{"gpu", gpu.name}}},
      {"case",
       "INT4, rows of x in bf16, groups of 64 unless said, against bf16 weights; graphs of products one after "
       "the other, each on weights of its own, in turns; medians; ratio: the fastest of bf16 over INT4"},
      {"unit", "us"}};
  for (const auto& p : cases) {
    const std::string name =
        fmt::format("{}x{}x{}{}", p.rows, p.n, p.k, p.group == 64 ? "" : fmt::format(" groups of {}", p.group));
    all[name] = Bench(s, p).run(tiles, exact);
    std::fprintf(stderr, "%s %s\n", name.c_str(), all[name].dump().c_str());
  }
  std::puts(all.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace hpcdl

int main(int argc, char** argv) { return hpcdl::run(argc, argv); }
