// Weights and gradients that travel as fewer bytes: what is sent, what is learned, and what changes no bit.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/program/edit.h"
#include "hpcdl/testing/zero_runs.h"
#include "hpcdl/train/runs_for_tests.h"

namespace hpcdl::train {
namespace {

constexpr auto kNone = WireCode::none, kBf16 = WireCode::bf16, kInt8 = WireCode::int8, kInt4 = WireCode::int4;

Change wires(WireCode weights, WireCode gradients, const Change& more = {}) {
  return [=](StepOptions& o) {
    o.wire_weights = weights, o.wire_gradients = gradients;
    if (more) more(o);
  };
}

/// Of an element.
double bytes_of(WireCode code) {
  switch (code) {
    case WireCode::none: return 4;
    case WireCode::bf16: return 2;
    case WireCode::int8: return 1 + 4.0 / WireLayout::kBlock;
    default: return 0.5 + 4.0 / WireLayout::kBlock;
  }
}

void with_programs(int n, int zero, const Change& change, const std::function<void(const StepPrograms&)>& f) {
  io::ModelConfig config;
  config.family = io::Family::llama;
  config.layers = 3, config.heads = 2, config.width = 64, config.context = 16, config.vocab = 700;
  models::resolve(config);
  const auto mesh = parallel::Mesh::described({.dp = n}, 0);
  auto model = models::LanguageModel::create(config, {}, true);
  Pool pool(1);
  Stream s(pool);
  StepOptions o{.batch = 2, .length = 16, .data = mesh.dp(), .zero = zero};
  if (change) change(o);
  f(StepPrograms(model, o, s));
}

double wire_of(const Program& p) {
  double sum = 0;
  for (const auto& r : p.records) sum += r.cost.wire;
  return sum;
}

TEST(wires, programs_send_what_the_formula_says) {
  for (const int n : {2, 3, 8})
    for (const auto weights : {kNone, kInt8})
      for (const auto gradients : {kNone, kBf16, kInt4})
        with_programs(n, 3, wires(weights, gradients), [&](const StepPrograms& p) {
          const auto& program = p.first()->planned->program;
          double gathered = 0;  // elements
          for (const auto& r : program.records)
            if (r.op == "all_gather.values")
              gathered += static_cast<double>(program.operands[r.operands + 1].spec.bytes()) / bytes_of(weights);
          const auto elements = static_cast<double>(p.ranks()->plan().elements);
          EXPECT_GT(gathered, elements);
          EXPECT_DOUBLE_EQ(wire_of(program),
                           (gathered * bytes_of(weights) + elements * bytes_of(gradients)) * (n - 1) / n)
              << n << " ranks, " << wire_code_name(weights) << ", " << wire_code_name(gradients);
        });
}

/// Ranks that divide nothing, on hosts of one rank each: parts are exchanged, and then their sums.
TEST(wires, sums_that_all_ranks_need_travel_twice) {
  for (const int n : {2, 4})
    for (const auto gradients : {kBf16, kInt4})
      with_programs(n, 3, wires(kNone, gradients, [](auto& o) { o.span = 1; }), [&](const StepPrograms& p) {
        const auto elements = static_cast<double>(p.ranks()->plan().elements);
        const auto sums = gradients == kInt4 ? kInt8 : kBf16;
        EXPECT_NEAR(wire_of(p.first()->planned->program),
                    elements * (bytes_of(gradients) + bytes_of(sums)) * (n - 1) / n, 1e-2 * elements);
      });
}

TEST(wires, passes_are_those_of_one_rank_without_the_edits) {
  for (const int zero : {1, 2, 3})
    for (const int span : {0, 2})
      with_programs(4, zero, wires(zero == 3 ? kInt8 : kNone, kInt4, [=](auto& o) { o.span = span; }),
                    [&](const StepPrograms& p) {
                      with_programs(
                          4, zero, [=](auto& o) { o.span = span; },
                          [&](const StepPrograms& plain) {
                            auto mine = p.first()->planned->program, theirs = plain.first()->planned->program;
                            while (!mine.edits.empty()) mine = strip(std::move(mine));
                            while (!theirs.edits.empty()) theirs = strip(std::move(theirs));
                            EXPECT_TRUE(to_bytes(mine) == to_bytes(theirs)) << zero << " " << span;
                          });
                    });
}

/// What the groups have counted, of one pass, between hosts: ranks of one host send nothing.
TEST(wires, declared_bytes_are_sent) {
  for (const int n : {2, 3}) {
    std::vector<int> hosts(static_cast<std::size_t>(n));
    std::iota(hosts.begin(), hosts.end(), 0);
    testing::run_ranks(
        n,
        [&](const comm::Group& world) {
          const parallel::Mesh mesh(world, {.dp = n});
          io::ModelConfig config;
          config.family = io::Family::gpt2;
          config.layers = 2, config.heads = 2, config.width = 64, config.context = 16, config.vocab = 700;
          models::resolve(config);
          auto model = models::LanguageModel::create(config, 3, true);
          Pool pool(1);
          TrainStep step(
              model, pool,
              {.batch = 2, .length = 16, .data = mesh.dp(), .zero = 3, .wire_weights = kInt8, .wire_gradients = kInt4});
          const auto before = step.ranks()->exchange().group().counters().wire_bytes;
          step.accumulate(models::tiny_ids(1), models::tiny_ids(2), 0, 0);
          const auto sent = step.ranks()->exchange().group().counters().wire_bytes - before;
          EXPECT_EQ(static_cast<double>(sent), wire_of(step.programs(1).front()->program()));
          step.update(1e-3, 32);
        },
        {.hosts = hosts, .on_lost = {}});
  }
}

/// All ranks have the same weights, and nearly those of ranks that send everything.
TEST(wires, ranks_learn_nearly_the_same) {
  for (const int n : {2, 3}) {
    const auto want = train_text(io::Family::llama, {.dp = n}, 0, 30);
    const auto last = [](const std::vector<Learned>& all) { return all[0].numbers[all[0].numbers.size() - 2]; };
    for (const auto& [weights, gradients, within] :
         {std::tuple{kNone, kBf16, 0.005}, {kInt8, kNone, 0.02}, {kInt8, kInt4, 0.05}}) {
      const auto got = train_text(io::Family::llama, {.dp = n}, 3, 30, wires(weights, gradients));
      for (const auto& rank : got) EXPECT_TRUE(rank == got[0]) << n;
      EXPECT_NEAR(last(got), last(want), within * last(want))
          << n << " ranks, " << wire_code_name(weights) << ", " << wire_code_name(gradients);
      EXPECT_NEAR(got[0].numbers[1], want[0].numbers[1], within * want[0].numbers[1]) << "the first norm";
    }
  }
}

TEST(wires, what_changes_no_bit_changes_none) {
  const auto train = [](int zero, WireCode weights, const Change& change) {
    return train_text(io::Family::gpt2, {.dp = 3}, zero, 4, wires(weights, kInt4, change));
  };
  const auto gradients = train(1, kNone, {});
  for (const int zero : {2, 3}) expect_same(train(zero, kNone, {}), gradients, "stage");
  const auto want = train(3, kInt8, {});
  expect_same(train(3, kInt8, [](auto& o) { o.reduce.overlap = false; }), want, "overlap");
  for (const int ahead : {0, 2}) expect_same(train(3, kInt8, [=](auto& o) { o.gather_ahead = ahead; }), want, "ahead");
  expect_same(train(3, kInt8, [](auto& o) { o.forward.recompute = true; }), want, "recompute");
}

TEST(wires, hosts_sum_within_and_across) {
  const std::vector<int> hosts{0, 0, 1, 1};
  const auto exact = train_text(io::Family::llama, {.dp = 4}, 3, 5, [](auto& o) { o.span = 2; }, hosts);
  const auto first =
      train_text(io::Family::llama, {.dp = 4}, 2, 5, wires(kNone, kInt4, [](auto& o) { o.span = 2; }), hosts);
  for (const auto& rank : first) EXPECT_TRUE(rank == first[0]);
  expect_same(train_text(io::Family::llama, {.dp = 4}, 3, 5, wires(kNone, kInt4, [](auto& o) { o.span = 2; }), hosts),
              first, "stage 3");
  EXPECT_NEAR(first[0].numbers[1], exact[0].numbers[1], 0.05 * exact[0].numbers[1]);
  const auto alone =
      train_text(io::Family::llama, {.dp = 2}, 3, 5, wires(kInt8, kInt4, [](auto& o) { o.span = 1; }), {0, 1});
  EXPECT_TRUE(alone[0] == alone[1]);
}

TEST(wires, values_that_ranks_keep_whole_travel_as_they_are) {
  for (const int zero : {1, 2})
    EXPECT_NE(error_of([&] {
                with_programs(2, zero, wires(kInt8, kNone), [](const auto&) {});
              }).find("values travel as int8 only with zero = 3"),
              std::string::npos);
}

}  // namespace
}  // namespace hpcdl::train
