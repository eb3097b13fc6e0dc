// Matrix products of HPC-DL compared with oneDNN and OpenBLAS: interleaved rounds, medians, ratios of the same round.
//
//   gemm [--only TEXT] [--rounds N] [--target-ms 20] [--no-peers] [--list] [--json FILE]
//
// OpenBLAS 0.3.21 treats Zen 5 as an AVX2 machine: the program restarts itself with OPENBLAS_CORETYPE=SkylakeX. Idle
// threads of one library would take a core from the next: their spinning is bounded. GPT shapes rotate through copies
// of the weight that together exceed 96 MB, so weights come from memory as they do in a training step; cubes stay in
// cache. All libraries see the same memory (huge pages).

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/gemm/peers.h"
#include "hpcdl/buffer.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/tiles.h"
#include "tools/compare/protocol.h"

namespace hpcdl::bench {
namespace {

using gemm::Compute;
namespace ep = epilogue;

// ---- peak of the machine: multiply-adds on registers, in the same rounds
// Registers zmm0..23 as accumulators: a dependent chain each, so 24 / 2 per cycle > latency. Written out, because
// compilers keep such arrays in memory.
#define PEAK_STEP(OP, R) OP " %%zmm24, %%zmm25, %%zmm" #R "\n"
#define PEAK_FOUR(OP, A, B, C, D) PEAK_STEP(OP, A) PEAK_STEP(OP, B) PEAK_STEP(OP, C) PEAK_STEP(OP, D)
#define PEAK_TWELVE(OP) PEAK_FOUR(OP, 0, 1, 2, 3) PEAK_FOUR(OP, 4, 5, 6, 7) PEAK_FOUR(OP, 8, 9, 10, 11)
#define PEAK_REST(OP) PEAK_FOUR(OP, 12, 13, 14, 15) PEAK_FOUR(OP, 16, 17, 18, 19) PEAK_FOUR(OP, 20, 21, 22, 23)
#define PEAK_STEPS(OP) PEAK_TWELVE(OP) PEAK_REST(OP)
#define PEAK_LOOP(NAME, OP)                                                                                           \
  __attribute__((target("avx512f"))) void NAME(std::int64_t n) {                                                      \
    __asm__ volatile(                                                                                                 \
        "vpxorq %%zmm24, %%zmm24, %%zmm24\n vpxorq %%zmm25, %%zmm25, %%zmm25\n"                                       \
        "1:\n" PEAK_STEPS(OP) "dec %0\n jnz 1b\n"                                                                     \
        : "+r"(n)::"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",  \
          "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", \
          "xmm24", "xmm25", "cc");                                                                                    \
  }
PEAK_LOOP(peak_f32, "vfmadd231ps")
PEAK_LOOP(peak_bf16, "vdpbf16ps")
PEAK_LOOP(peak_int8, "vpdpbusd")

// Tile registers tmm0..3 as accumulators. The library's kernels have requested them, so they may be used here.
#define PEAK_TILES(NAME, OP)                                                                                  \
  void NAME(std::int64_t n) {                                                                                 \
    simd::TileShapes shapes;                                                                                  \
    for (int t = 0; t < 8; ++t) shapes.row_bytes[t] = 64, shapes.rows[t] = 16;                                \
    __asm__ volatile("ldtilecfg %1\n 1:\n" OP " %%tmm6, %%tmm4, %%tmm0\n" OP " %%tmm7, %%tmm4, %%tmm1\n" OP   \
                     " %%tmm6, %%tmm5, %%tmm2\n" OP " %%tmm7, %%tmm5, %%tmm3\n dec %0\n jnz 1b\n tilerelease" \
                     : "+r"(n)                                                                                \
                     : "m"(shapes)                                                                            \
                     : "cc");                                                                                 \
  }
PEAK_TILES(peak_tiles_bf16, "tdpbf16ps")
PEAK_TILES(peak_tiles_int8, "tdpbusd")

/// On tile registers f32 is six products of bf16.
void peak(Pool& pool, Compute c, std::int64_t n) {
  const auto loop = simd::has_tiles()    ? (c == Compute::int8 ? peak_tiles_int8 : peak_tiles_bf16)
                    : c == Compute::f32  ? peak_f32
                    : c == Compute::bf16 ? peak_bf16
                                         : peak_int8;
  pool.run_on_each_thread([&](int) { loop(n); });
}
double peak_flops(const Pool& pool, Compute c, std::int64_t n) {
  const double lanes = c == Compute::f32 ? 16 : c == Compute::bf16 ? 32 : 64;
  const double tiles = 4 * 16 * 16 * (c == Compute::f32 ? 32.0 / 6 : lanes);  // a register holds 16 rows of a vector
  return 2 * (simd::has_tiles() ? tiles : 24 * lanes) * static_cast<double>(n) * pool.threads();
}

// ---- one case
struct Named {
  std::string name;
  Case c;
  bool rotate = true;
};

int element_bytes(Compute c) { return c == Compute::f32 ? 4 : c == Compute::bf16 ? 2 : 1; }

void fill(std::byte* p, std::int64_t n, Compute c, std::uint64_t seed) {
  const Rng rng{seed, 0};
  std::vector<float> some(4099);
  for (std::size_t i = 0; i < some.size(); ++i) some[i] = static_cast<float>(rng.normal(i));
  for (std::int64_t i = 0; i < n; ++i) {
    const float v = some[static_cast<std::size_t>(i) % some.size()];
    if (c == Compute::f32) reinterpret_cast<float*>(p)[i] = v;
    else if (c == Compute::bf16) reinterpret_cast<bf16*>(p)[i] = bf16(v);
    else reinterpret_cast<std::int8_t*>(p)[i] = static_cast<std::int8_t>(v * 20);
  }
}

void ours(Pool& pool, const gemm::Problem& p, const Case& c, float* d, const float* bias, const float* addend) {
  const std::int64_t n = c.n;
  simd::with_isa([&](auto isa) {
    switch (c.post) {
      case Post::bias_gelu_tanh:
        return gemm::gemm(isa, pool, p,
                          ep::IntoLinear<float, float, ep::GeluTanh>{.d = d, .ld = n, .f = {{bias}, {}, {}, {}}});
      case Post::gelu_tanh:
        return gemm::gemm(isa, pool, p, ep::IntoLinear<float, float, ep::GeluTanh>{.d = d, .ld = n});
      case Post::relu: return gemm::gemm(isa, pool, p, ep::IntoLinear<float, float, ep::Relu>{.d = d, .ld = n});
      case Post::add_relu:
        return gemm::gemm(
            isa, pool, p,
            ep::Into<float, ep::Chain<ep::Residual<float>, ep::Relu>>{.d = d, .ld = n, .f = {{addend, n}, {}}});
      default:
        if (c.compute == Compute::int8)
          return gemm::gemm_int8(isa, pool, p,
                                 ep::Into<std::int32_t>{.d = reinterpret_cast<std::int32_t*>(d), .ld = n});
        return gemm::gemm(isa, pool, p, ep::Into<float>{.d = d, .ld = n});
    }
  });
}

struct Contender {
  std::string name;
  std::function<void(const void* a, const void* b, void* d)> call;
  std::vector<const std::byte*> weights;
  double worst = 0;  // difference from the first side, relative to the largest value
};

struct Options {
  std::string only, json;
  int rounds = 0;  // as many as it takes
  bool peers = true;
  double target = 0.02, limit = 5;
};

/// The difference of every contender's result to that of the first, relative to the largest value.
void compare_results(std::vector<Contender>& sides, const Case& c, const Buffer& a, const Buffer& d) {
  const Buffer first(d.bytes());
  const auto at = [&c](const Buffer& b, std::int64_t i) {
    return c.compute == Compute::int8 ? static_cast<double>(reinterpret_cast<const std::int32_t*>(b.data())[i])
                                      : static_cast<double>(reinterpret_cast<const float*>(b.data())[i]);
  };
  for (auto& s : sides) {
    s.call(a.data(), s.weights[0], d.data());
    if (&s == &sides[0]) std::memcpy(first.data(), d.data(), static_cast<std::size_t>(d.bytes()));
    double top = 0;
    for (std::int64_t i = 0; i < c.m * c.n; ++i) {
      top = std::max(top, std::fabs(at(first, i)));
      s.worst = std::max(s.worst, std::fabs(at(d, i) - at(first, i)));
    }
    s.worst /= top;
  }
}

/// Every contender and, in the same rounds, the peak. The threads of the previous side need some time to go to sleep.
lab::compare::Result time_rounds(Pool& pool, const std::vector<Contender>& contenders, const Case& c, const Options& o,
                                 const Buffer& a, const Buffer& d) {
  std::vector<lab::compare::Side> sides;
  for (const auto& s : contenders)
    sides.push_back(
        {s.name, [&, i = std::size_t{0}]() mutable { s.call(a.data(), s.weights[i++ % s.weights.size()], d.data()); }});
  const std::int64_t peak_n = 200'000;
  sides.push_back({"peak", [&pool, &c] { peak(pool, c.compute, peak_n); }, peak_flops(pool, c.compute, peak_n)});
  lab::compare::HostEnvironment host(pool);
  const auto cache = contenders[0].weights.size() > 1 ? lab::compare::Cache::rotated : lab::compare::Cache::warm;
  return lab::compare::run(sides, host,
                           {.cache = cache, .rounds = o.rounds, .target = o.target, .limit = o.limit, .settle = 0.008});
}

nlohmann::json report(const lab::compare::Result& result, const std::vector<Contender>& sides, const Named& named,
                      int copies) {
  const Case& c = named.c;
  const double flops = 2.0 * static_cast<double>(c.m) * static_cast<double>(c.n) * static_cast<double>(c.k);
  const double top = 1 / result.side("peak").time().median;
  nlohmann::json row{{"name", named.name},
                     {"m", c.m},
                     {"n", c.n},
                     {"k", c.k},
                     {"weight_copies", copies},
                     {"peak_gflops", top / 1e9},
                     {"cache", result.cache},
                     {"rounds", result.rounds()}};
  fmt::print("{:<28} peak {:6.0f} |", named.name, top / 1e9);
  for (const auto& s : sides) {
    const auto t = result.side(s.name).time();
    row["sides"][s.name] = {{"gflops", flops / t.median / 1e9},
                            {"gflops_min", flops / t.max / 1e9},
                            {"gflops_max", flops / t.min / 1e9},
                            {"share_of_peak", flops / t.median / top},
                            {"difference", s.worst}};
    fmt::print(" {} {:.1f} ({:.0f}%)", s.name, flops / t.median / 1e9, 100 * flops / t.median / top);
  }
  const auto ratio = [&](const std::string& us, const std::string& them) {
    if (!result.has(us) || !result.has(them)) return;
    const auto r = result.ratio(them, us);
    row["ratios"][us + " / " + them] = lab::compare::to_json(r);
    fmt::print(" | {}/{} {:.2f}", us, them, r.median);
  };
  ratio("hpcdl packed", "onednn packed");
  ratio("hpcdl", "onednn packed");
  ratio("hpcdl", "onednn");
  ratio("hpcdl", "openblas");
  fmt::print("\n");
  std::fflush(stdout);
  return row;
}

nlohmann::json run_case(Pool& pool, const Named& named, const Options& o) {
  const Case& c = named.c;
  const int size = element_bytes(c.compute);
  const std::int64_t weight = c.k * c.n * size;
  const int copies =
      named.rotate ? static_cast<int>(std::clamp<std::int64_t>((std::int64_t{96} << 20) / weight + 1, 2, 48)) : 1;
  const Buffer a(c.m * c.k * size), d(c.m * c.n * 4), bias(c.n * 4), addend(c.m * c.n * 4);
  fill(a.data(), c.m * c.k, c.compute, 1);
  fill(bias.data(), c.n, Compute::f32, 3);
  fill(addend.data(), c.m * c.n, Compute::f32, 4);
  std::vector<Buffer> memory;
  std::vector<const std::byte*> plain;
  for (int i = 0; i < copies; ++i) {
    memory.emplace_back(weight);
    fill(memory.back().data(), c.k * c.n, c.compute, 2);
    plain.push_back(memory.back().data());
  }
  const auto* bias_p = reinterpret_cast<const float*>(bias.data());
  const auto* addend_p = reinterpret_cast<const float*>(addend.data());

  const DType dt = c.compute == Compute::f32 ? DType::f32 : c.compute == Compute::bf16 ? DType::bf16 : DType::u8;
  const auto problem = [&c, dt](const void* x) {
    return gemm::Problem{.m = c.m,
                         .n = c.n,
                         .k = c.k,
                         .compute = c.compute,
                         .a = {x, dt, c.a_transposed ? c.m : c.k, c.a_transposed},
                         .b = {},
                         .packed_b = nullptr};
  };
  const gemm::Operand b_operand{nullptr, dt == DType::u8 ? DType::i8 : dt, c.b_transposed ? c.k : c.n, c.b_transposed};
  const auto& set =
      simd::with_isa([&](auto isa) -> const gemm::KernelSet& { return gemm::kernel_set(isa, c.compute); });

  std::vector<Contender> sides;
  const auto packed_copies = [&](std::int64_t bytes, auto&& prepare) {
    std::vector<const std::byte*> out;
    for (int i = 0; i < copies; ++i) {
      memory.emplace_back(bytes);
      prepare(plain[static_cast<std::size_t>(i)], memory.back().data());
      out.push_back(memory.back().data());
    }
    return out;
  };
  sides.push_back({"hpcdl",
                   [&](const void* x, const void* b, void* y) {
                     auto p = problem(x);
                     p.b = b_operand, p.b.data = b;
                     ours(pool, p, c, static_cast<float*>(y), bias_p, addend_p);
                   },
                   plain});
  sides.push_back({"hpcdl packed",
                   [&](const void* x, const void* b, void* y) {
                     auto p = problem(x);
                     p.packed_b = static_cast<const std::byte*>(b);
                     ours(pool, p, c, static_cast<float*>(y), bias_p, addend_p);
                   },
                   packed_copies(gemm::packed_b_bytes(set, c.n, c.k), [&](const void* from, std::byte* to) {
                     auto b = b_operand;
                     b.data = from;
                     gemm::pack_b(set, pool, to, b, c.n, c.k);
                   })});
  for (const bool packed : {false, true})
    if (o.peers)
      if (Peer p = onednn(c, packed, bias_p, addend_p); p.call)
        sides.push_back(
            {packed ? "onednn packed" : "onednn", p.call, packed ? packed_copies(p.prepared_bytes, p.prepare) : plain});
  if (Peer p = openblas(c); o.peers && p.call) sides.push_back({"openblas", p.call, plain});

  compare_results(sides, c, a, d);
  return report(time_rounds(pool, sides, c, o, a, d), sides, named, copies);
}

std::vector<Named> cases() {
  std::vector<Named> out;
  for (const Compute c : {Compute::f32, Compute::bf16, Compute::int8}) {
    const std::string t = c == Compute::f32 ? "f32 " : c == Compute::bf16 ? "bf16 " : "int8 ";
    for (const std::int64_t n : {256, 512, 1024, 2048})
      out.push_back({t + fmt::format("cube {}", n), {n, n, n, c}, false});
    const auto add = [&](std::int64_t m, std::int64_t n, std::int64_t k, const char* what, bool ta, bool tb) {
      out.push_back({t + fmt::format("{} {}x{}x{}", what, m, n, k), {m, n, k, c, ta, tb}});
    };
    add(256, 2304, 768, "nt", false, true), add(256, 3072, 768, "nt", false, true),
        add(256, 768, 3072, "nt", false, true);
    add(256, 50304, 768, "nt", false, true), add(256, 768, 50304, "nn", false, false);
    add(1024, 3072, 768, "nn", false, false), add(1024, 3072, 768, "nt", false, true);
    if (c != Compute::int8) add(3072, 768, 256, "tn", true, false), add(50304, 768, 256, "tn", true, false);
    add(1, 3072, 768, "nt", false, true), add(1, 3072, 768, "nn", false, false), add(1, 4096, 4096, "nt", false, true);
  }
  for (const Compute c : {Compute::f32, Compute::bf16}) {
    const std::string t = c == Compute::f32 ? "f32 " : "bf16 ";
    out.push_back({t + "bias+gelu nt 1024x3072x768", {1024, 3072, 768, c, false, true, Post::bias_gelu_tanh}});
    out.push_back({t + "add+relu nt 1024x3072x768", {1024, 3072, 768, c, false, true, Post::add_relu}});
  }
  return out;
}

int main(int argc, char** argv) {
  const char* core = std::getenv("OPENBLAS_CORETYPE");
  if (!core || std::string(core) != "SkylakeX") {
    setenv("OPENBLAS_CORETYPE", "SkylakeX", 1);
    unsetenv("OPENBLAS_L2_SIZE");
    setenv("OPENBLAS_THREAD_TIMEOUT", "20", 1);  // after a call its threads yield for 2^20 cycles
    setenv("GOMP_SPINCOUNT", "20000", 0);        // and those of oneDNN spin for well over the time between two calls
    execv("/proc/self/exe", argv);
  }
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--list") {
      for (const auto& c : cases()) fmt::print("{}\n", c.name);
      return 0;
    }
    if (word == "--no-peers") o.peers = false;
    else if (word == "--only") o.only = value, ++i;
    else if (word == "--json") o.json = value, ++i;
    else if (word == "--rounds") o.rounds = std::max(1, std::atoi(value.c_str())), ++i;
    else if (word == "--target-ms") o.target = std::atof(value.c_str()) / 1e3, ++i;
    else return fmt::print(stderr, "unknown option {}\n", word), 2;
  }
  Pool pool;
  fmt::print("threads {}, instruction set {}, oneDNN {}, OpenBLAS {}\n", pool.threads(),
             simd::isa_name(simd::active_isa()), onednn_version(), openblas_version());
  nlohmann::json all{{"threads", pool.threads()},  {"isa", simd::isa_name(simd::active_isa())},
                     {"onednn", onednn_version()}, {"openblas", openblas_version()},
                     {"rounds", o.rounds},         {"cases", nlohmann::json::array()}};
  for (const auto& c : cases())
    if (c.name.find(o.only) != std::string::npos) all["cases"].push_back(run_case(pool, c, o));
  if (!o.json.empty()) std::ofstream(o.json) << all.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace hpcdl::bench

int main(int argc, char** argv) { return hpcdl::bench::main(argc, argv); }
