#include "tools/cases.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>

#include "hpcdl/core/available_memory.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/element.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/nearest.h"
#include "hpcdl/rng.h"

namespace hpcdl::lab {

namespace {

std::string shape_word(const Shape& s) { return fmt::format("{}", fmt::join(s, "x")); }

int rank_of(const CaseFamily& f) { return static_cast<int>(std::count(f.dims.begin(), f.dims.end(), 'x')) + 1; }

void add_cases(std::vector<Case>& to, const CaseFamily& f, const Shape& shape, bool backward) {
  for (const DType d : {DType::f32, DType::bf16}) {
    if (!f.training_only) to.push_back(case_at(f, shape, d, false));
    if (backward) to.push_back(case_at(f, shape, d, true));
  }
}

std::string base_of(const std::string& op) { return op.substr(0, op.find('+')); }

/// Suggests the op that was meant, or lists all of them.
std::string hint_of(const std::string& name, const std::vector<std::string>& known) {
  if (const auto meant = io::did_you_mean(name, known); !meant.empty()) return meant;
  std::set<std::string> ops;
  for (const auto& k : known) ops.insert(base_of(k));
  return fmt::format("; expected one of {}", fmt::join(ops, ", "));
}

/// True if some name means this op; checks every name against all ops.
class Selection {
 public:
  explicit Selection(const std::vector<std::string>& names) : names_(names) {
    std::vector<std::string> known;
    for (const auto& f : case_families()) known.push_back(base_of(f.op)), known.push_back(f.op);
    for (const auto& name : names)
      if (std::find(known.begin(), known.end(), name) == known.end())
        fail_usage("cases", "no op \"{}\"{}", name, hint_of(name, known));
  }
  bool has(const std::string& op) const {
    return names_.empty() ||
           std::any_of(names_.begin(), names_.end(), [&](const auto& n) { return n == op || n == base_of(op); });
  }

 private:
  const std::vector<std::string>& names_;
};

Shape parse_shape(const std::string& word) {
  Shape s;
  const char *at = word.data(), *end = at + word.size();
  while (true) {
    std::int64_t d = 0;
    const auto [next, error] = std::from_chars(at, end, d);
    if (error != std::errc() || d < 1 || s.rank() == Shape::kMaxRank || (next != end && *next != 'x'))
      fail_usage("cases", "expected a shape such as 4096x1024, got \"{}\"", word);
    s.push_back(d);
    if (next == end) return s;
    at = next + 1;
  }
}

/// Values to copy from: drawing each one of a billion would take longer than the kernels.
constexpr std::int64_t kPattern = 1 << 16;

std::vector<float> normal_pattern(std::uint64_t stream, bool positive) {
  std::vector<float> values(kPattern);
  const Rng rng{1, stream};
  for (std::int64_t i = 0; i < kPattern; ++i) {
    const auto v = static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)));
    values[static_cast<std::size_t>(i)] = positive ? std::fabs(v) : v;
  }
  return values;
}

/// Repeats the pattern over all of x.
template <class T> void tile(const Tensor& x, const std::vector<T>& pattern) {
  for (std::int64_t i = 0; i < x.size(); i += kPattern)
    std::memcpy(x.ptr<T>() + i, pattern.data(), static_cast<std::size_t>(std::min(kPattern, x.size() - i)) * sizeof(T));
}

void fill_floats(const Tensor& x, const std::vector<float>& pattern) {
  if (x.dtype() == DType::f32) return tile(x, pattern);
  std::vector<bf16> rounded(kPattern);
  for (std::size_t i = 0; i < rounded.size(); ++i) rounded[i] = bf16(pattern[i]);
  tile(x, rounded);
}

}  // namespace

Case case_at(const CaseFamily& f, const Shape& shape, DType dtype, bool backward) {
  Case c{.op = f.op,
         .shape = shape_word(shape),
         .dtype = dtype,
         .backward = backward,
         .record = {},
         .positive = f.positive,
         .cpu_only = f.cpu_only};
  if (f.index_dim >= 0) c.index_below = shape[f.index_dim];
  if (f.integer)
    c.integer = [f = f.integer, shape](std::string_view name, std::int64_t i) { return f(name, i, shape); };
  c.record = [forward = f.forward, shape, dtype, backward](Graph& g) {
    const Var y = forward(g, shape, dtype);
    if (y) g.keep(y);
    if (backward) g.backward(y, g.input("dy", y.spec()));
  };
  return c;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> list;
    for (const auto& f : case_families()) {
      for (const auto& s : f.shapes) add_cases(list, f, s, f.gradient);
      for (const auto& s : f.forward_shapes) add_cases(list, f, s, false);
    }
    return list;
  }();
  return all;
}

