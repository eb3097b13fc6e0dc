// The products of a decoded batch: those of two layers of a Llama of 8 B parameters by the number of texts, as one graph,
// in turns; medians per layer. "apart": each op by itself. "joined": norm_qkv and norm_swiglu. All other products are
// cuBLASLt's. Then parts of a layer.
//   decode_rows [MILLISECONDS] > JSON      bench/results/NAME/decode_rows.json; of each side and round

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/gpu/turns.h"
#include "hpcdl/buffer.h"
#include "hpcdl/core/element.h"
#include "hpcdl/ops/matmul/device_gemm.h"
#include "hpcdl/ops/norm_qkv/norm_qkv.h"
#include "hpcdl/ops/norm_swiglu/norm_swiglu.h"
#include "hpcdl/ops/swiglu/swiglu.h"
#include "tools/measure_roofs.h"
#include "tools/tune/reference.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kLayers = 2, kWidth = 4096, kInner = 14336, kHeads = 32, kKvHeads = 8, kHeadDim = 128,
                       kKv = kKvHeads * kHeadDim;
constexpr std::int64_t kRows[] = {8, 16, 32, 64, 96, 128};

int way_named(std::string_view name) {
  const auto names = cuda::gemm_ways();
  return static_cast<int>(std::ranges::find(names, name) - names.begin());
}

struct Layer {
  OwnedTensor q, k, v, o, gate, up, down, keys, values;
};

class Products {
 public:
  Products(Stream& s, std::int64_t rows) : s_(s), rows_(rows) {
    const auto made = [&](Spec spec) {
      OwnedTensor t(spec, s.device());
      lab::tune::fill_random(s, t.tensor, seed_++);
      return t;
    };
    const auto weights = [&](std::int64_t n, std::int64_t k) { return made({{n, k}, DType::bf16}); };
    const Spec pool = pool_of(pages_for(rows), kKvHeads, kHeadDim, DType::bf16);
    for (int i = 0; i < kLayers; ++i)
      layers_.push_back({weights(kWidth, kWidth), weights(kKv, kWidth), weights(kKv, kWidth), weights(kWidth, kWidth),
                         weights(kInner, kWidth), weights(kInner, kWidth), weights(kWidth, kInner), made(pool),
                         made(pool)});
    const auto activations = [&](std::int64_t n) { return made({{1, rows, n}, DType::bf16}); };
    x_ = activations(kWidth), h_ = activations(kWidth), q_ = activations(kWidth), y_ = activations(kWidth);
    k_ = activations(kKv), v_ = activations(kKv), gate_ = activations(kInner), up_ = activations(kInner);
    gamma_ = made({{kWidth}, DType::bf16}), table_ = made({{rows, kHeadDim}, DType::f32});
    std::vector<std::int32_t> at(static_cast<std::size_t>(rows));
    std::vector<std::int64_t> slots(at.size());
    std::iota(at.begin(), at.end(), 0), std::iota(slots.begin(), slots.end(), 0);
    positions_ = OwnedTensor({{rows}, DType::i32}, s.device()), slots_ = OwnedTensor({{rows}, DType::i64}, s.device());
    copy(s, positions_.tensor, View(at.data(), positions_.tensor.spec()));
    copy(s, slots_.tensor, View(slots.data(), slots_.tensor.spec()));
    s.synchronize();
  }

