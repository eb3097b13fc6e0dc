#include "hpcdl/ops/expert_mlp/expert_mlp.spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <span>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/decoding.h"
#include "hpcdl/testing/every_isa.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

/// A spec of dense experts; `gradient` false: too large for differences.
struct Trained {
  std::int64_t rows, width, inner;
  int experts;
  std::int64_t chosen;
  Swiglu::Gate gate = Swiglu::Gate::silu;
  bool has_base = true, gradient = true, trains = true;
};

// One expert with all tokens; all experts of each token; experts without tokens; odd widths; frozen experts; no rows. On
// a GPU some shapes fit its tensor cores.
constexpr Trained kTrained[] = {{1, 1, 1, 1, 1},
                                {5, 8, 16, 1, 1},
                                {3, 7, 5, 3, 3, Swiglu::Gate::gelu_tanh},
                                {2, 9, 17, 7, 2, Swiglu::Gate::silu, false},
                                {12, 16, 24, 4, 2, Swiglu::Gate::gelu_tanh},
                                {9, 33, 20, 2, 1, Swiglu::Gate::silu, true, true, false},
                                {150, 40, 48, 3, 2, Swiglu::Gate::silu, true, false},
                                {0, 8, 8, 2, 2, Swiglu::Gate::silu, true, false}};

bool register_specs() {
  using testing::Input;
  for (const Trained& t : kTrained) {
    testing::ErasedSpec spec;
    spec.op = &ExpertMlp::info(t.experts);
    testing::ErasedSpec::Case c;
    const Input base{t.rows, t.width}, x = base;
    c.in = {t.has_base ? base : Input::none(), x, Input{t.rows, t.chosen}.as(DType::f32),
            Input::indices({t.rows, t.chosen}, t.experts)};
    for (int e = 0; e < t.experts; ++e)
      for (const Shape& shape : {Shape{t.inner, t.width}, Shape{t.inner, t.width}, Shape{t.width, t.inner}}) {
        const Input w = Input(shape).filled(testing::Fill::uniform);
        c.in.push_back(t.trains ? w : w.fixed());
        for (int absent = 0; absent < 3; ++absent) c.in.push_back(Input::none());
      }
    const ExpertMlp::Args args{.experts = t.experts, .gate = t.gate};
    c.args.resize(sizeof args);
    std::memcpy(c.args.data(), &args, sizeof args);
    c.gradient = t.gradient;
    spec.cases.push_back(std::move(c));
    spec.forward.reference = contract::with_args<ExpertMlp::Args>(contract::expert_mlp_reference);
    spec.reduction = [t](std::span<const Spec>, const void*) { return static_cast<double>(t.width + t.inner); };
    // Values between the products are sums, whose errors pass through the next product, and the activation cubes.
    spec.condition = 40, spec.bf16 = false, spec.outliers = false;
    testing::register_op_tests(std::move(spec));
  }
  return true;
}
const bool registered = register_specs();

struct Case {
  std::int64_t rows, width, inner, experts, chosen;
  Swiglu::Gate gate = Swiglu::Gate::silu;
  std::int64_t group = 0;  // of 4-bit weights; 0: dense
  bool offsets = false;
  bool has_base = true;
  bool absent = false;  // every fifth choice is none
};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Experts of each row: different ones, never the last if others suffice, and mostly the first.
std::vector<std::int32_t> choices(const Case& c) {
  std::vector<std::int32_t> list;
  const std::int64_t used = c.experts > c.chosen ? c.experts - 1 : c.experts;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    const auto first =
        r % 3 == 0 ? 0 : Rng{7, 0}.below(static_cast<std::uint64_t>(r), static_cast<std::uint64_t>(used));
    for (std::int64_t i = 0; i < c.chosen; ++i)
      list.push_back(static_cast<std::int32_t>((static_cast<std::int64_t>(first) + i) % used));
  }
  for (std::size_t i = 0; c.absent && i < list.size(); i += 5) list[i] = -1;
  return list;
}

/// The values of a matrix on a device.
std::vector<double> values_of(Stream& s, const Matrix<View>& m) {
  const auto host = [&](const View& v) {
    const auto of = testing::on_host(s, v);
    return std::vector<double>(of.begin(), of.end());
  };
  if (!m.quantized()) return host(m.w);
  OwnedTensor packed(m.w.spec());
  copy(s, packed.tensor, m.w);
  const auto scale = host(m.scale), offset = m.offset ? host(m.offset) : std::vector<double>(scale.size());
  const auto n = m.w[0], k = 2 * m.w[1], groups = m.scale[1];
  std::vector<double> values;
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t c = 0; c < k; ++c) {
      const auto tile = r / int4::kTileRows * int4::kTileRows, rows = int4::tile_rows(tile, n);
      const auto byte = static_cast<int>(
          packed.tensor.ptr<std::uint8_t>()[int4::packed_at(tile, k) + int4::byte_of(rows, r - tile, c)]);
      const auto place = at(int4::scale_at(tile, groups) + c / (k / groups) * rows + r - tile);
      values.push_back(scale[place] * ((int4::is_high(c) ? byte >> 4 : byte & 15) - 8) + offset[place]);
    }
  return values;
}

