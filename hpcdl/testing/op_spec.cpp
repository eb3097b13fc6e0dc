#include "hpcdl/testing/op_spec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "hpcdl/buffer.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/element.h"
#include "hpcdl/core/red_zone.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/graph.h"
#include "hpcdl/instance.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/testing/rows_alone.h"
#include "hpcdl/testing/spec_ways.h"

namespace hpcdl::testing {

std::shared_ptr<const Ways>& ways_of_specs() {
  static std::shared_ptr<const Ways> ways;
  return ways;
}

std::map<std::string, ReferenceOnGpu, std::less<>>& references_on_gpu() {
  static std::map<std::string, ReferenceOnGpu, std::less<>> by_op;
  return by_op;
}

namespace {

/// Where an op runs.
struct Backend {
  Device device;
  simd::IsaKind isa = simd::IsaKind::scalar;  // on a CPU
  std::string name() const { return device.is_cuda() ? "cuda" : std::string(simd::isa_name(isa)); }
};

/// Operand memory on the host, misaligned by one element, with a guard after it.
struct Memory {
  static constexpr std::int64_t kGuard = 64;
  Buffer buffer;
  Tensor tensor;

  Memory() = default;
  Memory(Spec spec, bool misaligned)
      : buffer(spec.bytes() + 2 * kGuard), tensor(buffer.data() + (misaligned ? dtype_bytes(spec.dtype) : 0), spec) {
    std::memset(buffer.data(), 0xff, static_cast<std::size_t>(buffer.bytes()));  // NaN in every float type
  }
  bool guard_intact() const {
    const auto* end = static_cast<const unsigned char*>(tensor.data()) + tensor.bytes();
    return std::all_of(end, end + kGuard, [](unsigned char c) { return c == 0xff; });
  }
};

/// During its lifetime, the address sanitizer reports accesses around an operand. The guard alone does not notice
/// reads.
class Enclosed {
 public:
  explicit Enclosed(const Memory& m) : buffer_(m.buffer) {
    const auto* begin = static_cast<const std::byte*>(m.tensor.data());
    close_red_zone(buffer_.data(), begin);
    close_red_zone(begin + m.tensor.bytes(), buffer_.data() + buffer_.bytes());
  }
  ~Enclosed() { open_red_zone(buffer_.data(), buffer_.data() + buffer_.bytes()); }
  Enclosed(const Enclosed&) = delete;
  Enclosed& operator=(const Enclosed&) = delete;

 private:
  const Buffer& buffer_;
};

/// How a Memory is passed to a kernel; null: an absent operand.
struct Slot {
  Memory* memory = nullptr;
  Write write = Write::overwrite;
};

/// Number of positions of an input at which slopes of the reference are computed. They take most of a spec's time, and
/// under a sanitizer minutes: there, where values are not the purpose, only a few. What a kernel reads and writes is
/// the same.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::int64_t kProbes = 8;
#else
constexpr std::int64_t kProbes = 200;
#endif

/// The gradient of the reference at one position of an input, by central differences, and its possible rounding error.
struct Slope {
  std::int64_t at;
  double value, rounding;
};
/// Slopes of every requested input. They are the same wherever the op runs, and take most of
/// a spec's time: tests of one case share them, by the type of their operands.
using Slopes = std::map<std::pair<DType, std::size_t>, std::vector<Slope>>;

double largest(const std::vector<double>& values) {
  double m = 0;
  for (double v : values)
    if (std::isfinite(v)) m = std::max(m, std::fabs(v));
  return m;
}

class OpTest : public ::testing::Test {
 public:
  OpTest(const ErasedSpec& spec, const ErasedSpec::Case& c, Slopes& slopes, Backend backend, DType dtype,
         std::string what)
      : spec_(spec), case_(c), slopes_(slopes), backend_(backend), dtype_(dtype), what_(std::move(what)) {}

