// A rank that divides the state of a training with others never has more of it in memory than it keeps, also while it
// draws, opens or loads it; and it gets the same bits.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "hpcdl/io/checkpoint.h"
#include "hpcdl/io/group_ranks.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/runs_for_tests.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;
using models::LanguageModel;
using models::Values;

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kSlack = 16 * kMiB;  // of a rank, beside its share: a program, stacks, pieces of files

constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

io::ModelConfig config_of(std::int64_t width, std::int64_t vocab) {
  io::ModelConfig c{.family = io::Family::llama, .layers = 2, .heads = 8, .width = width, .context = 16};
  c.vocab = vocab;
  models::resolve(c);
  return c;
}

/// Where a model comes from.
using Source = std::function<LanguageModel(models::Sharing sharing, Values values)>;

Source drawn(const io::ModelConfig& c) {
  return [c](auto sharing, Values values) {
    return LanguageModel::create(c, 3, true, std::move(sharing), {}, {}, values);
  };
}

Source opened(const fs::path& folder) {
  return [folder](auto sharing, Values values) {
    return LanguageModel::open_for_training(folder, std::move(sharing), {}, {}, values);
  };
}

using Ready = std::function<void(TrainStep& step, const models::Trainable& model, const parallel::Mesh& mesh)>;

/// Makes a training step on every rank of a mesh.
void on_mesh(const parallel::MeshShape& shape, int zero, Values values, const Source& source, const Ready& ready) {
  testing::run_ranks(shape.size(), [&](const comm::Group& world) {
    const parallel::Mesh mesh(world, shape);
    auto model = source(shape.tp > 1 ? std::make_shared<parallel::TensorParallel>(mesh.tp()) : nullptr, values);
    Pool pool(1);
    TrainStep step(model, pool, {.batch = 2, .length = 16, .data = mesh.dp(), .zero = zero});
    ready(step, model, mesh);
  });
}

/// The values of every rank, one after the other.
std::vector<std::string> values_on(const parallel::MeshShape& shape, int zero, Values values, const Source& source) {
  std::vector<std::string> all(static_cast<std::size_t>(shape.size()));
  on_mesh(shape, zero, values, source, [&](TrainStep& step, const auto& model, const auto& mesh) {
    step.with_whole_values([&] {
      for (const auto& e : model.parameters())
        all[static_cast<std::size_t>(mesh.world().rank())].append(static_cast<const char*>(e.host.data()),
                                                                  static_cast<std::size_t>(e.host.bytes()));
    });
  });
  return all;
}

constexpr parallel::MeshShape kMeshes[] = {{.dp = 1}, {.dp = 2},          {.dp = 3},          {.dp = 5},
                                           {.dp = 8}, {.dp = 1, .tp = 2}, {.dp = 2, .tp = 2}, {.dp = 3, .tp = 2}};

void expect_same_values(const Source& source) {
  for (const auto& shape : kMeshes) {
    const auto want = values_on(shape, 0, Values::now, source);
    for (const int zero : {0, 1, 3})
      EXPECT_TRUE(values_on(shape, zero, Values::later, source) == want)
          << "dp " << shape.dp << ", tp " << shape.tp << ", zero " << zero;
  }
}

TEST(load_share, drawn_values_are_the_same) { expect_same_values(drawn(config_of(64, 300))); }

TEST(load_share, values_of_a_folder_are_the_same) {
  for (const auto type : {DType::f32, DType::bf16}) {
    const io::TempFolder tmp;
    LanguageModel::create(config_of(64, 300), 5, false).save(tmp / "model", type);
    expect_same_values(opened(tmp / "model"));
  }
}

TEST(load_share, a_folder_is_checked_before_it_is_read) {
  const io::TempFolder tmp;
  LanguageModel::create(config_of(64, 300), 5, false).save(tmp / "model");
  auto config = config_of(64, 301);
  config.dtype = DType::f32;
  models::write_hf_config(tmp / "model", config);
  EXPECT_NE(error_of([&] {
              LanguageModel::open_for_training(tmp / "model", {}, {}, {}, Values::later);
            }).find("config.json asks for model.embed_tokens.weight of shape (301, 64)"),
            std::string::npos);
}

/// A value of /proc/self/status, in bytes.
std::int64_t status_bytes(const std::string& key) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key + ":")) return 1024 * std::stoll(line.substr(key.size() + 1));
  return -1;
}

/// Runs body() in a process of its own; it returns whether all is well.
void in_child(const std::function<bool()>& body) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    bool well = false;
    try {
      well = body();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
    }
    std::fflush(nullptr);
    _exit(well ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status << ", see the output above";
}

/// In a process of its own, whose memory is that of all ranks: the peak is what they keep, and a little for each. A
/// rank that had the whole model for a moment would need more.
void expect_shares_alone(const parallel::MeshShape& shape, const Source& source, const std::string& what,
                         const Ready& load = {}) {
  in_child([&] {
    const auto before = status_bytes("VmRSS");
    std::vector<std::int64_t> kept(static_cast<std::size_t>(shape.size())), whole(kept.size());
    on_mesh(shape, 3, Values::later, source, [&](TrainStep& step, const auto& model, const auto& mesh) {
      if (load) load(step, model, mesh);
      const auto rank = static_cast<std::size_t>(mesh.world().rank());
      for (const auto& t : step.weights()) kept[rank] += t.tensor.bytes();
      if (load)
        for (const auto& t : step.optimizer_state()) kept[rank] += t.tensor.bytes();
      for (const auto& e : model.parameters()) whole[rank] += e.memory.bytes();
    });
    const auto sum = [](const auto& list) { return std::accumulate(list.begin(), list.end(), std::int64_t{0}); };
    const auto grown = status_bytes("VmHWM") - before;
    std::printf("[ MEASURED ] %s, dp %d, tp %d: %d MiB kept, %d MiB at the peak; %d MiB if each had its model whole\n",
                what.c_str(), shape.dp, shape.tp, static_cast<int>(sum(kept) / kMiB), static_cast<int>(grown / kMiB),
                static_cast<int>((sum(kept) + sum(whole)) / kMiB));
    return grown < sum(kept) + shape.size() * kSlack;
  });
}

TEST(load_share, no_rank_has_more_than_its_share) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep memory of their own";
  const auto config = config_of(512, 30000);
  const io::TempFolder tmp;
  const fs::path checkpoints = tmp / "checkpoints";
  in_child([&] {
    LanguageModel::create(config, 5, false).save(tmp / "model", DType::bf16);
    on_mesh({.dp = 2}, 3, Values::later, drawn(config), [&](TrainStep& step, const auto&, const auto& mesh) {
      io::GroupRanks ranks(mesh.world());
      io::Checkpoints to(checkpoints, 1, &ranks);
      io::TrainState state;
      state.step = state.tokens = 1;
      to.save(state, {.model = step.weights(), .optimizer = step.optimizer_state(), .config_toml = {}, .extra = {}});
    });
    return true;
  });
  const auto load = [&](TrainStep& step, const auto&, const auto&) {
    io::load_checkpoint(checkpoints / "step_00000001", step.weights(), step.optimizer_state());
  };
  for (const parallel::MeshShape shape : {parallel::MeshShape{.dp = 4}, {.dp = 8}, {.dp = 3, .tp = 2}}) {
    expect_shares_alone(shape, drawn(config), "drawn");
    expect_shares_alone(shape, opened(tmp / "model"), "opened");
    expect_shares_alone(shape, drawn(config), "loaded", load);
  }
}

}  // namespace
}  // namespace hpcdl::train
