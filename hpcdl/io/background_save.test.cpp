// Checkpoints that threads write while the run goes on.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "hpcdl/io/checkpoint_for_tests.h"
#include "hpcdl/io/ranks_for_tests.h"
#include "hpcdl/io/sharded_for_tests.h"

namespace hpcdl::io {
namespace {

const Checkpoints::Warn kQuiet = [](const std::string&) {};

/// The contents of all files below a folder, by relative path.
std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& path : list_folder(folder, true))
    if (!fs::is_directory(path)) out[path.lexically_relative(folder).string()] = read_file(path);
  return out;
}

bool remains(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with(".tmp-")) return true;
  return false;
}

TEST(background_save, writes_what_the_run_held_when_it_began) {
  for (const Mesh mesh : kMeshes) {
    const TempFolder tmp;
    ThreadRanks::run(mesh.ranks(), [&](Ranks& ranks) {
      Checkpoints waits(tmp / "waits", 0, &ranks), goes_on(tmp / "goes_on", 0, &ranks);
      for (const int step : {1, 2}) {  // the second one uses the memory of the first
        ShardedRun run(3, mesh, ranks.rank(), step);
        waits.save(run.state(), run.content());
        goes_on.begin(run.state(), run.content());
        EXPECT_TRUE(goes_on.pending());
        run.go_to(step + 40);
        EXPECT_EQ(goes_on.finish(), tmp / fmt::format("goes_on/step_{:08}", step));
        EXPECT_FALSE(goes_on.pending());
      }
    });
    EXPECT_EQ(files_of(tmp / "goes_on/step_00000001"), files_of(tmp / "waits/step_00000001"));
    EXPECT_EQ(files_of(tmp / "goes_on/step_00000002"), files_of(tmp / "waits/step_00000002"))
        << mesh.dp << " x " << mesh.tp << " x " << mesh.flat;
    EXPECT_EQ(read_file(tmp / "goes_on/latest"), "step_00000002\n");
  }
}

TEST(background_save, copies_only_what_changes) {
  const ToyRun run(4);
  OneRank alone;
  CheckpointSnapshot snapshot;
  const auto first = run.model()[0].tensor.data();
  snapshot.take(run.content(), [&](const NamedTensor& t) { return t.tensor.data() == first; }, alone);
  EXPECT_EQ(snapshot.content().model[0].tensor.data(), first);
  EXPECT_NE(snapshot.content().model[1].tensor.data(), run.model()[1].tensor.data());
  const auto copy = snapshot.content().optimizer[0].tensor.data();
  EXPECT_NE(copy, run.optimizer()[0].tensor.data());
  snapshot.take(run.content(), nullptr, alone);
  EXPECT_EQ(snapshot.content().optimizer[0].tensor.data(), copy) << "its memory is used again";
  EXPECT_NE(snapshot.content().model[0].tensor.data(), first);
}

TEST(background_save, uses_the_memory_that_was_made_before) {
  const ToyRun before(4), run(5);
  OneRank alone;
  CheckpointSnapshot snapshot;
  snapshot.prepare(before.content(), nullptr, alone);
  snapshot.take(run.content(), nullptr, alone);
  const auto copy = snapshot.content().model[1].tensor;
  EXPECT_EQ(std::memcmp(copy.data(), run.model()[1].tensor.data(), static_cast<std::size_t>(copy.bytes())), 0);
  snapshot.prepare(run.content(), nullptr, alone);
  snapshot.take(before.content(), nullptr, alone);
  EXPECT_EQ(snapshot.content().model[1].tensor.data(), copy.data());
}

/// What a GPU still copies when a save begins is there before it is read: by the thread, or by take() if ranks send
/// parts.
TEST(background_save, waits_for_what_has_not_arrived) {
  for (const Mesh mesh : kMeshes) {
    const TempFolder tmp;
    ThreadRanks::run(mesh.ranks(), [&](Ranks& ranks) {
      ShardedRun early(3, mesh, ranks.rank(), 40), whole(3, mesh, ranks.rank(), 2);
      Checkpoints waits(tmp / "waits", 0, &ranks), goes_on(tmp / "goes_on", 0, &ranks);
      waits.save(whole.state(), whole.content());
      int arrivals = 0;
      goes_on.begin(
          whole.state(), early.content(), [](const NamedTensor&) { return true; }, [&] { early.go_to(2), ++arrivals; });
      goes_on.finish();
      EXPECT_GE(arrivals, 1);
    });
    EXPECT_EQ(files_of(tmp / "goes_on/step_00000002"), files_of(tmp / "waits/step_00000002"))
        << mesh.dp << " x " << mesh.tp << " x " << mesh.flat;
  }
}

