// Where the time of a decoded token goes: the records of one step of a Llama of 1.1 B parameters, as one graph, with
// and without each kind of them, in turns; medians. What a kind costs is the difference, because kernels overlap.
//   decode_parts [--ways] > JSON      bench/results/NAME/decode_parts.json; --ways: each way of the products, too

#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "bench/gpu/turns.h"
#include "hpcdl/buffer.h"
#include "hpcdl/ops/int4_linear/int4_ways.h"
#include "hpcdl/ops/int4_linear/int4_widen.h"
#include "hpcdl/ops/norm_qkv/norm_qkv.h"
#include "hpcdl/ops/norm_swiglu/norm_swiglu.h"
#include "hpcdl/ops/paged_attention/paged_attention.h"
#include "hpcdl/ops/rms_norm/rms_norm.h"
#include "hpcdl/ops/sample/sample.h"
#include "tools/tune/reference.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kLayers = 22, kWidth = 2048, kInner = 5632, kHeads = 32, kKvHeads = 4, kHeadDim = 64,
                       kVocabulary = 32000, kRoom = 1280, kPosition = 1151, kGroup = 64;

/// A matrix in 4 bits, and in bf16 if asked.
struct Weights {
  OwnedTensor packed, scale, dense;
  std::int64_t n, k;
  Weights(Stream& s, std::int64_t n_, std::int64_t k_, bool bf16s)
      : packed(int4::packed_spec(n_, k_), s.device()),
        scale(int4::scale_spec(n_, k_, kGroup), s.device()),
        n(n_),
        k(k_) {
    static std::uint64_t seed = 1;
    lab::tune::fill_random(s, packed.tensor, seed++), lab::tune::fill_random(s, scale.tensor, seed++);
    if (!bf16s) return;
    dense = OwnedTensor(Spec{{n, k}, DType::bf16}, s.device());
    cuda::int4_widen(s, dense.tensor.data(), DType::bf16, {packed.tensor, scale.tensor, {}}, 0, n);
  }
  Matrix<View> matrix(bool dense_) const {
    if (dense_) return {dense.tensor, {}, {}, {}};
    return {packed.tensor, scale.tensor, {}, {}};
  }
};

struct Layer {
  Weights q, k, v, o, gate, up, down;
  OwnedTensor keys, values;
};

/// What to leave out, and the ways of products, -1 as chosen.
struct Without {
  std::set<std::string> kinds;
  int o = -1, down = -1;
  bool has(const char* kind) const { return !kinds.contains(kind); }
};

class Step {
 public:
  Step(Stream& s, bool dense) : s_(s), dense_(dense), head_(s, kVocabulary, kWidth, dense) {
    const auto made = [&](Spec spec) {
      OwnedTensor t(spec, s.device());
      lab::tune::fill_random(s, t.tensor, 5);
      return t;
    };
    const auto row = [&](std::int64_t n) { return made(Spec{{1, 1, n}, DType::bf16}); };
    for (int i = 0; i < kLayers; ++i) {
      const auto weights = [&](std::int64_t n, std::int64_t k) { return Weights(s, n, k, dense); };
      const Spec pool{{pages_for(kRoom), kKvHeads, kPageTokens, kHeadDim}, DType::bf16};
      layers_.push_back({weights(kWidth, kWidth), weights(kKvHeads * kHeadDim, kWidth),
                         weights(kKvHeads * kHeadDim, kWidth), weights(kWidth, kWidth), weights(kInner, kWidth),
                         weights(kInner, kWidth), weights(kWidth, kInner), made(pool), made(pool)});
    }
    x_ = row(kWidth), q_ = row(kWidth), attended_ = row(kWidth), middle_ = row(kWidth), gated_ = row(kInner);
    h_ = row(kWidth);
    gamma_ = made(Spec{{kWidth}, DType::bf16});
    table_ = made(Spec{{kRoom, kHeadDim}, DType::f32});
    logits_ = OwnedTensor(Spec{{1, kVocabulary}, DType::f32}, s.device());
    id_ = OwnedTensor(Spec{{1}, DType::i32}, s.device());
    rule_ = copied<std::int32_t>(DType::i32, {1, Sample::kRuleWords}, std::vector<std::int32_t>(Sample::kRuleWords));
    std::vector<std::int32_t> pages(pages_for(kRoom));
    std::iota(pages.begin(), pages.end(), 0);
    position_ = copied<std::int32_t>(DType::i32, {1}, {kPosition});
    slot_ = copied<std::int64_t>(DType::i64, {1}, {kPosition});
    starts_ = copied<std::int32_t>(DType::i32, {2}, {0, 1});
    length_ = copied<std::int32_t>(DType::i32, {1}, {kPosition + 1});
    pages_ = copied<std::int32_t>(DType::i32, {1, std::ssize(pages)}, pages);
    rstd_ = OwnedTensor(Spec{{1, 1}, DType::f32}, s.device());
    parts_ = OwnedTensor(PagedAttention::scratch(q_.tensor.spec(), layers_[0].keys.tensor.spec(), {}, {}, {},
                                                 pages_.tensor.spec(), attention())[0],
                         s.device());
    const auto specs = Int4Linear::scratch(gated_.tensor.spec(), layers_[0].down.packed.tensor.spec(),
                                           layers_[0].down.scale.tensor.spec(), {}, {}, {}, {});
    for (std::size_t i = 0; i < specs.size(); ++i) scratch_[i] = OwnedTensor(specs[i], s.device());
  }

