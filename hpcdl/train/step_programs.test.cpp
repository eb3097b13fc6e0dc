// Programs of a step without memory, data or peers.

#include "hpcdl/train/step_programs.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "hpcdl/core/error.h"
#include "hpcdl/graph/instance.h"
#include "hpcdl/io/program_file.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

using models::LanguageModel;

/// f(the programs of a rank of a mesh).
template <class F> void with_programs(const parallel::MeshShape& shape, int rank, F&& f) {
  const auto mesh = parallel::Mesh::described(shape, rank);
  auto model = LanguageModel::create(models::tiny(io::Family::llama), {}, true,
                                     std::make_shared<parallel::TensorParallel>(mesh.tp()));
  Pool pool(1);
  Stream s(pool);
  f(StepPrograms(model, {.batch = 2, .length = 16, .accumulate = true, .data = mesh.dp()}, s));
}

std::vector<std::uint64_t> digests(const parallel::MeshShape& shape, int rank) {
  std::vector<std::uint64_t> list;
  with_programs(shape, rank, [&](const StepPrograms& p) {
    for (const auto& pass : {p.first(), p.more(), p.last(), p.evaluation()})
      list.push_back(digest(pass->planned->program));
    list.push_back(digest(p.update()->planned->program));
  });
  return list;
}

/// What a described model records is what a model with memory records, on real ranks too.
TEST(step_programs, are_the_same_with_memory_and_without) {
  for (const auto& shape : {parallel::MeshShape{}, parallel::MeshShape{.dp = 2}, parallel::MeshShape{.tp = 2},
                            parallel::MeshShape{.dp = 2, .tp = 2}})
    testing::run_ranks(shape.size(), [&](const comm::Group& world) {
      const parallel::Mesh mesh(world, shape);
      auto model = LanguageModel::create(models::tiny(io::Family::llama), 1, true,
                                         std::make_shared<parallel::TensorParallel>(mesh.tp()));
      Pool pool(1);
      Stream s(pool);
      const StepPrograms real(model, {.batch = 2, .length = 16, .accumulate = true, .data = mesh.dp()}, s);
      with_programs(shape, world.rank(), [&](const StepPrograms& described) {
        EXPECT_EQ(to_bytes(described.first()->planned->program), to_bytes(real.first()->planned->program));
        EXPECT_EQ(to_bytes(described.more()->planned->program), to_bytes(real.more()->planned->program));
        ASSERT_EQ(described.apart(), real.apart());
        if (real.apart()) {
          EXPECT_EQ(to_bytes(described.last()->planned->program), to_bytes(real.last()->planned->program));
        }
        EXPECT_EQ(to_bytes(described.update()->planned->program), to_bytes(real.update()->planned->program));
      });
    });
}

TEST(step_programs, have_one_digest_on_every_instruction_set) {
  const auto before = simd::active_isa();
  const auto want = digests({.dp = 2, .tp = 2}, 3);
  for (const auto k : simd::kIsaKinds) {
    if (!simd::set_active_isa(k)) continue;
    EXPECT_EQ(digests({.dp = 2, .tp = 2}, 3), want) << simd::isa_name(k);
  }
  simd::set_active_isa(before);
  EXPECT_NE(digests({.dp = 2, .tp = 2}, 2), want) << "another rank has other rows of the vocabulary";
  EXPECT_EQ(digests({.dp = 2, .tp = 2}, 1)[4], digests({.dp = 2, .tp = 2}, 3)[4]) << "ranks along dp update alike";
}

TEST(step_programs, run_from_a_file_to_the_same_bits) {
  const io::TempFolder tmp;
  with_programs({}, 0, [&](const StepPrograms& p) {
    io::to_file(p.first()->planned->program, tmp / "pass");
    io::to_file(p.update()->planned->program, tmp / "update");
  });
  std::vector<std::string> weights;
  for (const bool from_file : {false, true}) {
    auto model = LanguageModel::create(models::tiny(io::Family::llama), 1, true);
    Pool pool(1);
    StepParams params;
    params.lr = 0.1f, params.grad_scale = 1.0f / 32;
    Stream s(pool, &params);
    const StepPrograms programs(model, {.batch = 2, .length = 16}, s);
    Pass pass = *programs.first(), update = *programs.update();
    if (from_file) {
      pass.planned = planned(io::from_file(tmp / "pass"), pass.planned->inputs);
      update.planned = planned(io::from_file(tmp / "update"));
    }
    const Instance run(pass), optimizer(update);
    std::memcpy(run.input(0).data(), models::tiny_ids(1).data(), 128);
    std::memcpy(run.input(1).data(), models::tiny_ids(2).data(), 128);
    run.run(s), optimizer.run(s);
    std::string bits;
    for (const auto& p : model.parameters())
      bits.append(p.value.ptr<char>(), static_cast<std::size_t>(p.value.bytes()));
    weights.push_back(bits);
  }
  EXPECT_EQ(weights[0], weights[1]);
}

TEST(step_programs, of_another_mesh_are_refused_by_name) {
  std::shared_ptr<const Planned> of_two;
  with_programs({.tp = 2}, 0, [&](const StepPrograms& p) { of_two = p.first()->planned; });
  const auto errors = testing::rank_errors(1, [&](const comm::Group&) {
    auto model = LanguageModel::create(models::tiny(io::Family::llama), 1, true);
    Pool pool(1);
    Stream s(pool);
    const StepPrograms alone(model, {.batch = 2, .length = 16}, s);
    const Instance exe(of_two, alone.first()->bindings);
  });
  EXPECT_NE(errors.at(0).find("\"tp of 2\" is not bound"), std::string::npos) << errors.at(0);
}

TEST(step_programs, of_ranks_that_are_only_described_do_not_run) {
  const auto mesh = parallel::Mesh::described({.dp = 2}, 1);
  auto model = LanguageModel::create(models::tiny(io::Family::gpt2), {}, true);
  Pool pool(1);
  EXPECT_THROW(TrainStep(model, pool, {.batch = 2, .length = 16}), Error);
  float x = 1;
  EXPECT_THROW(mesh.dp().all_reduce(Stream(pool), Tensor(&x, Spec{{1}, DType::f32})), Error);
}

/// 175 billion parameters on 4096 ranks.
TEST(step_programs, of_any_rank_of_any_mesh_are_recorded) {
  io::ModelConfig m;
  m.layers = 96, m.heads = 96, m.width = 12288, m.context = 2048, m.vocab = 50257;
  m.resolve();
  const auto mesh = parallel::Mesh::described({.dp = 128, .tp = 32}, 4095);
  auto model = LanguageModel::create(m, {}, true, std::make_shared<parallel::TensorParallel>(mesh.tp()));
  Pool pool(1);
  Stream s(pool);
  const StepPrograms step(model, {.batch = 1, .length = 2048, .data = mesh.dp()}, s);
  EXPECT_NEAR(static_cast<double>(model.parameter_count()), 174.6e9, 1e9);
  std::int64_t held = 0;
  for (const auto& p : model.parameters()) held += p.value.size();
  EXPECT_NEAR(static_cast<double>(held), 174.6e9 / 32, 1e8);
  const auto& program = step.first()->planned->program;
  EXPECT_GT(program.records.size(), 1900u);
  EXPECT_EQ(program.records.back().op, "all_reduce.join");
}

}  // namespace
}  // namespace hpcdl::train
