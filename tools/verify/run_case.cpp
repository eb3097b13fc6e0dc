#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "hpcdl/core/element.h"
#include "hpcdl/pool.h"
#include "tools/verify/gpu_side.h"
#include "tools/verify/operands.h"

namespace hpcdl::lab::verify {
namespace {

/// Ends a case.
struct Wrong {
  std::string what;
};
struct Declined {};

template <class... A> [[noreturn]] void wrong(fmt::format_string<A...> f, A&&... a) {
  throw Wrong{fmt::format(f, std::forward<A>(a)...)};
}

constexpr unsigned char kNan = 0xff, kFinite = 0x43;  // poisons: NaN, and 195.26 (f32) or 195 (bf16)
constexpr double kMargin = 1.25;                      // error of roofs and clocks
constexpr int kSecondLooks =
    6;  // measurements of the roofs, each next to the kernel: on a busy machine either may be disturbed
constexpr unsigned char kInputGuard = 0xff, kOutputGuard = 0xc3;

std::string number(double x) { return std::isnan(x) ? "nan" : fmt::format("{:.9g}", x); }

/// "[2, 17]"
std::string place_of(const Spec& s, std::int64_t i) {
  std::vector<std::int64_t> at(static_cast<std::size_t>(s.shape.rank()));
  for (int d = s.shape.rank() - 1; d >= 0; --d) at[static_cast<std::size_t>(d)] = i % s.shape[d], i /= s.shape[d];
  return fmt::format("[{}]", fmt::join(at, ", "));
}

/// During its lifetime, time is not counted for the kernel.
class OwnWork {
 public:
  explicit OwnWork(const Alive& alive) : alive_(alive) {
    if (alive_) alive_(true);
  }
  ~OwnWork() {
    if (alive_) alive_(false);
  }
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;

 private:
  const Alive& alive_;
};

class Runner {
 public:
  Runner(const hpcdl_kernel& kernel, const Contract& contract, const Case& c, const Alive& alive)
      : kernel_(kernel),
        contract_(contract),
        case_(c),
        alive_(alive),
        problem_(contract.problem(c.size(), c.dtype, c.variant)) {
    if (kernel.device_kind == HPCDL_ON_CUDA) gpu_ = &GpuSide::here();
  }

  void run();
  void time(const std::function<double(const Problem&, bool)>& ceiling);

 private:
  using Blocks = std::vector<Block>;
  bool may_vary() const { return (kernel_.flags & HPCDL_BITS_MAY_VARY) != 0; }
  bool any_threads() const { return (kernel_.flags & HPCDL_SAME_BITS_ANY_THREADS) != 0 && !may_vary(); }
  Placement placement() const { return case_.misaligned ? Placement::misaligned : Placement::aligned; }

  /// The operands of a large case take seconds of processor time.
  std::vector<Values> inputs(const Problem& problem, std::uint64_t salt = 0) const {
    const OwnWork own(alive_);
    return make_inputs(contract_, problem, case_, salt);
  }
  std::vector<Expected> expected(const Problem& problem, const std::vector<Values>& in) const {
    const OwnWork own(alive_);
    return expect(contract_, problem, in);
  }
  static Block block(const Spec& s, Placement p, unsigned char guard) {
    return {static_cast<std::size_t>(s.bytes()), static_cast<std::size_t>(dtype_bytes(s.dtype)), p, guard};
  }
  static Blocks place(const std::vector<Values>& in, Placement p) {
    Blocks b;
    for (const auto& v : in) {
      b.push_back(block(v.spec, p, kInputGuard));
      encode(v, b.back().data());
    }
    return b;
  }
  static Blocks results(const Problem& problem, Placement p, unsigned char poison) {
    Blocks b;
    for (const auto& s : problem.out) {
      b.push_back(block(s, p, kOutputGuard));
      b.back().fill(poison);
    }
    return b;
  }