  void queue(const Without& w) {
    for (auto& l : layers_) {
      const Matrix<View> m[] = {l.q.matrix(dense_), l.k.matrix(dense_), l.v.matrix(dense_)};
      if (w.has("norm_qkv"))
        cuda::norm_qkv(s_, q_.tensor, l.keys.tensor, l.values.tensor, x_.tensor, gamma_.tensor, table_.tensor,
                       {position_.tensor, slot_.tensor}, m, {}, {.head_dim = kHeadDim, .constant_weights = true});
      if (w.has("attention"))
        cuda::paged_attention(s_, attended_.tensor, q_.tensor, l.keys.tensor, l.values.tensor, starts_.tensor,
                              length_.tensor, pages_.tensor, parts_.tensor, attention());
      if (w.has("o")) product(w.o, middle_.tensor, attended_.tensor, l.o, x_.tensor);
      if (w.has("norm_swiglu"))
        cuda::norm_swiglu(s_, gated_.tensor, middle_.tensor, gamma_.tensor, l.gate.matrix(dense_), l.up.matrix(dense_),
                          {}, {.constant_weights = true});
      if (w.has("down")) product(w.down, x_.tensor, gated_.tensor, l.down, middle_.tensor);
    }
    if (w.has("head")) {
      RmsNorm::forward(s_, h_.tensor, rstd_.tensor, x_.tensor, gamma_.tensor, {});
      product(-1, logits_.tensor, h_.tensor, head_, {});
      cuda::sample(s_, id_.tensor, logits_.tensor, rule_.tensor);
    }
  }
  Stream& s_;
  bool dense_;

 private:
  static PagedAttention::Args attention() { return {.heads = kHeads, .most_queries = 1}; }
  template <class T> OwnedTensor copied(DType type, Shape shape, const std::vector<T>& values) const {
    OwnedTensor there({shape, type}, s_.device());
    copy(s_, there.tensor, View(values.data(), there.tensor.spec()));
    s_.synchronize();
    return there;
  }
  void product(int way, Tensor y, View x, const Weights& w, View residual) {
    if (dense_)
      return Linear::forward(s_, y, x, w.dense.tensor, {}, residual, {.out = y.dtype(), .constant_weights = true});
    const int4::Weight weight{w.packed.tensor, w.scale.tensor, {}};
    const int4::Scratch scratch{scratch_[0].tensor, scratch_[1].tensor, scratch_[2].tensor};
    const Int4Linear::Args a{.out = y.dtype(), .constant_weights = true};
    if (way < 0) cuda::int4_linear(s_, y, x, weight, {}, residual, scratch, a);
    else cuda::int4_linear_by(way, s_, y, x, weight, {}, residual, scratch, a);
  }

  std::vector<Layer> layers_;
  Weights head_;
  OwnedTensor x_, q_, attended_, middle_, gated_, h_, gamma_, table_, logits_, id_, rule_, rstd_, parts_;
  OwnedTensor position_, slot_, starts_, length_, pages_;
  std::array<OwnedTensor, 3> scratch_;
};

nlohmann::ordered_json measured(Step& step, bool ways) {
  std::vector<bench::Side> sides;
  const auto add = [&](std::string name, Without w) {
    sides.push_back({std::move(name), [&step, w] { step.queue(w); }});
  };
  add("all", {});
  const std::set<std::string> kinds{"norm_qkv", "attention", "o", "norm_swiglu", "down", "head"};
  for (const auto& kind : kinds) {
    add("without " + kind, {.kinds = {kind}});
    auto others = kinds;
    others.erase(kind);
    add("only " + kind, {.kinds = others});
  }
  if (ways)
    for (const auto& [n, k, name] : {std::tuple{kWidth, kWidth, "o"}, {kWidth, kInner, "down"}})
      for (const auto& way : cuda::int4_ways(step.s_, {.rows = 1, .n = n, .k = k, .group = kGroup, .constant = true})) {
        if (way.name.starts_with("rows") || way.name.starts_with("tiles")) continue;
        Without w;
        (std::string_view(name) == "o" ? w.o : w.down) = way.id;
        add(fmt::format("{} by {}", name, way.name), w);
      }
  bench::measure(step.s_, sides, 7, 4000);
  nlohmann::ordered_json line;
  for (const auto& side : sides) line[side.name] = std::stod(fmt::format("{:.2f}", bench::median(side.us)));
  return line;
}

int run(bool ways) {
  Pool pool(1);
  Stream s(Device::cuda(0), pool);
  cudaDeviceProp gpu;
  cuda::check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  nlohmann::ordered_json all{{"machine", {{"gpu", gpu.name}}},
                             {"case",
                              "one token of a Llama of 1.1 B parameters, 22 layers, after 1151 others: a graph "
                              "of a step with and without its kinds of records, in turns; medians"},
                             {"unit", "us"}};
  for (const bool dense : {false, true}) {
    Step step(s, dense);
    all[dense ? "bf16" : "int4"] = measured(step, ways && !dense);
  }
  std::puts(all.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace hpcdl

int main(int argc, char**) { return hpcdl::run(argc > 1); }
