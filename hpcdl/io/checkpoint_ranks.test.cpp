// Checkpoints written by many ranks and read by any other number of them.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <nlohmann/json.hpp>

#include "hpcdl/io/checkpoint_for_tests.h"
#include "hpcdl/io/checkpoint_state.h"
#include "hpcdl/io/group_ranks.h"
#include "hpcdl/io/ranks_for_tests.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/sharded_for_tests.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::io {
namespace {

const Checkpoints::Warn kQuiet = [](const std::string&) {};

void save(const fs::path& folder, std::uint64_t seed, Mesh mesh, std::int64_t step, int tensors = 12) {
  ThreadRanks::run(mesh.ranks(), [&](Ranks& ranks) {
    Checkpoints store(folder, 0, &ranks);
    const ShardedRun run(seed, mesh, ranks.rank(), step, tensors);
    store.save(run.state(), run.content());
  });
}

/// What every rank of `mesh` finds and loads, one rank at a time; empty if everything is as saved at `step`.
::testing::AssertionResult loads(const fs::path& folder, std::uint64_t seed, Mesh mesh, std::int64_t step,
                                 int tensors = 12) {
  const auto found = Checkpoints::find(folder, "auto", kQuiet);
  if (!found || found->state.step != step)
    return ::testing::AssertionFailure() << "found step " << (found ? found->state.step : -1);
  for (int r = 0; r < mesh.ranks(); ++r) {
    ShardedRun run(seed, mesh, r, step + 1, tensors);
    load_checkpoint(found->path, run.model(), run.optimizer());
    if (!run.is_at(step))
      return ::testing::AssertionFailure()
             << "rank " << r << " of " << mesh.dp << " x " << mesh.tp << " x " << mesh.flat << " holds other bits";
  }
  return ::testing::AssertionSuccess();
}

TEST(checkpoint_ranks, every_mesh_loads_what_every_other_has_saved) {
  for (const std::uint64_t seed : {1, 2, 3})
    for (const Mesh from : kMeshes) {
      const TempFolder tmp;
      save(tmp.path(), seed, from, 5);
      for (const Mesh to : kMeshes)
        EXPECT_TRUE(loads(tmp.path(), seed, to, 5))
            << "seed " << seed << ", saved by " << from.dp << " x " << from.tp << " x " << from.flat;
    }
}

TEST(checkpoint_ranks, ranks_of_a_group_save_and_find) {
  const Mesh mesh{2, 4};
  const TempFolder tmp;
  testing::run_ranks(mesh.ranks(), [&](comm::Group world) {
    GroupRanks ranks(world);
    Checkpoints store(tmp.path(), 0, &ranks);
    const ShardedRun run(7, mesh, ranks.rank(), 3);
    store.save(run.state(), run.content());
    const auto found = Checkpoints::find(tmp.path(), "auto", kQuiet, &ranks);
    EXPECT_TRUE(found && found->state.step == 3);
  });
  EXPECT_TRUE(loads(tmp.path(), 7, {4, 2}, 3));
}

TEST(checkpoint_ranks, the_model_part_is_whole_tensors_in_files_of_several_ranks) {
  const TempFolder tmp;
  save(tmp.path(), 9, {2, 2}, 3);
  const auto folder = TensorFolder::open(tmp / "step_00000003");
  const ShardedRun whole(9, {1, 1}, 0, 3);
  ASSERT_EQ(folder.tensors().size(), whole.model().size());
  for (const auto& t : whole.model()) EXPECT_EQ(folder.at(t.name).spec(), t.tensor.spec());
  EXPECT_GE(folder.shards().size(), 4u) << "every rank must write";
  EXPECT_TRUE(fs::exists(tmp / "step_00000003/optim-rank3.safetensors"));
  EXPECT_EQ(read_checkpoint_info(tmp / "step_00000003").ranks, 4);
}

TEST(checkpoint_ranks, find_comes_to_one_answer_on_all_ranks) {
  const TempFolder tmp;
  save(tmp.path(), 4, {2, 2}, 1);
  save(tmp.path(), 4, {4, 1}, 2);
  const fs::path spoiled = tmp / "step_00000002/optim-rank2.safetensors";
  const std::string whole = read_file(spoiled);
  std::string bytes = whole;
  bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
  const auto steps = [&](int ranks, std::string& warnings) {
    std::mutex mutex;
    std::vector<std::int64_t> found;
    ThreadRanks::run(ranks, [&](Ranks& r) {
      const auto info = Checkpoints::find(tmp.path(), "auto", [&](const std::string& w) { warnings += w; }, &r);
      const std::lock_guard lock(mutex);
      found.push_back(info ? info->state.step : -1);
    });
    return found;
  };
  for (const int ranks : {1, 3, 8}) {
    std::string warnings;
    EXPECT_EQ(steps(ranks, warnings), std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 2)) << warnings;
    write_file_atomic(spoiled, bytes);
    EXPECT_EQ(steps(ranks, warnings), std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 1));
    EXPECT_NE(warnings.find("step_00000002 is damaged"), std::string::npos) << warnings;
    EXPECT_NE(warnings.find("optim-rank2.safetensors"), std::string::npos) << warnings;
    fs::remove(spoiled);
    warnings.clear();
    EXPECT_EQ(steps(ranks, warnings), std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 1));
    EXPECT_NE(warnings.find("optim-rank2.safetensors"), std::string::npos) << warnings;
    write_file_atomic(spoiled, whole);
  }
}

