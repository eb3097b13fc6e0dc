// A transformer on a small artificial language: a model, a trainer, generation.

#include <cstdint>
#include <cstdio>
#include <vector>

#include "hpcdl/generate.h"
#include "hpcdl/rng.h"
#include "hpcdl/train.h"

using namespace hpcdl;

int main() {
  constexpr std::int64_t kBatch = 8, kLength = 32, kVocab = 40;
  Pool pool;
  Model model = Model::create(
      {.family = "llama", .layers = 2, .heads = 4, .width = 64, .context = 64, .vocab = kVocab, .kv_heads = 2},
      /*seed=*/1);
  Trainer trainer(model, pool, {.batch = kBatch, .length = kLength});
  std::printf("%lld parameters\n", static_cast<long long>(model.parameter_count()));

  // The language: counting upwards in steps of 1, 2 or 3 modulo the vocabulary.
  std::vector<std::int32_t> tokens(kBatch * kLength), targets(kBatch * kLength);
  for (std::int64_t step = 0; step < 200; ++step) {
    for (std::int64_t b = 0; b < kBatch; ++b) {
      const auto draw = Rng{7, 1}.block(static_cast<std::uint64_t>(step * kBatch + b));
      const auto at = [&](std::int64_t i) {
        return static_cast<std::int32_t>((draw[0] % kVocab + (draw[1] % 3 + 1) * i) % kVocab);
      };
      for (std::int64_t t = 0; t < kLength; ++t) {
        tokens[static_cast<std::size_t>(b * kLength + t)] = at(t);
        targets[static_cast<std::size_t>(b * kLength + t)] = at(t + 1);
      }
    }
    const StepResult result = trainer.step(tokens, targets, /*learning_rate=*/3e-3);
    if (step % 40 == 0)
      std::printf("step %3lld  loss %.3f  gradient norm %.2f\n", static_cast<long long>(step), result.loss,
                  result.gradient_norm);
  }

  Generator generator(model, pool);
  std::printf("3 6 9 ->");
  for (const std::int32_t id : generator.generate(std::vector<std::int32_t>{3, 6, 9}, 8)) std::printf(" %d", id);
  std::printf("\n");
}
