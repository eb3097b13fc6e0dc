#include "tools/comm/operands.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
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

CommOperands::CommOperands(const Group& g, const Stream& s, const CommCase& c, const std::vector<CommSide>& sides)
    : case_(c), s_(s), part_(part_elements(c, g.size())), local_(g.local_rank()) {
  if (s.device().is_cuda() && (c.dtype == DType::i16 || c.dtype == DType::u16))
    fail_usage("bench", "NCCL has no {}: use integers of 1, 4 or 8 bytes", dtype_name(c.dtype));
  const std::int64_t whole = part_ * parts(c, g.size());
  in_ = allocate(c.what == Collective::all_gather ? part_ : whole);
  if (c.what != Collective::all_reduce) out_ = allocate(c.what == Collective::reduce_scatter ? part_ : whole);
  if (std::any_of(sides.begin(), sides.end(), [](const CommSide& side) { return side.memory == Memory::window; })) {
    window_ = g.share(in_.bytes());
    require(window_ != nullptr, "bench", "these ranks share no memory: leave out --memory window");
  }
  clear();
  if (s.device().is_cuda()) fill(g, {});
}

/// On a CPU from malloc, as in MPI programs.
Tensor CommOperands::allocate(std::int64_t count) {
  const Spec spec{{count}, case_.dtype};
  if (s_.device().is_cuda()) {
    const auto owned = std::make_shared<OwnedTensor>(spec, s_.device());
    memory_.push_back(owned);
    return owned->tensor;
  }
  memory_.emplace_back(std::malloc(static_cast<std::size_t>(spec.bytes())), std::free);
  require(memory_.back() != nullptr, "bench", "not enough memory for tensors of {} bytes: choose a smaller size",
          case_.bytes);
  return Tensor(memory_.back().get(), spec);
}

Tensor CommOperands::input(const CommSide& side) const {
  return side.memory == Memory::window ? Tensor(window_->block(local_), in_.spec()) : in_;
}
Tensor CommOperands::output(const CommSide& side) const { return out_ ? out_ : input(side); }

double CommOperands::value(int rank, std::int64_t i) const {
  constexpr std::int64_t kRepeat = 64;
  if (s_.device().is_cuda()) return static_cast<double>((i * 7 + rank * 13) % kRepeat);
  return rounded_to(case_.dtype, number(case_.dtype, rank, i));
}

void CommOperands::clear() {
  if (s_.device().is_cuda()) return;
  for (const Tensor& t : {in_, out_, window_ ? Tensor(window_->block(local_), in_.spec()) : Tensor()})
    if (t) std::memset(t.data(), 0, static_cast<std::size_t>(t.bytes()));
}

void CommOperands::call(const Group& g, const Stream& s, const CommSide& side) const {
  const Tensor in = input(side), out = output(side);
  switch (case_.what) {
    case Collective::all_reduce: g.all_reduce(s, in, case_.op, side.algorithm); break;
    case Collective::reduce_scatter: g.reduce_scatter(s, out, in, case_.op, side.algorithm); break;
    case Collective::all_gather: g.all_gather(s, out, in, side.algorithm); break;
    default: g.all_to_all(s, out, in, side.algorithm); break;
  }
}

void CommOperands::fill(const Group& g, const CommSide& side) {
  const OwnedTensor host(in_.spec());
  for (std::int64_t i = 0; i < in_.size(); ++i) set_element(host.tensor, i, value(g.rank(), i));
  copy(s_, input(side), host.tensor);
  s_.synchronize();
}

double CommOperands::error(const Group& g, const CommSide& side) const {
  const OwnedTensor got(output(side).spec());
  copy(s_, got.tensor, output(side));
  s_.synchronize();
  const std::int64_t count = got.tensor.size();
  const auto reduced = [&](std::int64_t i) {
    double sum = 0, most = -INFINITY;
    for (int r = 0; r < g.size(); ++r) sum += value(r, i), most = std::max(most, value(r, i));
    return case_.op == Reduce::max ? most : case_.op == Reduce::avg ? sum / g.size() : sum;
  };
  const auto want = [&](std::int64_t i) {
    switch (case_.what) {
      case Collective::all_reduce: return reduced(i);
      case Collective::reduce_scatter: return reduced(g.rank() * part_ + i);
      case Collective::all_gather: return value(static_cast<int>(i / part_), i % part_);
      default: return value(static_cast<int>(i / part_), g.rank() * part_ + i % part_);
    }
  };
  constexpr std::int64_t kMost = 1 << 21;
  const std::int64_t step = std::max<std::int64_t>(1, count / kMost) | 1;
  double worst = 0, scale = 1e-30;
  const auto look = [&](std::int64_t i) {
    const double w = want(i), off = std::abs(element(got.tensor, i) - w);
    worst = std::max(worst, std::isfinite(off) ? off : INFINITY);
    scale = std::max(scale, std::abs(w));
  };
  for (std::int64_t i = 0; i < count; i += step) look(i);
  for (std::int64_t i = std::max<std::int64_t>(0, count - 100); i < count; ++i) look(i);
  return worst / scale;
}

}  // namespace hpcdl::lab
