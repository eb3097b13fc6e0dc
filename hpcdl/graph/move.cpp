#include "hpcdl/graph/move.h"

#include <algorithm>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/pinned.h"
#include "hpcdl/program/check.h"

namespace hpcdl {
namespace {

struct Move {
  static constexpr std::string_view name = "move";
  struct RecordArgs {
    std::int64_t pairs = 0;
  };
  static void check_record(const RawRecord& r) {
    const auto pairs = r.args<RecordArgs>().pairs;
    require(pairs >= 0 && pairs < 1 << 30, name, "its arguments are not valid");
    r.require_count(2 * pairs);
    for (std::size_t i = 0; i < r.count(); i += 2)
      require(r.contiguous(i) == r.contiguous(i + 1), name, "{} cannot be a copy of {}", to_string(r.spec(i)),
              to_string(r.spec(i + 1)));
  }
  static void run(Stream& s, const Grad* t, const void* args) {
    for (const Grad* end = t + 2 * static_cast<const RecordArgs*>(args)->pairs; t != end; t += 2)
      if (t[0].device().is_cuda()) copy(s, t[0], t[1]);
      else copy_to_pinned(s, t[0].data(), t[1]);
  }
};

}  // namespace

void Moves::record(Graph& g, Lane lane, Phase phase) const {
  if (operands_.empty()) return;
  const Graph::OnLane on(g, lane);
  const Move::RecordArgs args{std::ssize(operands_) / 2};
  g.emit<Move>(operands_, &args, sizeof args, {}, phase);
}

void Moves::insert(Edit& edit, std::size_t before, Lane lane) const {
  if (operands_.empty()) return;
  const auto& records = edit.program().records;
  const auto& next = records[std::min(before, records.size() - 1)];
  Record record;
  record.lane = lane, record.phase = next.phase, record.scope = next.scope;
  edit.insert<Move>(before, record, operands_, {std::ssize(operands_) / 2});
}

std::int64_t moved_bytes(const Program& program) {
  std::int64_t sum = 0;
  for (const auto& r : program.records)
    for (std::uint32_t i = 0; r.op == Move::name && i < r.operand_count; i += 2)
      sum += program.operands[r.operands + i].spec.bytes();
  return sum;
}

}  // namespace hpcdl
