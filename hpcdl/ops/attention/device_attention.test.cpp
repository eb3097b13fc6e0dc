// Every way to compute attention on a GPU, at shapes around the edges of tiles, against loops in double.

#include "hpcdl/ops/attention/device_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/core/ways.h"
#include "hpcdl/rng.h"

#if HPCDL_CUDA

#if __has_include(<cudnn_graph.h>)
#include "hpcdl/cuda/cudnn_library.h"
#endif

namespace hpcdl::cuda {
namespace {

struct Case {
  std::int64_t batch, queries, keys;
  int heads, kv_heads;
  std::int64_t width;
  bool causal = true, packed = false, accumulate = false;
  std::int64_t window = 0;
  float cap = 0;
  std::int64_t documents = 0;  // in a row, of all lengths; 0: the row is not divided
};

/// Either 16-bit type, or f32.
double get(const View& x, std::int64_t i) {
  if (x.dtype() == DType::f32) return static_cast<double>(x.ptr<float>()[i]);
  return x.dtype() == DType::bf16 ? static_cast<double>(x.ptr<bf16>()[i]) : static_cast<double>(x.ptr<f16>()[i]);
}
void put(const Tensor& x, std::int64_t i, double v) {
  if (x.dtype() == DType::f32) x.ptr<float>()[i] = static_cast<float>(v);
  else if (x.dtype() == DType::bf16) x.ptr<bf16>()[i] = bf16(static_cast<float>(v));
  else x.ptr<f16>()[i] = f16(static_cast<float>(v));
}

/// (B, T, heads, D) on both sides; successive tokens are `apart` elements apart, as in a packed qkv.
struct Both {
  OwnedTensor host, device;
  Tensor there;
  std::int64_t apart;

  Both(Stream& s, DType d, std::int64_t batch, std::int64_t tokens, std::int64_t heads, std::int64_t width,
       std::int64_t distance, std::uint64_t seed)
      : host(Spec{{batch, tokens, distance}, d}), device(host.tensor.spec(), s.device()), apart(distance) {
    for (std::int64_t i = 0; i < host.tensor.size(); ++i)
      put(host.tensor, i, Rng{seed, 3}.normal(static_cast<std::uint64_t>(i)));
    copy(s, device.tensor, host.tensor);
    there = Tensor(device.tensor.data(), {{batch, tokens, heads, width}, d}, Shape{tokens * apart, apart, width, 1},
                   s.device());
  }
  void back(Stream& s) {
    copy(s, host.tensor, device.tensor);
    s.synchronize();
  }
  std::vector<double> values(Stream& s) {
    back(s);
    std::vector<double> list;
    const std::int64_t row = there.shape()[2] * there.shape()[3];
    for (std::int64_t t = 0; t < there.shape()[0] * there.shape()[1]; ++t)
      for (std::int64_t i = 0; i < row; ++i) list.push_back(get(host.tensor, t * apart + i));
    return list;
  }
};

/// Where the documents of each row begin and end: a first one of one token, then longer and longer ones.
struct Bounds {
  std::vector<std::int32_t> begins, ends;
  OwnedTensor device;  // (2, B, T)

