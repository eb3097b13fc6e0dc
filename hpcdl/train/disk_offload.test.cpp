// Moments on a disk change no bit of what a training on a CPU learns, and runs do not show where they lie.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/io/scratch_file.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/testing/learned.h"
#include "hpcdl/testing/mesh_runs.h"
#include "hpcdl/testing/tune_toy.h"
#include "hpcdl/train/memory_plan.h"
#include "hpcdl/train/plan_run.h"
#include "hpcdl/train/runs_for_tests.h"

namespace hpcdl::train {
namespace {

namespace fs = std::filesystem;

struct DiskSteps : ::testing::Test {
  void SetUp() override {
    if (io::lies_in_memory(tmp.path())) GTEST_SKIP() << "temporary files lie in memory: set TMPDIR to a disk";
  }
  Change on_disk(std::int64_t group = 8192) const {
    return [this, group](StepOptions& o) { o.optimizer_place = {.folder = tmp.path(), .group = group}; };
  }
  io::TempFolder tmp;
};

TEST_F(DiskSteps, moments_there_change_no_bit) {
  for (const auto family : {io::Family::gpt2, io::Family::llama})
    for (const auto& [what, change] : kKinds)
      EXPECT_EQ(train_text(family, {}, change, on_disk()), train_text(family, {}, change)) << what;
}

TEST_F(DiskSteps, groups_of_any_size_change_no_bit) {
  const auto want = train_text(io::Family::llama, {}, {});
  for (const std::int64_t group : {1024, 3 * 1024, 1 << 20})
    EXPECT_EQ(train_text(io::Family::llama, {}, {}, on_disk(group)), want) << group;
  EXPECT_THROW(train_text(io::Family::llama, {}, {}, on_disk(1000)), Error);
}

TEST_F(DiskSteps, ranks_that_divide_state_learn_the_same_bits) {
  for (const int n : {2, 3})
    for (const int zero : {0, 1, 2, 3})
      EXPECT_EQ(train_ranks(n, zero, on_disk()), train_ranks(n, zero, {})) << n << zero;
}

TEST_F(DiskSteps, images_learn_the_same_bits) { EXPECT_EQ(train_images(on_disk()), train_images({})); }

TEST_F(DiskSteps, state_goes_on_in_another_place) {
  const auto want = train_text(io::Family::llama, {}, {});
  for (const bool from_disk : {false, true}) {
    Learned l;
    Pool pool(2);
    StepOptions o{.batch = 2, .length = 16};
    auto there = o;
    on_disk()(from_disk ? o : there);
    auto before = models::LanguageModel::create(small_model(io::Family::llama), 3, true),
         after = models::LanguageModel::create(small_model(io::Family::llama), 4, true);
    TrainStep first(before, pool, o), second(after, pool, there);
    take_steps(first, o, 0, 4, l);
    first.fetch();
    put(second.weights(), first.weights()), put(second.optimizer_state(), first.optimizer_state());
    second.store();
    take_steps(second, there, 4, 8, l);
    note_state(l, second);
    EXPECT_EQ(l, want) << from_disk;
  }
}

TEST_F(DiskSteps, optimizers_that_cannot_are_refused) {
  auto model = models::LanguageModel::create(small_model(io::Family::gpt2), 3, true);
  Pool pool(1);
  StepOptions o{.batch = 2, .length = 16, .optimizer = Sgd::Args{}};
  on_disk()(o);
  EXPECT_THROW(TrainStep(model, pool, o), Error);
}

/// While a group is updated, the next ones are read and the last one is written: no record waits for the one before it.
TEST_F(DiskSteps, reads_and_writes_run_beside_updates) {
  auto model = models::LanguageModel::create(small_model(io::Family::gpt2), {}, true);
  Pool pool(1);
  Stream s(pool);
  StepOptions o{.batch = 2, .length = 16};
  on_disk()(o);
  const StepPrograms programs(model, o, s);
  const auto& p = programs.update()->planned->program;
  int reads = 0, updates = 0, writes = 0;
  for (const auto& r : p.records) {
    reads += r.op == "disk.read", writes += r.op == "disk.write";
    if (r.op != "adamw") continue;
    ++updates;
    EXPECT_GE(reads, 2 * std::min(updates + 1, 10)) << "the next group is on its way";
    EXPECT_EQ(writes, 2 * (updates - 1));
  }
  EXPECT_GT(updates, 10);
  EXPECT_EQ(reads, writes);
  const auto moments = programs.optimizer().moments();
  EXPECT_EQ(io::disk_bytes(p), 2 * (moments.back().on_disk + io::ScratchFile::padded(moments.back().memory.bytes())));
}

struct DiskRuns : testing::MeshRuns {
  void SetUp() override {
    if (io::lies_in_memory(tmp.path())) GTEST_SKIP() << "temporary files lie in memory: set TMPDIR to a disk";
  }
  void put_on_disk(RunConfig& c) const { c.offload.optimizer = Tier::disk, c.offload.folder = tmp.path(); }