/// The operands of a record, and what it should give.
class Mixture {
 public:
  Mixture(Stream& s, const Case& c, DType type) : s_(s), c_(c), type_(type), list_(choices(c)) {
    base_ = random({c.rows, c.width}), x_ = random({c.rows, c.width});
    weights_ = testing::random_on(s, {c.rows, c.chosen}, DType::f32, ++seed_);
    experts_ = OwnedTensor({{c.rows, c.chosen}, DType::i32}, s.device());
    copy(s, experts_.tensor, View(list_.data(), experts_.tensor.spec()));
    y_ = OwnedTensor(x_.tensor.spec(), s.device());
    std::vector<ExpertMatrices<Spec>> specs;
    for (std::int64_t e = 0; e < c.experts; ++e) {
      const auto random_matrix = [&](std::int64_t n, std::int64_t k) {
        return testing::RandomMatrix(n, k, c.group, c.offsets, false, ++seed_, type).on(s, memory_);
      };
      matrices_.push_back(
          {random_matrix(c.inner, c.width), random_matrix(c.inner, c.width), random_matrix(c.width, c.inner)});
      const auto specs_of = [](const Matrix<View>& m) {
        return Matrix<Spec>{m.w.spec(), m.scale ? m.scale.spec() : Spec(), m.offset ? m.offset.spec() : Spec(), {}};
      };
      const auto& m = matrices_.back();
      specs.push_back({specs_of(m.gate), specs_of(m.up), specs_of(m.down)});
    }
    ExpertMlp::require_operands(c.has_base ? base_.tensor.spec() : Spec(), x_.tensor.spec(), weights_.tensor.spec(),
                                experts_.tensor.spec(), specs);
    const auto scratch = ExpertMlp::scratch(x_.tensor.spec(), experts_.tensor.spec(), specs);
    for (const Spec& spec : {scratch.rows, scratch.hidden, scratch.int4, scratch.places})
      scratch_.emplace_back(spec, s.device());
  }

  std::vector<double> run() {
    std::vector<Grad> operands;
    const auto add = [&](const Tensor& t) { operands.push_back({t, Write::overwrite}); };
    add(y_.tensor);
    operands.resize(3);  // nothing is kept
    for (const OwnedTensor* t : {&base_, &x_, &weights_, &experts_}) add(t->tensor);
    if (!c_.has_base) operands[3] = {};
    const auto add_view = [&](const View& v) {
      if (v) add(Tensor(const_cast<void*>(v.data()), v.spec(), v.device()));
      else operands.emplace_back();
    };
    for (const auto& m : matrices_)
      for (const auto* of : {&m.gate, &m.up, &m.down})
        add_view(of->w), add_view(of->scale), add_view(of->offset), operands.emplace_back();
    for (const auto& t : scratch_) add(t.tensor);
    const ExpertMlp::Args args{.experts = static_cast<int>(c_.experts), .gate = c_.gate};
    ExpertMlp::forward(s_, operands.data(), &args);
    return host(y_);
  }

  void expect(const std::vector<double>& got) {
    const auto xs = host(x_), bs = host(base_), ws = host(weights_);
    std::vector<std::vector<double>> ms;
    for (const auto& m : matrices_)
      for (const auto* of : {&m.gate, &m.up, &m.down}) ms.push_back(values_of(s_, *of));
    for (std::int64_t r = 0; r < c_.rows; ++r) {
      std::vector<double> want(at(c_.width)), sizes(at(c_.width)), rounded(at(c_.width));
      for (std::int64_t k = 0; k < c_.width; ++k)
        want[at(k)] = c_.has_base ? bs[at(r * c_.width + k)] : 0, sizes[at(k)] = std::fabs(want[at(k)]);
      for (std::int64_t i = 0; i < c_.chosen; ++i) {
        const auto e = std::int64_t{list_[at(r * c_.chosen + i)]};
        if (e < 0) continue;
        add_expert(&xs[at(r * c_.width)], &ms[at(3 * e)], ws[at(r * c_.chosen + i)], want, sizes, rounded);
      }
      for (std::int64_t k = 0; k < c_.width; ++k) {
        const double allowed =
            allowed_error(type_, std::fabs(want[at(k)]), static_cast<double>(c_.width + c_.inner), sizes[at(k)]) +
            (type_ == DType::f32 ? 0 : half_ulp(type_) * rounded[at(k)]);
        ASSERT_NEAR(got[at(r * c_.width + k)], want[at(k)], allowed) << "row " << r << ", column " << k;
      }
    }
  }