  Bounds(Stream& s, std::int64_t batch, std::int64_t tokens, std::int64_t documents) {
    if (documents == 0) return;
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t t = 0; t < tokens; ++t) {
        const auto first = [&](std::int64_t i) {
          return i == 0 ? 0 : 1 + (tokens - 1 - b) * i * i / (documents * documents);
        };
        std::int64_t i = 0;
        while (i + 1 < documents && first(i + 1) <= t) ++i;
        begins.push_back(static_cast<std::int32_t>(first(i)));
        ends.push_back(static_cast<std::int32_t>(i + 1 < documents ? first(i + 1) : tokens));
      }
    device = OwnedTensor(Spec{{2, batch, tokens}, DType::i32}, s.device());
    for (const bool end : {false, true}) copy(s, of(end), View((end ? ends : begins).data(), of(end).spec()));
    s.synchronize();
  }
  Tensor of(bool end) const {
    if (!device.tensor) return {};
    const Spec one{{device.tensor[1], device.tensor[2]}, DType::i32};
    return {device.tensor.ptr<std::int32_t>() + (end ? one.size() : 0), one, device.tensor.device()};
  }
};

/// A result and, for each element, the sum of magnitudes that it was computed from.
struct Sums {
  std::vector<double> value, terms;  // sum of x y; sum of |x y|
  std::vector<double> inner;         // sum of |y| times the magnitudes that were summed in x and may have cancelled
  std::vector<double> factors;       // sum of |y|, where x is rounded before the product
  explicit Sums(std::size_t n = 0) : value(n), terms(n), inner(n), factors(n) {}
  void add(std::size_t i, double x, double y, double behind_x = 0) {
    value[i] += x * y, terms[i] += std::fabs(x * y), inner[i] += behind_x * std::fabs(y), factors[i] += std::fabs(y);
  }
};

class Problem {
 public:
  Problem(Stream& s, const Case& c, DType d)
      : c_(c),
        d_(d),
        s_(s),
        q(s, d, c.batch, c.queries, c.heads, c.width, apart(c.heads), 1),
        k(s, d, c.batch, c.keys, c.kv_heads, c.width, apart(c.kv_heads), 2),
        v(s, d, c.batch, c.keys, c.kv_heads, c.width, apart(c.kv_heads), 3),
        out(s, d, c.batch, c.queries, c.heads, c.width, c.heads * c.width, 4),
        dout(s, d, c.batch, c.queries, c.heads, c.width, c.heads * c.width, 5),
        dq(s, d, c.batch, c.queries, c.heads, c.width, apart(c.heads), 6),
        dk(s, d, c.batch, c.keys, c.kv_heads, c.width, apart(c.kv_heads), 7),
        dv(s, d, c.batch, c.keys, c.kv_heads, c.width, apart(c.kv_heads), 8),
        lse(Spec{{c.batch, c.heads, c.queries}, DType::f32}, s.device()),
        bounds(s, c.batch, c.queries, c.documents) {
    args = {.heads = c.heads, .kv_heads = c.kv_heads, .causal = c.causal, .cap = c.cap, .window = c.window};
    scratch = OwnedTensor(Attention::scratch(q.there.spec(), k.there.spec(), v.there.spec(), args)[0], s.device());
    backward_scratch =
        OwnedTensor(Attention::backward_scratch(q.there.spec(), k.there.spec(), v.there.spec(), args)[0], s.device());
  }
  Attend forward() const {
    return {out.there, lse.tensor,     q.there, k.there,
            v.there,   scratch.tensor, args,    {bounds.of(false), bounds.of(true)}};
  }
  AttendBackward backward() const {
    const auto write = c_.accumulate ? Write::accumulate : Write::overwrite;
    Attend of = forward();
    of.scratch = backward_scratch.tensor;
    return {of, {dq.there, write}, {dk.there, write}, {dv.there, write}, dout.there};
  }

  void expect_forward() {
    log_sums_.clear();
    const auto want = attend();
    compare(out.values(s_), want, 1, "out");
    compare_log_sums();
  }
  void expect_backward(const std::vector<double>& dq0, const std::vector<double>& dk0, const std::vector<double>& dv0) {
    Sums wq(dq0.size()), wk(dk0.size()), wv(dv0.size());
    if (c_.accumulate) wq.value = dq0, wk.value = dk0, wv.value = dv0;
    attend(&wq, &wk, &wv);
    compare(dq.values(s_), wq, 2, "dq"), compare(dk.values(s_), wk, 2, "dk"), compare(dv.values(s_), wv, 2, "dv");
  }

 private:
  std::int64_t apart(int heads) const { return heads * c_.width + (c_.packed ? 2 * c_.width : 0); }

