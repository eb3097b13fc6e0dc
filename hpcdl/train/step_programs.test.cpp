// Programs of a step without memory, data or peers.

#include "hpcdl/train/step_programs.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/engine.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/program_file.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/program/edit.h"
#include "hpcdl/rng.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

using models::LanguageModel;

/// Calls f(the programs of a rank of a mesh).
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

/// The records of a described model equal those of a model with memory, also on real ranks.
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

/// The pass of ranks that share a batch is the pass of one rank, into which reductions were inserted.
TEST(step_programs, are_those_of_one_rank_without_the_reductions) {
  with_programs({.dp = 2, .tp = 2}, 1, [&](const StepPrograms& p) {
    for (const auto write : {Write::overwrite, Write::accumulate}) {
      const auto& reducing = p.pass(write, StepPrograms::Kind::reducing)->planned->program;
      const auto& alone = p.pass(write, StepPrograms::Kind::alone)->planned->program;
      ASSERT_EQ(reducing.edits.size(), 1u);
      EXPECT_GT(reducing.records.size(), alone.records.size());
      EXPECT_EQ(to_bytes(strip(reducing)), to_bytes(alone));
    }
  });
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
      bits.append(p.memory.ptr<char>(), static_cast<std::size_t>(p.memory.bytes()));
    weights.push_back(bits);
  }
  EXPECT_EQ(weights[0], weights[1]);
}

/// Programs of all kinds of models and passes: every op in them must declare what its records may contain.
std::vector<Program> programs_of_all_kinds() {
  std::vector<Program> list;
  const auto add = [&](const StepPrograms::PassPtr& pass) { list.push_back(pass->planned->program); };
  const auto step = [&](models::Trainable& model, const StepOptions& options) {
    Pool pool(1);
    Stream s(pool);
    const StepPrograms p(model, options, s);
    add(p.first()), add(p.evaluation()), add(p.update());
    if (p.apart()) add(p.last());
  };
  const auto mesh = parallel::Mesh::described({.dp = 2, .tp = 2}, 3);
  for (const auto family : {io::Family::gpt2, io::Family::llama}) {
    auto alone = LanguageModel::create(models::tiny(family), {}, true);
    nn::ForwardOptions dense{.recompute = true, .dropout = 0.1f, .head_gradient_now = true, .fused_mlp = true};
    step(alone, {.batch = 2, .length = 16, .forward = dense, .scaler = GradScaler::Options{}});
    auto shared =
        LanguageModel::create(models::tiny(family), {}, true, std::make_shared<parallel::TensorParallel>(mesh.tp()));
    step(shared, {.batch = 2, .length = 16, .accumulate = true, .data = mesh.dp()});
    for (const auto* model : {&alone, &shared})
      for (const auto& l : {infer::BatchLayout::of_one(1, 8, 1), infer::BatchLayout::of_one(4, 8, 4),
                            infer::BatchLayout::of_one(4, 8, 1)})
        add(infer::batch_pass(*model, l));
  }
  for (const auto family : {models::ImageFamily::resnet18, models::ImageFamily::simple_cnn}) {
    auto image = models::ImageModel::create({.family = family, .classes = 10}, {}, true);
    step(image, {.batch = 2, .optimizer = Sgd::Args{.momentum = 0.9f}, .data = mesh.dp(), .share_batch = true});
    step(image, {.batch = 2, .forward = {.mixup = true}});
  }
  return list;
}

TEST(step_programs, of_all_kinds_can_be_read_again) {
  for (const auto& p : programs_of_all_kinds()) EXPECT_EQ(to_bytes(program_of(to_bytes(p), "FILE")), to_bytes(p));
}

/// The result of reading a program with these bytes, including the checksum.
std::string told(const Program& p) try {
  plan(program_of(to_bytes(p), "FILE"));
  return "no error";
} catch (const Error& e) {
  return e.what();
}

