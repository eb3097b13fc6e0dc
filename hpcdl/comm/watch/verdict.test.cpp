#include "hpcdl/comm/watch/verdict.h"

#include <gtest/gtest.h>

#include <cstring>
#include <span>

namespace hpcdl::comm {
namespace {

using Kind = RankState::Kind;

LedgerEntry collective(Collective what, std::int64_t number, std::int64_t count, const char* tensor,
                       std::uint32_t group = 7, int size = 4) {
  LedgerEntry e;
  e.phase = Phase::collective;
  e.what = what;
  e.dtype = DType::f32;
  e.number = number;
  e.count = count;
  e.group_id = group;
  e.group_size = static_cast<std::uint8_t>(size);
  e.tag = static_cast<std::uint32_t>(number * 1000003 + count * 101 + static_cast<int>(what));
  e.since = 2'500'000'000;
  std::strcpy(e.group, "dp");
  std::strcpy(e.tensor, tensor);
  return e;
}

/// `n` ranks, two to a host, all in the same all-reduce.
std::vector<RankState> all_waiting(int n) {
  std::vector<RankState> ranks(static_cast<std::size_t>(n));
  for (int r = 0; r < n; ++r) {
    auto& s = ranks[static_cast<std::size_t>(r)];
    s.kind = Kind::answers;
    s.host = "node" + std::to_string(r / 2);
    s.report.collective = collective(Collective::all_reduce, 41, 1024, "grad.0", 7, n);
    s.heard_ago = 0.5;
  }
  return ranks;
}

RankState doing(RankState s, Phase phase) {
  s.report.work.phase = phase;
  s.report.work.since = 12'300'000'000;
  s.report.collective = collective(Collective::all_reduce, 40, 8, "loss");
  s.report.collective.phase = Phase::idle;
  return s;
}

void expect_parts(const Verdict& v, const std::vector<int>& blamed, std::initializer_list<const char*> parts) {
  EXPECT_EQ(v.blamed, blamed) << v.sentence;
  for (const char* part : parts)
    EXPECT_NE(v.sentence.find(part), std::string::npos) << "expected \"" << part << "\" in: " << v.sentence;
  EXPECT_EQ(v.sentence.find('\n'), std::string::npos);
}

TEST(verdict, a_rank_elsewhere_is_named_with_what_it_does) {
  auto ranks = all_waiting(4);
  ranks[2] = doing(ranks[2], Phase::data);
  expect_parts(judge(ranks, 1, -1), {2},
               {"[dist] rank 2 on node1 has been in data for 12 s", "all_reduce number 40",
                "did not come to all_reduce number 41 of group dp, sum of 1024 F32, grad.0", "rank 1 on node0 waits"});
  ranks[3] = doing(ranks[3], Phase::checkpoint);
  expect_parts(judge(ranks, 1, -1), {2, 3}, {"rank 2 on node1, rank 3 on node1 are not there", "in data"});
}

TEST(verdict, a_rank_that_waits_for_others_is_not_the_cause) {
  auto ranks = all_waiting(4);
  ranks[1] = doing(ranks[1], Phase::compute);
  ranks[3].report.collective = collective(Collective::all_gather, 9, 64, "w", 8, 2);
  expect_parts(judge(ranks, 0, 3), {1}, {"rank 1 on node0 has been in compute"});
}

TEST(verdict, groups_of_one_name_are_distinguished) {
  auto ranks = all_waiting(4);
  for (int r : {0, 1, 2, 3})
    ranks[static_cast<std::size_t>(r)].report.collective =
        collective(Collective::all_reduce, 5 + r / 2, 16, "x", static_cast<std::uint32_t>(10 + r / 2), 2);
  ranks[3] = doing(ranks[3], Phase::compute);
  ranks[3].report.collective.group_id = 11, ranks[3].report.collective.number = 5;
  expect_parts(judge(ranks, 2, -1), {3}, {"rank 3 on node1", "rank 2 on node1 waits"});
}

TEST(verdict, different_shapes_and_different_order) {
  auto ranks = all_waiting(4);
  ranks[3].report.collective = collective(Collective::all_reduce, 41, 512, "grad.0");
  expect_parts(judge(ranks, 3, 2), {3},
               {"rank 3 on node1 is in all_reduce number 41 of group dp, sum of 512 F32, grad.0 while rank 0 on node0 "
                "is in all_reduce number 41 of group dp, sum of 1024 F32"});
  ranks[3].report.collective = collective(Collective::all_gather, 41, 1024, "w");
  expect_parts(judge(ranks, 0, 3), {3},
               {"rank 3 on node1 is in all_gather number 41", "rank 0 on node0 is in all_reduce number 41"});
  auto two = all_waiting(2);
  two[0].report.collective = collective(Collective::all_gather, 41, 1024, "w", 7, 2);
  expect_parts(judge(two, 0, 1), {1},
               {"rank 1 on node0 is in all_reduce number 41", "rank 0 on node0 is in all_gather number 41"});
}

TEST(verdict, gone_silent_failed_finished) {
  auto ranks = all_waiting(4);
  ranks[1] = doing(ranks[1], Phase::compute);
  ranks[1].kind = Kind::gone;
  ranks[1].why = "its connection is gone";
  expect_parts(judge(ranks, -1, 1), {1},
               {"rank 1 on node0 is gone (its connection is gone)",
                "0.5 s ago it was in compute for 12 s after all_reduce number 40",
                "rank 0 on node0 waits in all_reduce number 41", "grad.0"});
  ranks[1].kind = Kind::silent;
  expect_parts(
      judge(ranks, 0, 1), {1},
      {"rank 1 on node0 does not answer", "frozen", "in compute", "rank 0 on node0 waits in all_reduce number 41"});
  ranks[2].kind = Kind::silent;
  expect_parts(
      judge(ranks, 0, 1), {1, 2},
      {"rank 1 on node0, rank 2 on node1 do not answer: they are", "of the first: 0.5 s ago it was in compute"});
  ranks[1].kind = ranks[2].kind = Kind::gone;
  expect_parts(
      judge(ranks, 0, 1), {1, 2},
      {"rank 1 on node0, rank 2 on node1 are gone; of the first: its connection is gone, 0.5 s ago it was in"});
  ranks[1].kind = Kind::silent, ranks[2] = all_waiting(4)[2];
  ranks[1].heard_ago = -1;
  expect_parts(judge(ranks, 0, 1), {1}, {"no message ever came from it"});
  ranks[1].kind = Kind::failed;
  ranks[1].why = "[data] no such file";
  expect_parts(judge(ranks, 0, 1), {1}, {"rank 1 on node0 ended by an error of its own: [data] no such file; rank 0"});
  ranks[1].kind = Kind::finished;
  expect_parts(judge(ranks, 0, 1), {1},
               {"rank 1 on node0 has finished its run; rank 0 on node0 waits in all_reduce number 41"});
}

TEST(verdict, where_collectives_are_part_of_the_work) {
  auto ranks = all_waiting(4);
  for (auto& r : ranks) r = doing(r, Phase::compute);
  expect_parts(judge(ranks, 2, -1), {2},
               {"no rank makes progress: rank 2 on node1 has been in compute for 12 s", "longer than dist.timeout"});
  ranks[1] = doing(ranks[1], Phase::checkpoint);
  expect_parts(judge(ranks, 2, -1), {1},
               {"rank 1 on node0 has been in checkpoint for 12 s", "rank 2 on node1 has been in compute"});
  ranks[3].kind = Kind::silent;
  expect_parts(judge(ranks, 2, -1), {3}, {"rank 3 on node1 does not answer", "; rank 2 on node1 has been in compute"});
}

TEST(verdict, a_host_is_named_if_all_its_ranks_are_missing) {
  auto ranks = all_waiting(6);
  for (int r : {2, 3}) ranks[static_cast<std::size_t>(r)].kind = Kind::silent;
  expect_parts(
      judge(ranks, 5, 2), {2, 3},
      {"host node1 with ranks 2 to 3 does not answer", "cut off", "rank 5 on node2 waits in all_reduce number 41"});
  ranks[2].kind = Kind::gone;
  expect_parts(judge(ranks, 5, 2), {2, 3}, {"host node1 with ranks 2 to 3"});
  ranks[3].kind = Kind::answers;
  expect_parts(judge(ranks, 5, 2), {2}, {"rank 2 on node1 is gone"});
}

/// A broadcast is complete for its root and others before the last rank has arrived.
TEST(verdict, ranks_that_continued_or_finished_are_not_blamed_for_missing_ones) {
  auto ranks = all_waiting(4);
  ranks[1].report.collective = collective(Collective::all_gather, 42, 64, "w");
  ranks[2] = doing(ranks[2], Phase::compute);
  ranks[2].report.collective = ranks[0].report.collective;  // it has arrived
  ranks[2].report.collective.phase = Phase::idle;
  ranks[3] = doing(ranks[3], Phase::data);
  expect_parts(
      judge(ranks, 0, 3), {3},
      {"rank 3 on node1 has been in data for 12 s after all_reduce number 40", "did not come to all_reduce number 41"});
  ranks[1].kind = Kind::finished;
  expect_parts(judge(ranks, 0, 1), {3},
               {"rank 3 on node1 has been in data for 12 s", "; rank 1 on node0 has finished its run"});
}

TEST(verdict, a_late_rank_is_named_even_if_it_has_arrived) {
  auto ranks = all_waiting(4);
  ranks[2].report.collective.since = 300'000'000;
  expect_parts(
      judge(ranks, 0, 3), {2},
      {"rank 2 on node1 came late to all_reduce number 41", "0.3 s ago", "rank 0 on node0 has waited in it for 2.5 s"});
  ranks[2].report.collective.since = 1'500'000'000;
  EXPECT_NE(judge(ranks, 0, 3).sentence.find("cannot reach each other"), std::string::npos)
      << "a rank that arrived soon after is not the cause";
}

TEST(verdict, the_link_is_named_if_all_wait_and_nothing_arrives) {
  auto ranks = all_waiting(4);
  expect_parts(judge(ranks, 0, 3), {0, 3},
               {"all ranks are in all_reduce number 41",
                "rank 0 on node0 has waited 2.5 s and gets nothing from rank 3 on node1", "cannot reach each other"});
  ranks[1].report.collective.phase = Phase::idle;  // it has left
  expect_parts(judge(ranks, 0, 3), {0, 3}, {"all ranks came to all_reduce number 41 ", "cannot reach each other"});
}

/// Ranks of one host wait for each other because one of them waits for the other host.
TEST(verdict, the_link_between_hosts_is_named_and_not_two_ranks_of_one) {
  const auto ranks = all_waiting(4);
  const auto alone = judge(ranks, 0, 1);
  EXPECT_TRUE(alone.vague);
  EXPECT_NE(alone.sentence.find("two of the hosts cannot reach each other"), std::string::npos) << alone.sentence;
  const Stuck stuck[] = {{0, 1}, {3, -1}, {2, 0}};
  const auto v = judge(ranks, stuck);
  EXPECT_FALSE(v.vague);
  expect_parts(v, {2, 0},
               {"[dist] hosts node1 and node0 cannot reach each other, or the link between them is too slow",
                "rank 2 on node1 has waited 2.5 s and gets nothing from rank 0 on node0"});
  const auto one_host = judge(std::span(ranks).first(2), 0, 1);
  EXPECT_FALSE(one_host.vague);
  EXPECT_EQ(one_host.sentence.find("hosts"), std::string::npos) << one_host.sentence;
}

TEST(verdict, the_error_of_the_transport_is_kept) {
  auto ranks = all_waiting(4);
  ranks[1] = doing(ranks[1], Phase::compute);
  ranks[0].report.collective.since = 60'000'000;
  const Stuck stuck[] = {{0, 1, "a message has another size than expected: the ranks make different calls"}};
  const auto v = judge(ranks, stuck);
  expect_parts(v, {1},
               {"[dist] rank 0 on node0 has been in all_reduce number 41", "for 0.1 s: a message has another size",
                "; rank 1 on node0 answers, and has been in compute for 12 s"});
  EXPECT_EQ(v.sentence.find("dist.timeout"), std::string::npos) << v.sentence;
  const Stuck far[] = {{0, 3, "the connection is gone"}};
  expect_parts(judge(ranks, far), {3},
               {"[dist] between hosts node0 and node1: rank 0 on node0 has been in all_reduce"});
  ranks = all_waiting(4);
  ranks[1].report.collective = collective(Collective::all_reduce, 41, 512, "grad.0");
  expect_parts(judge(ranks, stuck), {1}, {"ranks make different calls: rank 1 on node0 is in all_reduce number 41"});
}

TEST(verdict, a_finished_rank_is_named_even_if_its_connection_is_gone) {
  auto ranks = all_waiting(4);
  ranks[1] = doing(ranks[1], Phase::compute);
  ranks[1].kind = Kind::finished;
  const Stuck stuck[] = {{0, 1, "rank 1 has ended"}};
  expect_parts(judge(ranks, stuck), {1}, {"[dist] rank 1 on node0 has finished its run; rank 0 on node0 waits in"});
}

TEST(verdict, no_time_is_claimed_where_no_wait_has_failed) {
  auto ranks = all_waiting(2);
  for (auto& r : ranks) r = doing(r, Phase::compute);
  const auto v = judge(ranks, -1, -1);
  EXPECT_EQ(v.sentence.find("dist.timeout"), std::string::npos) << v.sentence;
  EXPECT_EQ(v.sentence.find("GPU"), std::string::npos) << v.sentence;
}

TEST(verdict, a_rank_that_did_not_run_blames_no_other) {
  auto ranks = all_waiting(3);
  expect_parts(
      judge_pause(ranks, 0, 42), {0},
      {"[dist] rank 0 on node0 did not run for 42 s", "the others have ended without it", "all_reduce number 41"});
}

}  // namespace
}  // namespace hpcdl::comm
