#include "tools/verify/operands.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "hpcdl/core/element.h"
#include "hpcdl/core/error.h"

namespace hpcdl::lab::verify {
namespace {

constexpr std::size_t kLine = 64;
std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

/// Readable pages between two inaccessible ones.
std::shared_ptr<void> map_between_guard_pages(std::size_t bytes, std::byte** first, std::size_t* usable) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  *usable = round_up(std::max<std::size_t>(bytes, 1), page);
  const std::size_t all = *usable + 2 * page;
  void* p = ::mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(p != MAP_FAILED, "verify", "cannot map {} bytes for an operand", all);
  *first = static_cast<std::byte*>(p) + page;
  ::mprotect(*first, *usable, PROT_READ | PROT_WRITE);
  return {p, [all](void* at) { ::munmap(at, all); }};
}

std::uint64_t mix(
    std::uint64_t x) {  // splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Random numbers of one operand.
struct Draw {
  std::uint64_t key;
  std::uint64_t bits(std::int64_t i) const { return mix(key + static_cast<std::uint64_t>(i) * 0x632be59bd9b4e019u); }
  double uniform(std::int64_t i) const { return static_cast<double>(bits(i) >> 11) * 0x1p-53; }
  /// Sum of four uniform numbers: close to normal, at most 3.5; one in 61 is six times as large.
  double normal(std::int64_t i) const {
    const auto b = bits(i);
    const double sum =
        static_cast<double>((b & 0xffff) + (b >> 16 & 0xffff) + (b >> 32 & 0xffff) + (b >> 48)) / 65535.0;
    return (sum - 2) * 1.7320508 * (b % 61 == 0 ? 6 : 1);
  }
};

double pattern_value(Pattern p, const Draw& d, std::int64_t i, const Contract& c, DType t) {
  switch (p) {
    case Pattern::positive: return d.uniform(i) + 0.5;
    case Pattern::huge:
      return d.normal(i) * (t == DType::f16 ? std::min(c.huge, 2e3) : c.huge);  // f16 ends at 65504, normal() at 21
    case Pattern::tiny: return d.normal(i) * 1e-20;
    case Pattern::denormal: return d.normal(i) * 1e-39;
    case Pattern::offset: return t != DType::f32 ? 64 + 4 * d.normal(i) : 1e4 + d.normal(i);
    case Pattern::constant: return 3;
    case Pattern::zero: return 0;
    case Pattern::mixed: return d.normal(i) * std::pow(10, 8 * d.uniform(i + 7919) - (t == DType::f16 ? 5 : 4));
    default: return d.normal(i);
  }
}

void fill(Values& v, const Input& in, const Draw& d, const Contract& c, Pattern pattern) {
  for (std::int64_t i = 0; i < v.size(); ++i) switch (in.role) {
      case Role::weight: v[i] = d.normal(i); break;
      case Role::positive: v[i] = d.uniform(i) + 0.1; break;
      case Role::index:
      case Role::index_or_none:
        v[i] = static_cast<double>(d.bits(i) % static_cast<std::uint64_t>(std::max<std::int64_t>(in.below, 1)));
        if (in.role == Role::index_or_none && d.bits(i + 99991) % 5 == 0) v[i] = -1;
        break;
      default: v[i] = pattern_value(pattern, d, i, c, v.spec.dtype);
    }
}

std::int32_t abi_type(DType d) {
  switch (d) {
    case DType::bf16: return HPCDL_BF16;
    case DType::f16: return HPCDL_F16;
    case DType::i32: return HPCDL_I32;
    case DType::u8: return HPCDL_U8;
    case DType::f8_e4m3: return HPCDL_F8_E4M3;
    case DType::f8_e5m2: return HPCDL_F8_E5M2;
    default: return HPCDL_F32;
  }
}

double special(Pattern p) { return p == Pattern::nan ? NAN : p == Pattern::pos_inf ? INFINITY : -INFINITY; }

}  // namespace

Block::Block(std::size_t bytes, std::size_t element, Placement placement, unsigned char guard)
    : bytes_(bytes), guard_(guard) {
  if (placement == Placement::ends_at_page || placement == Placement::begins_at_page) {
    std::size_t usable = 0;
    memory_ = map_between_guard_pages(bytes, &begin_, &usable);
    end_ = begin_ + usable;
    data_ = placement == Placement::ends_at_page ? end_ - bytes : begin_;
  } else {
    const std::size_t all = round_up(bytes + 2 * kGuard + kLine, kLine);
    memory_ = {std::aligned_alloc(kLine, all), std::free};
    require(memory_ != nullptr, "verify", "no memory for an operand of {} bytes", bytes);
    begin_ = static_cast<std::byte*>(memory_.get());
    data_ = begin_ + kGuard + (placement == Placement::misaligned ? element : 0);
    end_ = data_ + bytes + kGuard;
  }
  std::memset(begin_, guard, static_cast<std::size_t>(end_ - begin_));
}

const char* Block::broken_guard() const {
  const auto intact = [&](const std::byte* b, const std::byte* e) {
    return std::all_of(b, e, [&](std::byte x) { return x == std::byte{guard_}; });
  };
  if (!intact(begin_, data_)) return "before";
  return intact(data_ + bytes_, end_) ? nullptr : "past the end of";
}

void Block::fill(unsigned char value) const { std::memset(data_, value, bytes_); }

void encode(const Values& v, std::byte* to) {
  for (std::int64_t i = 0; i < v.size(); ++i) set_element(to, v.spec.dtype, i, v[i]);
}

void round_to_storage(Values& v) {
  if (is_float(v.spec.dtype) || is_f8_dtype(v.spec.dtype))
    for (double& x : v.v) x = rounded_to(v.spec.dtype, x);
}

std::vector<Values> make_inputs(const Contract& contract, const Problem& problem, const Case& c, std::uint64_t salt) {
  std::vector<Values> in;
  for (const auto& i : problem.in) in.push_back({i.spec, std::vector<double>(static_cast<std::size_t>(i.spec.size()))});
  std::vector<std::size_t> data;
  for (std::size_t i = 0; i < in.size(); ++i)
    if (in[i].size() > 0 && problem.in[i].role == Role::data &&
        (contract.special_input < 0 || static_cast<int>(i) == contract.special_input))
      data.push_back(i);
  const std::uint64_t key = mix(c.seed * 1000003 + salt);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!in[i]) continue;
    const Draw d{mix(key + i)};
    if (problem.in[i].role == Role::derived)
      contract.derive(in, i, problem, [&](std::int64_t k) { return d.uniform(k); });
    else fill(in[i], problem.in[i], d, contract, c.pattern);
    if (c.pattern >= Pattern::nan && !data.empty() && i == data[key % data.size()]) {
      const auto n = in[i].size();
      in[i][c.place == 0 ? 0 : c.place == 1 ? n / 2 : n - 1] = special(c.pattern);
    }
    round_to_storage(in[i]);
  }
  return in;
}

std::vector<Expected> expect(const Contract& contract, const Problem& problem, const std::vector<Values>& in) {
  std::vector<Expected> out;
  for (const auto& s : problem.out) out.emplace_back(s);
  if (contract.op && !contract.backward) out.resize(static_cast<std::size_t>(contract.op->n_out));
  contract.reference(out, in, contract.args_of(problem));
  return out;
}

hpcdl_tensor tensor_of(const Spec& spec, void* data) {
  hpcdl_tensor t{};
  if (!spec) return t;
  const auto strides = contiguous_strides(spec.shape);
  t.data = data;
  t.dtype = abi_type(spec.dtype);
  t.rank = spec.shape.rank();
  for (int i = 0; i < t.rank; ++i) t.shape[i] = spec.shape[i], t.strides[i] = strides[i];
  return t;
}

}  // namespace hpcdl::lab::verify