 private:
  OwnedTensor random(const Shape& shape) { return testing::random_on(s_, shape, type_, ++seed_); }
  std::vector<double> host(const OwnedTensor& t) {
    const auto of = testing::on_host(s_, t.tensor);
    return {of.begin(), of.end()};
  }
  /// `sizes`: sums of magnitudes. `rounded`: what the rounding of intermediate values multiplies.
  void add_expert(const double* x, const std::vector<double>* matrices, double weight, std::vector<double>& want,
                  std::vector<double>& sizes, std::vector<double>& rounded) const {
    std::vector<double> hidden(at(c_.inner)), of_hidden(at(c_.inner));
    for (std::int64_t n = 0; n < c_.inner; ++n) {
      double g = 0, u = 0, g_size = 0, u_size = 0;
      for (std::int64_t k = 0; k < c_.width; ++k) {
        const double by_gate = x[k] * matrices[0][at(n * c_.width + k)],
                     by_up = x[k] * matrices[1][at(n * c_.width + k)];
        g += by_gate, u += by_up, g_size += std::fabs(by_gate), u_size += std::fabs(by_up);
      }
      const double t = std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g));
      const double act = c_.gate == Swiglu::Gate::silu ? g / (1 + std::exp(-g)) : 0.5 * g * (1 + t);
      hidden[at(n)] = act * u, of_hidden[at(n)] = 1.2 * g_size * std::fabs(u) + std::fabs(act) * u_size;
    }
    for (std::int64_t k = 0; k < c_.width; ++k) {
      double sum = 0, size = 0, noise = 0;
      for (std::int64_t n = 0; n < c_.inner; ++n) {
        const double d = matrices[2][at(k * c_.inner + n)];
        sum += hidden[at(n)] * d, size += of_hidden[at(n)] * std::fabs(d);
        noise += (std::fabs(hidden[at(n)]) * 3 + of_hidden[at(n)]) * std::fabs(d);  // g, u and their product are stored
      }
      want[at(k)] += weight * sum, sizes[at(k)] += std::fabs(weight) * size;
      // On a CPU each result, and each sum of results, is stored.
      rounded[at(k)] += std::fabs(weight) * (noise + std::fabs(sum)) + std::fabs(want[at(k)]);
    }
  }

  Stream& s_;
  Case c_;
  DType type_;
  std::uint64_t seed_ = 0;
  std::vector<std::int32_t> list_;
  OwnedTensor y_, base_, x_, weights_, experts_;
  std::vector<ExpertMatrices<View>> matrices_;
  std::vector<OwnedTensor> memory_, scratch_;
};

// On a GPU: one row; few rows; odd widths; tiles of 64 and of 128 choices, with partial ones of each dimension.
const Case kCases[] = {{1, 1, 1, 1, 1},
                       {1, 24, 10, 8, 2},
                       {5, 33, 17, 4, 2, Swiglu::Gate::gelu_tanh},
                       {70, 64, 40, 6, 3},
                       {2, 7, 100, 2, 1},
                       {40, 129, 65, 3, 2},
                       {9, 72, 136, 40, 4, Swiglu::Gate::gelu_tanh},
                       {301, 136, 72, 3, 2},
                       {150, 200, 264, 5, 2},
                       {11, 40, 24, 6, 2, Swiglu::Gate::silu, 0, false, false},
                       {1, 24, 10, 8, 2, Swiglu::Gate::silu, 0, false, false, true},
                       {13, 33, 17, 4, 2, Swiglu::Gate::silu, 0, false, true, true},
                       {150, 200, 264, 5, 2, Swiglu::Gate::gelu_tanh, 0, false, false, true}};

// The same with weights of 4 bits, which may be rounded to the type of x.
const Case kInt4Cases[] = {{1, 64, 32, 8, 2, Swiglu::Gate::silu, 32},
                           {5, 96, 160, 4, 2, Swiglu::Gate::gelu_tanh, 32, true},
                           {70, 64, 192, 6, 3, Swiglu::Gate::silu, 64, true},
                           {301, 160, 96, 3, 2, Swiglu::Gate::silu, 32},
                           {150, 256, 384, 5, 2, Swiglu::Gate::silu, 128}};

