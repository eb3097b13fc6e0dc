// INT4 matrix times 1, 8 and 64 vectors: our kernel against ggml's Q4_0 in its repacked buffer (what llama.cpp uses),
// with weights that stream from memory. Both formats spend 4.5 bits per weight (group 32, one 16-bit scale). Needs a
// ggml that you have built: cmake -DHPCDL_BENCH=ON -DGGML_DIR=/path/to/ggml (built in GGML_DIR/build, static).

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/emit.h"
#include "hpcdl/buffer.h"
#include "hpcdl/ops/int4_linear/int4_linear.h"
#include "hpcdl/pool.h"
#include "hpcdl/simd/prefetch.h"
#include "hpcdl/stream.h"
#include "tools/compare/protocol.h"

namespace {

using namespace hpcdl;
namespace protocol = hpcdl::lab::compare;

constexpr std::int64_t kStreamed = 256 << 20;  // bytes of weights that one pass walks through: far beyond any cache

// ggml's buffers do not ask for huge pages as ours do. To be called before they are touched.
void ask_for_huge_pages(ggml_backend_buffer_t buffer) {
  constexpr std::uintptr_t kHuge = 2 << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(ggml_backend_buffer_get_base(buffer)),
             first = (begin + kHuge - 1) / kHuge * kHuge,
             last = (begin + ggml_backend_buffer_get_size(buffer)) / kHuge * kHuge;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

class Ggml {
 public:
  Ggml(std::int64_t n, std::int64_t k, std::int64_t batch, int copies, int threads) {
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
    ggml_backend_buffer_type_t repack = nullptr;
    for (auto* b = extra(device); b && *b; ++b)
      if (std::strstr(ggml_backend_buft_name(*b), "REPACK")) repack = *b;
    if (!repack) std::fprintf(stderr, "ggml: no repack buffer in this build\n"), std::exit(1);
    backend_ = ggml_backend_cpu_init();
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    pool_ = ggml_threadpool_new(&params);
    ggml_backend_cpu_set_threadpool(backend_, pool_);
    ggml_backend_cpu_set_n_threads(backend_, threads);

    weights_ = ggml_init({ggml_tensor_overhead() * static_cast<std::size_t>(copies + 1), nullptr, true});
    std::vector<ggml_tensor*> w;
    for (int i = 0; i < copies; ++i) w.push_back(ggml_new_tensor_2d(weights_, GGML_TYPE_Q4_0, k, n));
    weight_buffer_ = ggml_backend_alloc_ctx_tensors_from_buft(weights_, repack);
    ask_for_huge_pages(weight_buffer_);
    ggml_backend_buffer_set_usage(weight_buffer_, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    fill(w, n, k);

    rest_ = ggml_init(
        {ggml_tensor_overhead() * static_cast<std::size_t>(copies * 4 + 8) + ggml_graph_overhead(), nullptr, true});
    ggml_tensor* x = ggml_new_tensor_2d(rest_, GGML_TYPE_F32, k, batch);
    graph_ = ggml_new_graph(rest_);
    for (auto* t : w) ggml_build_forward_expand(graph_, ggml_mul_mat(rest_, t, x));
    rest_buffer_ = ggml_backend_alloc_ctx_tensors(rest_, backend_);
    std::vector<float> values(static_cast<std::size_t>(k * batch));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
    ggml_backend_tensor_set(x, values.data(), 0, values.size() * 4);
  }
  ~Ggml() {
    ggml_backend_free(backend_);
    ggml_threadpool_free(pool_);
    ggml_backend_buffer_free(weight_buffer_);
    ggml_backend_buffer_free(rest_buffer_);
    ggml_free(weights_);
    ggml_free(rest_);
  }
  Ggml(const Ggml&) = delete;
  Ggml& operator=(const Ggml&) = delete;

  void run() { ggml_backend_graph_compute(backend_, graph_); }
  void pause() { ggml_threadpool_pause(pool_); }
  void resume() { ggml_threadpool_resume(pool_); }

 private:
  static void fill(const std::vector<ggml_tensor*>& w, std::int64_t n, std::int64_t k) {
    std::mt19937 rng(1);
    std::uniform_real_distribution<float> draw(-1, 1);
    std::vector<float> values(static_cast<std::size_t>(n * k));
    for (float& v : values) v = draw(rng);
    std::vector<char> q(ggml_row_size(GGML_TYPE_Q4_0, k) * static_cast<std::size_t>(n));
    ggml_quantize_chunk(GGML_TYPE_Q4_0, values.data(), q.data(), 0, n, k, nullptr);
    for (auto* t : w) ggml_backend_tensor_set(t, q.data(), 0, q.size());
  }
  ggml_backend_t backend_;
  ggml_threadpool* pool_;
  ggml_context *weights_, *rest_;
  ggml_backend_buffer_t weight_buffer_, rest_buffer_;
  ggml_cgraph* graph_;
};

class Ours {
 public:
  Ours(std::int64_t n, std::int64_t k, std::int64_t group, std::int64_t batch, int copies, Pool& pool)
      : n_(n),
        k_(k),
        group_(group),
        batch_(batch),
        copies_(copies),
        stream_(pool),
        weights_(stride() * copies),
        x_(k * batch * 4),
        y_(n * batch * 4),
        values_(k * batch),
        steps_(k / group * batch * 4),
        sums_(k / group * batch * 4) {
    std::mt19937 rng(2);
    auto* bytes = reinterpret_cast<std::uint8_t*>(weights_.data());
    for (int c = 0; c < copies; ++c) {
      std::uint8_t* p = bytes + c * stride();
      for (std::int64_t i = 0; i < n * k / 2; ++i) p[i] = static_cast<std::uint8_t>(rng());
      auto* scale = reinterpret_cast<bf16*>(p + n * k / 2);
      for (std::int64_t i = 0; i < n * k / group; ++i) scale[i] = bf16(1.0f / 16);
    }
    for (std::int64_t i = 0; i < k * batch; ++i)
      reinterpret_cast<float*>(x_.data())[i] = std::sin(static_cast<float>(i));
  }
  void run() {
    const Spec x{{batch_, k_}, DType::f32}, y{{batch_, n_}, DType::f32};
    const Spec packed = int4::packed_spec(n_, k_), scale = int4::scale_spec(n_, k_, group_);
    const auto scratch = Int4Linear::scratch(x, packed, scale, {}, {}, {}, {});
    for (int c = 0; c < copies_; ++c) {
      const std::byte* w = weights_.data() + c * stride();
      Int4Linear::forward(stream_, Tensor(y_.data(), y, {}), View(x_.data(), x), View(w, packed),
                          View(w + n_ * k_ / 2, scale), {}, {}, {}, Tensor(values_.data(), scratch[0], {}),
                          Tensor(steps_.data(), scratch[1], {}), Tensor(sums_.data(), scratch[2], {}), {});
    }
  }
  std::int64_t bytes() const { return n_ * k_ / 2 + n_ * k_ / group_ * 2; }

 private:
  std::int64_t stride() const { return (bytes() + 4095) / 4096 * 4096; }
  std::int64_t n_, k_, group_, batch_;
  int copies_;
  Stream stream_;
  Buffer weights_, x_, y_, values_, steps_, sums_;
};

// The least time for reading the same bytes: sums 64-bit words, unrolled and prefetched, so that the memory is the
// bound.
void read_all(Pool& pool, const Buffer& buffer, std::int64_t bytes) {
  parallel_for(pool, bytes / 64, 1024, [&](std::int64_t b, std::int64_t e) {
    const auto* p = reinterpret_cast<const std::uint64_t*>(buffer.data());
    std::uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (std::int64_t i = b * 8; i < e * 8; i += 8) {
      simd::prefetch_pages_in_turn(p + i + 2048);
      s0 += p[i] ^ p[i + 4], s1 += p[i + 1] ^ p[i + 5], s2 += p[i + 2] ^ p[i + 6], s3 += p[i + 3] ^ p[i + 7];
    }
    volatile std::uint64_t sink = s0 + s1 + s2 + s3;
    (void)sink;
  });
}

void compare(Pool& pool, std::int64_t n, std::int64_t k, std::int64_t batch, int rounds) {
  const std::int64_t bytes = n * k / 2 + n * k / 32 * 2;
  const int copies = static_cast<int>((kStreamed + bytes - 1) / bytes);
  Ggml ggml(n, k, batch, copies, pool.threads());
  Ours g32(n, k, 32, batch, copies, pool), g64(n, k, 64, batch, copies, pool), g128(n, k, 128, batch, copies, pool);
  Buffer memory(bytes * copies);
  std::memset(memory.data(), 1, static_cast<std::size_t>(bytes * copies));
  const double units = copies;
  const std::vector<protocol::Side> sides = {
      {"hpcdl g32", [&] { g32.run(); }, units},
      {"hpcdl g64", [&] { g64.run(); }, units},
      {"hpcdl g128", [&] { g128.run(); }, units},
      {"ggml Q4_0 repack", [&] { ggml.run(); }, units, [&] { ggml.resume(); }, [&] { ggml.pause(); }},
      {"read", [&] { read_all(pool, memory, bytes * copies); }, units},
  };
  ggml.pause();
  protocol::HostEnvironment host(pool);
  const auto result =
      protocol::run(sides, host, {.cache = protocol::Cache::rotated, .rounds = rounds, .target = 0.1, .limit = 60});
  nlohmann::ordered_json row = {
      {"op", "int4_linear"},       {"n", n}, {"k", k}, {"batch", batch}, {"bytes", bytes}, {"bytes_g64", g64.bytes()},
      {"bytes_g128", g128.bytes()}};
  for (const auto& s : result.sides) row["sides"][s.name] = protocol::to_json(s.time(), 1e3, "_ms");
  row["ratios"]["ggml, same bits"] = protocol::to_json(result.ratio("ggml Q4_0 repack", "hpcdl g32"));
  row["ratios"]["ggml, group 128"] = protocol::to_json(result.ratio("ggml Q4_0 repack", "hpcdl g128"));
  row["ratios"]["of read"] = protocol::to_json(result.ratio("read", "hpcdl g32"));
  bench::emit(fmt::format("N{} K{} batch {}", n, k, batch), row);
}

}  // namespace

int main(int argc, char** argv) {
  ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  const std::string only = argc > 2 ? argv[2] : "";
  hpcdl::Pool pool;
  for (const auto& [n, k] : {std::pair{4096, 4096}, {4096, 14336}, {14336, 4096}})
    if (only.empty() || only == "1") compare(pool, n, k, 1, rounds);
  for (const int batch : {8, 64})
    if (only.empty() || only == "batch") compare(pool, 4096, 4096, batch, rounds);
}
