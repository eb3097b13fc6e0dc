// The transformer of 03_train.cpp on four ranks that divide each batch. The ranks are threads here; with mpirun they
// are processes, and the code of `train_rank` is the same.

#include <fmt/format.h>

#include <thread>

#include "hpcdl/comm/transport/threads.h"
#include "hpcdl/comm/world.h"
#include "hpcdl/core/rng.h"
#include "hpcdl/graph/instance.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/optim/optimizer.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/parallel/gradients.h"

using namespace hpcdl;

constexpr std::int64_t kBatch = 8, kLength = 32, kVocab = 40;  // of all ranks

/// Row b of the batch of a step: counting upwards in steps of 1, 2 or 3 modulo the vocabulary.
std::int32_t token(std::int64_t step, std::int64_t b, std::int64_t t) {
  const auto draw = Rng{7, 1}.block(static_cast<std::uint64_t>(step * kBatch + b));
  return static_cast<std::int32_t>((draw[0] % kVocab + (draw[1] % 3 + 1) * static_cast<std::uint64_t>(t)) % kVocab);
}

void train_rank(const comm::Group& world) {
  io::ModelConfig config;
  config.family = io::Family::llama;
  config.layers = 2, config.heads = 4, config.kv_heads = 2, config.width = 64, config.context = 64,
  config.vocab = kVocab;
  auto model = models::LanguageModel::create(config, /*seed=*/1, /*gradients=*/true);  // the same on every rank

  const std::int64_t rows = kBatch / world.size();
  const Spec ids{{rows, kLength}, DType::i32};
  const auto record_loss = [&](Graph& g) {
    const Var tokens = g.input("tokens", ids), targets = g.input("targets", ids);
    return std::tuple(tokens, targets, g.keep(model.loss(g, tokens, targets)));
  };

  // Records a pass and discards it, to learn in which order gradients become ready: they are laid out in that
  // order.
  std::vector<parallel::ReadyGradient> order;
  {
    Graph dry;
    const auto [tokens, targets, loss] = record_loss(dry);
    dry.backward(loss);
    for (const auto& p : model.parameters()) order.push_back({p.name, p.memory.spec()});
    order = parallel::in_order_of_completion(dry.program(), std::move(order));
  }
  parallel::Gradients gradients(world, order, {.buckets = {.cap = 64 << 10, .first = 16 << 10}});
  model.place_gradients([&](const StateEntry& p) { return gradients.gradient(p.name); });

  // Recorded again; the reductions are inserted among the records of backward.
  Graph g;
  const auto [tokens, targets, loss] = record_loss(g);
  g.backward(loss);
  const Instance step(gradients.reduced(g.finish()));

  Graph o({.inference = true});
  const Optimizer adamw(model.state(), AdamW::Args{.weight_decay = 0.1f});
  record_grad_norm(o, adamw.gradients(o), {.max_norm = 1});
  adamw.record(o);
  const Instance optimizer(o.finish());

  Pool pool(1);
  StepParams params;
  Stream stream(pool, &params);
  for (params.step = 0; params.step < 100; ++params.step) {
    auto* x = step.tensor(tokens).ptr<std::int32_t>();
    auto* y = step.tensor(targets).ptr<std::int32_t>();
    for (std::int64_t i = 0; i < rows * kLength; ++i) {
      const std::int64_t row = world.rank() * rows + i / kLength, t = i % kLength;
      x[i] = token(params.step, row, t), y[i] = token(params.step, row, t + 1);
    }
    params.lr = 3e-3f;
    params.grad_scale =
        1.0f / (kBatch * kLength);  // of all ranks: the sum of their gradients becomes the gradient of the mean
    step.run(stream);
    optimizer.run(stream);
    const double sum = parallel::sum_over_ranks(world, static_cast<double>(*step.tensor(loss).ptr<float>()));
    if (world.rank() == 0 && params.step % 20 == 0)
      fmt::print("step {:3}  loss {:.3f}  gradient norm {:.2f}\n", params.step, sum / (kBatch * kLength),
                 params.grad_norm);
  }
  if (world.rank() == 0)
    fmt::print("{} ranks, {} buckets of gradients\n", world.size(), gradients.plan().buckets.size());
}

int main() {
  std::vector<std::thread> ranks;
  auto transports = comm::thread_transports(4);
  for (auto& transport : transports)
    ranks.emplace_back([&transport] { train_rank(comm::make_world(std::move(transport))); });
  for (auto& r : ranks) r.join();
}
