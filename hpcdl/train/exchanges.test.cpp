// The bytes that the programs of a step declare equal those that the communicator counts.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "hpcdl/graph/text.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/parallel/exchange_order.h"
#include "hpcdl/parallel/expert.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/program/axis.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/step_programs.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::train {
namespace {

using parallel::TensorParallel;

struct Sent {
  std::int64_t bytes = 0;  // of the tensors that this rank contributes
  double wire = 0;         // mean over the ranks
};

/// What a group counts for an exchange: the tensors of each of its calls, of which a rotation has two.
std::int64_t counted_bytes(const Exchange& e) {
  switch (e.kind) {
    case ExchangeKind::all_reduce: return e.bytes;
    case ExchangeKind::rotate: return 2 * e.bytes;
    default: return e.bytes / e.ranks;
  }
}

/// Forward, backward and the reduction of gradients of two micro-batches, then the update: what the records declare,
/// against what the groups of the mesh have counted meanwhile.
void expect_declared(models::Trainable& model, const parallel::Mesh& mesh, StepOptions options, bool of_rings,
                     const std::string& what) {
  take_ranks(options, mesh);
  options.reduce.buckets = {.cap = 4096, .first = 1024};
  if (of_rings) options.reduce.algorithm = comm::Algorithm::ring;
  Pool pool(1);
  StepParams params;
  Stream s(pool, &params);
  const StepPrograms programs(model, options, s);
  std::vector<StepPrograms::PassPtr> passes{programs.first()};
  if (programs.apart()) passes.push_back(programs.last());
  else if (programs.has_more()) passes.push_back(programs.more());
  passes.push_back(programs.update());
  std::vector<Instance> instances;
  for (const auto& p : passes) instances.emplace_back(*p);
  std::vector<std::pair<const comm::Group*, std::string>> axes = {
      {&mesh.data(), mesh.shape().cp > 1 ? "data" : "dp"}, {&mesh.cp(), "cp"}, {&mesh.tp(), "tp"}};
  if (mesh.shape().ep > 1) axes.insert(axes.end(), {{&mesh.experts(), "ep"}, {&mesh.same_experts(), "same experts"}});
  std::map<std::string, Sent> before;
  const auto counted = [](const comm::Group& g) {
    return Sent{g.counters().bytes, static_cast<double>(g.counters().wire_bytes)};
  };
  for (const auto& [group, name] : axes) before[name] = counted(*group);
  for (const auto& exe : instances) {
    for (std::size_t i = 0; i < exe.planned()->inputs.size(); ++i) {
      const Tensor t = exe.input(i);
      if (t.dtype() == DType::i32) std::fill_n(t.ptr<std::int32_t>(), t.size(), 1);
      else std::fill_n(t.ptr<float>(), t.size(), 0.5f);
    }
    exe.run(s);
  }
  std::map<std::string, Sent> after;
  for (const auto& [group, name] : axes) after[name] = counted(*group);
  double costs = 0, sent_on_all = 0;
  for (const auto& exe : instances) costs += exe.program().cost().wire;
  for (const auto& [group, name] : axes) {
    if (group->size() == 1) continue;
    const auto axis = fmt::format("{} of {}", name, group->size());
    Sent declared;
    for (const auto& exe : instances) {
      declared.wire += wire_bytes(exe.program(), axis);
      for (const auto& r : exe.program().records)
        for (const auto& e : exchanges(exe.program(), r))
          if (e.axis == axis) declared.bytes += counted_bytes(e);
    }
    const auto where = fmt::format("{}, {}, {}", what, mesh.describe(), axis);
    EXPECT_GT(declared.bytes, 0) << where;
    EXPECT_EQ(after[name].bytes - before[name].bytes, declared.bytes) << where;
    if (of_rings) {
      const double sent = parallel::sum_over_ranks(*group, after[name].wire - before[name].wire);
      EXPECT_DOUBLE_EQ(sent, declared.wire * group->size()) << where;
    }
    sent_on_all += declared.wire;
  }
  EXPECT_DOUBLE_EQ(costs, sent_on_all) << what << ", " << mesh.describe() << ": the costs of all records";
}

TEST(exchanges, of_ranks_that_share_rows_are_what_is_counted) {
  for (const auto family : {io::Family::gpt2, io::Family::qwen3})
    for (const auto mode :
         {nn::ContextShare::gather, nn::ContextShare::ulysses, nn::ContextShare::ring, nn::ContextShare::zigzag})
      for (const auto& shape : {parallel::MeshShape{.cp = 2}, {.dp = 2, .cp = 2}, {.cp = 2, .tp = 2}})
        testing::run_ranks(shape.size(), [&](const comm::Group& world) {
          const parallel::Mesh mesh(world, shape);
          io::ModelConfig c;
          c.family = family;
          c.layers = 2, c.heads = 8, c.kv_heads = family == io::Family::gpt2 ? 0 : 4, c.width = 32, c.context = 8;
          c.ffn = 24, c.vocab = 53;
          models::resolve(c);
          auto model = models::LanguageModel::create(c, 1, true, std::make_shared<TensorParallel>(mesh.tp()));
          expect_declared(model, mesh, {.batch = 2, .length = 8, .context_mode = mode}, false,
                          fmt::format("{} of rows", io::enum_name(family)));
        });
}

/// With all room and with less, which is sent whether it is used or not.
TEST(exchanges, of_ranks_that_divide_experts_are_what_is_counted) {
  for (const double capacity : {0.0, 0.5})
    for (const auto& shape : {parallel::MeshShape{.dp = 2, .ep = 2}, {.dp = 4, .ep = 2}, {.dp = 2, .tp = 2, .ep = 2}})
      testing::run_ranks(shape.size(), [&](const comm::Group& world) {
        const parallel::Mesh mesh(world, shape);
        auto c = models::tiny(io::Family::qwen3_moe);
        auto model = models::LanguageModel::create(c, 1, true, std::make_shared<TensorParallel>(mesh.tp()), {},
                                                   std::make_shared<parallel::ExpertParallel>(mesh.experts()));
        expect_declared(model, mesh, {.batch = 2, .length = 8, .capacity = capacity, .share_batch = true}, false,
                        fmt::format("experts, capacity {}", capacity));
      });
}

template <class F> void on_every_mesh(F&& f) {
  for (int n = 1; n <= 8; ++n)
    for (int tp = 1; tp <= n; ++tp)
      if (n % tp == 0)
        testing::run_ranks(n, [&](const comm::Group& world) { f(parallel::Mesh(world, {.dp = n / tp, .tp = tp})); });
}

TEST(exchanges, of_language_models_are_what_is_counted) {
  for (const auto family : models::text_families())
    for (const auto scheme : {TensorParallel::conjugate, TensorParallel::sequence, TensorParallel::naive})
      for (const bool variant : {false, true})
        on_every_mesh([&](const parallel::Mesh& mesh) {
          const int tp = mesh.shape().tp;
          io::ModelConfig c;
          c.family = family;
          c.layers = 2, c.heads = 2 * tp, c.kv_heads = family == io::Family::gpt2 ? 0 : tp;
          c.width = 8 * tp, c.context = 2 * tp, c.ffn = 12 * tp, c.vocab = 53, c.tied = !variant;
          models::resolve(c);
          const auto sharing =
              tp > 1 ? std::make_shared<TensorParallel>(mesh.tp(), scheme, comm::Algorithm::ring) : nullptr;
          auto model = models::LanguageModel::create(c, 1, true, sharing);
          const StepOptions o{.batch = 2,
                              .length = c.context,
                              .accumulate = variant,
                              .forward = {.recompute = variant, .fused_mlp = variant}};
          expect_declared(model, mesh, o, true,
                          fmt::format("{}, {}, {}", io::enum_name(family), nn::scheme_name(scheme), variant));
        });
}

TEST(exchanges, of_image_models_with_shared_batch_norms_are_what_is_counted) {
  for (const auto family : {models::ImageFamily::simple_cnn, models::ImageFamily::resnet18})
    for (int n = 1; n <= 8; ++n)
      testing::run_ranks(n, [&](const comm::Group& world) {
        models::ImageConfig c{.family = family, .classes = 10};
        c.width = 4;
        auto model = models::ImageModel::create(c, 1, true);
        const StepOptions o{.batch = 2, .forward = {.recompute = n % 2 == 0}, .share_batch = true};
        expect_declared(model, parallel::Mesh(world, {.dp = n}), o, false, fmt::format("image {}", n));
      });
}

/// The exchanges of the programs of every rank of every mesh of up to 8 ranks.
TEST(exchanges, of_all_ranks_of_a_mesh_have_one_order) {
  for (const auto family : {io::Family::gpt2, io::Family::llama})
    for (const auto scheme : {TensorParallel::conjugate, TensorParallel::sequence})
      for (int n = 1; n <= 8; ++n)
        for (int tp = 1; tp <= n; ++tp) {
          if (n % tp != 0) continue;
          const parallel::MeshShape shape{.dp = n / tp, .tp = tp};
          std::vector<StepPrograms::PassPtr> passes;
          std::vector<std::vector<parallel::NamedProgram>> by_rank(static_cast<std::size_t>(n));
          for (int rank = 0; rank < n; ++rank) {
            const auto mesh = parallel::Mesh::described(shape, rank);
            io::ModelConfig c;
            c.family = family;
            c.layers = 2, c.heads = 2 * tp, c.kv_heads = family == io::Family::gpt2 ? 0 : tp;
            c.width = 8 * tp, c.context = 2 * tp, c.ffn = 12 * tp, c.vocab = 53;
            models::resolve(c);
            auto model = models::LanguageModel::create(
                c, {}, true, tp > 1 ? std::make_shared<TensorParallel>(mesh.tp(), scheme) : nullptr);
            Pool pool(1);
            Stream s(pool);
            StepOptions o{.batch = 2, .length = c.context, .accumulate = n % 2 == 0, .data = mesh.dp()};
            o.reduce.buckets = {.cap = 4096, .first = 1024};
            const StepPrograms programs(model, o, s);
            std::vector<std::pair<std::string, StepPrograms::PassPtr>> list{{"first", programs.first()}};
            if (programs.apart()) list.emplace_back("last", programs.last());
            list.emplace_back("update", programs.update());
            for (const auto& [name, pass] : list) {
              passes.push_back(pass);
              by_rank[static_cast<std::size_t>(rank)].push_back({name, &pass->planned->program});
            }
          }
          EXPECT_EQ(parallel::exchange_conflict(shape, by_rank), "") << n << " ranks, tp " << tp;
        }
}

TEST(exchanges, are_compared_before_a_run_begins) {
  testing::run_ranks(4, [](const comm::Group& world) {
    const parallel::Mesh mesh(world, {.dp = 2, .tp = 2});
    auto model = models::LanguageModel::create(models::tiny(io::Family::llama), 1, true,
                                               std::make_shared<TensorParallel>(mesh.tp()));
    Pool pool(1);
    Stream s(pool);
    StepOptions o{.batch = 2, .length = 16, .accumulate = true, .data = mesh.dp()};
    StepPrograms(model, o, s).expect_same_exchanges();
    o.length = mesh.index(parallel::MeshAxis::dp) == 0 ? 16 : 8;
    EXPECT_THROW(StepPrograms(model, o, s).expect_same_exchanges(), parallel::Disagreement);
  });
}

/// For a mesh without processes.
TEST(exchanges, are_printed_with_the_records) {
  const auto mesh = parallel::Mesh::described({.dp = 2, .tp = 2}, 1);
  auto model = models::LanguageModel::create(models::tiny(io::Family::gpt2), {}, true,
                                             std::make_shared<TensorParallel>(mesh.tp()));
  Pool pool(1);
  Stream s(pool);
  const StepPrograms programs(model, {.batch = 2, .length = 16, .data = mesh.dp()}, s);
  const auto planned = programs.first()->planned;
  const auto text = program_text(planned->program, planned->plan);
  // Tokens of 2 x 16, 32 channels: 4 KiB. Two layers, the embedding, the last norm: 10 such exchanges over both
  // directions.
  EXPECT_NE(text.find("4.00 KiB over tp of 2"), std::string::npos) << text;
  EXPECT_NE(text.find("each rank sends 40.38 KiB over tp of 2"), std::string::npos) << text;
  EXPECT_NE(text.find("over dp of 2"), std::string::npos) << text;
}

}  // namespace
}  // namespace hpcdl::train
