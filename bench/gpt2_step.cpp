// Our side of bench/peers/gpt2_step.py and bench/gpu/bars.py: GPT-2 124M, one training step (forward, backward, clip,
// AdamW) for every line on stdin. Peak memory is that of the process on a CPU, and what it has allocated on a GPU.
//   gpt2_step BATCH CONTEXT f32|tf32|bf16 [DEVICE]

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/taken_bytes.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/rng.h"
#include "hpcdl/train/train_step.h"
#include "tools/compare/environment.h"

int main(int argc, char** argv) {
  using namespace hpcdl;
  if (argc < 4) return std::fprintf(stderr, "usage: gpt2_step BATCH CONTEXT f32|tf32|bf16 [DEVICE]\n"), 2;
  const Device device = argc > 4 ? device_from_name(argv[4]) : Device::cpu();
  const std::int64_t before = device.is_cuda() ? bench::taken_bytes(device) : 0;
  const std::int64_t batch = std::atoi(argv[1]), length = std::atoi(argv[2]);
  io::ModelConfig config{.layers = 12, .heads = 12, .width = 768, .context = 1024, .vocab = 50304};
  Pool pool;
  auto model = models::LanguageModel::create(config, 1, true);
  train::StepOptions options;
  options.batch = batch, options.length = length;
  options.forward.compute = std::string_view(argv[3]) == "bf16" ? DType::bf16 : DType::f32;
  if (std::string_view(argv[3]) == "tf32") options.numerics.products = F32Products::tf32;
  train::TrainStep trainer(model, pool, options, device);

  lab::compare::HostEnvironment clock(pool);
  const Rng rng{7, 0};
  std::uint64_t drawn = 0;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch * length + 1));
  std::string line;
  std::int64_t peak = 0;
  for (std::int64_t step = 0;; ++step) {
    for (auto& t : tokens) t = static_cast<std::int32_t>(rng.below(drawn++, 50257));
    const double start = clock.now();
    trainer.accumulate({tokens.data(), tokens.size() - 1}, {tokens.data() + 1, tokens.size() - 1}, step, 0);
    const double loss = trainer.update(3e-4, batch * length).loss;
    const double ms = (clock.now() - start) * 1e3;
    if (step == 0 || !device.is_cuda())
      peak = bench::taken_bytes(device) -
             before;  // memory of a GPU is planned and allocated once, and the GPU may be shared with others
    if (step == 0) std::cout << "ready\n";
    else
      std::cout << nlohmann::json(
                       {{"ms", ms}, {"loss", loss / static_cast<double>(batch * length)}, {"peak_bytes", peak}})
                       .dump()
                << '\n';
    std::cout.flush();
    if (!std::getline(std::cin, line)) return 0;
  }
}
