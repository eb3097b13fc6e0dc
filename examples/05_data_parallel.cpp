// The transformer of 03_train.cpp on four ranks that divide each batch. The ranks are threads here; under mpirun,
// torchrun or srun they are processes: main() then makes a comm::World and calls train_rank() with its group.

#include <cstdint>
#include <cstdio>
#include <vector>

#include "hpcdl/comm.h"
#include "hpcdl/rng.h"
#include "hpcdl/train.h"

using namespace hpcdl;

constexpr std::int64_t kBatch = 8, kLength = 32, kVocab = 40;  // of all ranks

/// Row b of the batch of a step: counting upwards in steps of 1, 2 or 3 modulo the vocabulary.
std::int32_t token(std::int64_t step, std::int64_t b, std::int64_t t) {
  const auto draw = Rng{7, 1}.block(static_cast<std::uint64_t>(step * kBatch + b));
  return static_cast<std::int32_t>((draw[0] % kVocab + (draw[1] % 3 + 1) * static_cast<std::uint64_t>(t)) % kVocab);
}

void train_rank(const comm::Group& world) {
  Pool pool(1);
  Model model = Model::create(
      {.family = "llama", .layers = 2, .heads = 4, .width = 64, .context = 64, .vocab = kVocab, .kv_heads = 2},
      /*seed=*/1);  // the same on every rank
  const std::int64_t rows = kBatch / world.size();
  Trainer trainer(model, pool, {.batch = rows, .length = kLength, .ranks = world});

  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows * kLength)), targets(tokens.size());
  for (std::int64_t step = 0; step < 100; ++step) {
    for (std::int64_t i = 0; i < rows * kLength; ++i) {
      const std::int64_t row = world.rank() * rows + i / kLength, t = i % kLength;
      tokens[static_cast<std::size_t>(i)] = token(step, row, t);
      targets[static_cast<std::size_t>(i)] = token(step, row, t + 1);
    }
    // Gradients are summed while backward still runs; the loss is the mean over all ranks.
    const StepResult result = trainer.step(tokens, targets, /*learning_rate=*/3e-3);
    if (world.rank() == 0 && step % 20 == 0)
      std::printf("step %3lld  loss %.3f  gradient norm %.2f\n", static_cast<long long>(step), result.loss,
                  result.gradient_norm);
  }
}

int main() { comm::run_ranks(4, train_rank); }