  /// `roundings`: to the storage type before the last sum, each half an ulp of every term.
  void compare(const std::vector<double>& got, const Sums& want, int roundings, const char* what) const {
    ASSERT_EQ(got.size(), want.value.size());
    int wrong = 0;
    for (std::size_t i = 0; i < got.size() && wrong < 3; ++i) {
      // TF32 rounds both operands of a product by up to 2^-11 of themselves: those of a score, whose terms amount to
      // less than 8 here, also in the sum that divides, and those of the last product. An exact product has an error of
      // 2^-22 of a term (docs/numerics.md), within the bound for sums of this length.
      const double cut = d_ == DType::f32 && s_.numerics().products == F32Products::tf32 ? 0x1p-10 : 0;
      // Scores carry the error of their sums into the exponent: 40 covers scores of tens. f16 has a smallest step.
      const double step = d_ == DType::f16 ? 0x1p-25 * (1 + want.factors[i]) : 0;
      const double allowed = allowed_error(d_, std::fabs(want.value[i]), static_cast<double>(c_.keys + c_.width),
                                           40 * want.terms[i] + want.inner[i]) +
                             (d_ == DType::f32 ? 0 : roundings * half_ulp(d_) * want.terms[i]) +
                             cut * (17 * want.terms[i] + 2 * want.inner[i]) + step + 1e-30;
      if (std::fabs(got[i] - want.value[i]) <= allowed) continue;
      ADD_FAILURE() << what << "[" << i << "]: got " << got[i] << ", want " << want.value[i] << ", allowed error "
                    << allowed;
      ++wrong;
    }
  }

  void compare_log_sums() const {
    OwnedTensor got(lse.tensor.spec());
    copy(s_, got.tensor, lse.tensor);
    s_.synchronize();
    const double cut = d_ == DType::f32 && s_.numerics().products == F32Products::tf32 ? 0x1p-10 : 0;
    int wrong = 0;
    for (std::size_t i = 0; i < log_sums_.size() && wrong < 3; ++i) {
      const double now = static_cast<double>(got.tensor.ptr<float>()[i]);
      // A score's error is relative to its terms, which amount to tens at most, or less than 8 where TF32 rounds them;
      // the sum of probabilities has the error of a sum of its length.
      const double allowed =
          allowed_error(DType::f32, std::fabs(log_sums_[i]), static_cast<double>(c_.keys + c_.width), 40) + 16 * cut;
      if (std::fabs(now - log_sums_[i]) <= allowed) continue;
      ADD_FAILURE() << "lse[" << i << "]: got " << now << ", want " << log_sums_[i] << ", allowed error " << allowed;
      ++wrong;
    }
  }

  /// The result; with arguments also the gradients, from out and dout as stored.
  Sums attend(Sums* wq = nullptr, Sums* wk = nullptr, Sums* wv = nullptr) {
    const auto D = c_.width;
    const auto Q = q.values(s_), K = k.values(s_), V = v.values(s_), O = out.values(s_), G = dout.values(s_);
    Sums result(Q.size());
    std::vector<double> p(static_cast<std::size_t>(c_.keys)), slope(p.size());
    const double scale = 1 / std::sqrt(static_cast<double>(D));
    for (std::int64_t b = 0; b < c_.batch; ++b)
      for (int h = 0; h < c_.heads; ++h)
        for (std::int64_t t = 0; t < c_.queries; ++t) {
          const auto qi = static_cast<std::size_t>(((b * c_.queries + t) * c_.heads + h) * D);
          const auto at = [&](std::int64_t j) {
            return static_cast<std::size_t>(((b * c_.keys + j) * c_.kv_heads + h * c_.kv_heads / c_.heads) * D);
          };
          const auto n = c_.causal ? t + c_.keys - c_.queries + 1 : c_.keys;
          const auto in_window = args.first_key(n - 1);
          const auto first =
              bounds.begins.empty()
                  ? in_window
                  : std::max<std::int64_t>(in_window, bounds.begins[static_cast<std::size_t>(b * c_.queries + t)]);
          const auto cap = static_cast<double>(c_.cap);
          double top = -INFINITY, sum = 0, delta = 0, off = 0;
          for (std::int64_t j = first; j < n; ++j) {
            double dot = 0;
            for (std::size_t i = 0; i < static_cast<std::size_t>(D); ++i) dot += Q[qi + i] * K[at(j) + i];
            const double score = cap > 0 ? cap * std::tanh(scale * dot / cap) : scale * dot;
            top = std::max(top, p[static_cast<std::size_t>(j)] = score);
            slope[static_cast<std::size_t>(j)] = cap > 0 ? 1 - score / cap * (score / cap) : 1;
          }
          for (std::int64_t j = first; j < n; ++j)
            sum += p[static_cast<std::size_t>(j)] = std::exp(p[static_cast<std::size_t>(j)] - top);
          if (!wq) log_sums_.push_back(top + std::log(sum));
          for (std::size_t i = 0; i < static_cast<std::size_t>(D); ++i) {
            for (std::int64_t j = first; j < n; ++j)
              result.add(qi + i, p[static_cast<std::size_t>(j)] / sum, V[at(j) + i]);
            delta += G[qi + i] * O[qi + i], off += std::fabs(G[qi + i] * O[qi + i]);
          }
          if (!wq) continue;
          for (std::int64_t j = first; j < n; ++j) {
            double dp = 0, size = 0;
            for (std::size_t i = 0; i < static_cast<std::size_t>(D); ++i)
              dp += G[qi + i] * V[at(j) + i], size += std::fabs(G[qi + i] * V[at(j) + i]);
            const double pr = p[static_cast<std::size_t>(j)] / sum,
                         ds = scale * pr * (dp - delta) * slope[static_cast<std::size_t>(j)],
                         behind = scale * pr * (size + off);
            for (std::size_t i = 0; i < static_cast<std::size_t>(D); ++i) {
              wv->add(at(j) + i, pr, G[qi + i]);
              wk->add(at(j) + i, ds, Q[qi + i], behind);
              wq->add(qi + i, ds, K[at(j) + i], behind);
            }
          }
        }
    return result;
  }