TEST(checkpoint_ranks, a_rank_that_dies_at_any_call_leaves_a_whole_checkpoint) {
  const Mesh mesh{2, 2};
  const int tensors = 4;
  int deaths = 0, finished = 0;
  for (int dies = 0; dies < mesh.ranks(); ++dies)
    for (int at = 0;; ++at) {
      const TempFolder tmp;
      save(tmp.path(), 6, mesh, 1, tensors);
      std::atomic<bool> died = true;
      ThreadRanks::run(
          mesh.ranks(),
          [&](Ranks& ranks) {
            Checkpoints store(tmp.path(), 0, &ranks);
            ShardedRun run(6, mesh, ranks.rank(), 2, tensors);
            store.save(run.state(), run.content());
            if (ranks.rank() == dies) died = false;
          },
          dies, at);
      const auto found = Checkpoints::find(tmp.path(), "auto", [](const std::string& w) { ADD_FAILURE() << w; });
      ASSERT_TRUE(found);
      // The last call of a save comes after the rename.
      EXPECT_TRUE(loads(tmp.path(), 6, {1, 1}, found->state.step, tensors))
          << "rank " << dies << " died at call " << at;
      if (!died) {
        EXPECT_EQ(found->state.step, 2);
        ++finished;
        break;
      }
      ++deaths;
      save(tmp.path(), 6, {4, 1}, 3, tensors);
      EXPECT_TRUE(loads(tmp.path(), 6, {1, 2}, 3, tensors)) << "a later run goes on in the same folder";
      for (const auto& entry : fs::directory_iterator(tmp.path()))
        EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-"));
    }
  EXPECT_EQ(finished, mesh.ranks());
  EXPECT_GT(deaths, 30);
}

/// The error of each rank's write.
std::vector<std::string> errors_of(const fs::path& folder, Mesh mesh,
                                   const std::function<void(int rank, CheckpointContent&, fs::path&)>& spoil) {
  std::mutex mutex;
  std::vector<std::string> out(static_cast<std::size_t>(mesh.ranks()));
  ThreadRanks::run(mesh.ranks(), [&](Ranks& ranks) {
    const ShardedRun run(8, mesh, ranks.rank(), 1);
    auto content = run.content();
    fs::path mine = folder;
    spoil(ranks.rank(), content, mine);
    try {
      write_checkpoint(mine, run.state(), 1, content, ranks);
    } catch (const Error& e) {
      const std::lock_guard lock(mutex);
      out[static_cast<std::size_t>(ranks.rank())] = e.what();
    }
  });
  return out;
}

TEST(checkpoint_ranks, a_folder_that_not_all_see_is_refused_before_anything_is_trained) {
  const TempFolder tmp;
  for (const bool stale : {false, true}) {
    if (stale) make_folder(tmp / "own"), write_file_atomic(tmp / "own/.lock", "0123456789abcdef\n");
    std::vector<std::string> errors(3);
    ThreadRanks::run(3, [&](Ranks& ranks) {
      try {
        const Checkpoints store(tmp / (ranks.rank() == 1 ? "own" : "shared"), 0, &ranks);
      } catch (const Error& e) {
        errors[static_cast<std::size_t>(ranks.rank())] = e.what();
      }
    });
    for (const auto& e : errors)
      EXPECT_NE(e.find("rank 1 does not see the folder in which rank 0 writes"), std::string::npos) << e;
  }
}