  void product(const Tensor& y, const View& x, const View& w, const View& residual = {}) {
    cuda::gemm_with(s_,
                    {.m = rows_,
                     .n = w[0],
                     .k = w[1],
                     .compute = DType::bf16,
                     .a = {x.data(), x.dtype(), x.row_stride(), false},
                     .b = {w.data(), w.dtype(), w.row_stride(), true},
                     .out = {.d = y.data(),
                             .dtype = y.dtype(),
                             .ld = y.row_stride(),
                             .residual = residual.data(),
                             .residual_ld = residual ? residual.row_stride() : 0},
                     .constant_b = true},
                    lt_);
  }
  void qkv(const Layer& l, bool joined) {
    const NormQkv::Places<View> at{positions_.tensor, slots_.tensor};
    if (joined) {
      const Matrix<View> m[] = {{l.q.tensor, {}, {}, {}}, {l.k.tensor, {}, {}, {}}, {l.v.tensor, {}, {}, {}}};
      const Tensor scratch[6] = {h_.tensor, k_.tensor, v_.tensor, {}, {}, {}};
      return NormQkv::forward(s_, q_.tensor, l.keys.tensor, l.values.tensor, x_.tensor, gamma_.tensor, table_.tensor,
                              at, m, scratch, {.head_dim = kHeadDim, .constant_weights = true});
    }
    RmsNorm::forward(s_, h_.tensor, {}, x_.tensor, gamma_.tensor, {});
    product(q_.tensor, h_.tensor, l.q.tensor);
    product(k_.tensor, h_.tensor, l.k.tensor);
    product(v_.tensor, h_.tensor, l.v.tensor);
    Rope::forward(s_, q_.tensor, q_.tensor, table_.tensor, at.positions, {kHeadDim});
    Rope::forward(s_, k_.tensor, k_.tensor, table_.tensor, at.positions, {kHeadDim});
    KvWrite::write(s_, l.keys.tensor, l.values.tensor, k_.tensor, v_.tensor, at.slots);
  }
  void gated(const Layer& l, bool joined) {
    if (joined)
      return NormSwiglu::forward(s_, gate_.tensor, y_.tensor, gamma_.tensor, l.gate.tensor, {}, {}, {}, l.up.tensor, {},
                                 {}, {}, h_.tensor, up_.tensor, {}, none_.tensor, {.constant_weights = true});
    RmsNorm::forward(s_, h_.tensor, {}, y_.tensor, gamma_.tensor, {});
    product(gate_.tensor, h_.tensor, l.gate.tensor);
    product(up_.tensor, h_.tensor, l.up.tensor);
    Swiglu::forward(s_, gate_.tensor, gate_.tensor, up_.tensor, {});
  }
  /// All products, with the queries in the place of what attention would return.
  void layer(const Layer& l, bool joined) {
    qkv(l, joined);
    product(y_.tensor, q_.tensor, l.o.tensor, x_.tensor);
    gated(l, joined);
    product(x_.tensor, gate_.tensor, l.down.tensor, y_.tensor);
  }
  /// Of gate_, read back, the largest difference between both ways over the largest element.
  double difference() {
    std::vector<float> results[2];
    for (int i = 0; i < 2; ++i) {
      qkv(layers_[0], i == 1), product(y_.tensor, q_.tensor, layers_[0].o.tensor, x_.tensor);
      gated(layers_[0], i == 1);
      OwnedTensor here(gate_.tensor.spec());
      copy(s_, here.tensor, gate_.tensor);
      s_.synchronize();
      for (std::int64_t j = 0; j < here.tensor.size(); ++j)
        results[i].push_back(static_cast<float>(element(here.tensor, j)));
    }
    double most = 0, far = 0;
    for (std::size_t j = 0; j < results[0].size(); ++j) {
      most = std::max<double>(most, std::fabs(results[0][j]));
      const double d = std::fabs(results[0][j] - results[1][j]);
      far = std::isnan(d) ? d : std::max(far, d);
    }
    return far / most;
  }

  nlohmann::ordered_json measured(double milliseconds) {
    std::vector<bench::Side> sides;
    const auto add = [&](std::string name, std::function<void(const Layer&)> f) {
      sides.push_back({std::move(name), [this, f] {
                         for (const auto& l : layers_) f(l);
                       }});
    };
    for (const bool joined : {false, true}) {
      const std::string suffix = joined ? "joined" : "apart";
      add(suffix, [this, joined](const Layer& l) { layer(l, joined); });
      add("qkv " + suffix, [this, joined](const Layer& l) { qkv(l, joined); });
      add("gated " + suffix, [this, joined](const Layer& l) { gated(l, joined); });
    }
    add("o", [this](const Layer& l) { product(y_.tensor, q_.tensor, l.o.tensor, x_.tensor); });
    add("down", [this](const Layer& l) { product(y_.tensor, gate_.tensor, l.down.tensor, x_.tensor); });
    const double far = difference();
    bench::measure(s_, sides, 7, 1e3 * milliseconds);
    nlohmann::ordered_json row{{"rows", rows_}, {"difference", far}};
    for (const auto& side : sides) row[side.name] = std::round(100 * bench::median(side.us) / kLayers) / 100;
    return row;
  }

 private:
  Stream& s_;
  std::int64_t rows_;
  std::uint64_t seed_ = 1;
  int lt_ = way_named("cublasLt");
  std::vector<Layer> layers_;
  OwnedTensor x_, h_, q_, y_, k_, v_, gate_, up_, gamma_, table_, positions_, slots_, none_{{{2, 0, 0}, DType::f32}};
};

int run(double milliseconds) {
  Pool pool(1);
  Stream s(Device::cuda(0), pool);
  cudaDeviceProp gpu;
  cuda::check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  nlohmann::ordered_json all{
      {"machine", {{"gpu", gpu.name}}},
      {"case", "the products of a layer of 8 B parameters by the number of texts, in turns; medians"},
      {"unit", "us"},
      {"weights", 2 * (kWidth * (2 * kWidth + 2 * kKv) + 3 * kWidth * kInner)},
      {"read_bytes_per_second", lab::roofs(s.device(), pool, lab::Remember::best).memory_read},
      {"rows", nlohmann::ordered_json::array()}};
  for (const auto rows : kRows) all["rows"].push_back(Products(s, rows).measured(milliseconds));
  std::puts(all.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace hpcdl

int main(int argc, char** argv) { return hpcdl::run(argc > 1 ? std::atof(argv[1]) : 4); }