  Case c_;
  DType d_;
  Stream& s_;
  std::vector<double> log_sums_;  // (B, H, T)

 public:
  Both q, k, v, out, dout, dq, dk, dv;
  OwnedTensor lse, scratch, backward_scratch;
  Bounds bounds;
  Attention::Args args;
};

class DeviceAttention : public ::testing::TestWithParam<Case> {};

TEST_P(DeviceAttention, all_ways_agree_with_loops_and_repeat) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  const std::pair<DType, F32Products> types[] = {{DType::bf16, F32Products::exact},
                                                 {DType::f16, F32Products::exact},
                                                 {DType::f32, F32Products::exact},
                                                 {DType::f32, F32Products::tf32}};
  for (const auto& [d, products] : types) {
    const WithNumerics told(s, {.products = products, .atomic_sums = true});
    const std::string type = std::string(dtype_name(d)) + (products == F32Products::tf32 ? " as tf32" : "");
    Problem p(s, GetParam(), d);
    const auto dq0 = p.dq.values(s), dk0 = p.dk.values(s), dv0 = p.dv.values(s);
    const auto forward = p.forward();
    const auto span = attention_candidates(s, forward);
    for (const auto& way : std::vector<AttentionCandidate>(span.begin(), span.end())) {
      SCOPED_TRACE(type + ", " + std::string(way.name));
      attention_with(s, forward, way.id);
      p.expect_forward();
      const auto first = p.out.values(s);
      attention_with(s, forward, way.id);
      EXPECT_EQ(first, p.out.values(s));
      if (way.name == "mma" && products == F32Products::tf32) {
        const WithNumerics exact(s, {});
        attention_with(s, forward, way.id);
        EXPECT_NE(first, p.out.values(s)) << "TF32 was requested, but every bit equals that of f32";
      }
    }
    const auto backward = p.backward();
    const auto list = attention_candidates(s, backward);
    for (const auto& way : std::vector<AttentionCandidate>(list.begin(), list.end())) {
      SCOPED_TRACE(type + ", backward, " + std::string(way.name));
      std::vector<double> first[3];
      for (int run = 0; run < 2; ++run) {
        const auto restore = [&](Both& x, std::uint64_t seed) {
          x = Both(s, d, x.there[0], x.there[1], x.there[2], x.there[3], x.apart, seed);
        };
        if (GetParam().accumulate) restore(p.dq, 6), restore(p.dk, 7), restore(p.dv, 8);
        attention_with(s, p.backward(), way.id);
        std::vector<double> now[3] = {p.dq.values(s), p.dk.values(s), p.dv.values(s)};
        if (run == 0) p.expect_backward(dq0, dk0, dv0), first[0] = now[0], first[1] = now[1], first[2] = now[2];
        else
          for (int i = way.name.ends_with("atomic sums") ? 1 : 0; i < 3; ++i)
            EXPECT_EQ(first[i], now[i]) << "a second run has different bits";
      }
    }
  }
}