TEST(checkpoint_ranks, an_error_on_one_rank_is_thrown_by_all) {
  const TempFolder tmp;
  const auto expect = [&](const std::vector<std::string>& errors, const std::string& part) {
    for (const auto& e : errors) EXPECT_NE(e.find(part), std::string::npos) << "expected \"" << part << "\" in: " << e;
  };
  make_folder(tmp / "a/optim-rank1.safetensors/occupied");
  expect(errors_of(tmp / "a", {2, 1}, [](int, CheckpointContent&, fs::path&) {}),
         "optim-rank1.safetensors: cannot write: Is a directory");
  expect(errors_of(tmp / "b", {2, 2},
                   [&](int r, CheckpointContent&, fs::path& f) {
                     if (r == 3) f = tmp / "elsewhere";
                   }),
         "rank 3 does not see it");
  expect(errors_of(tmp / "c", {1, 2},
                   [](int r, CheckpointContent& c, fs::path&) {
                     if (r == 1) c.model.erase(c.model.begin(), c.model.end() - 1), c.optimizer.clear();
                   }),
         "are held by no rank");
  expect(errors_of(tmp / "d", {2, 2},
                   [](int r, CheckpointContent& c, fs::path&) {
                     if (r != 2) return;
                     for (auto& v : c.model)
                       if (!v.part.all() && v.tensor.size() > 0) return v.part.whole[0] += 1, void();
                   }),
         "rank 2 holds a part of");
  expect(errors_of(tmp / "e", {2, 1},
                   [](int r, CheckpointContent& c, fs::path&) {
                     if (r == 1) c.model.push_back(c.model[0]);
                   }),
         "is given twice");
}

TEST(checkpoint_ranks, wrong_parts_are_clear_errors) {
  const TempFolder tmp;
  save(tmp.path(), 3, {1, 2}, 1);
  const auto message = [&](const std::function<void(std::vector<NamedTensor>&)>& change) -> std::string {
    const ShardedRun run(3, {1, 1}, 0, 0);
    auto model = run.model();
    change(model);
    try {
      load_checkpoint(tmp / "step_00000001", model, run.optimizer());
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message([](auto&) {}), "");
  const auto first_matrix = [](std::vector<NamedTensor>& m) -> NamedTensor& {
    return *std::find_if(m.begin(), m.end(), [](const NamedTensor& t) { return t.tensor.rank() >= 1; });
  };
  const auto rows_from = [&](std::int64_t begin) {
    return message([&](auto& m) {
      auto& t = first_matrix(m);
      Shape whole = t.tensor.shape();
      whole[0] = 100;
      t.part = Part::along(whole, 0, std::array{Interval{begin, begin + t.tensor[0]}});
    });
  };
  EXPECT_NE(rows_from(0).find("expected"), std::string::npos);
  EXPECT_NE(rows_from(99).find("does not lie in (100"), std::string::npos);
  EXPECT_NE(message([](auto& m) { m.pop_back(); }).find("expected the 11 tensors of the model, found 12"),
            std::string::npos);
}

/// Written by three ranks, in the format before boxes.
TEST(checkpoint_ranks, a_checkpoint_of_the_second_format_loads_on_any_ranks) {
  const fs::path golden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden/checkpoint_format2";
  EXPECT_EQ(verify_checkpoint(golden).ranks, 3);
  for (const Mesh mesh : {Mesh{1, 3}, Mesh{1, 1}, Mesh{1, 2, 2}, Mesh{1, 1, 5}})
    for (int r = 0; r < mesh.ranks(); ++r) {
      ShardedRun run(20, mesh, r, 0, 4);
      load_checkpoint(golden, run.model(), run.optimizer());
      EXPECT_TRUE(run.is_at(7)) << "rank " << r;
    }
}

/// An element that the files hold twice may hide one that is missing: the number of elements alone does not show that.
TEST(checkpoint_ranks, parts_that_do_not_cover_a_tensor_once_are_refused) {
  const TempFolder tmp;
  save(tmp.path(), 20, {1, 3}, 7, 4);
  const fs::path folder = tmp / "step_00000007";
  Json state = read_json(folder / "state.json");
  int changed = 0;
  for (auto& [file, tensors] : state["optimizer"].items())
    for (auto& [name, tensor] : tensors.items())
      if (tensor.contains("boxes") && changed == 0)
        for (auto& box : tensor["boxes"])
          for (std::size_t d = 0; d < box[0].size() && changed == 0; ++d)
            if (box[0][d] > 0 && box[1][d] > 0) box[0][d] = box[0][d].get<int>() - 1, ++changed;
  ASSERT_EQ(changed, 1);
  seal_checkpoint(folder, state);
  ShardedRun run(20, {1, 1}, 0, 0, 4);
  try {
    load_checkpoint(folder, run.model(), run.optimizer());
    FAIL() << "a part is at the wrong position";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("the files hold elements "), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find(" times, expected once"), std::string::npos) << e.what();
  }
}

TEST(checkpoint_ranks, a_checkpoint_of_the_first_format_loads) {
  const fs::path golden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden/checkpoint_format1";
  const auto info = verify_checkpoint(golden);
  EXPECT_EQ(info.state, ToyRun(7).state());
  EXPECT_EQ(info.ranks, 1);
  ToyRun loaded(0);
  load_checkpoint(golden, loaded.model(), loaded.optimizer());
  EXPECT_TRUE(loaded.is_at(7));
}

}  // namespace
}  // namespace hpcdl::io
