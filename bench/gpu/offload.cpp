// Training steps of a Llama on a GPU, with state and activations in several places, in turns. A line of JSON per place:
// time, memory, and how both compare with those of the first.
//   offload LAYERS WIDTH BATCH LENGTH ROUNDS PLACE...
// With 0 rounds nothing is trained: the lines say what the plan of the memory is.
// A place is a list of words with commas between them: none, sgd, recompute, moved=SHARE (activations on the host),
// optimizer (on the host), k=N (its interleave), parameters (on the host, with the optimizer), resident=N (blocks of them
// that stay), micros=N (micro-batches of a step).

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/gpu/turns.h"
#include "bench/taken_bytes.h"
#include "hpcdl/core/clock.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/rng.h"
#include "hpcdl/train/memory_plan.h"
#include "hpcdl/train/train_step.h"

namespace {

using namespace hpcdl;

constexpr std::int64_t kVocab = 4096;

struct Place {
  std::string name;
  std::int64_t micros = 1;
  std::unique_ptr<models::LanguageModel> model = {};
  std::unique_ptr<train::TrainStep> step = {};
  std::int64_t taken = 0;  // bytes of the GPU
  std::vector<double> ms = {};
  train::StepResult last = {};
};

void set(Place& p, train::StepOptions& o, std::string_view word) {
  const auto at = word.find('=');
  const auto key = word.substr(0, at);
  const double value = at == word.npos ? 1 : std::atof(std::string(word.substr(at + 1)).c_str());
  if (key == "sgd") o.optimizer = Sgd::Args{};
  else if (key == "recompute") o.forward.recompute = true;
  else if (key == "moved") o.activations = {.on_host = true, .share = value};
  else if (key == "optimizer") o.optimizer_place = {.on_host = true, .interleave = {}};
  else if (key == "k") o.optimizer_place.interleave = static_cast<int>(value);
  else if (key == "parameters") o.parameters.on_host = true, o.optimizer_place = {.on_host = true, .interleave = {}};
  else if (key == "resident") o.parameters.resident = static_cast<int>(value);
  else if (key == "micros") p.micros = static_cast<std::int64_t>(value), o.accumulate = true;
  else if (key != "none")
    std::fprintf(stderr, "offload: no place is called %s\n", std::string(word).c_str()), std::exit(2);
}

train::StepOptions options_of(Place& p) {
  const std::string_view words = p.name;
  train::StepOptions o;
  o.forward.compute = DType::bf16;
  for (std::size_t begin = 0; begin <= words.size();) {
    const auto end = std::min(words.find(',', begin), words.size());
    set(p, o, words.substr(begin, end - begin));
    begin = end + 1;
  }
  return o;
}

void print_plan(const io::ModelConfig& config, Place& p, std::int64_t batch, std::int64_t length, Device device) {
  auto model = models::LanguageModel::create(config, {}, true);
  auto o = options_of(p);
  o.batch = batch, o.length = length;
  auto ledger = train::plan_memory(model, o, p.micros, device);
  train::add_estimates(ledger, {}, device);
  std::printf("%s\n", nlohmann::ordered_json({{"place", p.name},
                                              {"parameters", model.state().parameter_count()},
                                              {"total", ledger.total()},
                                              {"activations", ledger.activations},
                                              {"on_host", ledger.bytes_on(Tier::host)}})
                          .dump()
                          .c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 7) return std::fprintf(stderr, "usage: offload LAYERS WIDTH BATCH LENGTH ROUNDS PLACE...\n"), 2;
  const auto number = [&](int i) { return static_cast<std::int64_t>(std::atoll(argv[i])); };
  const auto batch = number(3), length = number(4);
  const Device device = Device::cuda(0);
  io::ModelConfig config;
  config.family = io::Family::llama;
  config.layers = number(1), config.width = number(2), config.heads = config.width / 128;
  config.context = length, config.vocab = kVocab;
  models::resolve(config);
  Pool pool;
  std::vector<Place> places;
  for (int i = 6; i < argc && number(5) == 0; ++i) {
    Place p{argv[i]};
    print_plan(config, p, batch, length, device);
  }
  if (number(5) == 0) return 0;
  for (int i = 6; i < argc; ++i) {
    const auto before = bench::taken_bytes(device);
    auto& p = places.emplace_back(Place{argv[i]});
    auto o = options_of(p);
    o.batch = batch, o.length = length;
    p.model = std::make_unique<models::LanguageModel>(models::LanguageModel::create(config, 1, true));
    p.step = std::make_unique<train::TrainStep>(*p.model, pool, o, device);
    p.taken = bench::taken_bytes(device) - before;
  }
  const Rng rng{7, 0};
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch * length + 1));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(rng.below(i, kVocab));
  constexpr std::int64_t kWarm = 2;
  for (std::int64_t step = 0; step < number(5) + kWarm; ++step)
    for (auto& p : places) {
      const auto start = Clock::now();
      for (std::int64_t micro = 0; micro < p.micros; ++micro)
        p.step->accumulate({tokens.data(), tokens.size() - 1}, {tokens.data() + 1, tokens.size() - 1}, step, micro,
                           micro + 1 == p.micros);
      p.last = p.step->update(1e-4, p.micros * batch * length);
      if (step >= kWarm) p.ms.push_back(seconds_since(start) * 1e3);
    }
  for (const auto& p : places) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < p.ms.size(); ++i) ratios.push_back(p.ms[i] / places[0].ms[i]);
    const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
    std::printf("%s\n", nlohmann::ordered_json({{"place", p.name},
                                                {"ms", bench::median(p.ms)},
                                                {"ratio", bench::median(ratios)},
                                                {"low", *low},
                                                {"high", *high},
                                                {"taken", p.taken},
                                                {"arena", p.step->arena_bytes()},
                                                {"host_bytes", p.step->host_bytes()},
                                                {"loss", p.last.loss},
                                                {"norm", p.last.grad_norm}})
                            .dump()
                            .c_str());
  }
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