  void SetUp() override {
    before_ = simd::active_isa();
    if (!backend_.device.is_cuda()) {
      ASSERT_TRUE(simd::set_active_isa(backend_.isa));
    }
    make_inputs();
    params_.seed = 1234;
    params_.lr = 0.1f;
  }
  void TearDown() override { simd::set_active_isa(before_); }
  void TestBody() override {
    if (what_ == "forward") forward();
    if (what_ == "gradient") gradient();
    if (what_ == "accumulate") accumulate();
    if (what_ == "repeat") repeat();
    if (what_ == "replay") replay();
    if (what_ == "in_place") in_place();
  }

 private:
  const OpInfo& op() const { return *spec_.op; }
  const void* args() const { return case_.args.data(); }

  void make_inputs() {
    // The way in which a GPU computes a call may depend on where its operands lie: a replay is compared with a direct call
    // whose operands are aligned as in a program.
    const bool as_in_a_program = what_ == "replay" && backend_.device.is_cuda();
    for (std::size_t i = 0; i < case_.in.size(); ++i) {
      const Input& in = case_.in[i];
      if (in.absent) {
        specs_.emplace_back();
        in_.emplace_back();
        continue;
      }
      specs_.push_back({in.shape, in.dtype == DType::none ? dtype_ : in.dtype});
      in_.emplace_back(specs_.back(), !case_.aligned && !as_in_a_program);
      const Rng rng{77 + i, 5};
      for (std::int64_t k = 0; k < specs_.back().size(); ++k) {
        const auto u = static_cast<std::uint64_t>(k);
        double v = 0;
        switch (in.fill) {
          case Fill::normal: v = rng.normal(u) * (spec_.outliers && rng.below(u + (1u << 30), 61) == 0 ? 10 : 1); break;
          case Fill::uniform: v = static_cast<double>(rng.uniform(u)) * 2 - 1; break;
          case Fill::positive: v = static_cast<double>(rng.uniform(u)) + 0.1; break;
          case Fill::zero: break;
          case Fill::index:
            v = static_cast<double>(rng.below(u, static_cast<std::uint64_t>(in.below)));
            if (in.minus_one && rng.below(u + (1u << 30), 5) == 0) v = -1;
            break;
        }
        set_element(in_.back().tensor, k, v);
      }
    }
    Spec outs[OpInfo::kMaxOut];
    op().infer(specs_.data(), args(), outs);
    out_specs_.assign(outs, outs + op().n_out);
    reduction_ = reduction();
  }

  Stream stream(int threads) {
    auto& pool = threads == 1 ? one_ : two_;
    if (!pool) pool = std::make_unique<Pool>(threads);
    if (!backend_.device.is_cuda()) return Stream(*pool, &params_);
    if (!queue_) {
      queue_.emplace(backend_.device, *pool, &params_);
      queue_->set_ways(testing::ways_of_specs());
    }
    return *queue_;
  }

  /// Calls an op where it runs. A GPU works on copies with the same misalignment and guards, which come back
  /// afterwards.
  void call(RunFn fn, const std::vector<Slot>& slots, int threads) {
    Stream s = stream(threads);
    std::vector<Grad> operands;
    std::map<Memory*, Buffer> there;
    std::map<Memory*, Enclosed> here;
    for (const auto& slot : slots) {
      if (!slot.memory || !slot.memory->tensor) {
        operands.emplace_back();
        continue;
      }
      Tensor t = slot.memory->tensor;
      if (s.device().is_cuda()) {
        const Buffer& host = slot.memory->buffer;
        auto [it, fresh] = there.try_emplace(slot.memory);
        if (fresh) {
          it->second = Buffer(host.bytes(), s.device());
          hpcdl::copy(s, bytes_of(it->second), bytes_of(host));
        }
        t = Tensor(it->second.data() + (static_cast<std::byte*>(t.data()) - host.data()), t.spec(), s.device());
      } else {
        here.try_emplace(slot.memory, *slot.memory);
      }
      operands.emplace_back(t, slot.write);
    }
    s.push_params();
    fn(s, operands.data(), args());
    s.synchronize();
    for (const auto& [memory, buffer] : there) hpcdl::copy(s, bytes_of(memory->buffer), bytes_of(buffer));
  }
  static Tensor bytes_of(const Buffer& b) { return Tensor(b.data(), {{b.bytes()}, DType::u8}, b.device()); }

