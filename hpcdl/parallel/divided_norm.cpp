#include "hpcdl/parallel/divided_norm.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

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

using Tensors = std::vector<const DividedGradient*>;

std::int64_t blocks_of(const DividedGradient& t) {
  std::int64_t sum = 0;
  for (const auto& p : t.pieces) sum += tensor_blocks(p.count());
  return sum;
}

/// Sums of blocks that a rank of an axis has, one after the other.
struct Share {
  int rank;
  std::int64_t blocks;
};

std::vector<Share> shares_of_data(const Tensors& tensors) {
  std::vector<Share> list;
  for (const auto* t : tensors)
    for (int rank = 0; const auto& p : t->pieces) list.push_back({rank++, tensor_blocks(p.count())});
  return list;
}

std::vector<Share> shares_of_stages(const Tensors& tensors) {
  std::vector<Share> list;
  for (const auto* t : tensors) list.push_back({t->stage, blocks_of(*t)});
  return list;
}

/// Where the sums of every rank's blocks lie, one rank after the other and each padded to the most that one has.
struct Blocks {
  std::int64_t width = 0, count = 0;  // of one rank; of all
  std::vector<Run> runs;              // in the order of the shares

  Blocks(const std::vector<Share>& shares, int ranks) {
    std::vector<std::int64_t> next(static_cast<std::size_t>(ranks));
    std::vector<std::pair<int, Run>> pieces;
    for (const auto& [rank, blocks] : shares) {
      auto& at = next[static_cast<std::size_t>(rank)];
      if (blocks > 0) pieces.push_back({rank, {at, blocks}});
      at += blocks, count += blocks;
    }
    width = std::max<std::int64_t>(1, *std::max_element(next.begin(), next.end()));
    for (auto& [rank, run] : pieces) {
      run.from += rank * width;
      if (!runs.empty() && runs.back().from + runs.back().count == run.from) runs.back().count += run.count;
      else runs.push_back(run);
    }
  }
};

/// Into `to`, whose elements beyond the blocks of these tensors stay unset.
void record_squares(Graph& g, const Tensors& tensors, const Var& to) {
  std::vector operands{write_operand(to)};
  double elements = 0;
  for (const auto* t : tensors)
    if (t->mine.shape().size() > 0)
      operands.push_back(read_operand(t->mine)), elements += static_cast<double>(t->mine.shape().size());
  CountArgs args{std::ssize(operands) - 1};
  emit_update<SquaresOfBlocks>(g, operands, &args, sizeof args, {.operations = 2 * elements});
}

/// Gathers what the ranks of the axis have, `mine` on this one, and puts it in order into `to`.
void record_in_order(Graph& g, const Var& mine, const Blocks& blocks, const Axis& axis, const Var& to) {
  const Var all = g.temporary("grad_norm.all", {{blocks.width * axis.ranks}, DType::f64});
  const Operand gathered[] = {write_operand(all), read_operand(mine)};
  emit_op<AllGather>(g, gathered, {axis}, Phase::update);
  std::vector<std::byte> order(sizeof(CountArgs) + blocks.runs.size() * sizeof(Run));
  const CountArgs runs{std::ssize(blocks.runs)};
  std::memcpy(order.data(), &runs, sizeof runs);
  std::memcpy(order.data() + sizeof runs, blocks.runs.data(), blocks.runs.size() * sizeof(Run));
  emit_update<InOrder>(g, {write_operand(to), read_operand(all)}, order.data(), order.size());
}

/// The sums of tensors that this rank and those along the axis have, into the beginning of `to`.
void record_sums_of_data(Graph& g, const Tensors& tensors, const std::optional<Axis>& axis, const Var& to) {
  if (!axis) return record_squares(g, tensors, to);
  const Blocks blocks(shares_of_data(tensors), axis->ranks);
  if (blocks.count == 0) return;
  const Var mine = g.temporary("grad_norm.mine", {{blocks.width}, DType::f64});
  record_squares(g, tensors, mine);
  record_in_order(g, mine, blocks, *axis, g.slice(to, 0, blocks.count));
}

/// The sums of squares of all blocks of all ranks, in the order of the tensors.
Var sums_of_all_blocks(Graph& g, const Tensors& tensors, std::int64_t count, const NormAxes& axes) {
  const Var ordered = g.temporary("grad_norm.partial", {{count}, DType::f64});
  if (!axes.stages) {
    record_sums_of_data(g, tensors, axes.data, ordered);
    return ordered;
  }
  Tensors here;
  for (const auto* t : tensors)
    if (t->mine) here.push_back(t);
  const Blocks blocks(shares_of_stages(tensors), axes.stages->ranks);
  const Var mine = g.temporary("grad_norm.of_stages", {{blocks.width}, DType::f64});
  record_sums_of_data(g, here, axes.data, mine);
  record_in_order(g, mine, blocks, *axes.stages, ordered);
  return ordered;
}

void record_sum(Graph& g, const Var& total, const Var& addends) {
  const SumOfBlocks::RecordArgs none;
  emit_update<SumOfBlocks>(g, {write_operand(total), read_operand(addends)}, &none, sizeof none);
}

}  // namespace

void record_squares(Graph& g, const Var& sums, const Var& gradient) {
  const CountArgs args{1};
  emit_update<SquaresOfBlocks>(g, {write_operand(sums), read_operand(gradient)}, &args, sizeof args,
                               {.operations = 2 * static_cast<double>(gradient.shape().size())});
}

void insert_squares(Edit& edit, std::size_t before, Operand sums, Operand gradient) {
  const auto& records = edit.program().records;
  const auto& next = records[std::min(before, records.size() - 1)];
  Record record;
  record.phase = next.phase, record.scope = next.scope;
  sums.access = Access::write, gradient.access = Access::read;
  const Operand operands[] = {sums, gradient};
  edit.insert<SquaresOfBlocks>(before, record, operands, {1});
}

void record_divided_grad_norm(Graph& g, const DividedGradients& gradients, const GradNorm::Args& args,
                              const NormAxes& axes) {
  Tensors tensors;
  std::int64_t of_whole = 0, of_parts = 0;
  for (const bool part : {false, true})
    for (const auto& t : gradients)
      if (t.part == part) tensors.push_back(&t), (part ? of_parts : of_whole) += blocks_of(t);
  const Var sums = sums_of_all_blocks(g, tensors, of_whole + of_parts, axes);
  if (!axes.tensor) return record_norm_of_totals(g, sums, args);
  const auto& tensor = *axes.tensor;
  const Var mine = g.temporary("grad_norm.of_parts", {{1}, DType::f64}),
            totals = g.temporary("grad_norm.totals", {{1 + tensor.ranks}, DType::f64});
  record_sum(g, g.slice(totals, 0, 1), g.slice(sums, 0, of_whole));
  record_sum(g, mine, g.slice(sums, of_whole, of_parts));
  const Operand gathered[] = {write_operand(g.slice(totals, 1, tensor.ranks)), read_operand(mine)};
  emit_op<AllGather>(g, gathered, {tensor.with("norm of the gradients")}, Phase::update);
  record_norm_of_totals(g, totals, args);
}

}  // namespace hpcdl::parallel
