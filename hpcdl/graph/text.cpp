#include "hpcdl/graph/text.h"

#include <fmt/format.h>

#include <map>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/units.h"
#include "hpcdl/program/axis.h"
#include "hpcdl/program/format.h"

namespace hpcdl {

std::string program_text(const Program& program, const Plan& plan, std::span<const std::string> ways) {
  std::string out;
  std::map<std::string, double> sent;  // by axis
  for (const auto& policy : program.autocasts) out += fmt::format("autocast: {}\n", policy);
  const auto& n = program.numerics;
  if (n.products == F32Products::tf32) out += "numerics: products of f32 operands in tf32\n";
  if (n.atomic_sums) out += "numerics: atomic sums\n";
  if (n.row_invariant) out += "numerics: row-invariant\n";
  out += fmt::format("{:>6}  {:<9} {:<16} {:<24} {:>10} {:>10}  operands\n", "record", "phase", "op", "scope", "flops",
                     "bytes");
  for (std::size_t i = 0; i < program.records.size(); ++i) {
    const auto& r = program.records[i];
    std::string operands;
    for (std::uint32_t k = 0; k < r.operand_count; ++k) {
      const auto& o = program.operands[r.operands + k];
      const char* mark = o.access == Access::read ? "" : o.access == Access::write ? "=" : "+=";
      if (o.slot < 0) operands += " -";
      else operands += fmt::format(" %{}{}:{}{}", o.slot, mark, dtype_name(o.spec.dtype), to_string(o.spec.shape));
    }
    for (const auto& e : exchanges(program, r)) {
      operands += fmt::format("  {} over {}", format_bytes(static_cast<double>(e.bytes)), e.axis);
      sent[e.axis] += e.wire_bytes();
    }
    if (i < ways.size() && !ways[i].empty()) operands += fmt::format("  way {}", ways[i]);
    out +=
        fmt::format("{:>6}  {:<9} {:<16} {:<24} {:>10} {:>10} {}\n", i, phase_name(r.phase), r.op,
                    program.scopes[r.scope], format_count(r.cost.operations), format_bytes(r.cost.bytes()), operands);
  }
  const Cost sum = program.cost();
  out +=
      fmt::format("{} records, {} slots, {} flops, {} moved at least; peak memory {} planned, {} live at record {}\n",
                  program.records.size(), program.slots.size(), format_count(sum.operations), format_bytes(sum.bytes()),
                  format_bytes(static_cast<double>(plan.arena_bytes)),
                  format_bytes(static_cast<double>(plan.live_bytes)), plan.worst_record);
  for (const auto& [axis, bytes] : sent) out += fmt::format("each rank sends {} over {}\n", format_bytes(bytes), axis);
  return out;
}

}  // namespace hpcdl