  /// A call that is ready to run; must not be moved.
  struct Ready {
    std::vector<hpcdl_tensor> in, out;
    Block workspace;
    hpcdl_call call{};
    Ready() = default;
    Ready(const Ready&) = delete;
  };
  void prepare(Ready& r, const Problem& problem, const Blocks& in, const Blocks& out, int threads, bool in_place) const;
  /// Calls the kernel, and checks guards and inputs. in_place: output 0 lies in the block of input 0.
  void call(const Problem& problem, const Blocks& in, const Blocks& out, int threads, bool in_place = false) const;
  void compare(const Problem& problem, const Blocks& out, const std::vector<Expected>& want,
               bool poisoned_with_nan) const;
  /// The same; `when` is added to what is wrong.
  void compare(const Problem& problem, const Blocks& out, const std::vector<Values>& in,
               const std::string& when) const {
    try {
      compare(problem, out, expected(problem, in), true);
    } catch (Wrong& w) {
      w.what += when;
      throw;
    }
  }
  /// Computes inputs of Role::derived anew, after others were changed.
  void derive(std::vector<Values>& values) const {
    for (std::size_t i = 0; i < values.size(); ++i)
      if (problem_.in[i].role == Role::derived)
        contract_.derive(values, i, problem_, [](std::int64_t) { return 0.5; }), round_to_storage(values[i]);
  }
  void same_bits(const Blocks& a, const Blocks& b, std::string_view what) const;

  void plain(Placement p) const;
  void guard_pages() const;
  void repeat() const;
  void any_number_of_threads() const;
  void same_address() const;
  void interleave() const;
  void in_place() const;
  void alias() const;

  const hpcdl_kernel& kernel_;
  const Contract& contract_;
  const Case& case_;
  const Alive& alive_;
  Problem problem_;
  GpuSide* gpu_ = nullptr;  // if the kernel runs on a GPU
};

void Runner::prepare(Ready& r, const Problem& problem, const Blocks& in, const Blocks& out, int threads,
                     bool in_place) const {
  if (gpu_) {
    std::size_t bytes = 0;
    for (const Blocks* list : {&in, &out})
      for (const Block& b : *list) bytes += static_cast<std::size_t>(b.end() - b.begin());
    gpu_->reset(bytes);
  }
  const auto at = [&](const Spec& spec, const Block& b) -> void* { return gpu_ && spec ? gpu_->place(b) : b.data(); };
  for (std::size_t i = 0; i < in.size(); ++i)
    r.in.push_back(tensor_of(problem.in[i].spec, at(problem.in[i].spec, in[i])));
  for (std::size_t i = 0; i < out.size(); ++i)
    r.out.push_back(tensor_of(problem.out[i], at(problem.out[i], in_place && i == 0 ? in[0] : out[i])));
  hpcdl_call& c = r.call;
  c.kernel = &kernel_;
  c.inputs = r.in.data(), c.outputs = r.out.data();
  c.n_inputs = static_cast<std::int32_t>(r.in.size()), c.n_outputs = static_cast<std::int32_t>(r.out.size());
  c.args = problem.args.empty() ? nullptr : problem.args.data();
  c.threads = threads, c.device_kind = kernel_.device_kind;
  if (gpu_) c.stream = gpu_->stream();
  if (!kernel_.workspace) return;
  c.workspace_bytes = kernel_.workspace(&c);
  if (c.workspace_bytes < 0) wrong("asked for a workspace of {} bytes", c.workspace_bytes);
  r.workspace = Block(static_cast<std::size_t>(c.workspace_bytes), 1, Placement::aligned, kOutputGuard);
  r.workspace.fill(kNan);
  c.workspace = gpu_ ? gpu_->place(r.workspace) : r.workspace.data();
}

void Runner::call(const Problem& problem, const Blocks& in, const Blocks& out, int threads, bool in_place) const {
  Ready r;
  prepare(r, problem, in, out, threads, in_place);
  std::vector<std::vector<std::byte>> before;
  for (const auto& b : in) before.emplace_back(b.data(), b.data() + b.bytes());
  const int status = kernel_.run(&r.call);
  if (alive_) alive_(false);
  if (gpu_)
    if (const auto trouble = gpu_->fetch(); !trouble.empty()) wrong("{}", trouble);
  if (kernel_.workspace)
    if (const char* side = r.workspace.broken_guard()) wrong("wrote {} its workspace", side);
  for (std::size_t i = 0; i < out.size(); ++i)
    if (const char* side = out[i].broken_guard()) wrong("wrote {} output \"{}\"", side, contract_.outputs[i]);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (const char* side = in[i].broken_guard()) wrong("wrote {} input \"{}\"", side, contract_.inputs[i]);
    if (!(in_place && i == 0) && !std::equal(before[i].begin(), before[i].end(), in[i].data()))
      wrong("changed its input \"{}\"", contract_.inputs[i]);
  }
  if (status == HPCDL_UNSUPPORTED) throw Declined{};
  if (status != HPCDL_OK) wrong("returned {} instead of 0", status);
}

/// True if `got` is a rounded value of an exact result within `tol` of `want`.
bool agrees(double got, double want, double tol, DType stored) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want)) return got == want;
  if (std::isnan(got)) return false;
  if (std::isinf(got)) {
    const double top = stored == DType::bf16 ? 0x1.fep127 : stored == DType::f16 ? 65504 : 0x1.fffffep127;
    return std::signbit(got) == std::signbit(want) && std::fabs(want) + tol >= top;
  }
  return std::fabs(got - want) <= tol;
}