  /// The files and metrics of a run with its moments on a disk, against those of one that keeps them.
  void expect_same(const std::string& name, const parallel::MeshShape& mesh, const std::function<void(RunConfig&)>& f) {
    run_on(mesh, name + ".kept", f);
    run_on(mesh, name + ".disk", [&](RunConfig& c) { f(c), put_on_disk(c); });
    const auto kept = tmp / (name + ".kept"), disk = tmp / (name + ".disk");
    for (const auto& entry : fs::recursive_directory_iterator(kept / "checkpoints"))
      if (entry.path().extension() == ".safetensors")
        expect_same_file(entry.path(), disk / fs::relative(entry.path(), kept).string());
    EXPECT_EQ(placeless_metrics(disk), placeless_metrics(kept)) << name;
    EXPECT_GT(numbers(name + ".disk", "disk_bytes").size(), 0u) << name;
  }
};

TEST_F(DiskRuns, write_the_same_files) {
  expect_same("alone", {}, [](RunConfig& c) { c.train.accumulate = 2; });
  expect_same("fp16", {}, [](RunConfig& c) { c.train.dtype = Compute::fp16; });
  expect_same("zero", {.dp = 4}, [](RunConfig& c) { c.parallel.zero = 3; });
  expect_same("tp", {.dp = 2, .tp = 2}, [](RunConfig& c) { c.parallel.zero = 2; });
}

TEST_F(DiskRuns, write_the_same_files_with_what_a_gpu_does_not_offload) {
  expect_same("cp", {.cp = 2}, [](RunConfig&) {});
  expect_same("fp8", {}, [](RunConfig& c) { c.train.dtype = Compute::fp8_emu, c.model.layers = 3; });
  expect_same("mixture", {}, [](RunConfig& c) {
    c.model.family = io::Family::mixtral, c.model.experts = 4, c.model.chosen_experts = 2;
  });
  const auto piped = [](RunConfig& c) { c.parallel.pp = 2, c.train.accumulate = 2, c.parallel.dp = 1; };
  const auto run_piped = [&](const std::string& name, bool disk) {
    testing::run_on_ranks(2, [&](RunConfig& c) {
      toy_config(c, tmp, name), piped(c);
      c.train.threads = 1;
      if (disk) put_on_disk(c);
    });
  };
  run_piped("pp.kept", false), run_piped("pp.disk", true);
  expect_same_file(tmp / "pp.kept" / "model/model.safetensors", tmp / "pp.disk" / "model/model.safetensors");
  EXPECT_EQ(placeless_metrics(tmp / "pp.disk"), placeless_metrics(tmp / "pp.kept"));
}

/// A run that was asked to stop in one place goes on in the other.
TEST_F(DiskRuns, resume_in_any_place) {
  run_on({}, "whole", [](RunConfig&) {});
  for (const bool disk_first : {false, true}) {
    const auto name = disk_first ? "from disk" : "to disk";
    const auto change = [&](bool disk) {
      return [this, disk](RunConfig& c) {
        if (disk) put_on_disk(c);
      };
    };
    EXPECT_TRUE(run_on({}, name, change(disk_first), 3).stopped);
    EXPECT_EQ(run_on({}, name, change(!disk_first)).first_step, 3);
    expect_same_file(tmp / name / "model/model.safetensors", tmp / "whole" / "model/model.safetensors");
    EXPECT_EQ(placeless_metrics(tmp / name), placeless_metrics(tmp / "whole"));
  }
}

TEST_F(DiskRuns, adapters_learn_the_same) {
  run_on({}, "base", [](RunConfig& c) { c.train.steps = 2; });
  for (const bool disk : {false, true})
    testing::tune_toy(tmp, disk ? "a.disk" : "a.kept", 1, [&](RunConfig& c) {
      c.adapter.method = models::AdapterMethod::lora, c.adapter.r = 4;
      if (disk) put_on_disk(c);
    });
  expect_same_file(tmp / "a.kept" / "model/adapter_model.safetensors",
                   tmp / "a.disk" / "model/adapter_model.safetensors");
}

TEST_F(DiskRuns, plan_what_lies_there_and_refuse_what_cannot) {
  const auto plan = [&](const std::function<void(RunConfig&)>& change) {
    RunConfig c;
    toy_config(c, tmp, "planned");
    c.train.threads = 1;
    change(c);
    return plan_run(c, {});
  };
  const auto kept = plan([](RunConfig&) {}), disk = plan([&](RunConfig& c) { put_on_disk(c); });
  const auto &k = kept.now().ledger, &d = disk.now().ledger;
  EXPECT_EQ(d.optimizer, 0);
  EXPECT_EQ(d.on_disk, k.optimizer);
  EXPECT_TRUE(disk.fits());
  EXPECT_NE(disk.text().find("on the disk"), std::string::npos);
  const auto refused = [&](const std::function<void(RunConfig&)>& change) {
    return error_of([&] { plan([&](RunConfig& c) { put_on_disk(c), change(c); }); });
  };
  EXPECT_NE(refused([&](RunConfig& c) { c.offload.folder = tmp / "none"; }).find("found nothing: make it"),
            std::string::npos);
  EXPECT_NE(refused([](RunConfig& c) { c.offload.folder.clear(); }).find("set offload.folder"), std::string::npos);
  EXPECT_NE(refused([](RunConfig& c) { c.train.device = "cuda"; }).find("set offload.parameters = \"host\""),
            std::string::npos);
  EXPECT_NE(refused([](RunConfig& c) { c.train.optimizer = OptimizerKind::sgd; }).find("sgd"), std::string::npos);
  EXPECT_NE(refused([](RunConfig& c) { c.offload.interleave = 2; }).find("optimizers in host memory"),
            std::string::npos);
}

/// What does not fit into memory is told that it would with its moments on the disk, and what fits on no disk is refused.
TEST(disk_advice, compares_with_the_room_of_the_disk) {
  const auto plan = [](const MemoryChange& c) {
    MemoryLedger l;
    l.weights = l.gradients = 100, l.optimizer = 200, l.activations = 100;
    if (c.optimizer == Tier::disk) l.on_disk = std::exchange(l.optimizer, 0);
    return l;
  };
  const Room room{350, "test"};
  for (const std::int64_t disk : {150, 1000}) {
    MemoryAdvice advice({{}, plan({})}, room, true, 1, {.host = {}, .disk = Room{disk, "the disk"}});
    advice.look_for_smaller(plan);
    const auto* change = advice.smallest_change();
    ASSERT_EQ(change != nullptr, disk == 1000) << disk;
    if (change) {
      EXPECT_EQ(advice.words(change->change), "--offload.optimizer=disk");
    }
  }
  const MemoryChange there{.optimizer = Tier::disk};
  const MemoryAdvice little({there, plan(there)}, room, true, 1, {.host = {}, .disk = Room{199, "free in /data"}});
  EXPECT_FALSE(little.fits());
  EXPECT_NE(little.verdict().find("takes 200 B, but only 199 B is available (free in /data)"), std::string::npos)
      << little.verdict();
}

}  // namespace
}  // namespace hpcdl::train