  std::vector<Memory> call_forward(int threads, bool misaligned) {
    std::vector<Memory> out;
    for (const auto& spec : out_specs_) out.emplace_back(spec, misaligned && !case_.aligned);
    std::vector<Slot> slots;
    for (auto& m : out) slots.push_back({&m});
    for (auto& m : in_) slots.push_back({&m});
    auto scratch = make_scratch(op().scratch);
    for (auto& m : scratch) slots.push_back({&m});
    call(op().forward, slots, threads);
    for (const auto& m : out) EXPECT_TRUE(m.guard_intact()) << "wrote past the end of its output";
    return out;
  }

  std::vector<Memory> make_scratch(int (*fn)(const Spec*, const void*, Spec*)) {
    std::vector<Memory> scratch;
    Spec list[OpInfo::kMaxScratch];
    const int n = fn ? fn(specs_.data(), args(), list) : 0;
    for (int i = 0; i < n; ++i) scratch.emplace_back(list[i], false);
    return scratch;
  }

  std::vector<Expected> reference(std::span<const Values> in) const {
    std::vector<Expected> out;
    for (const auto& s : out_specs_) out.emplace_back(s);
    const auto on_gpu = reference_on_gpu();
    (on_gpu ? on_gpu : spec_.forward.reference)(out, in, args());
    return out;
  }
  contract::Reference reference_on_gpu() const {
    const auto found = references_on_gpu().find(op().name);
    if (!backend_.device.is_cuda() || found == references_on_gpu().end()) return {};
    Pool pool(1);
    Stream s(backend_.device, pool);
    s.set_ways(ways_of_specs());
    return found->second(s, specs_, args());
  }
  std::vector<Values> input_values() const {
    std::vector<Values> in;
    for (const auto& m : in_) in.push_back(m.tensor ? contract::values_of(m.tensor) : Values{});
    return in;
  }
  contract::Problem problem(const std::vector<Spec>& in, const std::vector<Spec>& out) const {
    contract::Problem p;
    for (const auto& s : in) p.in.push_back({s});
    p.out = out;
    p.args.resize(contract::Problem::kAbiBytes);
    p.args.insert(p.args.end(), case_.args.begin(), case_.args.end());
    return p;
  }
  double forward_reduction() const {
    return spec_.magnitudes ? static_cast<double>(spec_.forward.reduction(problem(specs_, out_specs_))) : reduction();
  }
  double reduction() const {
    if (spec_.reduction) return spec_.reduction(specs_, args());
    if (spec_.backward.empty()) return forward_reduction();
    const auto [in, out] = backward_specs();
    return static_cast<double>(spec_.backward[0].reduction(problem(in, out)));
  }
  /// Operands of the contract of backward: those of the op without scratch, with separate gradients.
  std::pair<std::vector<Spec>, std::vector<Spec>> backward_specs() const {
    std::vector<Spec> in, out;
    for (const auto& ref : op().backward_operands) {
      const auto i = static_cast<std::size_t>(ref.index);
      if (ref.kind == OperandKind::in) in.push_back(specs_[i]);
      else if (ref.kind == OperandKind::grad_in) out.push_back(case_.in[i].differentiable ? specs_[i] : Spec());
      else if (ref.kind != OperandKind::scratch) in.push_back(out_specs_[i]);
    }
    return {in, out};
  }
  /// The contract's own gradients, by input.
  std::map<std::size_t, Expected> backward_reference(const std::vector<Values>& in,
                                                     const std::vector<Memory>& dout) const {
    const auto y = reference(in);
    std::vector<Values> operands;
    std::vector<Expected> out;
    std::vector<std::size_t> of;
    for (const auto& ref : op().backward_operands) {
      const auto i = static_cast<std::size_t>(ref.index);
      switch (ref.kind) {
        case OperandKind::in: operands.push_back(in[i]); break;
        case OperandKind::out: operands.push_back({y[i].spec, y[i].value}); break;
        case OperandKind::grad_out: operands.push_back(contract::values_of(dout[i].tensor)); break;
        case OperandKind::grad_in:
          out.emplace_back(case_.in[i].differentiable ? specs_[i] : Spec()), of.push_back(i);
          break;
        case OperandKind::scratch: break;
      }
    }
    spec_.backward[0].reference(out, operands, args());
    std::map<std::size_t, Expected> found;
    for (std::size_t k = 0; k < of.size(); ++k) found[of[k]] = std::move(out[k]);
    return found;
  }