void Runner::compare(const Problem& problem, const Blocks& out, const std::vector<Expected>& want,
                     bool poisoned_with_nan) const {
  const auto length = static_cast<double>(contract_.reduction(problem));
  for (std::size_t o = 0; o < out.size(); ++o) {
    const Spec& spec = problem.out[o];
    for (std::int64_t i = 0; i < spec.size(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double got = element(out[o].data(), spec.dtype, i), w = want[o].value[at];
      if (poisoned_with_nan && !(w != w)) {
        const auto* bytes = out[o].data() + i * dtype_bytes(spec.dtype);
        if (std::all_of(bytes, bytes + dtype_bytes(spec.dtype), [](std::byte b) { return b == std::byte{kNan}; }))
          wrong("{}{} was not written, expected {}", contract_.outputs[o], place_of(spec, i), number(w));
      }
      const double tol = contract_.allowed(want[o], at, case_.dtype, length);
      if (tol != kAny && !agrees(got, w, tol, spec.dtype))
        wrong("{}{} is {}, expected {}, allowed error {:.2g}", contract_.outputs[o], place_of(spec, i), number(got),
              number(w), tol);
    }
  }
}

void Runner::same_bits(const Blocks& a, const Blocks& b, std::string_view what) const {
  for (std::size_t o = 0; o < a.size(); ++o) {
    const Spec& s = problem_.out[o];
    const auto size = dtype_bytes(s.dtype);
    for (std::int64_t i = 0; i < s.size(); ++i)
      if (std::memcmp(a[o].data() + i * size, b[o].data() + i * size, static_cast<std::size_t>(size)) != 0)
        wrong("{}{} is {} and then {}: {}", contract_.outputs[o], place_of(s, i),
              number(element(a[o].data(), s.dtype, i)), number(element(b[o].data(), s.dtype, i)), what);
  }
}

void Runner::plain(Placement p) const {
  const auto values = inputs(problem_);
  const auto in = place(values, p);
  const int threads = 1 + static_cast<int>(case_.seed % 2);
  const auto first = results(problem_, p, kNan);
  call(problem_, in, first, threads);
  const auto want = expected(problem_, values);
  compare(problem_, first, want, true);
  const auto second = results(problem_, p, kFinite);
  call(problem_, in, second, threads);
  if (may_vary()) compare(problem_, second, want, false);
  else same_bits(first, second, "the result depends on the earlier contents of the output, or is not deterministic");
}

void Runner::guard_pages() const {
  const auto values = inputs(problem_);
  const auto want = expected(problem_, values);
  for (auto p : {Placement::ends_at_page, Placement::begins_at_page}) {
    const auto in = place(values, p);
    const auto out = results(problem_, p, kNan);
    call(problem_, in, out, 1);
    compare(problem_, out, want, true);
  }
}

void Runner::repeat() const {
  const auto values = inputs(problem_);
  const auto in = place(values, placement());
  const auto want = expected(problem_, values);
  Blocks first;
  for (int run = 0; run < 12; ++run) {
    auto out = results(problem_, placement(), run % 2 ? kFinite : kNan);
    call(problem_, in, out, 4);
    if (run == 0) compare(problem_, out, want, true), first = out;
    else if (may_vary()) compare(problem_, out, want, false);
    else same_bits(first, out, fmt::format("equal calls on four threads differ, at repeat {}", run));
  }
}

void Runner::any_number_of_threads() const {
  const auto values = inputs(problem_);
  const auto in = place(values, placement());
  const auto want = expected(problem_, values);
  const auto one = results(problem_, placement(), kNan);
  call(problem_, in, one, 1);
  for (int threads : {2, 3, 5}) {
    const auto out = results(problem_, placement(), kNan);
    call(problem_, in, out, threads);
    compare(problem_, out, want, true);
    if (any_threads())
      same_bits(one, out, fmt::format("1 and {} threads differ, though the kernel claims the same bits", threads));
  }
}

void Runner::same_address() const {
  auto values = inputs(problem_);
  const auto in = place(values, placement());
  const auto out = results(problem_, placement(), kNan);
  const auto step = [&](const char* when) {
    for (std::size_t i = 0; i < in.size(); ++i) encode(values[i], in[i].data());
    for (const auto& b : out) b.fill(kNan);
    call(problem_, in, out, 1);
    compare(problem_, out, values, when);
  };
  step("");
  values = inputs(problem_, 1);
  step("; the inputs had changed, their addresses had not");
  values = inputs(problem_);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (problem_.in[i].role == Role::data && values[i].size() > 0) {
      values[i][values[i].size() * 3 / 7] = -1.5;
      break;
    }
  derive(values);
  step("; one element of an input had changed, its address had not");
}

void Runner::interleave() const {
  Case other = case_;
  for (int d = 0; d < other.n_dims; ++d) other.dims[d] = std::max<std::int64_t>(1, other.dims[d] / 2);
  const Problem small = contract_.problem(other.size(), other.dtype, other.variant);
  for (int round = 0; round < 3; ++round)
    for (const Problem* p : {&problem_, &small, &problem_}) {
      const auto values = inputs(*p, static_cast<std::uint64_t>(round));
      const auto in = place(values, placement());
      const auto out = results(*p, placement(), kNan);
      call(*p, in, out, 2);
      compare(*p, out, values, fmt::format("; call {} of a series of two sizes", round * 3 + (p == &small ? 2 : 1)));
    }
}

void Runner::in_place() const {
  const auto values = inputs(problem_);
  const auto apart = results(problem_, placement(), kNan);
  call(problem_, place(values, placement()), apart, 2);
  auto in = place(values, placement());
  auto out = results(problem_, placement(), kNan);
  call(problem_, in, out, 2, true);
  out[0] = in[0];
  if (may_vary()) compare(problem_, out, expected(problem_, values), false);
  else same_bits(apart, out, "in place differs, though the kernel claims to work in place");
}

void Runner::alias() const {
  auto values = inputs(problem_);
  const std::size_t twin = twin_of_first(problem_);
  values[twin] = values[0];
  derive(values);
  auto in = place(values, placement());
  in[twin] = in[0];
  const auto out = results(problem_, placement(), kNan);
  call(problem_, in, out, 2);
  compare(problem_, out, values,
          fmt::format("; inputs \"{}\" and \"{}\" were one memory", contract_.inputs[0], contract_.inputs[twin]));
}

void Runner::run() {
  switch (case_.check) {
    case Check::plain: return plain(placement());
    case Check::guard_pages: return guard_pages();
    case Check::repeat: return repeat();
    case Check::threads: return any_number_of_threads();
    case Check::same_address: return same_address();
    case Check::interleave: return interleave();
    case Check::in_place: return in_place();
    case Check::alias: return alias();
    case Check::time: return;
  }
}

void Runner::time(const std::function<double(const Problem&, bool)>& ceiling) {
  if (!ceiling) return;
  const auto in = place(inputs(problem_), Placement::aligned);
  const auto out = results(problem_, Placement::aligned, kNan);
  Ready r;
  prepare(r, problem_, in, out, usable_cpus(), false);
  double limit = ceiling(problem_, false);
  for (int attempt = 0;; ++attempt) {
    double best = 1e30;
    for (int run = 0; run < 4; ++run) {
      int status = HPCDL_OK;
      const auto start = std::chrono::steady_clock::now();
      if (gpu_) best = std::min(best, gpu_->seconds([&] { status = kernel_.run(&r.call); }));
      else status = kernel_.run(&r.call);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (alive_) alive_(false);
      if (status == HPCDL_UNSUPPORTED) throw Declined{};
      if (!gpu_) best = std::min(best, took.count());
    }
    if (best * kMargin >= limit) return;
    if (attempt == kSecondLooks)
      wrong(
          "{:.3g} us, but the speed of light of this machine is {:.3g} us: work was skipped or reused from an earlier "
          "call",
          best * 1e6, limit * 1e6);
    limit = std::min(limit, ceiling(problem_, true));
  }
}

}  // namespace

Outcome run_case(const hpcdl_kernel& kernel, const Contract& contract, const Case& c,
                 const std::function<double(const Problem&, bool)>& ceiling, const Alive& alive) {
  try {
    Runner runner(kernel, contract, c, alive);
    if (c.check == Check::time) runner.time(ceiling);
    else runner.run();
  } catch (const Declined&) {
    return {true, ""};
  } catch (const Wrong& w) {
    return {false, w.what};
  } catch (const std::exception& e) {
    return {false, fmt::format("threw: {}", e.what())};
  }
  return {};
}

}  // namespace hpcdl::lab::verify
