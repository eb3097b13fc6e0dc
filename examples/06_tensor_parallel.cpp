// Tensor parallelism from its parts: an MLP of your own whose two layers are shared by two ranks, and a whole model for
// which one call does the same. The ranks are threads of this program; with processes, under mpirun or torchrun,
// only the first lines of main change.

#include <fmt/format.h>

#include <cmath>
#include <thread>

#include "hpcdl/comm/transport/threads.h"
#include "hpcdl/comm/world.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/rng.h"
#include "hpcdl/train/train_step.h"

using namespace hpcdl;

constexpr std::int64_t kTokens = 8, kWidth = 32, kHidden = 64;

/// The value of an element of the whole weight, on any rank.
float weight(std::uint64_t stream, std::int64_t i) {
  return 0.1f * static_cast<float>(Rng{1, stream}.normal(static_cast<std::uint64_t>(i)));
}

/// y = gelu(x W1^T) W2^T. Each rank holds some rows of W1, which compute some hidden neurons, and the columns of W2
/// that read them. Between enter() and leave() ranks do not communicate.
float mlp_by_hand(const comm::Group& tp) {
  const std::int64_t mine = kHidden / tp.size(), first = mine * tp.rank();
  OwnedTensor w1({{mine, kWidth}, DType::f32}), w2({{kWidth, mine}, DType::f32}), x({{kTokens, kWidth}, DType::f32});
  for (std::int64_t i = 0; i < w1.tensor.size(); ++i) w1.tensor.ptr<float>()[i] = weight(1, first * kWidth + i);
  for (std::int64_t r = 0; r < kWidth; ++r)
    for (std::int64_t c = 0; c < mine; ++c) w2.tensor.ptr<float>()[r * mine + c] = weight(2, r * kHidden + first + c);
  for (std::int64_t i = 0; i < x.tensor.size(); ++i) x.tensor.ptr<float>()[i] = weight(3, i);

  Pool pool(1);
  Stream stream(pool);
  Graph g({.inference = true});
  const parallel::GroupAxis ranks(tp);
  const Var in = enter(g.constant("x", x.tensor), ranks.axis());  // its gradient would be summed over the ranks
  const Var hidden = linear(in, g.constant("w1", w1.tensor), {}, {.activation = Activation::gelu_tanh});
  const Var y = g.keep(leave(linear(hidden, g.constant("w2", w2.tensor)), ranks.axis()));
  const Instance exe(g.finish());
  exe.run(stream);
  float sum = 0;
  for (std::int64_t i = 0; i < exe.tensor(y).size(); ++i) sum += std::fabs(exe.tensor(y).ptr<float>()[i]);
  return sum;
}

/// Ten steps of a GPT-2 on a mesh of data x tensor. The model's code does not depend on it.
double train_on(const comm::Group& world, const parallel::MeshShape& shape) {
  const parallel::Mesh mesh(world, shape);
  io::ModelConfig config;
  config.layers = 2, config.heads = 4, config.width = 64, config.context = 16, config.vocab = 50;
  const auto sharing = std::make_shared<parallel::TensorParallel>(mesh.tp(), parallel::TensorParallel::conjugate);
  auto model = models::LanguageModel::create(config, /*seed=*/1, /*gradients=*/true, sharing);

  constexpr std::int64_t kBatch = 4;  // of all ranks
  Pool pool(1);
  train::TrainStep step(model, pool, {.batch = kBatch / shape.dp, .length = config.context, .data = mesh.dp()});
  std::vector<std::int32_t> ids(static_cast<std::size_t>(kBatch / shape.dp * config.context));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((i + ids.size() * static_cast<std::size_t>(mesh.dp().rank())) * 7 % 50);
  double loss = 0;
  for (int i = 0; i < 10; ++i) {
    step.accumulate(ids, ids, i, 0);
    loss = step.update(1e-3, std::ssize(ids)).loss / static_cast<double>(kBatch * config.context);
  }
  if (world.rank() == 0)
    fmt::print(
        "{:<12} {} of {} parameters on this rank, loss {:.5f}, collectives over {} bytes along tp\n",
        mesh.describe() + ":",
        [&] {
          std::int64_t n = 0;
          for (const auto& p : model.parameters()) n += p.memory.size();
          return n;
        }(),
        model.parameter_count(), loss, mesh.tp().counters().bytes);
  return loss;
}

/// Runs f on n ranks; returns the result of rank 0.
template <class F> auto on_ranks(int n, F f) {
  auto transports = comm::thread_transports(n);
  decltype(f(comm::Group())) first{};
  std::vector<std::jthread> threads;
  for (auto& t : transports)
    threads.emplace_back([&] {
      auto world = comm::make_world(std::move(t));
      const auto result = f(world);
      if (world.rank() == 0) first = result;
      world.close();
    });
  threads.clear();
  return first;
}

int main() {
  const float one = on_ranks(1, mlp_by_hand), two = on_ranks(2, mlp_by_hand);
  fmt::print("an MLP: {:.5f} on one rank, {:.5f} on two\n", one, two);
  const double want = on_ranks(1, [](const comm::Group& w) { return train_on(w, {}); });
  bool same = std::fabs(one - two) < 1e-5f * one;
  for (const auto& shape :
       {parallel::MeshShape{.tp = 2}, parallel::MeshShape{.dp = 2, .tp = 2}, parallel::MeshShape{.tp = 4}}) {
    const double loss = on_ranks(shape.size(), [&](const comm::Group& w) { return train_on(w, shape); });
    same = same && std::fabs(loss - want) < 1e-5 * want;
  }
  fmt::print("{}\n", same ? "all agree" : "they differ");
  return same ? 0 : 1;
}