  /// Allowed error of one element of magnitude `m` in a tensor whose largest magnitude is `top`.
  double tolerance(DType stored, double m, double top) const {
    const bool multiplies =
        backend_.device.is_cuda() || (backend_.isa >= simd::IsaKind::avx512 && stored == DType::bf16);
    const bool rounds = multiplies && dtype_bytes(stored) == 2;
    return allowed_error(stored, m, reduction_, spec_.condition * top) +
           (rounds ? spec_.operand_rounding * half_ulp(stored) * top : 0) + 1e-30;
  }

  /// bf16 inputs enter the sums exactly, so only the result is rounded to bf16.
  void compare(const View& got, const Expected& want, std::size_t output, double length) {
    const double top = spec_.magnitudes ? 0 : std::max(largest(want.value), input_scale());
    int wrong = 0;
    for (std::int64_t i = 0; i < got.size() && wrong < 4; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double g = element(got, i), w = want.value[at];
      if (std::isnan(w) ? std::isnan(g) : g == w) continue;
      const double tol = spec_.magnitudes ? spec_.forward.allowed(want, at, dtype_, length)
                                          : tolerance(got.dtype(), std::fabs(w), top);
      if (std::fabs(g - w) <= tol) continue;
      ADD_FAILURE() << "output " << output << "[" << i << "]: got " << g << ", reference " << w << ", allowed error "
                    << tol;
      ++wrong;
    }
  }

  void forward() {
    const auto want = reference(input_values());
    const double length = forward_reduction();
    for (bool misaligned : {true, false}) {
      const auto got = call_forward(2, misaligned);
      for (std::size_t i = 0; i < got.size(); ++i) compare(got[i].tensor, want[i], i, length);
    }
  }

  double input_scale() const {
    double top = 0;
    for (const auto& m : in_)
      if (m.tensor && is_float(m.tensor.dtype())) top = std::max(top, largest(contract::values_of(m.tensor).v));
    return top;
  }

  struct BackwardRun {
    std::vector<Memory> gradients;  // per input; an empty tensor if there is none
  };

  BackwardRun call_backward(std::vector<Memory>& out, std::vector<Memory>& dout, Write write, int threads,
                            const std::vector<Memory>* start = nullptr) {
    BackwardRun run;
    for (std::size_t i = 0; i < in_.size(); ++i) {
      if (!in_[i].tensor || !case_.in[i].differentiable) {
        run.gradients.emplace_back();
        continue;
      }
      run.gradients.emplace_back(specs_[i], !case_.aligned);
      if (start && (*start)[i].tensor)
        std::memcpy(run.gradients[i].tensor.data(), (*start)[i].tensor.data(),
                    static_cast<std::size_t>(specs_[i].bytes()));
    }
    auto scratch = make_scratch(op().backward_scratch);
    std::vector<Slot> slots;
    for (const auto& ref : op().backward_operands) {
      const auto i = static_cast<std::size_t>(ref.index);
      switch (ref.kind) {
        case OperandKind::in: slots.push_back({&in_[i]}); break;
        case OperandKind::out: slots.push_back({&out[i]}); break;
        case OperandKind::grad_out: slots.push_back({&dout[i]}); break;
        case OperandKind::grad_in: slots.push_back({&run.gradients[i], write}); break;
        case OperandKind::scratch: slots.push_back({&scratch[i]}); break;
      }
    }
    call(op().backward, slots, threads);
    for (const auto& g : run.gradients)
      EXPECT_TRUE(!g.tensor || g.guard_intact()) << "wrote past the end of a gradient";
    return run;
  }

