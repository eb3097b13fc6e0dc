// A transformer on a small artificial language, from its parts: model, program, optimizer, generation.

#include <fmt/format.h>

#include <cstring>

#include "hpcdl/core/rng.h"
#include "hpcdl/graph/instance.h"
#include "hpcdl/infer/generator.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/ops/grad_norm/grad_norm.h"
#include "hpcdl/optim/optimizer.h"

using namespace hpcdl;

int main() {
  constexpr std::int64_t kBatch = 8, kLength = 32, kVocab = 40;
  io::ModelConfig config;
  config.family = io::Family::llama;
  config.layers = 2, config.heads = 4, config.kv_heads = 2, config.width = 64, config.context = 64,
  config.vocab = kVocab;
  auto model = models::LanguageModel::create(config, /*seed=*/1, /*gradients=*/true);

  Pool pool;
  StepParams params;
  Stream stream(pool, &params);

  Graph g;
  const Spec ids{{kBatch, kLength}, DType::i32};
  const Var tokens = g.input("tokens", ids), targets = g.input("targets", ids);
  const Var loss = g.keep(model.loss(g, tokens, targets));
  g.backward(loss);
  const Instance step(g.finish());
  fmt::print("{} parameters, {} records, arena of {} bytes\n", model.parameter_count(), step.program().records.size(),
             step.plan().arena_bytes);

  // The optimizer is a program, too: one record for the norm of all gradients, one for all parameters.
  Graph o({.inference = true});
  const Optimizer adamw(model.state(), AdamW::Args{.weight_decay = 0.1f});
  record_grad_norm(o, adamw.gradients(o), {.max_norm = 1});
  adamw.record(o);
  const Instance optimizer(o.finish());

  // The language: counting upwards in steps of 1, 2 or 3 modulo the vocabulary.
  for (params.step = 0; params.step < 200; ++params.step) {
    std::int32_t* x = step.tensor(tokens).ptr<std::int32_t>();
    std::int32_t* y = step.tensor(targets).ptr<std::int32_t>();
    for (std::int64_t b = 0; b < kBatch; ++b) {
      const auto draw = Rng{7, 1}.block(static_cast<std::uint64_t>(params.step * kBatch + b));
      for (std::int64_t t = 0; t < kLength; ++t) {
        const auto at = [&](std::int64_t i) {
          return static_cast<std::int32_t>((draw[0] % kVocab + (draw[1] % 3 + 1) * i) % kVocab);
        };
        x[b * kLength + t] = at(t);
        y[b * kLength + t] = at(t + 1);
      }
    }
    params.lr = 3e-3f;
    params.grad_scale = 1.0f / (kBatch * kLength);  // the loss is a sum; gradients become those of the mean
    step.run(stream);
    optimizer.run(stream);
    if (params.step % 40 == 0)
      fmt::print("step {:3}  loss {:.3f}  gradient norm {:.2f}\n", params.step,
                 *step.tensor(loss).ptr<float>() / (kBatch * kLength), params.grad_norm);
  }

  infer::Generator generator(model, pool, 64);
  fmt::print("3 6 9 ->");
  generator.generate(std::vector<std::int32_t>{3, 6, 9}, 8, {},
                     [](std::int32_t id) { return fmt::print(" {}", id), true; });
  fmt::print("\n");
}