// Many choices of each expert, whose tiles are wide on Hopper: several rounds of stages, and partial tiles.
const Case kWideCases[] = {{700, 264, 392, 4, 2, Swiglu::Gate::gelu_tanh},
                           {400, 128, 256, 3, 2},
                           {700, 136, 264, 4, 2, Swiglu::Gate::silu, 0, false, false, true}};

void expect_mixtures(Stream& s, std::span<const Case> cases) {
  for (const auto& c : cases)
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(fmt::format("{} rows of {}, {} hidden, {} of {} experts, {}, group {}", c.rows, c.width, c.inner,
                               c.chosen, c.experts, dtype_name(type), c.group));
      Mixture m(s, c, type);
      const auto first = m.run();
      m.expect(first);
      EXPECT_EQ(first, m.run()) << "two runs differ";
    }
}

TEST(expert_mlp, adds_the_chosen_experts_of_each_row_on_a_cpu) {
  Pool pool(2);
  testing::for_each_isa([&] {
    Stream s(pool);
    expect_mixtures(s, kCases);
  });
}

TEST(expert_mlp, adds_the_chosen_experts_of_each_row_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  expect_mixtures(s, kCases);
  expect_mixtures(s, kWideCases);
  expect_mixtures(s, kInt4Cases);
}

/// Gradients of a mixture in `type`, with weights in f32 where they are trained so, all as f32.
struct GradientCase {
  std::int64_t rows, width, inner;
  int experts;
  std::int64_t chosen;
  Write write = Write::overwrite;
  bool absent = false;  // every fifth choice is none
};

std::vector<std::vector<float>> gradients(Stream& s, const GradientCase& c, DType type, DType of_weights) {
  const ExpertMlp::Args args{.experts = c.experts};
  const OpInfo& op = ExpertMlp::info(c.experts);
  std::vector<OwnedTensor> memory;
  const auto made = [&](const Shape& shape, DType d, std::uint64_t stream, double size = 1) {
    return memory.emplace_back(testing::random_on(s, shape, d, stream, size)).tensor;
  };
  std::vector<Grad> in(at(op.n_in)), grads(at(op.n_in));
  const auto give = [&](std::size_t i, const Tensor& t, DType gradient) {
    in[i] = {t, Write::overwrite};
    if (gradient != DType::none) grads[i] = {made(t.shape(), gradient, 1000 + i, 0.1), c.write};
  };
  give(0, made({c.rows, c.width}, type, 1), type), give(1, made({c.rows, c.width}, type, 2), type);
  give(2, made({c.rows, c.chosen}, DType::f32, 3), DType::f32);
  const auto list = choices({.rows = c.rows,
                             .width = c.width,
                             .inner = c.inner,
                             .experts = c.experts,
                             .chosen = c.chosen,
                             .absent = c.absent});
  in[3] = {memory.emplace_back(Spec{{c.rows, c.chosen}, DType::i32}, s.device()).tensor, Write::overwrite};
  copy(s, in[3], View(list.data(), in[3].spec()));
  for (int e = 0; e < c.experts; ++e)
    for (int m = 0; m < 3; ++m) {
      const Shape shape = m < 2 ? Shape{c.inner, c.width} : Shape{c.width, c.inner};
      const auto i = at(ExpertMlp::kFixed + e * ExpertMlp::kOfExpert + 4 * m);
      give(i, made(shape, of_weights, 10 + i, 1 / std::sqrt(static_cast<double>(shape[1]))), DType::f32);
    }
  std::vector<Spec> specs;
  for (const auto& t : in) specs.push_back(t ? t.spec() : Spec());
  Spec out_specs[OpInfo::kMaxOut], scratch[OpInfo::kMaxScratch];
  op.infer(specs.data(), &args, out_specs);
  const auto take = [&](const Spec& spec) {
    return Grad(memory.emplace_back(spec, s.device()).tensor, Write::overwrite);
  };
  std::vector<Grad> outs, list_of;
  for (int i = 0; i < op.n_out; ++i) outs.push_back(take(out_specs[i]));
  list_of = outs;
  list_of.insert(list_of.end(), in.begin(), in.end());
  const int n = op.scratch(specs.data(), &args, scratch);
  for (int i = 0; i < n; ++i) list_of.push_back(take(scratch[i]));
  ExpertMlp::forward(s, list_of.data(), &args);
  const Grad dy{made({c.rows, c.width}, type, 5), Write::overwrite};
  list_of.clear();
  op.backward_scratch(specs.data(), &args, scratch);
  for (const auto& ref : op.backward_operands) {
    const auto i = at(ref.index);
    switch (ref.kind) {
      case OperandKind::in: list_of.push_back(in[i]); break;
      case OperandKind::out: list_of.push_back(outs[i]); break;
      case OperandKind::grad_in: list_of.push_back(grads[i]); break;
      case OperandKind::grad_out: list_of.push_back(dy); break;
      case OperandKind::scratch: list_of.push_back(take(scratch[i])); break;
    }
  }
  ExpertMlp::backward(s, list_of.data(), &args);
  std::vector<std::vector<float>> found{testing::on_host(s, outs[0])};
  for (const auto& g : grads)
    if (g) found.push_back(testing::on_host(s, g));
  return found;
}