  std::vector<Memory> random_dout() {
    std::vector<Memory> dout;
    for (std::size_t i = 0; i < out_specs_.size(); ++i) {
      dout.emplace_back(out_specs_[i], !case_.aligned);
      const Rng rng{991 + i, 3};
      for (std::int64_t k = 0; k < out_specs_[i].size(); ++k)
        set_element(dout.back().tensor, k, rng.normal(static_cast<std::uint64_t>(k)));
    }
    return dout;
  }

  /// d(sum(dout * f(x)))/dx of the reference, by central differences in double. Large inputs are probed at kProbes
  /// random places.
  const std::vector<Slope>& slopes(std::size_t i, const std::vector<Memory>& dout) {
    const auto [found, fresh] = slopes_.try_emplace({dtype_, i});
    if (!fresh) return found->second;
    auto in = input_values();
    const auto objective = [&] {
      const auto y = reference(in);
      double sum = 0;
      for (int o = 0; o < op().n_out - op().n_aux; ++o)
        for (std::int64_t k = 0; k < y[static_cast<std::size_t>(o)].spec.size(); ++k)
          sum += y[static_cast<std::size_t>(o)].value[static_cast<std::size_t>(k)] *
                 element(dout[static_cast<std::size_t>(o)].tensor, k);
      return sum;
    };
    const auto n = in[i].size();
    const std::int64_t probes = std::min(n, kProbes);
    for (std::int64_t p = 0; p < probes; ++p) {
      const auto k = probes == n ? p
                                 : static_cast<std::int64_t>(
                                       Rng{5, i}.below(static_cast<std::uint64_t>(p), static_cast<std::uint64_t>(n)));
      const double x = in[i][k], h = 1e-5 * std::max(1.0, std::fabs(x));
      in[i][k] = x + h;
      const double up = objective();
      in[i][k] = x - h;
      const double down = objective();
      in[i][k] = x;
      found->second.push_back({k, (up - down) / (2 * h), 0x1p-50 * (std::fabs(up) + std::fabs(down)) / h});
    }
    if (!spec_.backward.empty()) {
      const auto gradients = backward_reference(in, dout);
      const Expected& gradient = gradients.at(i);
      const double top = gradient_scale(gradient.value, dout);
      for (const auto& [k, slope, rounding] : found->second)
        EXPECT_NEAR(gradient.value[static_cast<std::size_t>(k)], slope, difference(top, rounding))
            << "the contract's gradient of input " << i << " at " << k;
    }
    return found->second;
  }
  /// The largest magnitude that contributes to a gradient.
  double gradient_scale(const std::vector<double>& gradient, const std::vector<Memory>& dout) const {
    double dout_top = 0;
    for (const auto& d : dout) dout_top = std::max(dout_top, largest(contract::values_of(d.tensor).v));
    return std::max({largest(gradient), dout_top, dout_top * input_scale()});
  }
  /// The error of a difference: truncation is O(h^2); rounding is ulp(objective) / h.
  static double difference(double top, double rounding) { return 1e-7 * top + rounding; }