bool among(std::span<const AttentionCandidate> all, std::string_view name) {
  return std::any_of(all.begin(), all.end(), [&](const AttentionCandidate& c) { return c.name == name; });
}

TEST(DeviceAttentionWays, hopper_takes_every_multiple_of_8_up_to_128) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  if (!wgmma_fits(s, Problem(s, {1, 64, 64, 2, 2, 64}, DType::bf16).forward())) GTEST_SKIP() << "no Hopper";
  for (std::int64_t width = 4; width <= 136; width += 4) {
    const bool fits = width % 8 == 0 && width <= 128;
    Problem p(s, {1, 64, 64, 2, 1, width}, DType::bf16), half(s, {1, 64, 64, 2, 1, width}, DType::f16);
    EXPECT_EQ(wgmma_fits(s, p.forward()), fits) << width;
    EXPECT_EQ(wgmma_fits(s, p.backward()), fits) << width;
    EXPECT_EQ(wgmma_fits(s, half.forward()), fits) << width;
    EXPECT_EQ(wgmma_fits(s, half.backward()), width == 64 || width == 128) << width;
  }
}

TEST(DeviceAttentionWays, wide_heads_are_not_left_to_the_plain_kernel) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  if (!wgmma_fits(s, Problem(s, {1, 64, 64, 2, 2, 64}, DType::bf16).forward())) GTEST_SKIP() << "no Hopper";
  const auto plain = [](std::span<const AttentionCandidate> all, int id) {
    return std::any_of(all.begin(), all.end(), [&](const auto& c) { return c.id == id && c.name == "plain"; });
  };
  for (const std::int64_t width : {130, 144, 192, 250, 256})
    for (const std::int64_t tokens : {64, 320})
      for (const DType d : {DType::bf16, DType::f16, DType::f32}) {
        Problem p(s, {1, tokens, tokens, 2, 1, width}, d);
        EXPECT_FALSE(plain(attention_candidates(s, p.forward()), attention_choice(s, p.forward()))) << width;
        EXPECT_FALSE(plain(attention_candidates(s, p.backward()), attention_choice(s, p.backward()))) << width;
      }
}

/// Operands of more than a workspace, which are copied in parts: against mma.sync, which needs no copies.
TEST(DeviceAttentionWays, padded_copies_in_parts_agree_with_elements) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  const auto far_apart = [](const std::vector<double>& a, const std::vector<double>& b) {
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
    return std::sqrt(difference / size);
  };
  for (const Case& c : {Case{5, 1000, 1000, 10, 10, 101}, Case{2, 1800, 1900, 24, 12, 68, true, true}}) {
    Problem p(s, c, DType::bf16);
    const auto forward = p.forward();
    const auto way = [&](const auto& call, std::string_view name) {
      for (const auto& found : attention_candidates(s, call))
        if (found.name == name) return found.id;
      ADD_FAILURE() << "no way is called " << name;
      return 0;
    };
    EXPECT_EQ(attention_choice(s, forward), way(forward, "padded copies"));
    EXPECT_EQ(attention_choice(s, p.backward()), way(p.backward(), "padded copies"));
    attention_with(s, forward, way(forward, "padded copies"));
    const auto out = p.out.values(s);
    attention_with(s, forward, way(forward, "mma"));
    EXPECT_LT(far_apart(out, p.out.values(s)), 0x1p-7);
    attention_with(s, p.backward(), way(p.backward(), "padded copies"));
    const auto dq = p.dq.values(s), dk = p.dk.values(s), dv = p.dv.values(s);
    attention_with(s, p.backward(), way(p.backward(), "mma"));
    EXPECT_LT(far_apart(dq, p.dq.values(s)), 0x1p-7);
    EXPECT_LT(far_apart(dk, p.dk.values(s)), 0x1p-7);
    EXPECT_LT(far_apart(dv, p.dv.values(s)), 0x1p-7);
  }
}

