// Our side of bench/peers/gpt2_step.py: GPT-2 124M, one training step (forward, backward, clip, AdamW) for every line on stdin.
//   gpt2_step BATCH CONTEXT f32|bf16

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/core/rng.h"
#include "hpcdl/lab/compare/environment.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/train/train_step.h"

int main(int argc, char** argv) {
  using namespace hpcdl;
  if (argc != 4) return std::fprintf(stderr, "usage: gpt2_step BATCH CONTEXT f32|bf16\n"), 2;
  const std::int64_t batch = std::atoi(argv[1]), length = std::atoi(argv[2]);
  io::ModelConfig config{.layers = 12, .heads = 12, .width = 768, .context = 1024, .vocab = 50304};
  config.resolve();
  Pool pool;
  auto model = models::LanguageModel::create(config, 1, true);
  train::StepOptions options;
  options.batch = batch, options.length = length;
  options.forward.compute = std::string_view(argv[3]) == "bf16" ? DType::bf16 : DType::f32;
  train::TrainStep trainer(model, pool, options);

  lab::compare::HostEnvironment clock(pool);
  const Rng rng{7, 0};
  std::uint64_t drawn = 0;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch * length + 1));
  std::string line;
  for (std::int64_t step = 0;; ++step) {
    for (auto& t : tokens) t = static_cast<std::int32_t>(rng.below(drawn++, 50257));
    const double start = clock.now();
    const double loss = trainer.accumulate({tokens.data(), tokens.size() - 1}, {tokens.data() + 1, tokens.size() - 1}, step, 0);
    trainer.update(3e-4, batch * length);
    const double ms = (clock.now() - start) * 1e3;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    if (step == 0) std::cout << "ready\n";
    else std::cout << nlohmann::json({{"ms", ms}, {"loss", loss / static_cast<double>(batch * length)}, {"peak_bytes", usage.ru_maxrss * 1024}}).dump() << '\n';
    std::cout.flush();
    if (!std::getline(std::cin, line)) return 0;
  }
}