  /// Compares the slopes of the reference with the result of backward.
  void gradient() {
    auto out = call_forward(2, true);
    auto dout = random_dout();
    const auto run = call_backward(out, dout, Write::overwrite, 2);
    for (std::size_t i = 0; i < in_.size(); ++i) {
      const Tensor& gradient = run.gradients[i].tensor;
      if (!gradient) continue;
      for (std::int64_t k = 0; k < gradient.size(); ++k)
        ASSERT_TRUE(std::isfinite(element(gradient, k))) << "gradient of input " << i << " at " << k << " not written";
      const double top = gradient_scale(contract::values_of(gradient).v, dout);
      int wrong = 0;
      for (const auto& [k, want, rounding] : slopes(i, dout)) {
        const double got = element(gradient, k);
        // 16 bits: backward reads outputs and upstream gradients that were rounded to them, each an error of half an
        // ulp of what it multiplies.
        const double rounded = dtype_ == DType::f32 ? 0 : 2 * half_ulp(dtype_) * top;
        const double tol = tolerance(gradient.dtype(), std::fabs(want), top) + difference(top, rounding) + rounded;
        if (std::fabs(got - want) <= tol) continue;
        ADD_FAILURE() << "gradient of input " << i << " at " << k << ": got " << got << ", finite difference " << want
                      << ", allowed error " << tol;
        if (++wrong == 4) break;
      }
    }
  }

  void accumulate() {
    auto out = call_forward(2, true);
    auto dout = random_dout();
    const auto plain = call_backward(out, dout, Write::overwrite, 2);
    std::vector<Memory> start;
    for (std::size_t i = 0; i < in_.size(); ++i) {
      if (!plain.gradients[i].tensor) {
        start.emplace_back();
        continue;
      }
      start.emplace_back(specs_[i], false);
      for (std::int64_t k = 0; k < specs_[i].size(); ++k)
        set_element(start[i].tensor, k, 1.0 + static_cast<double>(k % 3));
    }
    const auto sum = call_backward(out, dout, Write::accumulate, 2, &start);
    for (std::size_t i = 0; i < in_.size(); ++i) {
      if (!plain.gradients[i].tensor) continue;
      Values want = contract::values_of(plain.gradients[i].tensor);
      const double top = largest(want.v) + 3;
      for (std::int64_t k = 0; k < want.size(); ++k) want[k] += element(start[i].tensor, k);
      int wrong = 0;
      for (std::int64_t k = 0; k < want.size() && wrong < 4; ++k) {
        const double got = element(sum.gradients[i].tensor, k);
        // Both the plain gradient and the sum are rounded to the storage type.
        const double tol = tolerance(specs_[i].dtype, 2 * (std::fabs(want[k]) + 3), top);
        if (std::fabs(got - want[k]) > tol) {
          ADD_FAILURE() << "accumulated gradient of input " << i << " at " << k << ": got " << got << ", want "
                        << want[k];
          ++wrong;
        }
      }
    }
  }

  static void expect_same_bits(const View& a, const View& b, const std::string& what) {
    ASSERT_EQ(a.bytes(), b.bytes());
    EXPECT_TRUE(a.bytes() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0)
        << "different bits: " << what;
  }

  void repeat() {
    auto first = call_forward(2, true);
    for (int threads : {2, 1}) {
      const auto again = call_forward(threads, true);
      for (std::size_t i = 0; i < first.size(); ++i)
        expect_same_bits(first[i].tensor, again[i].tensor, threads == 1 ? "one thread" : "second run");
    }
    if (!op().backward) return;
    auto dout = random_dout();
    const auto grad = call_backward(first, dout, Write::overwrite, 2);
    for (int threads : {2, 1}) {
      const auto again = call_backward(first, dout, Write::overwrite, threads);
      for (std::size_t i = 0; i < in_.size(); ++i)
        if (grad.gradients[i].tensor)
          expect_same_bits(grad.gradients[i].tensor, again.gradients[i].tensor,
                           threads == 1 ? "backward, one thread" : "backward, second run");
    }
  }