TEST(step_programs, that_someone_changed_are_refused_by_op) {
  const Rng rng{5, 5};
  std::uint64_t draw = 0;
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(rng.below(draw++, n)); };
  int wrong_operands = 0, refused = 0;
  for (const auto& p : programs_of_all_kinds())
    for (int round = 0; round < 100; ++round) {
      Program other = p;
      auto& r = other.records[below(other.records.size())];
      if (r.operand_count < 2) continue;
      auto& a = other.operands[r.operands + below(r.operand_count)];
      const auto before = a.spec;
      switch (round % 4) {
        case 0: std::swap(a, other.operands[below(other.operands.size())]); break;
        case 1:
          if (a.slot >= 0 && a.spec.shape.rank() > 0 && a.spec.shape[-1] > 1) --a.spec.shape[-1];
          break;
        case 2: other.args[r.args + below(8)] = static_cast<std::byte>(below(256)); break;
        case 3: r.args = other.records[below(other.records.size())].args; break;
      }
      const auto error = told(other);
      EXPECT_TRUE(error == "no error" || error.starts_with("[program] FILE: ")) << error;
      const bool takes_windows = r.op.starts_with("grad_norm") || r.op == "top1" || r.op == "cross_entropy";
      if (round % 4 == 1 && before != a.spec && !takes_windows) ++wrong_operands, refused += error != "no error";
    }
  EXPECT_GT(wrong_operands, 500);
  EXPECT_EQ(refused, wrong_operands) << "an operand has a different shape than the others require";
}

/// The error for a changed record of the op in one of the programs.
std::string told_of(std::string_view op, bool backward, const std::function<void(Program&, Record&)>& change) {
  for (auto& p : programs_of_all_kinds())
    for (auto& r : p.records)
      if (r.op == op && r.backward == backward) return change(p, r), told(p);
  return "no such record";
}

TEST(step_programs, say_which_argument_is_none) {
  const auto set = []<class T>(std::size_t at, T value) {
    return [=](Program& p, Record& r) { std::memcpy(p.args.data() + r.args + at, &value, sizeof value); };
  };
  const auto has = [](const std::string& error, std::string_view part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  const std::string_view kNone = "none of the values";
  has(told_of("linear", false, set(offsetof(LinearArgs, activation), std::uint8_t{77})), kNone);
  has(told_of("linear", false, set(offsetof(LinearArgs, conv1d), std::uint8_t{2})), kNone);
  has(told_of("linear", false, set(offsetof(LinearArgs, out), std::uint8_t{99})), kNone);
  for (const int heads : {0, -4, 3, 1 << 30}) has(told_of("attention", false, set(0, heads)), "[attention]");
  for (const int stride : {0, -1}) has(told_of("conv2d", false, set(0, stride)), "[conv2d]");
  for (const std::int64_t count : {std::int64_t{1} << 60, std::int64_t{-1}, std::int64_t{1}}) {
    has(told_of("adamw", false, set(offsetof(detail::AdamWRecord, count), count)), "[adamw]");
    has(told_of("sgd", false, set(offsetof(detail::SgdRecord, count), count)), "[sgd]");
    has(told_of("grad_norm", false, set(offsetof(detail::GradNormRecord, count), count)), "[grad_norm]");
  }
  has(told_of("all_reduce.gradients", false, [](Program& p, Record&) { p.bounds.clear(); }), "list of names");
  has(told_of("softmax", true, [](Program&, Record&) {}), "no such record");
  has(told_of("max_pool2d", true,
              [](Program& p, Record& r) {  // reads indices that another record wrote
                for (auto i = r.operands; i < r.operands + r.operand_count; ++i)
                  if (auto& o = p.operands[i]; o.spec.dtype != DType::f32)
                    p.slots.push_back(p.slots[static_cast<std::size_t>(o.slot)]),
                        o.slot = static_cast<int>(p.slots.size()) - 1;
              }),
      "does not fit");
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
  models::resolve(m);
  const auto mesh = parallel::Mesh::described({.dp = 128, .tp = 32}, 4095);
  auto model = LanguageModel::create(m, {}, true, std::make_shared<parallel::TensorParallel>(mesh.tp()));
  Pool pool(1);
  Stream s(pool);
  const StepPrograms step(model, {.batch = 1, .length = 2048, .data = mesh.dp()}, s);
  EXPECT_NEAR(static_cast<double>(model.parameter_count()), 174.6e9, 1e9);
  std::int64_t held = 0;
  for (const auto& p : model.parameters()) held += p.memory.size();
  EXPECT_NEAR(static_cast<double>(held), 174.6e9 / 32, 1e8);
  const auto& program = step.first()->planned->program;
  EXPECT_GT(program.records.size(), 1900u);
  EXPECT_EQ(program.records.back().op, "all_reduce.gradients");
}

}  // namespace
}  // namespace hpcdl::train