const GradientCase kGradients[] = {{40, 33, 21, 4, 2},
                                   {200, 96, 72, 3, 2, Write::accumulate},
                                   {130, 64, 128, 70, 3},
                                   {90, 40, 24, 4, 2, Write::overwrite, true}};
// On a GPU: several rounds of stages, and partial tiles of each dimension.
const GradientCase kWideGradients[] = {{700, 264, 392, 4, 2},
                                       {500, 136, 328, 5, 2, Write::accumulate},
                                       {1024, 512, 512, 8, 2},
                                       {1000, 264, 392, 4, 2, Write::overwrite, true},
                                       {800, 128, 256, 3, 2, Write::accumulate, true}};

/// In 16 bits as in f32. Values between the products are rounded, which later sums average out.
void expect_16_bits_as_f32(Stream& s, std::span<const GradientCase> cases, std::initializer_list<DType> types,
                           std::initializer_list<DType> weights_of) {
  Pool pool(2);
  Stream host(pool);
  for (const auto& c : cases) {
    const auto want = gradients(host, c, DType::f32, DType::f32);
    for (const DType type : types)
      for (const DType weights : weights_of) {
        const DType of_weights = weights == DType::none ? type : weights;
        SCOPED_TRACE(fmt::format("{} rows of {}, {} hidden, {} experts, {} with weights in {}", c.rows, c.width,
                                 c.inner, c.experts, dtype_name(type), dtype_name(of_weights)));
        const auto got = gradients(s, c, type, of_weights);
        EXPECT_EQ(got, gradients(s, c, type, of_weights)) << "two runs differ";
        ASSERT_EQ(got.size(), want.size());
        for (std::size_t i = 0; i < want.size(); ++i) {
          double worst = 0, largest = 0;
          for (std::size_t e = 0; e < want[i].size(); ++e) {
            const auto value = static_cast<double>(want[i][e]);
            worst = std::max(worst, std::fabs(static_cast<double>(got[i][e]) - value));
            largest = std::max(largest, std::fabs(value));
          }
          EXPECT_LE(worst, 4 * (type == DType::f32 ? 0x1p-20 : half_ulp(type)) * largest) << "result " << i;
        }
      }
  }
}

TEST(expert_mlp, has_the_gradients_of_f32_in_16_bits_on_a_cpu) {
  Pool pool(2);
  testing::for_each_isa([&] {
    Stream s(pool);
    expect_16_bits_as_f32(s, kGradients, {DType::bf16}, {DType::none, DType::f32});
  });
}

TEST(expert_mlp, has_the_gradients_of_f32_on_a_gpu) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(2);
  Stream s(Device::cuda(0), pool);
  for (const auto cases : {std::span<const GradientCase>(kGradients), std::span<const GradientCase>(kWideGradients)})
    expect_16_bits_as_f32(s, cases, {DType::f32, DType::bf16, DType::f16}, {DType::none});
}

TEST(expert_mlp, refuses_experts_of_different_shapes) {
  const auto matrix = [](std::int64_t n, std::int64_t k) { return Matrix<Spec>{{{n, k}, DType::f32}, {}, {}, {}}; };
  const auto mlp = [&](std::int64_t inner) {
    return ExpertMatrices<Spec>{matrix(inner, 8), matrix(inner, 8), matrix(8, inner)};
  };
  const Spec x{{3, 8}, DType::f32}, weights{{3, 2}, DType::f32}, experts{{3, 2}, DType::i32};
  const auto check = [&](std::vector<ExpertMatrices<Spec>> mlps) {
    ExpertMlp::require_operands(x, x, weights, experts, mlps);
  };
  EXPECT_NO_THROW(check({mlp(16), mlp(16)}));
  EXPECT_THROW(check({mlp(16), mlp(24)}), Error);
  EXPECT_THROW(check({}), Error);
  EXPECT_THROW(check(std::vector<ExpertMatrices<Spec>>(ExpertMlp::kMostExperts + 1, mlp(16))), Error);
}

}  // namespace
}  // namespace hpcdl