TEST(DeviceAttentionWays, a_table_decides) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  for (const Case& c : {Case{2, 256, 256, 4, 2, 64}, Case{1, 160, 160, 2, 2, 192}}) {
    Problem p(s, c, DType::bf16);
    const auto name_of = [](int id) { return std::string(attention_ways()[static_cast<std::size_t>(id)]); };
    const auto key_of = [&](const auto& call) {
      const auto shape = shape_of(s, call);
      const auto fields = fields_of(shape);
      return WayKey{std::string(shape.op()), {fields.begin(), fields.end()}};
    };
    const auto chosen = [&](const auto& call, WayNames names) {
      s.set_ways(std::make_shared<const Ways>(std::move(names)));
      WayNotes notes;
      {
        const WithWayNotes with(s, notes);
        if constexpr (requires { call.dq; })
          attention_backward(s, call.dq, call.dk, call.dv, call.q, call.k, call.v, call.out, call.lse, call.dout,
                             call.scratch, call.args);
        else
          attention(s, Tensor(const_cast<void*>(call.out.data()), call.out.spec(), call.out.strides(), s.device()),
                    Tensor(const_cast<void*>(call.lse.data()), call.lse.spec(), call.lse.strides(), s.device()), call.q,
                    call.k, call.v, call.scratch, call.args);
      }
      s.synchronize();
      s.set_ways(nullptr);
      return notes.all().begin()->second.used;
    };
    const auto each = [&](const auto& call) {
      const auto list = attention_candidates(s, call);
      for (const auto& way : std::vector(list.begin(), list.end())) {
        EXPECT_EQ(chosen(call, {.calls = {{key_of(call), std::string(way.name)}}, .preferred = {}}), way.name);
        EXPECT_EQ(chosen(call, {.calls = {}, .preferred = {{"attention", std::string(way.name)}}}), way.name);
      }
      const auto own = chosen(call, {.calls = {}, .preferred = {{"attention", "own"}}});
      EXPECT_FALSE(own.starts_with("cudnn")) << own;
      EXPECT_EQ(chosen(call, {.calls = {{key_of(call), "decode"}}, .preferred = {}}),
                name_of(attention_choice(s, call)))
          << "decode is for one query";
    };
    each(p.forward()), each(p.backward());
  }
}

#if __has_include(<cudnn_graph.h>)
TEST(DeviceAttentionWays, cudnn_is_among_them_and_atomic_sums_where_they_are_allowed) {
  if (cuda_devices() == 0 || !cudnn::Library::get().whole || cudnn::Library::get().version() < 91600)
    GTEST_SKIP() << "no GPU, or no cuDNN of at least 9.16";
  Pool pool(1);
  StepParams params;
  Stream s(Device::cuda(0), pool, &params);
  for (const Case& c :
       {Case{2, 256, 256, 4, 2, 64}, Case{1, 200, 130, 2, 2, 80, false, true}, Case{1, 70, 333, 3, 1, 128}}) {
    Problem p(s, c, DType::bf16);
    EXPECT_TRUE(among(attention_candidates(s, p.forward()), "cudnn"));
    for (const bool allowed : {false, true}) {
      const WithNumerics told(s, {.atomic_sums = allowed});
      EXPECT_TRUE(among(attention_candidates(s, p.backward()), "cudnn"));
      EXPECT_EQ(among(attention_candidates(s, p.backward()), "cudnn, atomic sums"), allowed);
      s.set_ways(std::make_shared<const Ways>(WayNames{.calls = {}, .preferred = {{"attention", "cudnn"}}}));
      WayNotes notes;
      {
        const WithWayNotes with(s, notes);
        const auto call = p.backward();
        attention_backward(s, call.dq, call.dk, call.dv, call.q, call.k, call.v, call.out, call.lse, call.dout,
                           call.scratch, call.args);
      }
      s.set_ways(nullptr);
      EXPECT_EQ(notes.all().begin()->second.used, allowed ? "cudnn, atomic sums" : "cudnn");
    }
  }
  Problem adding(s, {1, 128, 128, 2, 2, 64, true, false, true}, DType::bf16),
      f32(s, {1, 128, 128, 2, 2, 64}, DType::f32), odd(s, {1, 128, 128, 2, 2, 30}, DType::f16);
  EXPECT_FALSE(among(attention_candidates(s, adding.backward()), "cudnn")) << "accumulated gradients are not supported";
  EXPECT_FALSE(among(attention_candidates(s, f32.forward()), "cudnn")) << "f32 is not supported";
  EXPECT_FALSE(among(attention_candidates(s, odd.forward()), "cudnn"))
      << "rows that are not aligned to 16 bytes are not supported";
}
#endif