std::vector<Case> find_cases(const std::vector<std::string>& names) {
  const Selection wanted(names);
  std::vector<Case> found;
  for (const auto& c : cases())
    if (wanted.has(c.op)) found.push_back(c);
  return found;
}

std::vector<Case> cases_at(const std::vector<std::string>& names, const std::string& shape) {
  if (names.empty()) fail_usage("cases", "--shape needs the names of its ops");
  const Selection wanted(names);
  const Shape s = parse_shape(shape);
  std::vector<Case> found;
  std::string other;
  for (const auto& f : case_families()) {
    if (!wanted.has(f.op)) continue;
    if (rank_of(f) == s.rank()) add_cases(found, f, s, f.gradient);
    else if (other.empty()) other = fmt::format("{} takes {}", f.op, f.dims);
  }
  if (found.empty()) fail_usage("cases", "{}, got {}", other, shape);
  return found;
}

std::string base_op(const Case& c) { return base_of(c.op); }

std::string dtype_word(DType d) {
  std::string word(dtype_name(d));
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

std::string case_label(const Case& c) {
  return fmt::format("{} {} {} {}", c.op, c.shape, dtype_word(c.dtype), c.backward ? "fwd+bwd" : "fwd");
}

namespace {

/// Linux grants more memory than it has, and kills this or another process when the memory is touched.
void require_room(const Case& c, std::int64_t bytes, const Buffer* arena) {
  if (arena && arena->bytes() >= bytes) return;
  const Room room = available_memory(Device::cpu());
  require(bytes <= room.bytes, "memory", "{} needs {}, but only {} is available ({}); use a smaller --shape",
          case_label(c), format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(room.bytes)),
          room.of);
}

}  // namespace

CaseRun::CaseRun(const Case& c, std::shared_ptr<Buffer> arena, const Stream* on) {
  params_.seed = 1;
  params_.lr = 1e-4f;
  Graph g({.inference = !c.backward});
  c.record(g);
  const Pass pass = Pass::of(g);
  if (!on) require_room(c, pass.planned->plan.arena_bytes, arena.get());
  executable_ = std::make_unique<Instance>(pass, std::move(arena), on ? on->device() : Device::cpu());
  fill_inputs(c, on);
}

CaseRun ready(const Case& c, Stream& s, std::shared_ptr<Buffer> arena) {
  if (!s.device().is_cuda()) return CaseRun(c, std::move(arena));
  CaseRun run(c, std::move(arena), &s);
  run.run(s);
  s.synchronize();
  run.capture(s);
  return run;
}

void CaseRun::fill_inputs(const Case& c, const Stream* on) {
  const auto& exe = *executable_;
  const auto& slots = program().slots;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].kind != SlotKind::input || exe.plan().offset[i] < 0) continue;
    const Tensor place(exe.arena()->data() + exe.plan().offset[i], slots[i].spec, exe.arena()->device());
    const OwnedTensor host(on ? place.spec() : Spec());
    const Tensor x = on ? host.tensor : place;
    const Rng rng{2, i};
    if (x.dtype() == DType::i32 || x.dtype() == DType::i64 || x.dtype() == DType::i8) {
      for (std::int64_t k = 0; k < x.size(); ++k)
        set_element(x, k,
                    static_cast<double>(
                        c.integer ? c.integer(slots[i].name, k)
                                  : static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(k),
                                                                        static_cast<std::uint64_t>(c.index_below)))));
    } else if (x.dtype() == DType::u8) {
      // Blocks of quantised formats hold scales in f16: no byte is the upper half of an infinity or NaN.
      constexpr int kExponent = 0x7c;
      std::vector<std::uint8_t> bytes(kPattern);
      for (std::size_t k = 0; k < bytes.size(); ++k) {
        bytes[k] = static_cast<std::uint8_t>(rng.bits(k));
        if ((bytes[k] & kExponent) == kExponent) bytes[k] ^= 4;
        if (slots[i].name == "scale") bytes[k] = static_cast<std::uint8_t>(120 + bytes[k] % 16);  // may be exponents
      }
      tile(x, bytes);
    } else if (is_f8_dtype(x.dtype())) {
      visit_f8(x.dtype(), [&]<class F>() {
        std::vector<F> rounded;
        for (const float v : normal_pattern(i, c.positive)) rounded.push_back(to_f8<F>(v));
        tile(x, rounded);
      });
    } else {
      fill_floats(x, normal_pattern(i, c.positive));
    }
    if (on) copy(*on, place, x);
  }
}

}  // namespace hpcdl::lab
