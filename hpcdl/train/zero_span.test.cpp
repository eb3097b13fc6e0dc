// The state of a training divided within each host: every host has all of it, and gradients are summed within hosts and
// then across them.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/parallel/span.h"
#include "hpcdl/testing/zero_runs.h"
#include "hpcdl/train/runs_for_tests.h"

namespace hpcdl::train {
namespace {

Change spans_of(int ranks, const Change& more = {}) {
  return [=](StepOptions& o) {
    o.span = ranks;
    if (more) more(o);
  };
}

constexpr int kSteps = 5;

struct Hosts {
  std::vector<int> of_ranks;
  int on_each;
};
const std::vector<Hosts> kHosts = {{{0, 0, 1, 1}, 2}, {{0, 0, 0, 1, 1, 1}, 3}, {{0, 1}, 1}};

/// What all stages have in common is the order in which gradients are added: within a host, then across.
TEST(zero_span, every_stage_learns_the_same_bits) {
  for (const auto& [hosts, span] : kHosts) {
    const parallel::MeshShape shape{.dp = static_cast<int>(hosts.size())};
    const auto first = train_text(io::Family::llama, shape, 1, kSteps, spans_of(span), hosts);
    for (std::size_t r = 1; r < first.size(); ++r) EXPECT_TRUE(first[r] == first[0]) << "rank " << r;
    for (const int zero : {2, 3})
      expect_same(train_text(io::Family::llama, shape, zero, kSteps, spans_of(span), hosts), first,
                  fmt::format("{} hosts of {}, zero {}", hosts.back() + 1, span, zero));
    // Ranks that divide nothing add in another order if there are several hosts with several ranks.
    const auto whole = train_text(io::Family::llama, shape, 0, kSteps, {}, hosts);
    for (std::size_t i = 0; i < whole[0].numbers.size(); ++i)
      EXPECT_NEAR(first[0].numbers[i], whole[0].numbers[i], 1e-6 * whole[0].numbers[i]) << "number " << i;
  }
}

TEST(zero_span, a_span_of_all_ranks_is_the_default) {
  for (const int zero : {1, 2, 3})
    expect_same(train_text(io::Family::gpt2, {.dp = 3}, zero, 5, spans_of(3)),
                train_text(io::Family::gpt2, {.dp = 3}, zero, 5), "one host");
}

TEST(zero_span, a_span_of_one_rank_divides_nothing) {
  const std::vector<int> hosts{0, 1, 2};
  expect_same(train_text(io::Family::gpt2, {.dp = 3}, 3, 5, spans_of(1), hosts),
              train_text(io::Family::gpt2, {.dp = 3}, 0, 5, {}, hosts), "three hosts");
}

TEST(zero_span, micro_batches_and_overlap_change_no_bit) {
  const auto& [hosts, span] = kHosts[0];
  const auto want =
      train_text(io::Family::gpt2, {.dp = 4}, 1, 4, spans_of(span, [](auto& o) { o.accumulate = true; }), hosts);
  for (const int zero : {2, 3})
    for (const bool overlap : {false, true})
      expect_same(train_text(io::Family::gpt2, {.dp = 4}, zero, 4,
                             spans_of(span, [=](auto& o) { o.accumulate = true, o.reduce.overlap = overlap; }), hosts),
                  want, fmt::format("zero {}, overlap {}", zero, overlap));
}

TEST(zero_span, layers_may_be_shared_too) {
  const std::vector<int> hosts{0, 0, 0, 0, 1, 1, 1, 1};
  const parallel::MeshShape shape{.dp = 4, .tp = 2};
  const auto want = train_text(io::Family::llama, shape, 1, 5, spans_of(2), hosts);
  expect_same(train_text(io::Family::llama, shape, 3, 5, spans_of(2), hosts), want, "tp 2");
}

/// Shares are those of the ranks of a host.
TEST(zero_span, ranks_hold_a_share_of_their_host) {
  const auto& [hosts, span] = kHosts[0];
  const auto of_host = train_text(io::Family::llama, {.dp = 4}, 3, 1, spans_of(span), hosts),
             of_two = train_text(io::Family::llama, {.dp = 2}, 3, 1);
  for (std::size_t r = 0; r < of_host.size(); ++r) EXPECT_EQ(of_host[r].moments, of_two[r % 2].moments);
}

TEST(zero_span, hosts_with_other_numbers_of_ranks_are_refused) {
  const auto refused = [](const std::vector<int>& hosts) {
    return testing::rank_errors(static_cast<int>(hosts.size()),
                                [](const comm::Group& world) { parallel::ranks_of_each_host(world); },
                                {.hosts = hosts, .on_lost = {}});
  };
  for (const auto& hosts : {std::vector{0, 0, 1}, {0, 1, 0, 1}, {0, 1, 1}})
    for (const auto& error : refused(hosts))
      EXPECT_NE(error.find("the same number of ranks"), std::string::npos) << error;
  for (const auto& hosts : {std::vector{0, 0, 1, 1}, {0, 1, 2}, {0, 0}})
    for (const auto& error : refused(hosts)) EXPECT_EQ(error, "");
  EXPECT_EQ(parallel::ranks_of_each_host(comm::Group::described(1, 4, "dp")), 4);
}

}  // namespace
}  // namespace hpcdl::train
