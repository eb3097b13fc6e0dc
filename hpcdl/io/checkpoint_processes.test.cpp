// Ranks that are processes write checkpoints over sockets; one is killed at a random moment.

#include <gtest/gtest.h>

#include "hpcdl/io/group_ranks.h"
#include "hpcdl/io/sharded_for_tests.h"
#include "hpcdl/testing/launched.h"

namespace hpcdl::io {
namespace {

using namespace std::chrono_literals;
constexpr std::uint64_t kSeed = 11;

/// Not a test but a rank: resumes, then only saves.
TEST(saving_rank, main) {
  const auto role = testing::launched_role();
  if (!role) GTEST_SKIP() << "the body of the ranks of the test below";
  auto joined = testing::join(*role, 20);
  testing::end_rank(joined, [&] {
    const int tp = std::stoi(role->words.at("tp"));
    const Mesh mesh{role->world / tp, tp};
    const fs::path folder = role->words.at("checkpoints");
    GroupRanks ranks(joined.world());
    Checkpoints store(folder, 2, &ranks);
    ShardedRun run(kSeed, mesh, role->rank, 0);
    std::int64_t at = 0;
    if (const auto found =
            Checkpoints::find(folder, "auto", [](const std::string& w) { fail("test", "{}", w); }, &ranks)) {
      load_checkpoint(found->path, run.model(), run.optimizer());
      at = found->state.step;
      require(run.is_at(at), "test", "step {} was loaded with other bits", at);
    }
    std::printf("resumed\n");
    for (;;) {
      std::fflush(stdout);
      run.go_to(++at);
      store.save(run.state(), run.content());
      std::printf("saved %lld\n", static_cast<long long>(at));
    }
  });
}

/// The last step that the rank reports as saved.
std::int64_t last_saved(const testing::Launched& ranks, int rank) {
  std::ifstream out(ranks.folder() / fmt::format("{}.out", rank));
  std::int64_t last = 0;
  for (std::string line; std::getline(out, line);)
    if (line.starts_with("saved ")) last = std::stoll(line.substr(6));
  return last;
}

TEST(checkpoint_processes, killed_ranks_lose_nothing_and_other_numbers_of_them_go_on) {
  const TempFolder tmp;
  const Rng rng{kSeed, 0};
  const Mesh meshes[] = {{2, 2}, {1, 2}, {3, 1}, {1, 4}, {1, 1}, {2, 1}};
  std::int64_t safe = 0;
  std::chrono::milliseconds longest{200};  // before a rank is killed
  for (std::uint64_t round = 0; round < 12 || (safe <= 5 && round < 60); ++round) {
    const auto before = safe;
    const Mesh mesh = meshes[round % 6];
    testing::Launched ranks(mesh.ranks(), "saving_rank.main",
                            {{"tp", std::to_string(mesh.tp)}, {"checkpoints", (tmp / "c").string()}});
    ASSERT_TRUE(ranks.prints(0, "resumed")) << ranks.words(0);
    std::this_thread::sleep_for(20ms + longest * rng.below(round, 1000) / 1000);
    const int dies = static_cast<int>(rng.below(100 + round, static_cast<std::uint64_t>(mesh.ranks())));
    ranks.signal(dies, SIGKILL);
    const auto limit = std::chrono::steady_clock::now() + 60s;
    for (int r = 0; r < mesh.ranks(); ++r) {
      EXPECT_EQ(ranks.wait(r, limit), r == dies ? -2 : exit_code::kPeerLost) << "rank " << r << ": " << ranks.words(r);
      safe = std::max(safe, last_saved(ranks, r));
      if (r != dies) {
        EXPECT_NE(ranks.words(r).find(fmt::format("rank {} on", dies)), std::string::npos) << ranks.words(r);
      }
    }
    std::string warnings;
    const auto found = Checkpoints::find(tmp / "c", "auto", [&](const std::string& w) { warnings += w; });
    EXPECT_EQ(warnings, "") << "a kill may leave leftovers, never a damaged checkpoint";
    ASSERT_TRUE(found || safe == 0);
    if (!found || found->state.step == before) longest *= 2;  // so slow a machine needs longer for a save
    if (!found) continue;
    EXPECT_GE(found->state.step, safe);
    EXPECT_LE(found->state.step, safe + 1);
    safe = found->state.step;
    ShardedRun whole(kSeed, {1, 1}, 0, 0);
    load_checkpoint(found->path, whole.model(), whole.optimizer());
    EXPECT_TRUE(whole.is_at(safe));
  }
  EXPECT_GT(safe, 5);
}

}  // namespace
}  // namespace hpcdl::io
