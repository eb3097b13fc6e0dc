#include "hpcdl/ops/expert_mlp/expert_mlp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/decoding.h"
#include "hpcdl/testing/every_isa.h"

namespace hpcdl {
namespace {

struct Case {
  std::int64_t rows, width, inner, experts, chosen;
  Swiglu::Gate gate = Swiglu::Gate::silu;
  std::int64_t group = 0;  // of 4-bit weights; 0: dense
  bool offsets = false;
  bool has_base = true;
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
    for (const Spec& spec : {scratch.rows, scratch.hidden, scratch.values, scratch.groups, scratch.places})
      scratch_.emplace_back(spec, s.device());
  }

  std::vector<double> run() {
    std::vector<Grad> operands;
    const auto add = [&](const Tensor& t) { operands.push_back({t, Write::overwrite}); };
    for (const OwnedTensor* t : {&y_, &base_, &x_, &weights_, &experts_}) add(t->tensor);
    if (!c_.has_base) operands[1] = {};
    for (const auto& t : scratch_) add(t.tensor);
    const auto add_view = [&](const View& v) {
      if (v) add(Tensor(const_cast<void*>(v.data()), v.spec(), v.device()));
      else operands.emplace_back();
    };
    for (const auto& m : matrices_)
      for (const auto* of : {&m.gate, &m.up, &m.down})
        add_view(of->w), add_view(of->scale), add_view(of->offset), operands.emplace_back();
    const ExpertMlp::Args args{.experts = static_cast<int>(c_.experts), .gate = c_.gate};
    ExpertMlp::run(s_, operands.data(), &args);
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
                       {11, 40, 24, 6, 2, Swiglu::Gate::silu, 0, false, false}};

// The same with weights of 4 bits, which may be rounded to the type of x.
const Case kInt4Cases[] = {{1, 64, 32, 8, 2, Swiglu::Gate::silu, 32},
                           {5, 96, 160, 4, 2, Swiglu::Gate::gelu_tanh, 32, true},
                           {70, 64, 192, 6, 3, Swiglu::Gate::silu, 64, true},
                           {301, 160, 96, 3, 2, Swiglu::Gate::silu, 32},
                           {150, 256, 384, 5, 2, Swiglu::Gate::silu, 128}};

// Many choices of each expert, whose tiles are wide on Hopper: several rounds of stages, and partial tiles.
const Case kWideCases[] = {{700, 264, 392, 4, 2, Swiglu::Gate::gelu_tanh}, {400, 128, 256, 3, 2}};

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