  struct Recorded {
    std::vector<Var> in, out, gradient;
  };
  /// `dy`: the upstream gradient, where the program runs.
  Recorded record_into(Graph& g, Stream& s, const Tensor& upstream) {
    Recorded r;
    for (std::size_t i = 0; i < in_.size(); ++i) {
      if (!in_[i].tensor) r.in.emplace_back();
      else if (case_.in[i].differentiable && op().backward) r.in.push_back(g.differentiable_input("x", specs_[i]));
      else r.in.push_back(g.input("x", specs_[i]));
      if (r.in.back() && g.is_eager()) hpcdl::copy(s, g.eager_tensor(r.in.back()), in_[i].tensor);
    }
    r.out = g.apply(op(), r.in, args());
    for (const auto& v : r.out) g.keep(v);
    if (!op().backward || r.out.size() != 1) return r;
    const Var dy = g.constant("dy", upstream);
    const bool differentiable =
        std::any_of(case_.in.begin(), case_.in.end(), [](const Input& i) { return i.differentiable; });
    if (!differentiable) return r;
    g.backward(r.out[0], dy);
    for (const auto& v : r.in) {
      r.gradient.push_back(v ? g.gradient(v) : Var());
      if (r.gradient.back()) g.keep(r.gradient.back());
    }
    return r;
  }
  /// Checks that `got` has the bits of `want`; both may lie on a GPU.
  static void expect_same(Stream& s, const View& got, const View& want, const std::string& what) {
    OwnedTensor a(got.spec()), b(want.spec());
    hpcdl::copy(s, a.tensor, got);
    hpcdl::copy(s, b.tensor, want);
    expect_same_bits(a.tensor, b.tensor, what);
  }

  void replay() {
    const auto direct = call_forward(2, false);
    const auto dout = random_dout();
    Stream s = stream(2);
    OwnedTensor upstream;
    if (!dout.empty()) {
      upstream = OwnedTensor(dout[0].tensor.spec(), s.device());
      hpcdl::copy(s, upstream.tensor, dout[0].tensor);
    }
    Graph eager({.eager = &s});
    const auto e = record_into(eager, s, upstream.tensor);
    Graph g;
    const auto r = record_into(g, s, upstream.tensor);
    Instance exe(g.finish(), nullptr, s.device());
    const Buffer poison(exe.arena()->bytes());
    std::memset(poison.data(), 0xff, static_cast<std::size_t>(poison.bytes()));
    for (int run = 0; run < 2; ++run) {
      if (run == 1) exe.capture(s);
      hpcdl::copy(s, bytes_of(*exe.arena()), bytes_of(poison));
      for (std::size_t i = 0; i < r.in.size(); ++i)
        if (r.in[i] && exe.plan().offset[static_cast<std::size_t>(r.in[i].operand().slot)] >= 0)
          hpcdl::copy(s, exe.tensor(r.in[i]), in_[i].tensor);
      exe.run(s);
      for (std::size_t i = 0; i < r.out.size(); ++i) {
        if (out_specs_[i].bytes() == 0) continue;
        expect_same(s, exe.tensor(r.out[i]), direct[i].tensor, "replay and direct call");
        expect_same(s, exe.tensor(r.out[i]), eager.eager_tensor(e.out[i]), "replay and eager");
      }
      for (std::size_t i = 0; i < r.gradient.size(); ++i)
        if (r.gradient[i] && specs_[i].bytes())
          expect_same(s, exe.tensor(r.gradient[i]), eager.eager_tensor(e.gradient[i]), "gradients of replay and eager");
    }
  }

