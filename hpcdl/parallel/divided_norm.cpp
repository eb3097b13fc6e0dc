#include "hpcdl/parallel/divided_norm.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/parallel/update.h"
#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl::parallel {
namespace {

struct CountArgs {
  std::int64_t count;
};

/// Operands: sums of squares of blocks, f64, then tensors. Sums that no tensor has stay unset.
struct SquaresOfBlocks {
  static constexpr std::string_view name = "grad_norm.blocks";
  using RecordArgs = CountArgs;
  static void check_record(const RawRecord& r) {
    const auto count = r.args<CountArgs>().count;
    require(count >= 0 && count < 1 << 30, name, "its arguments are not valid");
    r.require_count(1 + count);
    std::int64_t blocks = 0;
    for (std::size_t i = 1; i < r.count(); ++i)
      blocks += tensor_blocks(require_float(name, r.contiguous(i), "gradient").shape.size());
    const Spec sums = r.contiguous(0);
    require(sums.dtype == DType::f64 && sums.size() >= blocks, name, "{} cannot hold the sums of {} blocks",
            to_string(sums), blocks);
  }
  static void run(Stream& s, const Grad* t, const void* args) {
    const auto count = static_cast<const CountArgs*>(args)->count;
    on(
        s, [&](auto isa, Pool& pool) { hpcdl::cpu::sum_of_squares(isa, pool, t[0].ptr<double>(), t + 1, count); },
        [&](auto& q) { hpcdl::cuda::squares_of_blocks(q, t[0], t + 1, count); });
  }
};

/// Elements of a tensor that follow each other.
struct Run {
  std::int64_t from, count;
};

/// Operands: f64 values in order, and all values. The arguments are followed by the runs of the second that make up the
/// first.
struct InOrder {
  static constexpr std::string_view name = "grad_norm.in_order";
  using RecordArgs = CountArgs;
  static void check_record(const RawRecord& r) {
    const auto count = r.args<CountArgs>().count;
    require(count >= 0 && count < 1 << 30, name, "its arguments are not valid");
    const auto* runs =
        reinterpret_cast<const Run*>(&r.args<CountArgs>(count * static_cast<std::int64_t>(sizeof(Run))) + 1);
    r.require_count(2);
    const Spec to = r.contiguous(0), from = r.contiguous(1);
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      require(runs[i].from >= 0 && runs[i].count >= 0 && runs[i].count <= from.size() - runs[i].from &&
                  runs[i].from <= from.size(),
              name, "elements lie outside of {}", to_string(from));
      sum += runs[i].count;
      require(sum <= to.size(), name, "its runs have more elements than {}", to_string(to));
    }
    require(to.dtype == DType::f64 && from.dtype == DType::f64 && sum == to.size(), name,
            "{} elements of {} cannot be {}", sum, to_string(from), to_string(to));
  }
  static void run(Stream& s, const Grad* t, const void* args) {
    const auto* head = static_cast<const CountArgs*>(args);
    const auto* runs = reinterpret_cast<const Run*>(head + 1);
    std::int64_t at = 0;
    for (std::int64_t i = 0; i < head->count; at += runs[i++].count) {
      const Spec spec{{runs[i].count}, DType::f64};
      copy(s, Tensor(t[0].ptr<double>() + at, spec, t[0].device()),
           View(t[1].ptr<double>() + runs[i].from, spec, t[1].device()));
    }
  }
};

/// Operands: the sum, f64, and its addends.
struct SumOfBlocks {
  static constexpr std::string_view name = "grad_norm.sum";
  struct RecordArgs {
    std::int64_t unused = 0;
  };
  static void check_record(const RawRecord& r) {
    r.require_count(2);
    require_spec(name, "a total", r.contiguous(0), {{1}, DType::f64});
    require(r.contiguous(1).dtype == DType::f64, name, "addends must be F64, got {}", to_string(r.spec(1)));
  }
  static void run(Stream& s, const Grad* t, const void*) {
    on(
        s,
        [&](auto, Pool&) {
          const auto* x = t[1].ptr<double>();
          *t[0].ptr<double>() = std::accumulate(x, x + t[1].size(), 0.0);
        },
        [&](auto& q) { hpcdl::cuda::sum_blocks(q, t[0], t[1]); });
  }
};

/// Where the sums of every rank's blocks lie, one rank after the other and each padded to the most that one has.
struct Blocks {
  std::int64_t width = 0;  // of one rank
  std::vector<Run> runs;   // in the order of the tensors

