#include "hpcdl/lab/comm/operands.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "hpcdl/core/element.h"

namespace hpcdl::lab {

using comm::Collective;
using comm::Group;
using comm::Reduce;

namespace {

/// In [-4, 4); a multiple of 1/64 if a type has few digits, an integer for integer types.
double number(DType d, int rank, std::int64_t i) {
  std::uint64_t x = (static_cast<std::uint64_t>(rank) << 40) + static_cast<std::uint64_t>(i) + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  if (!is_float(d)) return static_cast<double>(x % 8);
  return static_cast<double>(x >> 20) * 0x1p-41 - 4;
}

}  // namespace

DType comm_dtype(const std::string& name) {
  for (int i = 1; i <= static_cast<int>(DType::u8); ++i) {
    const auto d = static_cast<DType>(i);
    std::string own(dtype_name(d));
    std::transform(own.begin(), own.end(), own.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
    if (name == own || name == comm_dtype_name(d)) return d;
  }
  return DType::none;
}

std::string comm_dtype_name(DType d) {
  const std::string name(dtype_name(d));
  if (d == DType::bf16) return "bf16";
  return (name[0] == 'F' ? "fp" : name[0] == 'I' ? "int" : "uint") + name.substr(1);
}

CommOperands::CommOperands(const Group& g, const CommCase& c, const std::vector<CommSide>& sides)
    : case_(c), local_(g.local_rank()) {
  const std::int64_t width = dtype_bytes(c.dtype);
  const bool one = c.what == Collective::all_reduce;
  part_ = part_elements(c, g.size());
  const std::int64_t whole = part_ * parts(c, g.size());
  in_count_ = c.what == Collective::all_gather ? part_ : whole;
  out_count_ = c.what == Collective::reduce_scatter ? part_ : whole;
  in_.reset(static_cast<std::byte*>(std::malloc(static_cast<std::size_t>(in_count_ * width))));
  if (!one) out_.reset(static_cast<std::byte*>(std::malloc(static_cast<std::size_t>(out_count_ * width))));
  require(in_ && (one || out_), "bench", "not enough memory for tensors of {} bytes: choose a smaller size", c.bytes);
  if (std::any_of(sides.begin(), sides.end(), [](const CommSide& s) { return s.memory == Memory::window; })) {
    window_ = g.share(in_count_ * width);
    require(window_ != nullptr, "bench", "these ranks share no memory: leave out --memory window");
  }
  clear();
}

void CommOperands::clear() {
  const auto in_bytes = static_cast<std::size_t>(in_count_ * dtype_bytes(case_.dtype)),
             out_bytes = static_cast<std::size_t>(out_count_ * dtype_bytes(case_.dtype));
  std::memset(in_.get(), 0, in_bytes);
  if (out_) std::memset(out_.get(), 0, out_bytes);
  if (window_) std::memset(window_->block(local_), 0, in_bytes);
}

void CommOperands::call(const Group& g, const Stream& s, const CommSide& side) const {
  const auto tensor = [&](std::byte* data, std::int64_t n) { return Tensor(data, Spec{Shape{n}, case_.dtype}); };
  const Tensor in = tensor(input(side), in_count_), out = tensor(output(side), out_count_);
  switch (case_.what) {
    case Collective::all_reduce: g.all_reduce(s, in, case_.op, side.algorithm); break;
    case Collective::reduce_scatter: g.reduce_scatter(s, out, in, case_.op, side.algorithm); break;
    case Collective::all_gather: g.all_gather(s, out, in, side.algorithm); break;
    default: g.all_to_all(s, out, in, side.algorithm); break;
  }
}

void CommOperands::fill(const Group& g, const CommSide& side) {
  for (std::int64_t i = 0; i < in_count_; ++i)
    set_element(input(side), case_.dtype, i, number(case_.dtype, g.rank(), i));
}

double CommOperands::error(const Group& g, const CommSide& side) const {
  const DType d = case_.dtype;
  const auto of = [&](int rank, std::int64_t i) { return rounded_to(d, number(d, rank, i)); };
  const auto reduced = [&](std::int64_t i) {
    double sum = 0, most = -INFINITY;
    for (int r = 0; r < g.size(); ++r) sum += of(r, i), most = std::max(most, of(r, i));
    return case_.op == Reduce::max ? most : case_.op == Reduce::avg ? sum / g.size() : sum;
  };
  const auto want = [&](std::int64_t i) {
    switch (case_.what) {
      case Collective::all_reduce: return reduced(i);
      case Collective::reduce_scatter: return reduced(g.rank() * part_ + i);
      case Collective::all_gather: return of(static_cast<int>(i / part_), i % part_);
      default: return of(static_cast<int>(i / part_), g.rank() * part_ + i % part_);
    }
  };
  constexpr std::int64_t kMost = 1 << 21;
  const std::int64_t step = std::max<std::int64_t>(1, out_count_ / kMost) | 1;
  double worst = 0, scale = 1e-30;
  const auto look = [&](std::int64_t i) {
    const double w = want(i), off = std::abs(element(output(side), d, i) - w);
    worst = std::max(worst, std::isfinite(off) ? off : INFINITY);
    scale = std::max(scale, std::abs(w));
  };
  for (std::int64_t i = 0; i < out_count_; i += step) look(i);
  for (std::int64_t i = std::max<std::int64_t>(0, out_count_ - 100); i < out_count_; ++i) look(i);
  return worst / scale;
}

}  // namespace hpcdl::lab