TEST(background_save, is_finished_by_the_next_one_and_at_the_end) {
  const TempFolder tmp;
  {
    Checkpoints store(tmp.path(), 2);
    for (const int step : {1, 2, 3}) {
      store.begin(ToyRun(step).state(), ToyRun(step).content());
      EXPECT_EQ(list_checkpoints(tmp.path()).empty(), step == 1) << "the one before must be finished";
    }
    store.save(ToyRun(4).state(), ToyRun(4).content());
    EXPECT_FALSE(store.pending());
    EXPECT_EQ(list_checkpoints(tmp.path()).size(), 2u);
    store.begin(ToyRun(5).state(), ToyRun(5).content());
  }
  const auto found = Checkpoints::find(tmp.path(), "auto", kQuiet);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->state.step, 5);
  EXPECT_FALSE(remains(tmp.path()));
}

TEST(background_save, an_error_of_one_thread_is_thrown_by_all_ranks) {
  const TempFolder tmp;
  std::mutex mutex;
  std::vector<std::string> errors;
  ThreadRanks::run(3, [&](Ranks& ranks) {
    Checkpoints store(tmp.path(), 0, &ranks);
    ShardedRun run(8, {1, 3}, ranks.rank(), 1);
    store.save(run.state(), run.content());
    run.go_to(2);
    auto content = run.content();
    content.extra = [](const fs::path& f) { make_folder(f / "optim-rank1.safetensors/occupied"); };
    store.begin(run.state(), content);
    if (ranks.rank() == 1) {
      while (!store.ready()) std::this_thread::yield();
      EXPECT_TRUE(store.failed());
    }
    try {
      store.finish();
    } catch (const Error& e) {
      const std::lock_guard lock(mutex);
      errors.emplace_back(e.what());
    }
    EXPECT_FALSE(store.pending());
    run.go_to(3);
    store.begin(run.state(), run.content());
    store.finish();
  });
  ASSERT_EQ(errors.size(), 3u);
  for (const auto& e : errors)
    EXPECT_NE(e.find("optim-rank1.safetensors: cannot write: Is a directory"), std::string::npos) << e;
  const auto all = list_checkpoints(tmp.path());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].info->state.step, 3);
  EXPECT_FALSE(remains(tmp.path()));
}

TEST(background_save, a_rank_that_dies_at_any_call_leaves_a_whole_checkpoint) {
  const Mesh mesh{2, 2};
  int deaths = 0;
  for (int dies = 0; dies < mesh.ranks(); ++dies)
    for (int at = 0;; ++at) {
      const TempFolder tmp;
      std::atomic<bool> died = true;
      ThreadRanks::run(
          mesh.ranks(),
          [&](Ranks& ranks) {
            Checkpoints store(tmp.path(), 0, &ranks);
            ShardedRun run(6, mesh, ranks.rank(), 2, 4);
            store.begin(run.state(), run.content());
            run.go_to(9);
            store.finish();
            if (ranks.rank() == dies) died = false;
          },
          dies, at);
      const auto found = Checkpoints::find(tmp.path(), "auto", [](const std::string& w) { ADD_FAILURE() << w; });
      if (found) {
        ShardedRun run(6, {1, 1}, 0, 3, 4);
        load_checkpoint(found->path, run.model(), run.optimizer());
        EXPECT_TRUE(run.is_at(2)) << "rank " << dies << " died at call " << at;
      }
      if (!died) {
        EXPECT_TRUE(found);
        break;
      }
      ++deaths;
      const Checkpoints cleaned(tmp.path());
      EXPECT_FALSE(remains(tmp.path()));
    }
  EXPECT_GT(deaths, 30);
}

}  // namespace
}  // namespace hpcdl::io