  void in_place() {
    const auto want = call_forward(2, true);
    Memory shared(specs_[0], true);
    if (shared.tensor.bytes())
      std::memcpy(shared.tensor.data(), in_[0].tensor.data(), static_cast<std::size_t>(shared.tensor.bytes()));
    std::vector<Slot> slots{{&shared}};
    for (std::size_t i = 1; i < out_specs_.size(); ++i) slots.push_back({});
    slots.push_back({&shared});
    for (std::size_t i = 1; i < in_.size(); ++i) slots.push_back({&in_[i]});
    auto scratch = make_scratch(op().scratch);
    for (auto& m : scratch) slots.push_back({&m});
    call(op().forward, slots, 2);
    expect_same_bits(shared.tensor, want[0].tensor, "in place");
  }

  const ErasedSpec& spec_;
  const ErasedSpec::Case& case_;
  Slopes& slopes_;
  Backend backend_;
  simd::IsaKind before_{};
  DType dtype_;
  std::string what_;
  std::vector<Spec> specs_, out_specs_;
  double reduction_ = 1;  // of gradients, and of results without a contract
  std::vector<Memory> in_;
  std::unique_ptr<Pool> one_, two_;
  std::optional<Stream> queue_;
  StepParams params_;
};

std::string case_label(const ErasedSpec::Case& c, std::size_t index) {
  std::string s = fmt::format("{}", index);
  for (const auto& in : c.in) {
    if (in.absent) s += "_none";
    else {
      s += "_";
      for (int d = 0; d < in.shape.rank(); ++d) s += fmt::format("{}{}", d ? "x" : "", in.shape[d]);
    }
  }
  return s;
}

/// Every instruction set of this CPU that makes a difference for the op (tile registers are for products), and the
/// first GPU if there is one and the op has kernels for it.
std::vector<Backend> backends(OpClass cls, bool gpu) {
  std::vector<Backend> list;
  for (auto isa : simd::kIsaKinds)
    if (isa <= simd::best_isa() && (isa != simd::IsaKind::amx || cls == OpClass::product))
      list.push_back({Device::cpu(), isa});
  if (gpu && cuda_devices() > 0) list.push_back({Device::cuda(0)});
  return list;
}

}  // namespace

void register_op_tests(ErasedSpec erased) {
  // Tests run after main starts and refer to the spec, so it lives as long as the process.
  static std::vector<std::unique_ptr<ErasedSpec>> specs;
  specs.push_back(std::make_unique<ErasedSpec>(std::move(erased)));
  const ErasedSpec& spec = *specs.back();
  if (spec.magnitudes) register_row_tests(spec.forward, spec.bf16);
  for (const auto& c : spec.backward) register_row_tests(c, spec.bf16);
  for (std::size_t i = 0; i < spec.cases.size(); ++i) {
    const auto& c = spec.cases[i];
    const auto slopes = std::make_shared<Slopes>();
    for (const auto& backend : backends(spec.op->cls, spec.gpu)) {
      for (auto dtype : {DType::f32, DType::bf16, DType::f16}) {
        if (dtype != DType::f32 && !spec.bf16) continue;
        // Properties that do not depend on the type are checked in two types on a CPU.
        const bool values_only = dtype == DType::f16 && !backend.device.is_cuda();
        std::vector<std::string> kinds{"forward"};
        if (!values_only) kinds.insert(kinds.end(), {"repeat", "replay"});
        if (spec.op->backward && c.gradient) kinds.insert(kinds.end(), {"gradient", "accumulate"});
        if (spec.in_place && !values_only) kinds.push_back("in_place");
        for (const auto& what : kinds) {
          const std::string suite = fmt::format("{}/{}", spec.op->name, what);
          const std::string name = fmt::format("{}/{}/{}", backend.name(), dtype_name(dtype), case_label(c, i));
          ::testing::RegisterTest(suite.c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                                  [&spec, &c, slopes, backend, dtype, what]() -> ::testing::Test* {
                                    return new OpTest(spec, c, *slopes, backend, dtype, what);
                                  });
        }
      }
    }
  }
}

}  // namespace hpcdl::testing
