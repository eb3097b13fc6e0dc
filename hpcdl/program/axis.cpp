#include "hpcdl/program/axis.h"

#include <fmt/core.h>

#include <algorithm>

#include "hpcdl/program.h"

namespace hpcdl {

Axis::Axis(std::string_view called, int size, const Ranks* of) : Bound(fmt::format("{} of {}", called, size), of) {
  ranks = size;
}

Axis Axis::with(std::string_view what) const {
  Axis a = *this;
  const auto n = what.copy(a.tensor, sizeof a.tensor - 1);
  std::fill(a.tensor + n, a.tensor + sizeof a.tensor, '\0');
  return a;
}

bool Axis::valid() const {
  return ranks >= 1 && ranks <= 1 << 20 && name[sizeof name - 1] == 0 && tensor[sizeof tensor - 1] == 0 &&
         std::string_view(name).ends_with(fmt::format(" of {}", ranks));
}

std::vector<Exchange> exchanges(const Program& p, const Record& r) {
  const auto f = function_of(r.op, r.backward);
  if (!f.exchanges) return {};
  std::vector<Spec> specs;
  for (auto i = r.operands; i < r.operands + r.operand_count; ++i)
    specs.push_back(p.operands[i].slot < 0 ? Spec() : p.operands[i].spec);
  return f.exchanges(specs, p.args.data() + r.args);
}

double wire_bytes(const Program& p, std::string_view axis) {
  double sum = 0;
  for (const auto& r : p.records)
    for (const auto& e : exchanges(p, r))
      if (axis.empty() || e.axis == axis) sum += e.wire_bytes();
  return sum;
}

}  // namespace hpcdl