  Blocks(const std::vector<const DividedGradient*>& tensors, int ranks) {
    std::vector<std::int64_t> next(static_cast<std::size_t>(ranks));
    struct Piece {
      std::size_t rank;
      Run run;
    };
    std::vector<Piece> pieces;
    for (const auto* t : tensors)
      for (std::size_t r = 0; r < t->pieces.size(); ++r) {
        const auto count = tensor_blocks(t->pieces[r].count());
        if (count > 0) pieces.push_back({r, {next[r], count}});
        next[r] += count;
      }
    width = std::max<std::int64_t>(1, *std::max_element(next.begin(), next.end()));
    for (auto& [rank, run] : pieces) {
      run.from += static_cast<std::int64_t>(rank) * width;
      if (!runs.empty() && runs.back().from + runs.back().count == run.from) runs.back().count += run.count;
      else runs.push_back(run);
    }
  }
};

std::int64_t blocks_of(const DividedGradients& list) {
  std::int64_t sum = 0;
  for (const auto& t : list)
    for (const auto& p : t.pieces) sum += tensor_blocks(p.count());
  return sum;
}

/// The sums of squares of all blocks of all ranks, in the order of the tensors.
Var sums_of_all_blocks(Graph& g, const std::vector<const DividedGradient*>& tensors, std::int64_t count,
                       const Axis& axis) {
  const Blocks blocks(tensors, axis.ranks);
  const Var mine = g.temporary("grad_norm.mine", {{blocks.width}, DType::f64}),
            all = g.temporary("grad_norm.all", {{blocks.width * axis.ranks}, DType::f64}),
            ordered = g.temporary("grad_norm.partial", {{count}, DType::f64});
  std::vector operands{write_operand(mine)};
  double elements = 0;
  for (const auto* t : tensors)
    if (t->mine.shape().size() > 0)
      operands.push_back(read_operand(t->mine)), elements += static_cast<double>(t->mine.shape().size());
  CountArgs args{std::ssize(operands) - 1};
  emit_update<SquaresOfBlocks>(g, operands, &args, sizeof args, {.operations = 2 * elements});
  const Operand gathered[] = {write_operand(all), read_operand(mine)};
  emit_op<AllGather>(g, gathered, {axis}, Phase::update);
  std::vector<std::byte> order(sizeof(CountArgs) + blocks.runs.size() * sizeof(Run));
  const CountArgs runs{std::ssize(blocks.runs)};
  std::memcpy(order.data(), &runs, sizeof runs);
  std::memcpy(order.data() + sizeof runs, blocks.runs.data(), blocks.runs.size() * sizeof(Run));
  emit_update<InOrder>(g, {write_operand(ordered), read_operand(all)}, order.data(), order.size());
  return ordered;
}

void record_sum(Graph& g, const Var& total, const Var& addends) {
  const SumOfBlocks::RecordArgs none;
  emit_update<SumOfBlocks>(g, {write_operand(total), read_operand(addends)}, &none, sizeof none);
}

}  // namespace

void record_divided_grad_norm(Graph& g, const DividedGradients& whole, const DividedGradients& parts,
                              const GradNorm::Args& args, const Axis& axis, const std::optional<Axis>& tensor) {
  std::vector<const DividedGradient*> tensors;
  for (const auto* list : {&whole, &parts})
    for (const auto& t : *list) tensors.push_back(&t);
  const auto of_whole = blocks_of(whole), of_parts = blocks_of(parts);
  const Var sums = sums_of_all_blocks(g, tensors, of_whole + of_parts, axis);
  if (!tensor) return record_norm_of_totals(g, sums, args);
  const Var mine = g.temporary("grad_norm.of_parts", {{1}, DType::f64}),
            totals = g.temporary("grad_norm.totals", {{1 + tensor->ranks}, DType::f64});
  record_sum(g, g.slice(totals, 0, 1), g.slice(sums, 0, of_whole));
  record_sum(g, mine, g.slice(sums, of_whole, of_parts));
  const Operand gathered[] = {write_operand(g.slice(totals, 1, tensor->ranks)), read_operand(mine)};
  emit_op<AllGather>(g, gathered, {tensor->with("norm of the gradients")}, Phase::update);
  record_norm_of_totals(g, totals, args);
}

}  // namespace hpcdl::parallel