INSTANTIATE_TEST_SUITE_P(
    cuda, DeviceAttention,
    ::testing::Values(
        Case{1, 64, 64, 2, 2, 64}, Case{2, 130, 130, 4, 2, 64}, Case{1, 300, 300, 3, 3, 64, true, true},
        Case{2, 257, 257, 2, 1, 128, true, false, true}, Case{1, 70, 333, 3, 1, 128},
        Case{1, 200, 129, 2, 2, 128, false}, Case{1, 330, 520, 4, 2, 128, false},
        Case{2, 129, 200, 2, 2, 64, false, true, true}, Case{1, 5, 17, 2, 2, 64}, Case{2, 1, 300, 8, 2, 128},
        Case{1, 1, 513, 3, 3, 64}, Case{1, 1, 40, 5, 5, 64}, Case{2, 1, 700, 6, 2, 80},
        Case{1, 1, 1000, 4, 1, 96, true, true}, Case{2, 1, 260, 3, 3, 75}, Case{1, 1, 515, 4, 2, 256},
        Case{1, 1, 300, 2, 1, 131, true, true}, Case{1, 1, 129, 2, 2, 20}, Case{2, 640, 640, 2, 1, 64},
        Case{1, 100, 150, 2, 1, 80, true, true, true}, Case{2, 67, 67, 2, 2, 30, false, true, true},
        Case{2, 190, 190, 4, 2, 40, true, true}, Case{1, 130, 200, 3, 1, 96, true, false, true},
        Case{2, 257, 130, 2, 2, 8, false, true}, Case{1, 150, 260, 2, 2, 120, true, true, true},
        Case{2, 128, 256, 4, 2, 128, true, true}, Case{1, 130, 200, 2, 1, 256},
        Case{2, 70, 70, 2, 2, 192, false, true, true}, Case{1, 65, 90, 2, 2, 144, true, true},
        Case{1, 33, 40, 2, 1, 250, true, false, true}, Case{2, 130, 130, 4, 2, 44},
        Case{1, 150, 200, 4, 1, 25, true, true, true}, Case{2, 80, 70, 2, 2, 50, false, true},
        Case{1, 200, 260, 2, 1, 130, true, false, true}, Case{1, 190, 190, 2, 2, 156},
        Case{2, 64, 300, 6, 2, 101, true, true},
        // Windows and caps.
        Case{1, 130, 200, 3, 1, 64, true, true, true, 7}, Case{2, 300, 300, 2, 1, 80, true, false, false, 64},
        Case{1, 257, 300, 7, 1, 128, true, false, false, 100, 2.0f},
        Case{1, 90, 90, 2, 2, 256, true, false, false, 33, 1.0f}, Case{2, 70, 70, 2, 1, 25, true, true, false, 9, 3.0f},
        Case{1, 64, 64, 2, 2, 64, true, false, true, 0, 2.0f}, Case{2, 1, 700, 6, 2, 80, true, false, false, 65, 2.0f},
        Case{1, 1, 513, 8, 2, 64, true, false, false, 40}, Case{1, 1, 1000, 16, 1, 128, true, false, false, 300, 1.0f},
        // Documents.
        Case{2, 64, 64, 2, 2, 64, true, false, false, 0, 0, 1}, Case{2, 700, 700, 2, 1, 64, true, true, true, 0, 0, 4},
        Case{2, 515, 515, 3, 3, 128, true, false, false, 0, 0, 3},
        Case{1, 640, 640, 4, 1, 128, true, true, true, 0, 0, 30},
        Case{3, 300, 300, 2, 2, 80, true, false, false, 0, 0, 7},
        Case{1, 200, 200, 2, 1, 256, true, false, true, 0, 0, 5},
        Case{2, 190, 190, 2, 2, 50, true, true, false, 0, 0, 3},
        Case{1, 260, 260, 2, 1, 40, true, false, false, 33, 2.0f, 4},
        Case{2, 2, 2, 2, 2, 16, true, false, false, 0, 0, 2},
        Case{1, 1000, 1000, 2, 2, 64, true, false, false, 0, 0, 1000}));

}  // namespace
}  // namespace hpcdl::cuda

#endif
